"""Measured cost tables: the ``oppo-profile/1`` file format."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from oppo_sim.costs.demands import Demands
from oppo_sim.costs.strict import Count, NonNegative, Positive, Strict, first_problem
from oppo_sim.errors import OppoError, OutsideWarning

FORMAT = "oppo-profile/1"

Grid = Annotated[tuple[NonNegative, ...], Field(strict=False, min_length=2)]
Seconds = Annotated[tuple[Positive, ...], Field(strict=False, min_length=2)]
SecondsOrZero = Annotated[tuple[NonNegative, ...], Field(strict=False, min_length=2)]


def _check_grid(name: str, grid: Sequence[float]) -> None:
    if any(b <= a for a, b in pairwise(grid)):
        raise ValueError(f"{name} must rise strictly")


def _check_length(name: str, values: Sequence[object], wanted: int) -> None:
    if len(values) != wanted:
        raise ValueError(f"{name} has {len(values)} entries for a grid of {wanted}")


class ProfileRangeWarning(OutsideWarning):
    """A profile was queried outside its measured range and answered by linear extrapolation."""


@dataclass
class RangeCounter:
    """Extrapolated answers by table."""

    counts: dict[str, int] = field(default_factory=dict, compare=False)

    def note(self, table: str, asked: str) -> None:
        """Count one; the first of a table warns, with the query ``asked``."""
        before = self.counts.get(table, 0)
        self.counts[table] = before + 1
        if not before:
            warnings.warn(ProfileRangeWarning(table, asked), stacklevel=4)


class Measured(Strict):
    """How a profile was obtained; written by whoever measured, copied to every manifest."""

    hardware: str
    """Devices and their number, driver."""
    software: dict[str, str]
    """Versions by package."""
    engine: dict[str, object]
    """The engine's resolved configuration."""
    method: str
    repeats: Count
    date: str
    """ISO 8601."""
    raw_samples: str
    """Where the single samples are: a path beside the profile, or a digest."""


class DecodeRow(Strict):
    """Decode iterations of one batch size: seconds by KV tokens before the iteration."""

    n_running: Count
    kv_tokens: Grid
    seconds: Seconds

    @model_validator(mode="after")
    def _consistent(self) -> "DecodeRow":
        _check_grid(f"kv_tokens of n_running {self.n_running}", self.kv_tokens)
        _check_length(f"seconds of n_running {self.n_running}", self.seconds, len(self.kv_tokens))
        return self


class DecodeTable(Strict):
    """Rows by rising batch size; each row has its own KV grid."""

    rows: Annotated[tuple[DecodeRow, ...], Field(strict=False, min_length=2)]

    @model_validator(mode="after")
    def _consistent(self) -> "DecodeTable":
        _check_grid("n_running of the rows", [row.n_running for row in self.rows])
        return self


class PrefillTable(Strict):
    """Forwards: seconds[tokens][mean_context], mean_context = query-key pairs / tokens."""

    tokens: Grid
    mean_context: Grid
    seconds: Annotated[tuple[Seconds, ...], Field(strict=False, min_length=2)]

    @model_validator(mode="after")
    def _consistent(self) -> "PrefillTable":
        _check_grid("tokens", self.tokens)
        _check_grid("mean_context", self.mean_context)
        _check_length("seconds", self.seconds, len(self.tokens))
        for tokens, row in zip(self.tokens, self.seconds, strict=True):
            _check_length(f"seconds of {tokens:g} tokens", row, len(self.mean_context))
        return self


class TrainingTable(Strict):
    """Whole stages by the tokens of the trained batch (prompts and responses). Stages left out were not
    measured; without any, ``tokens`` is empty."""

    tokens: Annotated[tuple[NonNegative, ...], Field(strict=False)]
    old_log_prob: SecondsOrZero | None = None
    ref: SecondsOrZero | None = None
    values: SecondsOrZero | None = None
    adv: SecondsOrZero | None = None
    update_critic: SecondsOrZero | None = None
    update_actor: SecondsOrZero | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingTable":
        _check_grid("tokens", self.tokens)
        if self.tokens and self.update_actor is None:
            raise ValueError(
                "update_actor is missing: give its seconds, or leave all of training out (tokens: [])"
            )
        for name, seconds in self.stages.items():
            _check_length(name, seconds, len(self.tokens))
        return self

    @property
    def stages(self) -> dict[str, tuple[float, ...]]:
        """Seconds of the stages that were measured."""
        return {name: value for name, value in self if name != "tokens" and value is not None}

    @property
    def measured(self) -> bool:
        """Training was measured at all."""
        return bool(self.tokens)


class ProfileHost(Strict):
    """Host seconds to add to tables of device times; zero where the tables hold them already."""

    decode_per_iteration: NonNegative = 0.0
    decode_per_rollout: NonNegative = 0.0
    prefill: NonNegative = 0.0
    score: NonNegative = 0.0


class DecodeOnDevice(Strict):
    """Seconds of a decode iteration in which the device has a kernel."""

    fixed: NonNegative
    per_rollout: NonNegative
    per_kv_token: NonNegative

    def at_no_kv(self, n_running: int) -> float:
        """Of ``n_running`` rollouts, without ``per_kv_token``."""
        return self.fixed + self.per_rollout * n_running


class ForwardOnDevice(Strict):
    """Seconds of a forward in which the device has a kernel."""

    fixed: NonNegative
    per_token: NonNegative
    per_pair: NonNegative

    @model_validator(mode="after")
    def _computes(self) -> "ForwardOnDevice":
        if not (self.fixed or self.per_token or self.per_pair):
            raise ValueError("a forward computes in no second: give one of fixed, per_token, per_pair")
        return self

    def seconds(self, tokens: float, pairs: float) -> float:
        """Of ``tokens`` and their query-key pairs."""
        return self.fixed + self.per_token * tokens + self.per_pair * pairs


class OnDevice(Strict):
    """What of the tables' seconds a device is busy in; in the rest it waits for the host, which launches
    kernels and handles tokens."""

    decode: DecodeOnDevice
    prefill: ForwardOnDevice
    score: ForwardOnDevice


class Slowdowns(Strict):
    """How much longer decoding and scoring take beside each other, with devices or cores apart in one machine
    (docs/model.md C6)."""

    decode: Annotated[float, Field(ge=1)]
    score: Annotated[float, Field(ge=1)]


class TimeSlices(Strict):
    """What activities that take turns on one device lose beside their turns (docs/model.md C6)."""

    interference: Annotated[float, Field(ge=1)]
    turn_s: NonNegative
    """Seconds that a decode iteration takes longer."""


class Profile(Strict):
    """A measured cost profile."""

    format: Literal["oppo-profile/1"]
    name: str
    measured: Measured
    decode: DecodeTable
    prefill: PrefillTable
    score: PrefillTable
    score_ref: PrefillTable | None = None
    training: TrainingTable
    update_weights: NonNegative
    """Seconds of one weight sync."""
    round_fixed_s: NonNegative | None = None
    """Seconds a round beside its iterations (docs/model.md, §6). These three: None is not measured, taken as
    0."""
    piece_fixed_s: NonNegative | None = None
    """Seconds a piece of a scoring batch; the table ``score`` is without them."""
    piece_send_s: NonNegative | None = None
    """Seconds a piece from the driver to a scoring worker."""
    scoring_block_tokens: Count | None = None
    """Of a rollout that goes on the scorer prefills whole blocks of so many tokens (C9b); None: all that it
    is given."""
    scoring_cache_tokens: Count | None = None
    """KV in which the scorer keeps prefixes (C9c); None: ample, or by an earlier release."""
    scoring_iteration_tokens: Count | None = None
    """Tokens that such a scorer prefills in one iteration at most; None: a whole batch."""
    host: ProfileHost = ProfileHost()
    demands: Demands = Demands()
    on_device: OnDevice | None = None
    """Of a GPU; an activity has its ``demands`` only in these seconds. None: not measured, or a CPU,
    which computes in all of them."""
    contention_factor: Annotated[float, Field(ge=1)] | None = None
    """Measured interference of decoding and scoring that run together; None: not measured."""
    slowdowns: Slowdowns | None = None
    """Of each where both have devices or cores of their own; None: not measured, or by an earlier release,
    when ``contention_factor`` says it of both."""
    time_slices: TimeSlices | None = None
    """The same where they take turns on one device; None: not measured, or by an earlier release, when
    ``contention_factor`` says it all."""
    kv_capacity_tokens: Count | None = None
    """Of a replica, from the engine's log."""
    _ranges: RangeCounter = PrivateAttr(default_factory=RangeCounter)

    @property
    def ranges(self) -> RangeCounter:
        """The counter behind ``out_of_range``, which the cost models made from this profile share."""
        return self._ranges

    @property
    def out_of_range(self) -> dict[str, int]:
        """Questions answered by extrapolation since the profile was loaded, by table (a copy). Depends on
        what was queried, so it belongs into a diagnostic, not into results that must not depend on how runs
        are spread over processes.
        """
        return dict(self._ranges.counts)


def load_profile(path: Path) -> Profile:
    """Read a profile. Raises OppoError for a file that is missing, is not JSON, or is not of this format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except FileNotFoundError:
        raise OppoError(
            f"cannot read the cost profile {path}: there is no such file, check the path ('oppo costs"
            " profiles' lists shipped ones)"
        ) from None
    except OSError as error:
        raise OppoError(f"cannot read the cost profile {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise OppoError(f"cannot read the cost profile {path}: {error}") from None
    except RecursionError:
        raise OppoError(f"cannot read the cost profile {path}: it is nested too deeply") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise OppoError(
            f"{path} is not a cost profile of format {FORMAT} (its format is {found!r}); measure it anew or"
            " convert it"
        )
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        raise OppoError(f"cost profile {path}: {first_problem(error)}") from None


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON, the same bytes for the same profile. Raises OppoError."""
    try:
        path.write_text(profile_text(profile), encoding="utf-8")
    except OSError as error:
        raise OppoError(f"cannot write the cost profile {path}: {error}") from None


def samples_path(profile_path: Path) -> Path:
    """Where the raw samples of a profile lie: beside it."""
    return profile_path.with_name(f"{profile_path.stem}.samples.jsonl")


def profile_text(profile: Profile) -> str:
    """The file content of a profile."""
    return json.dumps(profile.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
