"""Which policy runs when, and the real runs one after the other; each that is finished is kept at once, so
that an interrupted validation goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from oppo_real.calibrate.cache import without_volatile
from oppo_real.config import RealConfig
from oppo_real.placement.cores import set_threads
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import execute
from oppo_real.validate.views import StepView, views_of
from oppo_sim import columns as c
from oppo_sim.costs.training_config import SYNC_BYTES_PER_S, OnlineRefit
from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError, check_once
from oppo_sim.results.sinks import FrameSink
from oppo_sim.runs.differing import differing
from oppo_sim.runs.journal import Entry, Journal
from oppo_sim.scenario.policy_label import LabelledPolicy
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    from oppo_real.placement.processes import KeptEngines

_PROBE_S: Final = 0.25
Progress = Callable[[str, int, int], None]
"""What runs now, steps done in all, steps in all."""


@dataclass(frozen=True)
class Turn:
    """One real run."""

    policy: str
    """Label of a variant."""
    repeat: int


def plan_turns(policies: Sequence[str], repeats: int, seed: int) -> tuple[Turn, ...]:
    """Round after round over all policies, in hashed orders, so that a machine that slows down does so for no
    particular policy.

    Raises OppoError for fewer than two policies, a policy named twice, or no repeat.
    """
    if len(policies) < 2:
        raise OppoError("validation compares policies: name two or more, such as --policies sequential,oppo")
    check_once("policies", policies)
    if repeats < 1:
        raise OppoError(f"repeats {repeats} is out of range: give 1 or more")
    turns = []
    for repeat in range(repeats):
        key = stream_key(seed, f"validate/order/{repeat}")
        order = sorted(range(len(policies)), key=lambda index: draw_uniform(key, index))
        turns += [Turn(policies[index], repeat) for index in order]
    return tuple(turns)


@dataclass(frozen=True)
class Machine:
    """On which real runs are made."""

    hardware: str
    """As ``subject.hardware`` says it, all of it."""
    bound: str
    """As it says it of the cores that a replica is bound to."""
    software: Mapping[str, str]


@dataclass(frozen=True)
class MeasuredRun:
    """A finished real run."""

    turn: Turn
    views: tuple[StepView, ...]
    resolved: Mapping[str, Any]
    """Configurations of the engines as they really ran."""
    load: float | None
    """Processes that wanted a core when it began (mean of the minute before), None where the system does not
    say."""
    core_share: float | None
    """Share of a core that a busy process got just before, the least of the run's cores: 1 on a quiet
    machine. None as above."""
    wall_s: float
    """With the start of engines where they were started for it, seconds."""
    rewards: tuple[float, ...]
    """Mean of each trained batch."""
    lengths: Mapping[int, tuple[int, int]]
    """Mode train: prompt and response tokens by rollout id; under replay empty, since the trace gives
    them."""

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        plain = asdict(self)
        return {
            **plain.pop("turn"),
            **plain,
            "resolved": without_volatile(plain["resolved"]),
            "lengths": [[rollout_id, *tokens] for rollout_id, tokens in self.lengths.items()],
        }


_PLAIN = TypeAdapter(MeasuredRun)


def run_from_plain(plain: Mapping[str, Any]) -> MeasuredRun:
    """A run as ``to_plain`` wrote it. Raises KeyError, TypeError or ValueError for anything else."""
    turn = {name: plain[name] for name in ("policy", "repeat")}
    lengths = {rollout_id: tokens for rollout_id, *tokens in plain["lengths"]}
    return _PLAIN.validate_python({**plain, "turn": turn, "lengths": lengths})


class RealRuns(Journal):
    """Finished real runs by turn: of this attempt, and of earlier ones that the file holds. A context
    manager."""

    def __init__(
        self,
        path: Path,
        inputs: str,
        machine: Machine | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        """As ``Journal``; ``inputs`` stands for all that the runs depend on, and runs that others gave are
        not taken. ``machine``: kept with each run, for ``machine_of_runs``; ``content``: what ``inputs``
        stands for, so that what differs can be said."""
        self._inputs = inputs
        self._content = content
        self._beside = {} if machine is None else {"machine": asdict(machine)}
        if content is not None:
            self._beside["of"] = dict(content)
        self._done: dict[Turn, MeasuredRun] = {}
        self._others = 0
        self._last_other: Mapping[str, Any] | None = None
        super().__init__(path, "validation", self._take)

    def _take(self, entry: Entry) -> None:
        if entry["inputs"] == self._inputs:
            run = run_from_plain(entry["run"])
            self._done[run.turn] = run
        else:
            self._others += 1
            self._last_other = entry.get("of")

    def others(self) -> str | None:
        """That the file keeps runs which are not taken, and in what their last differs; None: none."""
        if not self._others:
            return None
        known = self._last_other is not None and self._content is not None
        said = differing(self._last_other or {}, self._content or {}) if known else ""
        runs = "1 run" if self._others == 1 else f"{self._others} runs"
        return f"{self.path} keeps {runs} of other inputs, not taken here{': ' if said else ''}{said}"

    def known(self, turn: Turn) -> MeasuredRun | None:
        """A run that an earlier attempt finished."""
        return self._done.get(turn)

    def add(self, run: MeasuredRun) -> None:
        """Keep a finished run. Raises OppoError when the disk refuses."""
        self._done[run.turn] = run
        self.append([{"inputs": self._inputs, **self._beside, "run": run.to_plain()}])


def machine_of_runs(path: Path) -> Machine | None:
    """On which the last of the runs that the file keeps was made; None where it keeps none that says so.
    Raises OppoError as ``Journal`` does."""
    found: list[Machine] = []

    def take(entry: Entry) -> None:
        if "machine" in entry:
            found.append(Machine(**entry["machine"]))

    with Journal(path, "validation", take):
        return found[-1] if found else None


def forget_runs(path: Path, inputs: str, turns: Collection[Turn]) -> int:
    """Take the runs of ``turns`` from the file, and the file away where it holds no others: how many it still
    holds. Raises OppoError as ``Journal`` does."""
    left: list[Entry] = []

    def take(entry: Entry) -> None:
        run = entry["run"]
        if entry["inputs"] != inputs or Turn(run["policy"], run["repeat"]) not in turns:
            left.append(entry)

    with Journal(path, "validation", take) as journal:
        if left:
            journal.keep_only(left)
        else:
            journal.remove()
    return len(left)


_DEFAULT_REFIT_THEN: Final = {"fixed_s": 1.0, "convert_bytes_per_s": 1.06e9}
"""Seconds of a weight sync in the simulator, which a real run does not read; runs are kept from before their
default changed."""


def inputs_digest(
    scenario: Scenario, trace_sha256: str, steps: int, hardware: str, versions: Mapping[str, str]
) -> str:
    """SHA-256 (hex) over all that real runs of a scenario depend on."""
    content = [_decisive(scenario, with_defaults_then=True), trace_sha256, steps, hardware, dict(versions)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def inputs_content(
    scenario: Scenario, trace_sha256: str, steps: int, hardware: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The same as JSON, by name."""
    return {
        **_decisive(scenario),
        "trace_sha256": trace_sha256,
        "steps": steps,
        "hardware": hardware,
        "version": dict(versions),
    }


def _decisive(scenario: Scenario, with_defaults_then: bool = False) -> dict[str, Any]:
    """What runs depend on: costs and the choice of policy, which they do not, left out.
    ``with_defaults_then``: with defaults that were others when runs were kept."""
    plain = scenario.to_plain()
    for name in ("costs", "name", "description"):
        del plain[name]
    # Nothing of a real run, and runs are kept from before them.
    del plain["dynamic_sampling"]["gen_batch_size"]
    del plain["scoring"]["prefix_cache_tokens"], plain["scoring"]["max_num_batched_tokens"]
    for name in (
        "lora_rank",
        "lora_merge",
        "pipeline_parallel",
        "virtual_pipeline_parallel",
        "expert_parallel",
        "expert_tensor_parallel",
    ):
        del plain["training"][name]
    if not with_defaults_then:
        return plain
    if scenario.training.weight_sync == OnlineRefit():
        plain["training"]["weight_sync"] |= _DEFAULT_REFIT_THEN
    elif plain["training"]["weight_sync"].get("load_bytes_per_s", 0.0) is None:
        plain["training"]["weight_sync"]["load_bytes_per_s"] = SYNC_BYTES_PER_S  # the default then
    return plain


def measure_runs(
    scenario: Scenario,
    variants: Mapping[str, LabelledPolicy],
    turns: Sequence[Turn],
    steps: int,
    finished: RealRuns,
    progress: Progress,
) -> list[MeasuredRun]:
    """Run every turn that is not finished, all in the same processes; ``variants`` by label. Raises OppoError
    for engines that fail; what is finished is kept."""
    from oppo_real.placement.processes import KeptEngines

    runs = []
    total = len(turns) * steps
    with KeptEngines() as kept:
        for index, turn in enumerate(turns):
            run = finished.known(turn)
            label = f"steps of {turn.policy}, repeat {turn.repeat + 1}"
            if run is None:
                progress(label, index * steps, total)
                run = _measure(
                    scenario,
                    variants[turn.policy],
                    turn,
                    steps,
                    lambda done, at=index * steps, label=label: progress(label, at + done, total),  # type: ignore[misc]
                    kept,
                )
                finished.add(run)
            runs.append(run)
            progress(label, (index + 1) * steps, total)
    return runs


def _measure(
    scenario: Scenario,
    variant: LabelledPolicy,
    turn: Turn,
    steps: int,
    progress: Callable[[int], None],
    kept: "KeptEngines",
) -> MeasuredRun:
    setup = build_real_setup(scenario, policy=variant.policy, steps=steps, settings=variant.settings)
    frames = FrameSink()
    load, share = load_now(), core_share(cores_of(setup.config))
    begun = perf_counter()
    with own_cores_kept():
        done = execute(setup, frames, progress=lambda count, _: progress(count), kept=kept)
    wall = perf_counter() - begun
    table, rollouts = frames.steps(), frames.rollouts()
    lengths = {}
    if setup.config.mode == "train":
        columns = [rollouts[name].tolist() for name in (c.ROLLOUT_ID, c.PROMPT_LENGTH, c.RESPONSE_LENGTH)]
        lengths = {
            int(rollout_id): (int(prompt), int(response))
            for rollout_id, prompt, response in zip(*columns, strict=True)
        }
    means = table[c.REWARD_MEAN].fillna(0.0).tolist()
    return MeasuredRun(
        turn,
        views_of(table, rollouts),
        done.resolved,
        load,
        share,
        wall,
        tuple(float(mean) for mean in means),
        lengths,
    )


@contextmanager
def own_cores_kept(cores: Sequence[int] | None = None) -> Iterator[None]:
    """Bind this process to ``cores`` (None: leave it); afterwards cores and torch threads are what they
    were. Raises OppoError for cores that this process may not have."""
    import torch

    threads = torch.get_num_threads()
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        if cores is not None and before is not None:
            try:
                os.sched_setaffinity(0, cores)
            except OSError:
                raise OppoError(
                    f"real.placement: a process cannot be bound to cores {list(cores)}; there are"
                    f" {sorted(before)}"
                ) from None
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
        set_threads(threads)


def cores_of(config: RealConfig) -> tuple[int, ...]:
    """Cores that the run's processes are bound to, in order; empty where they are not bound."""
    cores = config.placement.cores
    lists = [cores.driver or (), *(cores.rollout or ()), *(cores.scoring or ())]
    return tuple(sorted({core for one in lists for core in one}))


def core_share(cores: Sequence[int]) -> float | None:
    """Spin on each of ``cores`` in turn (none: wherever the system likes), and say what share of the time it
    was let.

    None where processes cannot be bound. Raises OppoError for cores that do not exist.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    shares = []
    for core in cores or (None,):
        with own_cores_kept(None if core is None else (core,)):
            begun, used = perf_counter(), thread_time()
            while perf_counter() - begun < _PROBE_S:
                pass
            shares.append((thread_time() - used) / (perf_counter() - begun))
    return min(1.0, *shares)


def load_now() -> float | None:
    """Mean number of processes that wanted a core in the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
