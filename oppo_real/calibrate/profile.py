"""From measured points to a cost profile (measured, else the fit) and its files: profile, samples, fit."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any, Final

from oppo_real.calibrate.contention import (
    Contention,
    contention_factor,
    disagreement,
    slowdowns_of,
    time_slices_of,
)
from oppo_real.calibrate.cut_fit import Cuts
from oppo_real.calibrate.fit import (
    DECODE_BASIS,
    DECODE_ON_DEVICE,
    LOST_BELOW,
    PREFILL_BASIS,
    SCORE_BASIS,
    Fit,
    Measured,
    fit_table,
    measured_points,
    points_of,
    steadied,
)
from oppo_real.calibrate.measure import Visit, now_told
from oppo_real.calibrate.point import Kind, Point
from oppo_real.engines.interface import prefix_caching
from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.profile import (
    DecodeRow,
    DecodeTable,
    OnDevice,
    PrefillTable,
    Profile,
    TrainingTable,
    samples_path,
    save_profile,
)
from oppo_sim.costs.profile import Measured as Provenance
from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors


@dataclass(frozen=True)
class Filled:
    """How the cells of a table came to their numbers."""

    table: str
    measured: int
    fitted: int
    """No batch of this shape exists or none was run: the fit, scaled to the nearest measured cell."""


def decode_table(data: Sequence[Measured]) -> DecodeTable:
    """Seconds of the batches that have a cell. Raises OppoError for fewer than two rows of two."""
    rows: dict[int, dict[float, float]] = {}
    for one in data:
        if one.point.cell is not None:
            rows.setdefault(one.point.n, {})[one.point.cell[1]] = one.seconds
    full = [
        DecodeRow(n_running=n, kv_tokens=tuple(sorted(row)), seconds=tuple(row[kv] for kv in sorted(row)))
        for n, row in sorted(rows.items())
        if len(row) > 1
    ]
    if len(full) < 2:
        raise _too_little("decode")
    return DecodeTable(rows=tuple(full))


def forward_table(name: str, data: Sequence[Measured], fit: Fit) -> tuple[PrefillTable, Filled]:
    """Seconds by tokens and mean context. A batch that missed its cell by rounding is moved there by the fit;
    one that is lost in noise is what the fit gives.

    Raises OppoError for fewer than two of either that were measured, or where even the fit gives no time.
    """
    with_cell = {one.point.cell: one for one in data if one.point.cell is not None}
    at_cells = {
        cell: one
        for cell, one in with_cell.items()
        if one.seconds > max(0.0, LOST_BELOW * fit.predict(one.point))
    }
    tokens, contexts = (sorted({cell[axis] for cell in with_cell}) for axis in (0, 1))
    if any(len({cell[axis] for cell in at_cells}) < 2 for axis in (0, 1)):
        lost = [cell for cell in with_cell if cell not in at_cells]
        raise _lost_in_noise(name, lost[0][0]) if lost else _too_little(name)
    seconds = {cell: _moved(one, cell, fit) for cell, one in at_cells.items()}
    measured = dict(seconds)
    for total in tokens:
        for context in contexts:
            if (total, context) not in measured:
                seconds[total, context] = _from_fit(total, context, measured, fit)
    worst = min(seconds, key=lambda cell: seconds[cell])
    if not seconds[worst] > 0:
        raise _lost_in_noise(name, worst[0])
    table = PrefillTable(
        tokens=tuple(tokens),
        mean_context=tuple(contexts),
        seconds=tuple(tuple(seconds[total, context] for context in contexts) for total in tokens),
    )
    return table, Filled(name, len(measured), len(seconds) - len(measured))


def training_table(stages: dict[str, list[Measured]]) -> TrainingTable:
    """Seconds of the batches in the table, by tokens. Raises OppoError for fewer than two batch sizes."""
    columns: dict[str, tuple[float, ...]] = {}
    tokens: list[float] = []
    for stage, data in stages.items():
        at_cells = {one.point.cell[0]: one.seconds for one in data if one.point.cell is not None}
        tokens = sorted(at_cells)
        if len(tokens) < 2:
            raise _too_little("training")
        if any(second != 0 for one in data for second in one.repeats):
            columns[stage] = tuple(at_cells[total] for total in tokens)
    return TrainingTable.model_validate({"tokens": tuple(tokens), **columns})


def _moved(one: Measured, cell: tuple[float, float], fit: Fit) -> float:
    """What was measured, times fitted seconds of the cell over fitted seconds of the batch that was run."""
    fitted = fit.predict(one.point)
    if not fitted > 0:
        return one.seconds
    by_name = {coefficient.name: coefficient.value for coefficient in fit.coefficients}
    more = by_name["per_token"] * (cell[0] - one.point.tokens) + by_name["per_pair"] * (
        cell[0] * cell[1] - one.point.pairs
    )
    return one.seconds * max(0.0, fitted + more) / fitted


def _from_fit(total: float, context: float, measured: dict[tuple[float, float], float], fit: Fit) -> float:
    """The fit at a cell, scaled to the nearest measured cell, so that the table has no edge there."""

    def fitted(cell: tuple[float, float]) -> float:
        by_name = {coefficient.name: coefficient.value for coefficient in fit.coefficients}
        seconds = by_name["fixed"] + by_name["per_token"] * cell[0] + by_name["per_pair"] * cell[0] * cell[1]
        return seconds + by_name.get("per_piece", 0.0) * max(1.0, cell[0] / (2.0 * cell[1]))

    def distance(cell: tuple[float, float]) -> tuple[float, float]:
        return abs(log(cell[0] / total)) * 2.0 + abs(log(cell[1] / context)), cell[0]

    nearest = min(measured, key=distance)
    there = fitted(nearest)
    return fitted((total, context)) * (measured[nearest] / there if there > 0 else 1.0)


def _lost_in_noise(table: str, tokens: float) -> OppoError:
    return OppoError(
        f"{table} of {tokens:g} tokens took no time that could be told from noise: calibrate on a quiet"
        " machine, with more --repeats, or with longer rollouts"
    )


def _too_little(table: str) -> OppoError:
    return OppoError(
        f"too little of {table} was measured for a profile: raise --budget-s and run the same command again,"
        " what is measured is kept"
    )


def tail_factor(data: Sequence[Measured]) -> float | None:
    """How much longer a decode batch with a long tail takes than an even one of the same rollouts and total
    KV: the largest ratio that the repeats confirm (the fastest of the one is slower than the slowest of the
    other), at least 1; None if none was run.
    """
    even = {one.point.cell: one for one in data if one.point.cell is not None}
    tails = [one for one in data if one.point.cell is None]
    pairs = [(one, even[twin]) for one in tails if (twin := _even_twin(one.point)) in even]
    if not pairs:
        return None
    return max(
        [1.0, *(tail.seconds / flat.seconds for tail, flat in pairs if min(tail.repeats) > max(flat.repeats))]
    )


def _even_twin(point: Point) -> tuple[float, float]:
    return float(point.n), float(point.kv_tokens)


REPORT_FORMAT: Final = "oppo-calibration/1"
METHOD: Final = (
    "wall clock of a running engine, device synchronised, warm-up apart: decode by whole iterations of the"
    " driver's loop (its host time included), prefill as the iteration that joins less those after it,"
    " scoring by appended pieces, cuts by rounds and pieces of the same tokens, training by whole updates of"
    " batches shaped like the trace; the middle of repeats in shuffled passes, drawn to the fit as far as"
    " repeats disagree; contention by two processes"
)


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from, for ``Profile.measured``."""

    hardware: str
    software: Mapping[str, str]
    engine: Mapping[str, Any]
    """Subject, and the resolved configurations of actor, scorer and trainer."""


@dataclass(frozen=True)
class Calibration:
    """Everything that was found."""

    profile: Profile
    fits: tuple[Fit, ...]
    filled: tuple[Filled, ...]
    contention: tuple[Contention, ...]
    tail_factor: float | None
    """Of decode: a long tail over an even batch of the same total KV, the worst that was run."""
    points: int
    planned: int

    def report(self) -> dict[str, Any]:
        """As JSON: fits with intervals, held-out errors and worst points, contention, what was filled in."""
        return {
            "format": REPORT_FORMAT,
            "profile": self.profile.name,
            "fits": [fit.to_plain() for fit in self.fits],
            "filled": [asdict(one) for one in self.filled],
            "contention": [one.to_plain() for one in self.contention],
            "tail_factor": self.tail_factor,
            "points": self.points,
            "planned": self.planned,
        }


@dataclass(frozen=True)
class Written:
    """Paths of the files."""

    profile: Path
    report: Path
    samples: Path


def calibrate_from(
    name: str,
    visits: Sequence[Visit],
    contention: Sequence[Contention],
    origin: Origin,
    planned: int,
    raw_samples: str,
    seed: int = 0,
) -> Calibration:
    """Fit what was measured and fill the profile's tables. Raises OppoError where too little was measured."""
    sync = _of(visits, "sync")
    if not sync:
        raise OppoError(
            "the weight sync was not measured: raise --budget-s and run the same command again, what is"
            " measured is kept"
        )
    cuts = _cuts(visits, seed)
    decoded = measured_points(_of(visits, "decode"))
    decode = fit_table("decode", decoded, DECODE_BASIS, seed)
    host = fit_table("host", _seconds_beside(_of(visits, "decode")), ("fixed", "per_rollout"), seed)
    tables, forward_fits, filled = _forward_tables(visits, cuts, seed)
    training, training_fits = _training(visits, seed)
    device_fits, on_device = _on_device(visits, seed)
    fits = (decode, host, *cuts.fits.values(), *forward_fits, *training_fits, *device_fits)
    capacity = origin.engine.get("actor", {}).get("kv_capacity_tokens")
    scorer = origin.engine.get("scorer", {})
    block, cache = scorer.get("prefill_block_tokens"), prefix_caching(scorer)
    consistent = () if disagreement(contention, seed) else contention
    profile = Profile(
        format="oppo-profile/1",
        name=name,
        measured=Provenance(
            hardware=origin.hardware,
            software=dict(origin.software),
            engine=json.loads(json.dumps(origin.engine, default=str)),
            method=METHOD,
            repeats=min(fit.repeats for fit in fits),
            date=max((visit.measured_at for visit in visits if visit.measured_at), default=now_told()),
            raw_samples=raw_samples,
        ),
        decode=decode_table(steadied(decoded, decode)),
        prefill=tables["prefill"],
        score=tables["score"],
        score_ref=tables.get("score_ref"),
        training=training,
        update_weights=measured_points(sync)[0].seconds,
        round_fixed_s=cuts.seconds("round"),
        piece_fixed_s=cuts.seconds("piece"),
        piece_send_s=cuts.seconds("send"),
        scoring_block_tokens=block if isinstance(block, int) and block > 1 else None,
        scoring_cache_tokens=None if cache is None else cache.kv,
        scoring_iteration_tokens=None if cache is None else cache.iteration,
        contention_factor=contention_factor(consistent),
        slowdowns=slowdowns_of(consistent),
        on_device=on_device,
        time_slices=time_slices_of(consistent, on_device),
        kv_capacity_tokens=capacity if isinstance(capacity, int) and capacity >= 1 else None,
    )
    measured = len({visit.point.key for visit in visits})
    return Calibration(
        profile, fits, tuple(filled), tuple(contention), tail_factor(decoded), measured, planned
    )


def _of(visits: Sequence[Visit], kind: Kind) -> list[Visit]:
    return [visit for visit in visits if visit.point.kind == kind]


def _cuts(visits: Sequence[Visit], seed: int) -> Cuts:
    pieces = _of(visits, "piece")
    rounds = measured_points(_of(visits, "round"))
    return Cuts(rounds, measured_points(pieces), _seconds_beside(pieces), seed)


def _forward_tables(
    visits: Sequence[Visit], cuts: Cuts, seed: int
) -> tuple[dict[str, PrefillTable], list[Fit], list[Filled]]:
    """Tables of the actor's prefill and of scoring (the reference model's where it scores too), their fits,
    and how their cells were filled."""
    prefilled, scored, referred = (
        measured_points(_of(visits, kind)) for kind in ("prefill", "score", "score_ref")
    )
    data = {"prefill": (prefilled, PREFILL_BASIS), "score": (cuts.without_pieces(scored), SCORE_BASIS)}
    if referred:
        data["score_ref"] = (referred, SCORE_BASIS)
    tables: dict[str, PrefillTable] = {}
    fits, filled = [], []
    for table, (points, basis) in data.items():
        fit = fit_table(table, points, basis, seed)
        tables[table], how = forward_table(table, steadied(points, fit), fit)
        fits.append(fit)
        filled.append(how)
    return tables, fits, filled


def _training(visits: Sequence[Visit], seed: int) -> tuple[TrainingTable, list[Fit]]:
    """The table of the training stages, and a fit of each that was measured."""
    trained = _of(visits, "train")
    stages = {stage: measured_points(trained, stage) for stage in TRAINING_STAGES[:-1]}
    table = training_table(stages) if trained else TrainingTable(tokens=())
    fits = [
        fit_table(stage, points, PREFILL_BASIS, seed)
        for stage, points in stages.items()
        if getattr(table, stage) is not None
    ]
    return table, fits


def _on_device(visits: Sequence[Visit], seed: int) -> tuple[list[Fit], OnDevice | None]:
    """Where the visits say in which seconds the GPU computed."""
    bases = {"decode": DECODE_ON_DEVICE, "prefill": PREFILL_BASIS, "score": PREFILL_BASIS}
    fits: dict[str, Fit] = {}
    for kind, basis in bases.items():
        data = points_of(
            (visit, visit.device_s) for visit in visits if visit.point.kind == kind and visit.device_s
        )
        if len(data) <= len(basis):
            return [], None
        fits[kind] = fit_table(f"{kind} on the device", data, basis, seed)
    lines = {
        kind: {coefficient.name: coefficient.value for coefficient in fit.coefficients}
        for kind, fit in fits.items()
    }
    return list(fits.values()), OnDevice.model_validate(lines)


def _seconds_beside(visits: Sequence[Visit]) -> list[Measured]:
    return points_of(
        (visit, sorted(visit.host_seconds)[len(visit.host_seconds) // 2])
        for visit in visits
        if visit.host_seconds
    )


def samples_text(visits: Sequence[Visit], contention: Sequence[Contention]) -> str:
    """Raw samples, one JSON object a line, in the order in which they were measured."""
    rows = [
        *(visit.to_plain() for visit in visits),
        *({"kind": "contention", **one.to_plain()} for one in contention),
    ]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def samples_reference(profile_path: Path, text: str) -> str:
    """What the profile says about its raw samples."""
    return f"{samples_path(profile_path).name}, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def write_calibration(calibration: Calibration, samples: str, path: Path) -> Written:
    """Write profile, report and samples side by side. Raises OppoError if a file cannot be written."""
    written = Written(path, path.with_name(f"{path.stem}.fit.json"), samples_path(path))
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        written.samples.write_text(samples, encoding="utf-8")
        written.report.write_text(json.dumps(calibration.report(), indent=1) + "\n", encoding="utf-8")
    save_profile(calibration.profile, path)
    return written
