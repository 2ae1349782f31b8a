"""Words for readers: units of time, three significant digits, names of columns, fields and settings."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.policies.registry import name_and_settings
from oppo_sim.tables import numbers

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "–"
LARGE_LENGTH_BIAS: Final = 0.05
"""Of a policy's trained responses against sequential's, from which it is warned of."""
SHORT_DIGITS: Final = 4
"""Of a setting in a table or a sentence; files and what is to be pasted have all."""
DISTRIBUTIONS = (
    "Staleness: weight updates between a rollout's first token and its training. Deferrals: steps in which it"
    " decoded and did not finish; asynchronous policies defer nothing, their rollouts go on through updates."
)


class Unit(NamedTuple):
    """A unit of time."""

    seconds: float
    name: str


_UNITS = (Unit(3600.0, "h"), Unit(60.0, "min"), Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "µs"))
_FROM_S = (3 * 3600.0, 180.0, 1.0, 1e-3, 0.0)


def time_unit(seconds: float) -> Unit:
    """The unit in which a duration of ``seconds`` reads best: minutes from three minutes on, hours from three
    hours on."""
    size = abs(seconds)
    if not size or not math.isfinite(size):
        return Unit(1.0, "s")
    return next(unit for unit, start in zip(_UNITS, _FROM_S, strict=True) if size >= start)


def clock_unit(manifest: Mapping[str, Any]) -> Unit | None:
    """What a run's times count where it is not seconds: a lock-step run counts decode iterations."""
    return Unit(1.0, "iterations") if manifest.get("clock") == "decode iterations" else None


_NO_STAGE: Final = "in no stage"
_TRIFLE: Final = 0.01
"""Of a step; less is the end of an iteration in progress."""


def stage_rows(steps: "pd.DataFrame", unit: Unit | None = None) -> list[tuple[str, str, str, str, str]]:
    """Stage, mean, median, 95th percentile and share of the step for every stage that took time, for the time
    in no stage where that is no trifle (an update that waits for rollouts), and for the step. ``steps``:
    warm-up left out. Raises OppoError without the timing columns."""
    step = numbers(steps, c.TIMING_STEP, "step")
    whole = float(np.nansum(step))
    timed = {
        stage: numbers(steps, c.timing(stage), "step")
        for stage in c.STAGES
        if c.timing(stage) in steps.columns
    }
    rest = step - sum(np.nan_to_num(seconds) for seconds in timed.values())
    between = {_NO_STAGE: rest} if timed and np.nansum(rest) > _TRIFLE * whole else {}
    rows = []
    for stage, seconds in {**timed, **between, "step": step}.items():
        if stage == "step" or np.nansum(seconds):
            times = (np.nanmean(seconds), np.nanquantile(seconds, 0.5), np.nanquantile(seconds, 0.95))
            mean, median, high = (format_seconds(float(time), unit) for time in times)
            share = format_percent(float(np.nansum(seconds)) / whole) if whole else NOTHING
            rows.append((stage, mean, median, high, share))
    return rows


def format_signed(share: float, digits: int = 1) -> str:
    """A share of 1 in percent with its sign, e.g. ``+4.7 %``; ``±0.0 %`` where nothing is left of it."""
    return f"{_signed(100 * share, digits)} %" if math.isfinite(share) else NOTHING


def signed_ends(low: float, high: float) -> str:
    """The ends of an interval of shares, in percent, to stand behind a signed share: `` [−0.6, +0.2]``; empty
    where they are not known."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{_signed(100 * low, 1)}, {_signed(100 * high, 1)}]"


def other_lengths(bias: float) -> str:
    """A warning where trained responses are clearly longer or shorter than sequential's, a share; else
    empty."""
    if not math.isfinite(bias) or abs(bias) <= LARGE_LENGTH_BIAS:
        return ""
    if bias > 0:
        how = "longer than sequential does: give more --steps"
    else:
        how = (
            "shorter than sequential does, so part of its gain is shorter work: give more --steps, since long"
            " responses may come later"
        )
    return (
        f"in these steps it trains responses {format_percent(abs(bias))} {how}, or bound it (oppo tune"
        " --max-length-bias)"
    )


def significant(value: float, digits: int = 3) -> str:
    """``value`` without exponent, rounded to ``digits`` significant digits (whole numbers stay whole)."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    # Rounding first: 9.996 has one digit before the point, what is shown has two.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return with_minus(f"{value:,.{max(0, digits - 1 - magnitude)}f}")


def format_seconds(seconds: float, unit: Unit | None = None) -> str:
    """A duration with its unit, e.g. ``4.72 ms``, ``85.2 s``, ``6.31 min``; a fixed ``unit`` makes a column
    comparable."""
    if not math.isfinite(seconds):
        return NOTHING
    chosen = unit or time_unit(seconds)
    return f"{significant(seconds / chosen.seconds)} {chosen.name}"


def one_unit(seconds: NDArray[np.float64]) -> tuple[list[list[str]], str]:
    """A table of durations in one unit with as many decimals for all, of the largest: what is beside it next
    to nothing reads 0.0. The cells, row by row, and the unit's name."""
    largest = float(np.nanmax(np.abs(seconds), initial=0.0))
    unit = time_unit(largest)
    digits = len(significant(largest / unit.seconds).partition(".")[2])
    shown = [[round(one / unit.seconds, digits) + 0.0 for one in row] for row in seconds.tolist()]
    cells = [
        [with_minus(f"{one:,.{digits}f}") if math.isfinite(one) else NOTHING for one in row] for row in shown
    ]
    return cells, unit.name


def format_percent(share: float) -> str:
    """A share of 1 in percent without a plus, e.g. ``4.7 %``."""
    return NOTHING if not math.isfinite(share) else with_minus(f"{share * 100:.1f} %")


def counted(number: int, one: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {one if number == 1 else one + 's'}"


def told_done(steps: int) -> str:
    """``1 step was done``, ``2 steps were done``."""
    return f"{counted(steps, 'step')} {'was' if steps == 1 else 'were'} done"


def stopped(sentence: str, command: str) -> str:
    """With a full stop, but not behind a command, which would be pasted with it."""
    return sentence if command and sentence.endswith(command) else f"{sentence}."


def capital(text: str) -> str:
    """A text as a sentence begins."""
    return f"{text[:1].upper()}{text[1:]}"


def with_minus(number: str) -> str:
    """A number for people: a minus sign, as figures have it, and no hyphen."""
    return number.replace("-", "−")


def _signed(value: float, digits: int) -> str:
    """``±0.0`` where rounding leaves nothing, since a sign would say more than the number."""
    shown = f"{abs(value):.{digits}f}"
    return f"{'±' if not float(shown) else '+' if value > 0 else '−'}{shown}"


Kind = Literal["seconds", "ratio", "share", "signed_share", "number", "count"]


class Measure(NamedTuple):
    """A column that was simulated or measured."""

    column: str
    label: str
    kind: Kind
    better: Literal["low", "high", "zero", ""] = ""
    """Where the better values lie; empty: neither."""
    interval: tuple[str, str] | None = None
    """Columns of its 95 % interval, of the rollouts."""
    machine: tuple[str, str] | None = None
    """Columns of the 95 % interval of the machine."""


MEASURES: Final = {
    measure.column: measure
    for measure in (
        Measure(
            c.STEP_S,
            "step time",
            "seconds",
            "low",
            (c.STEP_S_LOW, c.STEP_S_HIGH),
            (c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH),
        ),
        Measure(
            c.SPEEDUP,
            "speed-up",
            "ratio",
            "high",
            (c.SPEEDUP_LOW, c.SPEEDUP_HIGH),
            (c.SPEEDUP_MACHINE_LOW, c.SPEEDUP_MACHINE_HIGH),
        ),
        Measure(
            c.SPEEDUP_PER_TOKEN,
            "speed-up per token",
            "ratio",
            "high",
            (c.SPEEDUP_PER_TOKEN_LOW, c.SPEEDUP_PER_TOKEN_HIGH),
            (c.SPEEDUP_PER_TOKEN_MACHINE_LOW, c.SPEEDUP_PER_TOKEN_MACHINE_HIGH),
        ),
        Measure(c.P_BEST, "best in draws and seeds", "share", "high"),
        Measure(c.COMPARED_STALENESS_MEAN, "mean staleness", "number", "low"),
        Measure(c.COMPARED_STALENESS_MAX, "highest staleness", "count", "low"),
        Measure(c.LENGTH_BIAS_PAIRED, "length bias", "signed_share", "zero"),
        Measure(c.DEFERRED, "deferred a step", "number", "low"),
        Measure(c.FILTERED, "filtered a step", "number", "low"),
        Measure(c.UTILIZATION, "utilization", "share", "high"),
        Measure(
            c.DIFFERENCE,
            "difference from the best",
            "signed_share",
            "low",
            (c.DIFFERENCE_LOW, c.DIFFERENCE_HIGH),
        ),
        Measure(c.COMPARED_KV_PEAK_TOKENS, "highest KV of a replica (tokens)", "count", "low"),
        Measure(c.COMPARED_KV_PREEMPTIONS, "preemptions a step", "number", "low"),
        Measure(c.HOURS_PER_10K, "hours for 10,000 rollouts", "number", "low"),
        Measure(c.TOKENS_PER_S_PER_GPU, "tokens trained a second a GPU", "number", "high"),
        Measure(c.GPU_HOURS_PER_1K_STEPS, "GPU-hours for 1,000 steps", "number", "low"),
        Measure(
            c.HOURS_TO_REWARD,
            "hours to the target reward",
            "number",
            "low",
            (c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH),
        ),
        Measure(
            c.GPU_HOURS_TO_REWARD,
            "GPU-hours to the target reward",
            "number",
            "low",
            (c.GPU_HOURS_TO_REWARD_LOW, c.GPU_HOURS_TO_REWARD_HIGH),
        ),
        Measure(
            c.REWARD_SPEEDUP,
            "speed-up to the target reward",
            "ratio",
            "high",
            (c.REWARD_SPEEDUP_LOW, c.REWARD_SPEEDUP_HIGH),
        ),
        Measure(c.PROGRESS, "on-policy steps a step is worth", "number", "high"),
        Measure(c.NUM_GPUS, "GPUs", "count"),
        Measure(c.COMPARED_DEFERRALS_MEAN, "deferrals of a trained rollout, mean", "number", "low"),
        Measure(c.TOKENS_PER_S, "tokens trained a second", "number", "high"),
        Measure(c.GEN_S, "gen", "seconds", "low"),
        Measure(c.REWARD_S, "reward", "seconds", "low"),
        Measure(c.TRAINING_S, "training", "seconds", "low"),
        Measure(c.COMPARED_BUSY_ROLLOUT, "rollout devices busy", "share", "high"),
        Measure(c.COMPARED_BUSY_SCORING, "scoring devices busy", "share", "high"),
        Measure(c.COMPARED_BUSY_TRAINING, "training devices busy", "share", "high"),
        Measure(c.COMPARED_PARTIAL_RATIO, "partial rollouts", "share"),
        Measure(c.COMPARED_TOKENS_IN_FLIGHT, "tokens in flight", "count"),
        Measure(c.COMPARED_SCORER_PIECES, "pieces scored a step", "number"),
        Measure(c.S_PER_ROLLOUT, "time a rollout", "seconds", "low"),
        Measure(c.S_PER_TOKEN, "time a token", "seconds", "low"),
        Measure(c.REGRET, c.REGRET, "share", "low"),
        Measure(c.LENGTH_BIAS, "length bias against the trace", "signed_share", "zero"),
    )
}
"""Measures that every report knows, most asked for first."""

ATTRIBUTION: Final = {
    c.HIDDEN_BY_OVERLAP_S: "hidden by overlap",
    c.SAVED_BY_SHORTER_TAIL_S: "saved by the shorter tail",
    c.LOST_TO_RECOMPUTATION_S: "lost to recomputation",
    c.LOST_TO_CONTENTION_S: "lost to contention",
    c.LOST_TO_PADDING_S: "lost to padding",
    c.LOST_TO_CUTS_S: "lost to cuts",
}
"""Where a policy's seconds went: what it won, then what it lost."""

OVERCOMMIT: Final = "policy.overcommit"
"""Given in rollouts (8), or as a share of the batch (0.5)."""

_NAMES: Final = {
    "policy.name": "policy",
    "policy.chunk_size": "chunk size (tokens)",
    OVERCOMMIT: "overcommit Δ (rollouts)",
    "placement.scoring": "scoring placement",
    "placement.training": "training placement",
    "rollout.num_replicas": "replicas",
    "scoring.num_workers": "scoring workers",
}


GPU_HEADS: Final = ("tok/s/GPU", "GPU-h/1k")


def gpu_cells(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Under ``GPU_HEADS``; empty where the number of GPUs is not known."""
    pace, hours = (
        float(row.get(name, math.nan)) for name in (c.TOKENS_PER_S_PER_GPU, c.GPU_HOURS_PER_1K_STEPS)
    )
    shown = (f"{value:,.{0 if value >= 100 else 1}f}" for value in (pace, hours))
    known = (math.isfinite(pace), math.isfinite(hours))
    first, second = (text if there else NOTHING for text, there in zip(shown, known, strict=True))
    return first, second


def measure_of(column: str) -> Measure:
    """What is known of a column; others are plain numbers under their own name."""
    return MEASURES.get(column, Measure(column, column.replace("_", " "), "number"))


def field_label(field: str, values: Iterable[Any] = ()) -> str:
    """A scenario field on an axis: in words, or, outside of the policy, as it is written. The unit is that of
    its ``values``, where it may have two: 0.5 is a share of the batch; none where both occur."""
    own = field.removeprefix("policy.")
    label = _NAMES.get(field, own if "." in own else own.replace("_", " "))
    if field != OVERCOMMIT:
        return label
    numbers = [one for one in values if isinstance(one, int | float) and not is_missing(one)]
    shares = [isinstance(one, float) and one <= 1 for one in numbers]
    unit = "share of B" if all(shares) else ""
    return label.replace(" (rollouts)", f" ({unit})" if unit else "") if any(shares) else label


def short_label(field: str) -> str:
    """A scenario field in front of a value: without its unit."""
    return field_label(field).partition(" (")[0]


def is_missing(value: Any) -> bool:
    """None, NaN or pandas' own."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or type(value).__name__ in {"NAType", "NaTType"}
    )


def as_number(value: Any) -> float | None:
    """``value`` as a finite number, also out of text; None for anything else, booleans included."""
    if isinstance(value, bool) or is_missing(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def value_text(value: Any) -> str:
    """A setting's value exactly, as ``--set`` takes it: 1 (a rollout) is not 1.0 (the whole batch); text as
    it is, JSON for nested ones."""
    if is_missing(value):
        return NOTHING
    plain = value.item() if hasattr(value, "item") else value
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)


def option_text(value: Any) -> str:
    """The same where nothing is a value too: ``null``."""
    return "null" if value is None else value_text(value)


def value_label(value: Any, digits: int = 6) -> str:
    """The same for reading: at most so many ``digits`` of a number with a fraction, a controller by its name
    and what else it is given."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and math.isfinite(plain) and not plain.is_integer():
        return f"{plain:.{max(digits, len(str(int(abs(plain)))))}g}"
    if isinstance(plain, Mapping) and "control" in plain:
        given = (f"{name} {value_label(one, digits)}" for name, one in plain.items() if name != "control")
        return f"controlled ({', '.join((str(plain['control']), *given))})"
    return value_text(plain)


def policy_names(policies: Iterable[str]) -> dict[str, str]:
    """Policies as a table names them: ``my_policy.py:Mine`` is ``Mine`` unless another is, too."""
    every = list(dict.fromkeys(policies))
    short = []
    for policy in every:
        name, settings = name_and_settings(policy)
        short.append(":".join([name.rpartition(":")[2] if ".py:" in name else name, *settings]))
    return {
        policy: name if short.count(name) == 1 else policy for policy, name in zip(every, short, strict=True)
    }


def settings_label(settings: Iterable[tuple[str, Any]]) -> str:
    """``policy oppo, chunk size 256, overcommit Δ 8``: of (field, value) pairs those that have a value."""
    return ", ".join(
        f"{short_label(field)} {value_label(value)}" for field, value in settings if not is_missing(value)
    )


def measured_label(value: float, kind: Kind) -> str:
    """A measured value with its unit, three significant digits."""
    if not math.isfinite(value):
        return NOTHING
    if kind == "seconds":
        return format_seconds(value)
    if kind == "ratio":
        return f"{value:.3f}×"
    if kind == "share":
        return format_percent(value)
    if kind == "signed_share":
        return format_signed(value)
    if kind == "count":
        return f"{value:,.0f}" if value.is_integer() else significant(value)
    return significant(value)
