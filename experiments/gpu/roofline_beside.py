"""A profile's samples beside the roofline of the same models: numbers for the report, and the figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from subjects import MAX_PROMPT, MICRO_BATCH_TOKENS, Pair

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.devices import DEVICES, Device
from oppo_sim.costs.interface import BatchShape, Costs
from oppo_sim.costs.profile import samples_path
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from oppo_real.calibrate.fit import Measured
    from oppo_real.calibrate.measure import Visit

_REHEARSAL = Device(
    name="rehearsal", hbm_bytes=2**33, hbm_bytes_per_s=1e10, bf16_flops=5e10, link_bytes_per_s=1e10,
    host_link_bytes_per_s=1e10,
    source="made up, so that a rehearsal has something to draw",
)  # fmt: skip
_SHADES = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#882255")


@dataclass(frozen=True)
class Sample:
    """A measured batch and what the roofline says of it, seconds."""

    kind: str
    rows: tuple[tuple[int, int], ...]
    measured: float
    low: float
    high: float
    roofline: float

    @property
    def tokens(self) -> int:
        """New tokens; of a trained batch all."""
        return (
            sum(past + new for past, new in self.rows)
            if self.kind == "train"
            else sum(new for _, new in self.rows)
        )

    @property
    def kv_tokens(self) -> int:
        """Past tokens."""
        return sum(past for past, _ in self.rows)


@dataclass(frozen=True)
class Beside:
    """A profile beside its roofline."""

    name: str
    samples: tuple[Sample, ...]
    contention: tuple[Mapping[str, Any], ...]

    def ratios(self) -> dict[str, float]:
        """Median of measured / roofline by kind."""
        found: dict[str, list[float]] = {}
        for one in self.samples:
            if one.roofline > 0:
                found.setdefault(one.kind, []).append(one.measured / one.roofline)
        return {kind: median(ratios) for kind, ratios in found.items()}


def read_beside(profile: Path, name: str, pair: Pair) -> Beside:
    """The samples beside a profile, and the roofline of ``pair`` on the device that ``name`` begins with.
    Raises OppoError."""
    path = samples_path(profile)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise OppoError(f"the samples {path} cannot be read ({error}): run part 1 anew") from None
    contention = tuple(line for line in lines if line["kind"] == "contention")
    costs = roofline_of(pair, name.partition("/")[0])
    found = [
        _sample(one, costs) for one in _measured([line for line in lines if line["kind"] != "contention"])
    ]
    return Beside(name, tuple(one for one in found if one.measured > 0), contention)


def roofline_of(pair: Pair, device_name: str) -> Costs:
    """Roofline of the pair on one device, with vLLM's host overheads (an assumption, whatever the engine).
    Raises OppoError."""
    short = device_name.partition("-")[0]
    device = next((one for key, one in DEVICES.items() if key.lower() == short), None)
    if pair.rehearse:
        device = _REHEARSAL
    if device is None:
        raise OppoError(f"there is no roofline for {device_name}: known are {', '.join(DEVICES)}")
    config = RooflineCostConfig(
        kind="roofline",
        device=device,
        actor_model=pair.shape(pair.actor),
        reward_model={"kind": "model", "model": pair.shape(pair.reward)},  # type: ignore[arg-type]
    )
    training = TrainingConfig(
        num_ppo_epochs=1,
        old_log_prob="behaviour",
        ref=True,
        critic="value_head",
        num_gpus=1 if pair.trains else 8,
        micro_batch_tokens=MICRO_BATCH_TOKENS if pair.trains else "auto",
    )
    return config.build(CostContext(1, 1, 32, MAX_PROMPT, MICRO_BATCH_TOKENS - MAX_PROMPT, training))


def beside_figure(found: Beside) -> "Figure":
    """Decode, prefill, scoring by chunk size, training, weight sync, contention: points measured, lines and
    crosses the roofline."""
    from oppo_sim.report.style import new_figure

    figure, axes = new_figure([3.1, 3.1, 3.1], columns=2)
    _decode(axes[0], [one for one in found.samples if one.kind == "decode"])
    _forward(axes[1], "prefill", [one for one in found.samples if one.kind == "prefill"], by_piece=False)
    _forward(
        axes[2],
        "scoring, by tokens of a piece",
        [one for one in found.samples if one.kind == "score"],
        by_piece=True,
    )
    _training(axes[3], [one for one in found.samples if one.kind == "train"])
    _sync(axes[4], [one for one in found.samples if one.kind == "sync"])
    _contention(axes[5], found.contention)
    figure.suptitle(f"{found.name}: measured (points) and roofline (lines, crosses)", fontsize=11)
    return figure


def _measured(lines: Sequence[Mapping[str, Any]]) -> "list[Measured]":
    from oppo_real.calibrate.fit import measured_points
    from oppo_real.calibrate.measure import Visit, visit_from_plain
    from oppo_real.calibrate.point import Point

    visits: list[Visit] = []
    for line in lines:
        point = Point(line["kind"], tuple((int(past), int(new)) for past, new in line["rows"]))
        visits.append(visit_from_plain(line, point, int(line["visit"])))
    return [
        one
        for kind in dict.fromkeys(visit.point.kind for visit in visits)
        for one in measured_points(_of(visits, kind))
    ]


def _of(visits: "Sequence[Visit]", kind: str) -> "list[Visit]":
    return [visit for visit in visits if visit.point.kind == kind]


def _sample(one: "Measured", costs: Costs) -> Sample:
    point = one.point
    if point.kind == "decode":
        seconds = costs.actor.decode_time(point.n, point.kv_tokens)
    elif point.kind == "prefill":
        seconds = costs.actor.prefill_time(point.tokens, point.pairs)
    elif point.kind in ("score", "score_ref"):
        seconds = costs.scorer.prefill_time(point.tokens, point.pairs)
    elif point.kind == "train":
        batch = BatchShape(
            tuple(prompt for prompt, _ in point.rows), tuple(response for _, response in point.rows)
        )
        seconds = sum(costs.training.stage_times(batch)[: len(TRAINING_STAGES) - 1])
    else:
        seconds = costs.training.stage_times(BatchShape((1,), (1,))).update_weights
    return Sample(point.kind, point.rows, one.seconds, min(one.repeats), max(one.repeats), seconds)


def _decode(axes: "Axes", samples: Sequence[Sample]) -> None:
    for place, count in enumerate(sorted({len(one.rows) for one in samples})):
        own = sorted((one for one in samples if len(one.rows) == count), key=lambda one: one.kv_tokens)
        colour = _SHADES[place % len(_SHADES)]
        _points(axes, own, [one.kv_tokens for one in own], colour, str(count))
        axes.plot(
            [one.kv_tokens for one in own],
            [1e3 * one.roofline for one in own],
            "-",
            color=colour,
            linewidth=1,
        )
    axes.set(xscale="log", yscale="log", xlabel="KV tokens of the batch", ylabel="ms an iteration")
    axes.set_title("decode", fontsize=10)
    _legend(axes, "rollouts")


def _forward(axes: "Axes", title: str, samples: Sequence[Sample], by_piece: bool) -> None:
    def piece(one: Sample) -> int:
        return max(new for _, new in one.rows) if by_piece else 0

    for place, size in enumerate(sorted({piece(one) for one in samples})):
        own = sorted((one for one in samples if piece(one) == size), key=lambda one: one.tokens)
        colour = _SHADES[place % len(_SHADES)]
        _points(axes, own, [one.tokens for one in own], colour, str(size) if by_piece else None)
        axes.plot(
            [one.tokens for one in own], [1e3 * one.roofline for one in own], "x", color=colour, markersize=5
        )
    axes.set(xscale="log", yscale="log", xlabel="new tokens of the batch", ylabel="ms")
    axes.set_title(title, fontsize=10)
    if by_piece:
        _legend(axes, "tokens")


def _training(axes: "Axes", samples: Sequence[Sample]) -> None:
    own = sorted(samples, key=lambda one: one.tokens)
    if own:
        _points(axes, own, [one.tokens for one in own], _SHADES[0], None)
        axes.plot(
            [one.tokens for one in own],
            [1e3 * one.roofline for one in own],
            "x",
            color=_SHADES[0],
            markersize=5,
        )
        axes.set(xscale="log", yscale="log", xlabel="tokens of the batch", ylabel="ms an update")
        axes.xaxis.set_minor_formatter("")
        axes.set_title("training, all stages", fontsize=10)
    else:
        axes.set_axis_off()
        axes.set_title("training: not measured (experiments/gpu/README.md)", fontsize=10)


def _sync(axes: "Axes", samples: Sequence[Sample]) -> None:
    for one in samples:
        axes.bar(
            ["measured", "roofline"], [1e3 * one.measured, 1e3 * one.roofline], color=[_SHADES[0], _SHADES[3]]
        )
    axes.set(ylabel="ms")
    axes.set_title("weight sync", fontsize=10)


def _contention(axes: "Axes", found: Sequence[Mapping[str, Any]]) -> None:
    labels, middles, below, above = [], [], [], []
    for one in found:
        for index, activity in enumerate(one["activities"]):
            labels.append(f"{activity}\nbeside\n{one['activities'][1 - index]}")
            middles.append(one["slowdown"][index])
            below.append(one["slowdown"][index] - one["lowest"][index])
            above.append(one["highest"][index] - one["slowdown"][index])
    axes.bar(range(len(labels)), middles, yerr=(below, above), color=_SHADES[2], capsize=2.5)
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(ylabel="seconds together / alone")
    axes.set_title("contention" if labels else "contention: not measured yet", fontsize=10)


def _points(
    axes: "Axes", samples: Sequence[Sample], places: Sequence[float], colour: str, label: str | None
) -> None:
    middles = [1e3 * one.measured for one in samples]
    below = [1e3 * (one.measured - one.low) for one in samples]
    above = [1e3 * (one.high - one.measured) for one in samples]
    axes.errorbar(
        places,
        middles,
        (below, above),
        fmt="o",
        color=colour,
        markersize=4,
        elinewidth=0.8,
        linestyle="none",
        label=label,
    )


def _legend(axes: "Axes", title: str) -> None:
    axes.legend(title=title, fontsize=7, title_fontsize=7, frameon=False, ncols=2)
