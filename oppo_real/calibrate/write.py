"""The calibration's files: the profile that the simulator reads, and beside it raw samples and the fit."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from oppo_real.calibrate.contention import Contention
from oppo_real.calibrate.fit import (
    DECODE_BASIS,
    PREFILL_BASIS,
    SCORE_BASIS,
    TRAIN_BASIS,
    Fit,
    Measured,
    fit_table,
    measured_points,
)
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.tables import (
    Filled,
    decode_table,
    difference,
    forward_table,
    tail_factor,
    training_table,
)
from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.profile import Measured as Provenance
from oppo_sim.costs.profile import PrefillTable, Profile, TrainingTable, save_profile
from oppo_sim.errors import OppoError

REPORT_FORMAT: Final = "oppo-calibration/1"
METHOD: Final = (
    "wall clock of a running engine, device synchronised, warm-up apart: decode by whole iterations of the"
    " driver's loop (its host time included), prefill as the iteration that joins less those after it,"
    " scoring by appended pieces, training by whole updates; medians of repeats in shuffled passes;"
    " contention by two processes"
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
        """As JSON: the fits with intervals, held-out errors and worst points, contention, and what was filled
        in."""
        return {
            "format": REPORT_FORMAT,
            "profile": self.profile.name,
            "fits": [fit.to_plain() for fit in self.fits],
            "filled": [asdict(one) for one in self.filled],
            "contention": [asdict(one) for one in self.contention],
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
    data = {
        kind: measured_points([visit for visit in visits if visit.point.kind == kind])
        for kind in ("decode", "prefill", "score")
    }
    if not any(visit.point.kind == "sync" for visit in visits):
        raise OppoError(
            "the weight sync was not measured: raise --budget-s and run the same command again, what is"
            " measured is kept"
        )
    decode = fit_table("decode", data["decode"], DECODE_BASIS, seed)
    host = fit_table("host", _host_points(visits), ("fixed", "per_rollout"), seed)
    fits = [decode, host]
    tables: dict[str, PrefillTable] = {}
    filled: list[Filled] = []
    forwards = {"prefill": (data["prefill"], PREFILL_BASIS), "score": (data["score"], SCORE_BASIS)}
    both = measured_points([visit for visit in visits if visit.point.kind == "score_ref"])
    if both:
        forwards["score_ref"] = (difference(both, data["score"]), SCORE_BASIS)
    for table, (points, basis) in forwards.items():
        fit = fit_table(table, points, basis, seed)
        tables[table], how = forward_table(table, points, fit)
        fits.append(fit)
        filled.append(how)
    trained = [visit for visit in visits if visit.point.kind == "train"]
    stages = {stage: measured_points(trained, stage) for stage in TRAINING_STAGES[:-1]}
    training = training_table(stages) if trained else TrainingTable(tokens=())
    fits += [
        fit_table(stage, points, TRAIN_BASIS, seed)
        for stage, points in stages.items()
        if getattr(training, stage) is not None
    ]
    sync = measured_points([visit for visit in visits if visit.point.kind == "sync"])[0]
    capacity = origin.engine.get("actor", {}).get("kv_capacity_tokens")
    profile = Profile(
        format="oppo-profile/1",
        name=name,
        measured=Provenance(
            hardware=origin.hardware,
            software=dict(origin.software),
            engine=json.loads(json.dumps(origin.engine, default=str)),
            method=METHOD,
            repeats=min(fit.repeats for fit in fits),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            raw_samples=raw_samples,
        ),
        decode=decode_table(data["decode"]),
        prefill=tables["prefill"],
        score=tables["score"],
        score_ref=tables.get("score_ref"),
        training=training,
        update_weights=sync.median,
        contention_factor=next(
            (one.factor for one in contention if set(one.activities) == {"decode", "score"}), None
        ),
        kv_capacity_tokens=capacity if isinstance(capacity, int) and capacity >= 1 else None,
    )
    measured = len({visit.point.key for visit in visits})
    return Calibration(
        profile, tuple(fits), tuple(filled), tuple(contention), tail_factor(data["decode"]), measured, planned
    )


def _host_points(visits: Sequence[Visit]) -> list[Measured]:
    found: dict[str, tuple[Visit, list[float]]] = {}
    for visit in visits:
        if visit.host_seconds:
            _, seconds = found.setdefault(visit.point.key, (visit, []))
            seconds.append(sorted(visit.host_seconds)[len(visit.host_seconds) // 2])
    return [Measured(visit.point, tuple(seconds)) for visit, seconds in found.values()]


def samples_text(visits: Sequence[Visit], contention: Sequence[Contention]) -> str:
    """Raw samples, one JSON object a line, in the order in which they were measured."""
    rows = [
        *(visit.to_plain() for visit in visits),
        *({"kind": "contention", **asdict(one)} for one in contention),
    ]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def samples_name(profile_path: Path) -> str:
    """Name of the file of raw samples beside a profile."""
    return f"{profile_path.stem}.samples.jsonl"


def samples_reference(profile_path: Path, text: str) -> str:
    """What the profile says about its raw samples."""
    return f"{samples_name(profile_path)}, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def write_calibration(calibration: Calibration, samples: str, path: Path) -> Written:
    """Write the profile, its report and its samples side by side. Raises OppoError if a file cannot be
    written."""
    written = Written(path, path.with_name(f"{path.stem}.fit.json"), path.with_name(samples_name(path)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.samples.write_text(samples, encoding="utf-8")
        written.report.write_text(json.dumps(calibration.report(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OppoError(f"cannot write beside {path}: {error.strerror or error}") from None
    save_profile(calibration.profile, path)
    return written
