"""What a reader of a log yields, and what it needs: options, token counter, what it left out."""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oppo_sim.columns import FINISH_REASON
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.traces.importers.places import Place, known_reason
from oppo_sim.traces.importers.tokens import ASSUMED, Counter, usual_estimate
from oppo_sim.traces.masks import Turns


class Rollout(NamedTuple):
    """Lengths in tokens; ``None`` is unknown."""

    line: int
    """Line or row of the file, from 1."""
    response_length: int
    prompt_length: int | None = None
    step: int | None = None
    prompt_id: str | None = None
    sample_id: str | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``."""
    reward: float | None = None
    source: str | None = None
    """Part of the log, such as the model that answered; put behind the name of the whole."""
    head_version: int | None = None
    tail_version: int | None = None
    arrival_s: float | None = None
    turn_response_lengths: list[int] | None = None
    """Likewise the next two: of rollouts that wait for tools, as a trace has them (docs/traces.md)."""
    tool_seconds: list[float] | None = None
    tool_tokens: list[int] | None = None
    reason_inferred: bool = False
    """The finish reason was concluded, or cannot be: an estimate does not tell a cut response."""


TOOL_SECONDS_USED: Final = "--tool-seconds"
"""Among the used fields: rollouts had waits whose seconds the log does not have."""


@dataclass
class Reading:
    """Shared by the readers of all files of one import."""

    options: ImportOptions
    counter: Counter = field(default_factory=usual_estimate)
    left_out: "Tally[str]" = field(default_factory=Tally)
    """Rows left out, by reason."""
    notes: "Tally[str]" = field(default_factory=Tally)
    """What a user should know of the rows kept, and how many it concerns."""
    valueless: "Tally[str]" = field(default_factory=Tally)
    """Metrics that a line names without a number (``nan``, ``null``), and how often."""
    logged_steps: set[int] = field(default_factory=set)
    """Of all lines of figures."""
    counted_lines: bool = False
    """They name no steps."""
    used_fields: set[str] = field(default_factory=set)
    by_text: int = 0
    """Responses whose tokens were counted from text."""

    def pick(self, record: Mapping[str, Any], place: Place, target: str, *names: str) -> Any:
        """The value for ``target``: the field the user named, else the first of ``names``, else None."""
        given = self.options.fields.get(target)
        if given is not None:
            self.used_fields.add(target)
            return place.dig(record, given)
        return next((record[name] for name in names if name in record), None)

    def name(self, record: Mapping[str, Any], place: Place, target: str, *names: str) -> str | None:
        """As ``pick``, as text."""
        value = self.pick(record, place, target, *names)
        return None if value is None else str(value)

    def whole(self, record: Mapping[str, Any], place: Place, target: str, *names: str) -> int | None:
        """As ``pick``, a whole number. Raises OppoError."""
        value = self.pick(record, place, target, *names)
        return None if value is None else place.whole(value, names[0] if names else target)

    def tokens(self, record: Mapping[str, Any], place: Place, target: str, *names: str) -> int | None:
        """As ``pick``, a number of tokens or a list of token ids. Raises OppoError."""
        value = self.pick(record, place, target, *names)
        return None if value is None else place.tokens(value, names[0] if names else target)

    def response_from(self, text: str) -> tuple[int, str | None]:
        """Tokens of a response's text and, where ``max_response_length`` is known, its finish reason.

        A finished response has an end token that its text leaves out; a cut one has not. An estimate tells no
        reason.
        """
        counter = self.counter
        self.by_text += 1
        if counter.assumed:
            self.notes[ASSUMED] = 1
        count, most = counter.count(text), self.options.max_response_length
        if most is None:
            return count + counter.end_tokens, None
        if counter.estimate:
            self.notes["finish reasons are left empty: an estimate cannot tell which responses were cut"] = 1
            return min(count, most), None
        return (most, "length") if count >= most else (count + counter.end_tokens, "stop")

    def prompt_from(self, text: str) -> int | None:
        """Tokens of a prompt's text; None where responses are not counted from text, and nobody asked for
        it."""
        if self.counter.assumed and not self.by_text:
            return None
        return self.counter.count(text)

    def chat_prompt_from(self, text: str) -> int | None:
        """Likewise of a dump that leaves special tokens out, which is said."""
        tokens = self.prompt_from(text)
        if tokens is not None:
            self.notes[
                "texts leave out special tokens, so prompt lengths lack those of the chat template"
            ] = 1
        return tokens

    def reason(self, value: Any) -> str | None:
        """The finish reason for a framework's word; an unknown word is left empty, and counted."""
        if value is None or value == "":
            return None
        found = known_reason(value)
        if found is None:
            self.notes[f"{FINISH_REASON} '{str(value)[:40]}' is not known here and left empty"] += 1
        return found

    def reward(self, record: Mapping[str, Any], place: Place, *names: str) -> float | None:
        """The reward; a table of several is left empty, and counted."""
        value = self.pick(record, place, "reward", *names)
        if isinstance(value, Mapping) or (isinstance(value, list) and len(value) != 1):
            self.notes[
                "reward holds several values and is left empty: name one with --field reward=NAME"
            ] += 1
            return None
        return place.real(value, "reward")

    def numbers(self, record: Mapping[str, Any], place: Place, target: str) -> list[Any] | None:
        """As ``pick``, a list of numbers, one a turn or call. Raises OppoError."""
        value = self.pick(record, place, target, target)
        if value is None:
            return None
        listed = isinstance(value, list | tuple)
        if not listed or any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
            raise place.error(f"{target} is {str(value)[:40]!r} but must be a list of numbers")
        return list(value)

    def turns(self, rollout: Rollout, turns: Turns, seconds: float = 0.0) -> Rollout:
        """The rollout with its turns, and then with the tokens of its turns alone. ``seconds``: of all its
        waits together, 0 where the log has none. It stays as it is where there is one turn, or where nobody
        knows how long it waited."""
        if not turns.answers:
            return rollout
        given = self.options.tool_seconds
        if seconds > 0:
            self.notes[
                "seconds of tools are logged for a rollout as a whole: its waits have equal shares"
            ] += 1
        else:
            self.used_fields.add(TOOL_SECONDS_USED)
            if given is None:
                self.notes[
                    "rollout of several turns counts as one response: seconds of its tools are not logged,"
                    " --tool-seconds gives those of a wait"
                ] += 1
                return rollout
            seconds = given * len(turns.answers)
            self.notes["seconds of tools are not logged: --tool-seconds for each wait"] += 1
        return rollout._replace(response_length=sum(turns.lengths), **turns.columns(seconds))
