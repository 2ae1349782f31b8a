"""Which row of a trace each rollout takes: by seed and order of admission, whatever else a policy does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from oppo_sim.columns import (
    FINISH_REASON,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    SOURCE,
    STEP,
    TURN_LENGTHS,
)
from oppo_sim.draws import draw_index, stream_key
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import TraceConfig
from oppo_sim.turns import ToolWait

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


Sampling = Literal["in_order", "resample", "by_step"]


@dataclass(frozen=True)
class Replay:
    """The cleaned rows of a trace and the rule that deals them; a group is ``group_size`` rows in turn."""

    prompt_lengths: list[int]
    """Tokens, one entry a row."""
    response_lengths: list[int]
    """Tokens, at least 1, cut at the scenario's ``max_response_length``."""
    clipped: list[bool]
    """The row ended for its length (``finish_reason`` length)."""
    rewards: list[float] | None
    """None if the trace has no complete reward column."""
    content_hash: str
    """SHA-256 of the rows as they were before cleaning, sources filtered; independent of the file format."""
    provenance: Mapping[str, Any]
    """For the manifest: origin, rows used, rows left out and why."""
    warnings: tuple[str, ...]
    sampling: Sampling
    group_size: int
    blocks: tuple[tuple[int, int], ...] = field(repr=False)
    """First row and number of groups of each step of the trace (``by_step``), else of the whole."""
    block_means: tuple[float, ...] = field(repr=False)
    key: int = field(repr=False)
    waits: list[tuple[ToolWait, ...]] | None = field(default=None, repr=False)
    """For tools, one entry a row; None: no rollout of the trace waits."""

    def row(self, rollout_id: int, step: int, position: int) -> int:
        """Row of the rollout that is the ``position``-th (from 0) first admitted in ``step``."""
        size = self.group_size
        group, member = divmod(rollout_id, size)
        first, groups = self.blocks[step % len(self.blocks)]
        if self.sampling == "in_order":
            return rollout_id % (groups * size)
        if self.sampling == "by_step":
            nth = position // size
            return first + (nth if nth < groups else draw_index(self.key, group, groups)) * size + member
        return draw_index(self.key, group, groups) * size + member

    def cursor(self) -> "Cursor":
        """A fresh cursor for one run."""
        return Cursor(self)

    def mean_response_length(self, step: int) -> float:
        """Mean over the rows that rollouts first admitted in ``step`` are drawn from, tokens."""
        return self.block_means[step % len(self.block_means)]


class Cursor:
    """Deals rows to the rollouts of one run, in order of admission."""

    __slots__ = ("_position", "_row", "_step")

    def __init__(self, replay: Replay) -> None:
        self._row = replay.row
        self._step = -1
        self._position = 0

    def draw(self, rollout_id: int, step: int) -> int:
        """Row of a rollout first admitted in ``step``. Once a rollout, in order of ids and steps."""
        if step != self._step:
            self._step = step
            self._position = 0
        position = self._position
        self._position = position + 1
        return self._row(rollout_id, step, position)


def build_replay(
    config: TraceConfig,
    *,
    max_prompt_length: int | None,
    max_response_length: int,
    group_size: int,
    seed: int,
    base_dir: Path | None = None,
) -> Replay:
    """Load, filter, clean and group a trace (docs/model.md §1, C1 to C3). Lengths in tokens; ``base_dir`` is
    where ``config.path`` starts.

    Raises OppoError if the trace cannot be read or cannot be replayed so.
    """
    frame, origin, where = _opened(config, base_dir)
    if config.length_factor != 1.0:
        lengths = (frame[RESPONSE_LENGTH] * config.length_factor).round().clip(lower=1)
        frame = frame.assign(**{RESPONSE_LENGTH: lengths.astype("int64")})
        if TURN_LENGTHS in frame.columns:
            from oppo_sim.traces.turns import scaled_turns

            frame = frame.assign(**scaled_turns(frame, config.length_factor))
    return replay_frame(
        frame,
        where=where,
        origin=origin,
        sampling=config.sampling,
        prompt_length=config.prompt_length,
        max_prompt_length=max_prompt_length,
        max_response_length=max_response_length,
        group_size=group_size,
        seed=seed,
        tool_seconds_factor=config.tool_seconds_factor,
    )


def replay_frame(
    frame: "pd.DataFrame",
    *,
    where: str = "the trace",
    origin: Mapping[str, Any] | None = None,
    sampling: Sampling = "resample",
    prompt_length: int | None = None,
    max_prompt_length: int | None = None,
    max_response_length: int,
    group_size: int = 1,
    seed: int = 0,
    tool_seconds_factor: float = 1.0,
) -> Replay:
    """A replay of a checked frame. Raises OppoError if it cannot be replayed so."""
    import numpy as np

    from oppo_sim.traces.schema import content_hash

    kept, left_out = _usable_rows(frame, where, sampling, group_size)
    responses = _responses(kept, max_response_length, tool_seconds_factor)
    unknown_prompts = kept[PROMPT_LENGTH].isna()
    assumed, assumed_note = prompt_length, ""
    if unknown_prompts.any() and prompt_length is None:
        assumed, assumed_note = _assumed_prompt(kept[PROMPT_LENGTH], max_prompt_length, where)
    prompts = kept[PROMPT_LENGTH].fillna(assumed or 0).to_numpy(dtype=np.int64)
    prompts_cut = 0
    if max_prompt_length is not None:
        prompts_cut = int((prompts > max_prompt_length).sum())
        prompts = np.minimum(prompts, max_prompt_length)
    rewards, unrewarded = _rewards(kept)
    blocks = _blocks(kept, group_size) if sampling == "by_step" else ((0, len(kept) // group_size),)
    lengths = responses.lengths
    counts = {
        "rows_in_trace": len(frame),
        "rows_used": len(kept),
        **left_out,
        "zero_lengths_raised_to_1": responses.empty,
        "responses_cut": int(responses.cut.sum()),
        "prompts_cut": prompts_cut,
        "prompt_lengths_assumed": int(unknown_prompts.sum()),
    }
    warnings = _warnings(
        where, counts, group_size, responses.cut_when_recorded, max_response_length, unrewarded
    )
    return Replay(
        prompt_lengths=prompts.tolist(),
        response_lengths=lengths.tolist(),
        clipped=(responses.ended_for_length | responses.cut).tolist(),
        rewards=rewards,
        content_hash=content_hash(frame),
        provenance={
            **(origin or {"kind": "frame"}),
            "sampling": sampling,
            "steps": len(blocks) if sampling == "by_step" else None,
            **counts,
        },
        warnings=(*([assumed_note] if assumed_note else []), *warnings),
        sampling=sampling,
        group_size=group_size,
        blocks=blocks,
        block_means=tuple(
            float(lengths[first : first + groups * group_size].mean()) for first, groups in blocks
        ),
        key=stream_key(seed, "trace"),
        waits=responses.waits,
    )


class TooFewSamples(OppoError):
    """No prompt of a trace has as many samples as a scenario takes."""


def _usable_rows(
    frame: "pd.DataFrame", where: str, sampling: Sampling, group_size: int
) -> "tuple[pd.DataFrame, dict[str, int]]":
    """Finished rows of whole groups, in the order in which they are dealt, and how many were left out why.
    Raises OppoError where none is left."""
    import numpy as np

    aborted = (frame[FINISH_REASON] == "abort").to_numpy(dtype=bool)
    finished = frame[~aborted].reset_index(drop=True)
    if finished.empty:
        raise OppoError(f"all {len(frame)} rows of {where} are aborted: give a trace with finished rollouts")
    if sampling == "by_step":
        finished = _in_steps(finished, where)
    order = whole_groups(finished, group_size) if group_size > 1 else np.arange(len(finished))
    if not len(order):
        raise TooFewSamples(
            f"no prompt of {where} has {group_size} samples: lower group_size, or give a trace with as many"
            f" samples a prompt ('oppo trace synth --like TRACE --samples-per-prompt {group_size}' makes one)"
        )
    return finished.iloc[order], {
        "rows_left_out_aborted": int(aborted.sum()),
        "rows_left_out_by_grouping": len(finished) - len(order),
    }


class _Responses(NamedTuple):
    """Responses of the rows that are replayed; arrays of shape (rows,), tokens."""

    lengths: "npt.NDArray[np.int64]"
    """At least 1, cut at ``max_response_length``."""
    ended_for_length: "npt.NDArray[np.bool_]"
    """When they were recorded."""
    cut: "npt.NDArray[np.bool_]"
    """At ``max_response_length``, here."""
    cut_when_recorded: "npt.NDArray[np.int64]"
    """Lengths of those that ended for their length below ``max_response_length``."""
    empty: int
    """Rows without a token, which count as one."""
    waits: list[tuple[ToolWait, ...]] | None


def _responses(kept: "pd.DataFrame", max_response_length: int, tool_seconds_factor: float) -> _Responses:
    import numpy as np

    raw = kept[RESPONSE_LENGTH].to_numpy(dtype=np.int64)
    ended_for_length = (kept[FINISH_REASON] == "length").to_numpy(dtype=bool)
    lengths, cut, with_tools = np.clip(raw, 1, max_response_length), raw > max_response_length, raw
    waits = None
    if TURN_LENGTHS in kept.columns:
        from oppo_sim.traces.turns import cut_waits, waits_of

        waits = waits_of(kept, tool_seconds_factor)
    if waits is not None:
        with_tools = raw + np.array([sum(wait.tokens for wait in row) for row in waits])
        both = [cut_waits(row, length, max_response_length) for row, length in zip(waits, raw, strict=True)]
        lengths = np.array([max(1, length) for length, _ in both], dtype=np.int64)
        waits = [row for _, row in both]
        cut = lengths < np.maximum(raw, 1)
    short = ended_for_length & (with_tools < max_response_length)
    return _Responses(lengths, ended_for_length, cut, raw[short], int((raw == 0).sum()), waits)


def _opened(config: TraceConfig, base_dir: Path | None) -> "tuple[pd.DataFrame, dict[str, Any], str]":
    """Frame with its sources filtered, provenance, and how to call it in messages."""
    from oppo_sim.traces.catalog import find_trace, load_named
    from oppo_sim.traces.sources import GIVEN, given_folder, keep_sources, load_path

    if config.synth is not None:
        from oppo_sim.traces.synth import synthesise

        return (
            synthesise(config.synth),
            {"kind": "synth", "synth": config.synth.model_dump(mode="json")},
            "the synthetic trace",
        )
    origin: dict[str, Any]
    if config.name is not None:
        entry = find_trace(config.name)
        where = f"trace '{entry.name}'"
        frame = load_named(entry.name)
        origin = {"kind": "shipped", "name": entry.name, "origin": entry.origin, "licence": entry.licence}
    else:
        assert config.path is not None
        path = Path(config.path)
        frame = load_path(path if base_dir is None else base_dir / path)
        # No folders of one machine in a manifest.
        origin = {"kind": "file", "path": path.name if path.is_absolute() else path.as_posix()}
        where = GIVEN if path.parent == given_folder() else config.path
    origin["sources"] = list(config.sources) if config.sources is not None else None
    return keep_sources(frame, config.sources, where), origin, where


def _in_steps(frame: "pd.DataFrame", where: str) -> "pd.DataFrame":
    missing = frame[STEP].isna()
    if missing.all():
        raise OppoError(
            f"{where} has no steps, which trace.sampling by_step needs: choose in_order or resample"
        )
    if missing.any():
        raise OppoError(
            f"{int(missing.sum())} of {len(frame)} rows of {where} have no step, which trace.sampling by_step"
            " needs: filter with trace.sources, or choose in_order or resample"
        )
    return frame.sort_values(STEP, kind="stable").reset_index(drop=True)


def _blocks(kept: "pd.DataFrame", group_size: int) -> tuple[tuple[int, int], ...]:
    import numpy as np

    _, firsts, counts = np.unique(kept[STEP].to_numpy(dtype=np.int64), return_index=True, return_counts=True)
    return tuple((int(first), int(count) // group_size) for first, count in zip(firsts, counts, strict=True))


def _rewards(kept: "pd.DataFrame") -> tuple[list[float] | None, int]:
    missing = int(kept[REWARD].isna().sum())
    if missing:
        return None, missing if missing < len(kept) else 0
    return kept[REWARD].tolist(), 0


def _assumed_prompt(known: "pd.Series[Any]", max_prompt_length: int | None, where: str) -> tuple[int, str]:
    """Tokens of prompts of which nobody says how long they are, and the sentence that tells it. Raises
    OppoError where there is nothing to go by."""
    rows = f"{int(known.isna().sum())} of {len(known)} rows of {where}"
    if known.notna().any():
        tokens, why = round(float(known.median())), "the median of the others"
    elif max_prompt_length is not None:
        tokens, why = max(1, max_prompt_length // 2), f"half of max_prompt_length {max_prompt_length}"
    else:
        raise OppoError(f"{rows} have no prompt length: set trace.prompt_length, in tokens")
    return tokens, (
        f"{rows} have no prompt length and are taken to have {tokens} tokens, {why}: set trace.prompt_length"
        " to what you know"
    )


def _warnings(
    where: str,
    counts: Mapping[str, int],
    group_size: int,
    short_cuts: Any,
    max_response_length: int,
    unrewarded: int,
) -> "list[str]":
    found = []
    total = counts["rows_in_trace"]
    if counts["rows_left_out_aborted"]:
        found.append(
            f"{counts['rows_left_out_aborted']} of {total} rows of {where} are left out: they were aborted"
        )
    if counts["rows_left_out_by_grouping"]:
        found.append(
            f"{counts['rows_left_out_by_grouping']} of {total} rows of {where} are left out: they fill no"
            f" group of {group_size}"
        )
    if counts["zero_lengths_raised_to_1"]:
        found.append(
            f"{counts['zero_lengths_raised_to_1']} responses of {where} have no token and count as one"
        )
    if 2 * counts["responses_cut"] > counts["rows_used"]:
        found.append(
            f"{counts['responses_cut']} of {counts['rows_used']} responses of {where} are longer than"
            f" max_response_length {max_response_length}, and are cut there"
        )
    if len(short_cuts):
        found.append(
            f"{len(short_cuts)} responses of {where} were cut when recorded (the longest at"
            f" {short_cuts.max()} tokens), below max_response_length {max_response_length}: how long they"
            " would have become is not known"
        )
    if unrewarded:
        found.append(f"{unrewarded} rows of {where} have no reward: its rewards are not used")
    return found


def prompt_codes(frame: "pd.DataFrame") -> "npt.NDArray[np.int64]":
    """A number per row of a checked frame, shape (rows,): equal for rows of one source, step and prompt.

    A missing value equals a missing value, so rows without ``prompt_id`` fall together within their source
    and step.
    """
    import numpy as np
    import pandas as pd

    codes = np.zeros(len(frame), dtype=np.int64)
    for name in (SOURCE, STEP, PROMPT_ID):
        part, values = pd.factorize(frame[name], use_na_sentinel=False)
        codes = codes * len(values) + part
        # Renumbered each time, so that three columns of many values cannot overflow.
        codes = pd.factorize(codes)[0].astype(np.int64)
    return codes


def whole_groups(frame: "pd.DataFrame", group_size: int) -> "npt.NDArray[np.int64]":
    """Row numbers of whole groups, ``group_size`` consecutive entries a group, groups in the order of their
    first rows.

    Each prompt gives ⌊samples / group_size⌋ groups of its rows in file order; the other rows are left out
    (docs/model.md C3).
    """
    import numpy as np

    codes = prompt_codes(frame)
    by_prompt = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(codes)) - np.repeat(starts, counts)
    full = rank < np.repeat(counts // group_size * group_size, counts)
    groups = by_prompt[full].reshape(-1, group_size)
    order: npt.NDArray[np.int64] = groups[np.argsort(groups[:, 0], kind="stable")].reshape(-1)
    return order
