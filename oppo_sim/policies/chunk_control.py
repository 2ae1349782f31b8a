"""The online controllers of the chunk size (docs/model.md §4): pure state machines that see step reports and
nothing else.

``explore`` is the paper's: each candidate runs a step or a few, and the quickest is kept. ``race`` gives
candidates turns until the steps tell them apart.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oppo_sim.policies.interface import StepPace
from oppo_sim.policies.settings import ChunkSize

TIE = 1e-9  # relative difference below which two times per token are a tie


class ChunkController(Protocol):
    """Holds the chunk size, and observes each step."""

    @property
    def control(self) -> "ChunkControl": ...

    @property
    def value(self) -> int:
        """Chunk size of the coming step, tokens."""
        ...

    def observe(self, report: StepPace) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class ChunkControl(BaseModel):
    """Chunk size by trying candidates now and then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: tuple[int, ...] = Field(
        (128, 256, 512), min_length=1, description="tokens, tried in this order"
    )

    @abstractmethod
    def controller(self) -> ChunkController:
        """A fresh one."""

    @model_validator(mode="after")
    def _different(self) -> "ChunkControl":
        if any(not 1 <= size <= 1_000_000 for size in self.candidates) or len(set(self.candidates)) != len(
            self.candidates
        ):
            raise ValueError("chunk_size candidates must be different numbers of tokens from 1 to 1,000,000")
        return self

    def _leaves_room(self, explore_every: int, steps: int) -> None:
        if explore_every < len(self.candidates) * steps:
            raise ValueError(
                f"explore_every {explore_every} leaves no room for {len(self.candidates)} candidates of"
                f" {steps} step(s)"
            )


class ExploreControl(ChunkControl):
    """The paper's: each candidate runs a fixed number of steps, and the quickest is kept."""

    control: Literal["explore"] = "explore"
    explore_every: int = Field(50, ge=1, description="steps from one exploration to the next")
    explore_steps: int = Field(1, ge=1, description="steps each candidate runs")

    @model_validator(mode="after")
    def _sane(self) -> "ExploreControl":
        self._leaves_room(self.explore_every, self.explore_steps)
        return self

    def controller(self) -> "ExploreController":
        return ExploreController(self)


class RaceControl(ChunkControl):
    """Candidates take turns, a step each; one that is significantly slower than the quickest is out."""

    control: Literal["race"] = "race"
    explore_every: int = Field(200, ge=1, description="steps from the start of one race to the next")
    min_steps: int = Field(3, ge=2, description="steps that each candidate runs before any is left out")
    max_steps: int = Field(20, ge=2, description="steps that a candidate runs in a race at most")
    level: float = Field(
        0.05, gt=0.0, le=0.5, description="one-sided level at which a candidate is left out, at each look"
    )

    @model_validator(mode="after")
    def _sane(self) -> "RaceControl":
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps {self.max_steps} is below min_steps {self.min_steps}: raise it")
        self._leaves_room(self.explore_every, self.max_steps)
        return self

    def controller(self) -> "RaceController":
        return RaceController(self)


Controlled = Annotated[RaceControl | ExploreControl, Field(discriminator="control")]
ChunkSetting = ChunkSize | Controlled
CHUNK_HELP: Final = "tokens of a streamed piece, or {control: race, …}, or {control: explore, …}"


def rounds_text(control: Mapping[str, Any]) -> str:
    """A control as plain values, in words: ``128/256, raced every 200 steps``."""
    candidates = "/".join(map(str, control["candidates"]))
    if control["control"] == "race":
        return f"{candidates}, raced every {control['explore_every']}"
    return f"{candidates}, {control['explore_steps']} step(s) each every {control['explore_every']}"


class ExploreController:
    """Explores at steps 0, explore_every, 2·explore_every, …"""

    def __init__(self, control: ExploreControl) -> None:
        self.control = control
        self._phase = 0  # steps since the exploration began
        self._seconds = [0.0] * len(control.candidates)
        self._tokens = [0] * len(control.candidates)
        self._kept = control.candidates[0]

    @property
    def value(self) -> int:
        candidate = self._phase // self.control.explore_steps
        return self.control.candidates[candidate] if candidate < len(self.control.candidates) else self._kept

    def observe(self, report: StepPace) -> None:
        """Account the step to the candidate that ran; keep the best when all have run."""
        candidates, steps = self.control.candidates, self.control.explore_steps
        candidate = self._phase // steps
        if candidate < len(candidates):
            if self._phase == 0:
                self._seconds = [0.0] * len(candidates)
                self._tokens = [0] * len(candidates)
            self._seconds[candidate] += report.step_s
            self._tokens[candidate] += report.tokens_trained
        self._phase += 1
        if self._phase == len(candidates) * steps:
            paces = [
                seconds / max(tokens, 1) for seconds, tokens in zip(self._seconds, self._tokens, strict=True)
            ]
            self._kept = _quickest(candidates, paces)
        if self._phase == self.control.explore_every:
            self._phase = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "seconds": list(self._seconds),
            "tokens": list(self._tokens),
            "kept": self._kept,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._phase = int(state["phase"])
        self._seconds = list(state["seconds"])
        self._tokens = list(state["tokens"])
        self._kept = int(state["kept"])


class RaceController:
    """Races at steps 0, explore_every, 2·explore_every, …; between a race and the next its winner runs."""

    def __init__(self, control: RaceControl) -> None:
        self.control = control
        self._begin()

    def _begin(self) -> None:
        self._phase = 0  # steps since the race began
        self._steps: dict[int, list[tuple[float, int]]] = {size: [] for size in self.control.candidates}
        """Seconds and trained tokens of the steps of each candidate that is in the race."""
        self._turns = list(self.control.candidates)
        """Who has still to run in this round; empty: the race is over."""

    @property
    def value(self) -> int:
        return self._turns[0] if self._turns else next(iter(self._steps))

    def observe(self, report: StepPace) -> None:
        """Account the step to the candidate that ran; at the end of a round, see who is out."""
        self._phase += 1
        if self._turns:
            self._steps[self._turns.pop(0)].append((report.step_s, max(report.tokens_trained, 1)))
            if not self._turns:
                self._end_round()
        if self._phase == self.control.explore_every:
            self._begin()

    def _end_round(self) -> None:
        rounds = len(next(iter(self._steps.values())))
        if rounds >= self.control.min_steps:
            self._steps = {size: self._steps[size] for size in self._remaining()}
        if len(self._steps) > 1 and rounds < self.control.max_steps:
            # Another begins each round: what alternates from step to step falls on all alike.
            left = list(self._steps)
            first = rounds % len(left)
            self._turns = left[first:] + left[:first]
            return
        winner = _quickest(list(self._steps), [_pace(steps) for steps in self._steps.values()])
        self._steps = {winner: self._steps[winner]}

    def _remaining(self) -> Iterator[int]:
        from scipy.special import stdtrit  # takes long to import

        paces = {size: _pace(steps) for size, steps in self._steps.items()}
        leader = _quickest(list(paces), list(paces.values()))
        least, least_variance = paces[leader], _variance(self._steps[leader])
        others = len(self._steps[leader]) - 1
        for size, pace in paces.items():
            variance = _variance(self._steps[size])
            both = variance + least_variance
            if size != leader and pace > least * (1.0 + TIE):
                # Welch: two means of as many steps each, whose variances differ.
                freedom = others * both**2 / (variance**2 + least_variance**2) if both else 1.0
                if pace - least > float(stdtrit(freedom, 1.0 - self.control.level)) * both**0.5:
                    continue
            yield size

    def state_dict(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "turns": list(self._turns),
            "steps": [[size, [list(step) for step in steps]] for size, steps in self._steps.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._phase = int(state["phase"])
        self._turns = [int(size) for size in state["turns"]]
        self._steps = {
            int(size): [(float(seconds), int(tokens)) for seconds, tokens in steps]
            for size, steps in state["steps"]
        }


def _quickest(candidates: Sequence[int], paces: Sequence[float]) -> int:
    """The candidate with the least seconds a token; ties to the larger."""
    least = min(paces)
    return max(size for size, pace in zip(candidates, paces, strict=True) if pace <= least * (1.0 + TIE))


def _pace(steps: Sequence[tuple[float, int]]) -> float:
    """Seconds a trained token: the ratio of the sums."""
    return sum([seconds for seconds, _ in steps]) / sum([tokens for _, tokens in steps])


def _variance(steps: Sequence[tuple[float, int]]) -> float:
    """Of the pace of two steps or more: that of a ratio of means, to first order."""
    pace, count = _pace(steps), len(steps)
    squares = sum([(seconds - pace * tokens) ** 2 for seconds, tokens in steps])
    return squares * count / ((count - 1) * sum([tokens for _, tokens in steps]) ** 2)
