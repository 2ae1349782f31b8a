"""Seconds that cannot be: other units, zeros, negative ones, stages longer than their step."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from oppo_sim.columns import (
    COLD_START,
    GENERATION_BATCHES,
    LENGTH_CLIP_RATIO,
    LENGTH_MAX,
    LENGTH_MEAN,
    PER_TOKEN_UPDATE_MS,
    PROMPT_LENGTH_MEAN,
    ROLLOUTS_TRAINED,
    SLOWEST_TOOL_S,
    STEP,
    STEP_SAVE_S,
    STEP_TESTING_S,
    TIMING_STEP,
    TOKENS_CUMULATIVE,
    TOKENS_TOTAL,
    timing,
)
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.names import stages_in
from oppo_sim.fit.log.segments import COUNTED, Gathered
from oppo_sim.traces.importers.summed_tokens import SHOWN_DIGITS, grid_of

if TYPE_CHECKING:
    import pandas as pd

NO_SECONDS: Final = "step without any seconds"
UNITS: Final = ("auto", "s", "ms")
_THOUSAND: Final = 1000.0
_HUNDRED: Final = 100.0
_FAR: Final = 100.0
"""A value so many times its column's median, and near it when divided by a thousand, is in milliseconds."""
_LONGER: Final = 1.05
_OVERLAP: Final = 10.0
"""By so much generation may be longer than its step, where it goes on beside the training of another."""
_NO_TOKENS: Final = (
    "tokens of a step are not known: the log counts them from its beginning and does not say of how many"
    " steps a line is (logging_steps), as trainer_state.json does, or the console with its progress bar"
)
_ROUNDED_SUM: Final = 0.05
"""Of a step's tokens, that the difference of two rounded sums may be off by."""
_FEW_DIGITS: Final = (
    f"tokens of {{count}} steps are not known: the console shows {SHOWN_DIGITS} digits of their sum since"
    " the run began (num_tokens), too few for one step; trainer_state.json has all"
)
_SOMETIMES: Final = (STEP_TESTING_S, STEP_SAVE_S)
"""What only some steps have."""
_HELD: Final = 0.3
"""Of the seconds of validation or a checkpoint, that their step is longer by where it holds them."""
_ROUNDED: Final = 0.01
"""A figure that its own digits leave more open than this share of it says nothing."""
_NOTHING_S: Final = 1e-6
"""Seconds that are none."""
_RANGES: Final = {
    LENGTH_CLIP_RATIO: (0.0, 1.0),
    LENGTH_MAX: (1.0, np.inf),
    PROMPT_LENGTH_MEAN: (0.0, np.inf),
    SLOWEST_TOOL_S: (0.0, np.inf),
    TOKENS_TOTAL: (1.0, np.inf),
    PER_TOKEN_UPDATE_MS: (_NOTHING_S, np.inf),
    GENERATION_BATCHES: (1.0, _THOUSAND),
}
"""From and to, of figures beside seconds."""
_NO_GENERATION: Final = 1e-3
"""Of long generations, what takes less generated nothing."""
_OFTEN: Final = 0.3
"""Share of steps."""
_LEAST_PART: Final = 0.3
"""Of a step, that generation and updates take."""
_SEVERAL: Final = 10
"""Shares among which one above 1 is no percentage."""
_FEWEST: Final = 3
"""Values of one unit, beside others in another one."""
_MOST: Final = 0.5
"""Share of a step's metrics that are far from usual where the whole line is in milliseconds."""


def cleaned(
    gathered: Gathered, covers: dict[str, tuple[str, ...]], unit: str, where: str
) -> "tuple[pd.DataFrame, list[str]]":
    """The table, and what a user should know of it. Raises OppoError if no step has usable seconds."""
    import pandas as pd

    if unit not in UNITS:
        raise OppoError(f"--unit {unit} is not known: give one of {', '.join(UNITS)}")
    steps = sorted(gathered.rows)
    frame = pd.DataFrame([gathered.rows[step] for step in steps], dtype=np.float64)
    frame.insert(0, STEP, steps)
    frame[COLD_START] = frame[COLD_START].fillna(0.0).astype(bool) if COLD_START in frame else False
    seconds = [column for column in (*covers, TIMING_STEP, *_SOMETIMES) if column in frame.columns]
    if not any(column in covers or column == TIMING_STEP for column in seconds):
        raise OppoError(f"{where} holds lengths but no seconds of any stage: give a log with timings")
    stages = [column for column in seconds if column not in _SOMETIMES]
    notes = _in_seconds(frame, stages, unit, gathered)
    _refuse_steps_without_generation(frame, where)
    outside = _beside_the_step(frame, covers)
    frame = frame.drop(columns=outside)
    notes += [f"{column} stands beside {TIMING_STEP}, not in it: nothing is taken out" for column in outside]
    seconds = [column for column in seconds if column not in outside]
    notes += _in_seconds(frame, [column for column in seconds if column in _SOMETIMES], unit, gathered)
    notes += _as_share(frame)
    _leave_out_impossible_figures(frame, gathered)
    if COUNTED in gathered.notes and TOKENS_CUMULATIVE in frame:
        frame = frame.drop(columns=TOKENS_CUMULATIVE)
        notes.append(_NO_TOKENS)
    notes += _derive(frame)
    frame = _without_impossible(frame, seconds, gathered)
    if frame.empty or not any(column in frame for column in stages):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in gathered.left_out.most_common(3))
        raise OppoError(f"no step of {where} can be used: {reasons}")
    return frame.reset_index(drop=True), notes


def _beside_the_step(frame: "pd.DataFrame", covers: Iterable[str]) -> list[str]:
    """Validation and checkpoints that the seconds of their step do not hold (verl of 2026):
    steps that have them are no longer, beyond their stages, than steps that have none."""
    if TIMING_STEP not in frame:
        return []
    timed = [column for column in _SOMETIMES if column in frame]
    left = frame[TIMING_STEP] - frame[[each for each in covers if each in frame]].sum(axis=1)
    none = ~(frame[timed] > 0).any(axis=1)
    usual = float(left[none].median()) if none.any() else 0.0
    decided: dict[str, bool] = {}
    for column in timed:
        alone = (frame[column] > 0) & ~(frame[[each for each in timed if each != column]] > 0).any(axis=1)
        if alone.any():
            decided[column] = _is_held(left[alone] - usual, frame[column][alone])
    open_ones = [column for column in timed if column not in decided and (frame[column] > 0).any()]
    inside = [column for column, held in decided.items() if held]
    for column in open_ones:
        given = frame[frame[column] > 0]
        beyond = left[given.index] - usual - given[inside].sum(axis=1)
        decided[column] = _is_held(beyond, given[column])
    if len(open_ones) > 1 and all(decided[column] for column in open_ones):
        _decide_together(decided, open_ones, frame, left - usual)
    return [column for column in timed if not decided.get(column, True)]


def _is_held(beyond: "pd.Series[float]", timed: "pd.Series[float]") -> bool:
    """Whether a step is longer by what is timed, which may be in milliseconds."""
    held = float((beyond / timed).median())
    return held >= _HELD or _HELD < held * _THOUSAND < 1 / _HELD


def _decide_together(
    decided: dict[str, bool], columns: Sequence[str], frame: "pd.DataFrame", beyond: "pd.Series[float]"
) -> None:
    """Of validation and checkpoints that are always in the same steps, a step may hold one alone (verl's of
    2026 holds checkpoints): those are held whose sum is nearest to what it is longer by."""
    both = frame[(frame[columns] > 0).all(axis=1)]
    if both.empty or not (both[columns].median() < beyond[both.index].median() / _HELD).all():
        return
    choices = [tuple(columns), *((column,) for column in columns)]
    off = {
        each: float((beyond[both.index] - both[list(each)].sum(axis=1)).abs().median()) for each in choices
    }
    nearest = min(choices, key=lambda each: off[each])
    for column in columns:
        decided[column] = column in nearest


def _refuse_steps_without_generation(frame: "pd.DataFrame", where: str) -> None:
    """Raises OppoError where some steps generate for others, which have their rollouts from a buffer."""
    if timing("gen") not in frame:
        return
    seconds = frame[timing("gen")].dropna()
    none = (seconds >= 0) & (seconds < _NO_GENERATION * seconds.quantile(1.0 - _OFTEN / 2.0))
    if none.sum() >= max(_FEWEST, _OFTEN * len(seconds)):
        raise OppoError(
            f"{where}: {none.sum()} of {len(seconds)} steps generated nothing, as where one generates for"
            " several (OpenRLHF's vllm_generate_batch_size), which a fit does not know: give the log of a run"
            " whose steps generate what they train"
        )


def _in_seconds(frame: "pd.DataFrame", columns: list[str], unit: str, gathered: Gathered) -> list[str]:
    if unit == "ms":
        frame[columns] = frame[columns] / _THOUSAND
        return []
    if unit == "s":
        return []
    notes = []
    for column in columns:
        # Of the steps that have it: a checkpoint is longer than steps without one.
        known = frame[frame[column].notna()]
        whole = known[TIMING_STEP].median() if TIMING_STEP in frame else float("nan")
        typical = known[column].median()
        most = _OVERLAP if column.startswith(timing("gen")) else _LONGER
        if whole > 0 and typical > most * whole and typical / _THOUSAND <= _LONGER * whole:
            frame[column] = frame[column] / _THOUSAND
            notes.append(
                f"{column} was taken as milliseconds: it is longer than its step (--unit s to refuse)"
            )
    if _step_alone_in_ms(frame, columns):
        frame[TIMING_STEP] = frame[TIMING_STEP] / _THOUSAND
        notes.append(
            f"{TIMING_STEP} was taken as milliseconds: it is a thousand times its stages (--unit s to refuse)"
        )
    if (lines := _lines_in_ms(frame, columns)).any():
        frame.loc[lines, columns] /= _THOUSAND
        for column in columns:
            said = f"{column} in milliseconds among seconds: divided by 1,000"
            gathered.left_out[said] += int(frame.loc[lines, column].notna().sum())
    for column in sorted(columns, key=lambda each: each != TIMING_STEP):
        odd = _thousandfold(frame, column, columns)
        if odd.any() and (TIMING_STEP in frame or 2 * int(odd.sum()) < len(frame)):
            frame.loc[odd, column] /= _THOUSAND
            gathered.left_out[f"{column} in milliseconds among seconds: divided by 1,000"] += int(odd.sum())
    return notes


def _step_alone_in_ms(frame: "pd.DataFrame", columns: list[str]) -> bool:
    """Generation and updates, most of any step, are a thousandth of what it is said to take."""
    parts = [each for each in columns if each not in (TIMING_STEP, *_SOMETIMES)]
    stages = {stage for each in parts for stage in stages_in(each)}
    if TIMING_STEP not in frame or not {"gen", "update_actor"} <= stages:
        return False
    whole, named = float(frame[TIMING_STEP].median()), _THOUSAND * float(frame[parts].sum(axis=1).median())
    return _LEAST_PART * named < whole < named / _LEAST_PART


def _lines_in_ms(frame: "pd.DataFrame", columns: list[str]) -> "pd.Series[bool]":
    """Steps whose whole line is in milliseconds: the step and most of its parts are."""
    parts = [each for each in columns if each != TIMING_STEP]
    if TIMING_STEP not in columns or not parts:
        return frame[STEP] < 0
    odd = _a_thousand_times_usual(frame[TIMING_STEP])
    return odd & ((frame[parts] > _FAR * frame[parts].apply(_usual)).mean(axis=1) >= _MOST)


def _thousandfold(frame: "pd.DataFrame", column: str, columns: list[str]) -> "pd.Series[bool]":
    """Steps in which a metric is in milliseconds: far from its usual seconds, near them a thousandth of it,
    and no part of the step as it stands. A checkpoint that takes hours is inside its step."""
    odd = _a_thousand_times_usual(frame[column])
    if TIMING_STEP not in frame:
        return odd
    if column != TIMING_STEP:
        return odd & ~(frame[column] <= _LONGER * frame[TIMING_STEP])
    parts = [each for each in columns if each != TIMING_STEP]
    return odd & (frame[parts].sum(axis=1) <= _LONGER * frame[TIMING_STEP] / _THOUSAND)


def _a_thousand_times_usual(seconds: "pd.Series[float]") -> "pd.Series[bool]":
    ratio = seconds / _usual(seconds)
    return (ratio > _FAR) & (ratio / _THOUSAND).between(1 / 8, 8)


def _usual(seconds: "pd.Series[float]") -> float:
    """The median; where several values are a thousand times the others, of the others."""
    known = np.sort(seconds[seconds > 0].to_numpy())
    if len(known) < 2 * _FEWEST:
        return float(seconds.median())
    apart = int(np.argmax(np.diff(np.log(known)))) + 1
    low, high = float(np.median(known[:apart])), float(np.median(known[apart:]))
    between = known[apart] / known[apart - 1]
    several = min(apart, len(known) - apart) >= _FEWEST
    if several and between > _FAR / 4 and _FAR < high / low < _THOUSAND**2 / _FAR:
        return low
    return float(seconds.median())


def _as_share(frame: "pd.DataFrame") -> list[str]:
    if LENGTH_CLIP_RATIO not in frame or not 1 < frame[LENGTH_CLIP_RATIO].max() <= _HUNDRED:
        return []
    if int((frame[LENGTH_CLIP_RATIO] > 1).sum()) == 1 and frame[LENGTH_CLIP_RATIO].count() >= _SEVERAL:
        return []  # one that cannot be
    frame[LENGTH_CLIP_RATIO] = frame[LENGTH_CLIP_RATIO] / _HUNDRED
    return [f"{LENGTH_CLIP_RATIO} was taken as percent: a share is not above 1"]


def _leave_out_impossible_figures(frame: "pd.DataFrame", gathered: Gathered) -> None:
    """Figures beside seconds that are out of their range are unknown."""
    for column, (low, high) in _RANGES.items():
        if column not in frame:
            continue
        odd = (frame[column] < low) | (frame[column] > high)
        if odd.any():
            frame.loc[odd, column] = np.nan
            gathered.left_out[f"{column} that cannot be"] += int(odd.sum())


def _derive(frame: "pd.DataFrame") -> list[str]:
    """Rollouts trained and tokens of the step, from what is logged beside them; what is said of it."""
    update = timing("update_actor")
    notes = []
    if TOKENS_CUMULATIVE in frame and TOKENS_TOTAL not in frame:
        tokens = _tokens_of_a_step(frame)
        open_to = grid_of(frame[TOKENS_CUMULATIVE].tolist()) > _ROUNDED_SUM * tokens
        if open_to.any():
            notes.append(_FEW_DIGITS.format(count=int(open_to.sum())))
        frame[TOKENS_TOTAL] = tokens.mask(open_to)
    if {PER_TOKEN_UPDATE_MS, update, LENGTH_MEAN, PROMPT_LENGTH_MEAN} <= set(frame.columns):
        trained = _tokens_trained(frame, frame[update] * _THOUSAND)
        each = frame[LENGTH_MEAN] + frame[PROMPT_LENGTH_MEAN]
        frame[ROLLOUTS_TRAINED] = (trained / each).round()
    return notes


def _tokens_of_a_step(frame: "pd.DataFrame") -> "pd.Series[float]":
    """From the tokens of all steps so far. A line for several steps has their mean, as its other figures are;
    where lines are missing nothing is known."""
    apart = frame[STEP].diff().fillna(frame[STEP])  # before the first there were none
    tokens = frame[TOKENS_CUMULATIVE].diff().fillna(frame[TOKENS_CUMULATIVE]) / apart
    return tokens.where((tokens > 0) & (apart == apart.median()))


def _tokens_trained(frame: "pd.DataFrame", update_ms: "pd.Series[float]") -> "pd.Series[float]":
    """From milliseconds and milliseconds a token. verl of early 2025 prints three decimals, which leave 0.007
    ms a token, or 0.008: where all tokens of the step may have been trained by that, all were; where the
    step's tokens are not logged, nothing is known."""
    per_token = frame[PER_TOKEN_UPDATE_MS]
    known = per_token.dropna()
    coarse = next(
        (10.0**-digits for digits in range(7) if np.allclose(known, known.round(digits), 0, 1e-9)), 0.0
    )
    half = coarse / 2.0
    tokens = update_ms / per_token
    if TOKENS_TOTAL not in frame:
        return tokens.where(half <= _ROUNDED * per_token)
    all_of_it = frame[TOKENS_TOTAL]
    least, most = update_ms / (per_token + half), update_ms / (per_token - half).clip(lower=_NOTHING_S)
    slack = 0.1 * _ROUNDED  # the seconds have few digits, too
    explained = all_of_it.between(least * (1.0 - slack), most * (1.0 + slack))
    return tokens.where(~explained, all_of_it)


def _without_impossible(frame: "pd.DataFrame", columns: list[str], gathered: Gathered) -> "pd.DataFrame":
    inside = [column for column in columns if column not in _SOMETIMES]
    negative = (frame[columns] < 0).any(axis=1)
    if negative.any():
        gathered.left_out["step with negative seconds"] += int(negative.sum())
    zeros = frame[[c for c in (timing("gen"), TIMING_STEP) if c in frame]] <= _NOTHING_S
    zeros = zeros.loc[:, (~zeros & frame[zeros.columns].notna()).any()]  # one of zeros alone is not logged
    nothing = ~negative & zeros.any(axis=1)
    if nothing.any():
        gathered.left_out["step whose generation or whole took zero seconds"] += int(nothing.sum())
    empty = ~negative & ~nothing & frame[inside].isna().all(axis=1)
    if empty.any():
        gathered.left_out[NO_SECONDS] += int(empty.sum())
    kept = frame[~(negative | nothing | empty)].copy()
    for column in inside:
        zero = kept[column] <= _NOTHING_S
        if zero.any():
            kept.loc[zero, column] = np.nan
            gathered.left_out[f"{column} of zero seconds"] += int(zero.sum())
        if column != TIMING_STEP and TIMING_STEP in kept:
            longer = kept[column] > _LONGER * kept[TIMING_STEP]
            if longer.any() and not longer.all():
                kept.loc[longer, column] = np.nan
                gathered.left_out[f"{column} longer than its step"] += int(longer.sum())
        missing = kept[column].isna()
        if missing.any() and not missing.all():
            gathered.left_out[f"step without {column}"] += int(missing.sum())
    return kept.dropna(axis=1, how="all")
