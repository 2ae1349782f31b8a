"""A calibration from start to end: visits within a budget, finished ones taken from the cache."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from math import ceil, isfinite
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Final

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.cache import VisitCache
from oppo_real.calibrate.contention import (
    Contention,
    Meeting,
    Round,
    contention_of,
    decode_beside_score,
    disagreement,
    meetings_of,
    other_work,
)
from oppo_real.calibrate.contention_rounds import measure_contention
from oppo_real.calibrate.measure import Visit, now_told, visit_from_plain, visit_point, warm_up
from oppo_real.calibrate.plan import CalibrationPlan, make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.profile import (
    Calibration,
    Origin,
    Written,
    calibrate_from,
    samples_reference,
    samples_text,
    write_calibration,
)
from oppo_real.calibrate.sizes import Sizes, bounded
from oppo_real.calibrate.subject import Subject, hardware, open_bench, software_versions
from oppo_sim.costs.formulas import added
from oppo_sim.costs.profile import Profile, load_profile, samples_path
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import format_seconds

Progress = Callable[[int, int, str], None]
"""Visits done, visits planned, what comes next."""
_CONTENTION_SHARE: Final = 0.3
"""Of the budget, kept for contention, beside the start of its two processes."""


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    repeats: int = 5
    budget_s: float = 900.0
    """``inf``: as long as it takes."""
    asked_s: float | None = None
    """What the user gave for all passes, of which ``budget_s`` is this one's; None: that is all."""
    contention: bool = True
    window_s: float = 0.5
    """Of one turn in the measurement of contention."""
    rounds: int = 6
    """Of contention."""
    update_rounds: int | None = None
    """Of contention with an update, which is reported and nothing is predicted from; None: as many."""
    seed: int = 0

    def rounds_of(self, meeting: Meeting) -> int:
        """Rounds that a meeting is to have."""
        if self.update_rounds is None or "train" not in meeting.activities:
            return self.rounds
        return min(self.rounds, self.update_rounds)


@dataclass(frozen=True)
class CalibrationSession:
    """What was measured."""

    visits: tuple[Visit, ...]
    contention: tuple[Contention, ...]
    origin: Origin
    planned_points: int
    planned_visits: int
    fresh: int
    """Visits measured now; the others were in the cache."""
    notes: tuple[str, ...]
    complete: bool
    """The budget left nothing out."""
    kept_in: Path | None = None
    """Folder of its finished points; None: read from a profile."""

    @property
    def decode_beside_score(self) -> tuple[Contention, ...]:
        """Of several batches; empty: it was not measured."""
        return tuple(decode_beside_score(self.contention))


def measure_session(
    subject: Subject,
    sizes: Sizes,
    cache_folder: Path,
    effort: Effort,
    progress: Progress = lambda *_: None,
    machine: str | None = None,
) -> CalibrationSession:
    """Measure the plan of ``sizes`` as far as the budget goes. What is finished is kept in ``cache_folder``
    at once. ``machine``: what it is called, where this process is bound to a part of it.

    Raises OppoError for engines that cannot be built or measured, and where they take the whole budget.
    """
    start = perf_counter()
    wanted = make_plan(sizes, effort.seed)  # refuses what cannot be measured before anything is built
    progress(0, len(wanted.points) * effort.repeats, "visits, building engines")
    open_here = partial(open_bench, subject, sizes)
    bench = open_here(with_ref=sizes.stream_ref)
    building = perf_counter() - start
    try:
        plan = make_plan(
            bounded(sizes, bench.actor.resolved_config(), bench.scorer.resolved_config()), effort.seed
        )
        cache = VisitCache(cache_folder, asdict(_origin(subject, bench, machine)))
        bounds = effort.contention and isfinite(effort.budget_s)
        reserve = _CONTENTION_SHARE * effort.budget_s + 2 * building if bounds else 0.0
        least = _least_of_contention(2 * building, effort)
        visits, took, opened = _measure_plan(bench, plan, cache, effort, start, (reserve, least), progress)
        if not visits:
            raise _nothing_measured(effort, opened)
        origin = _origin(subject, bench, machine)
    finally:
        bench.close()
    del bench
    notes = []
    contention: list[Contention] = []
    missing: list[str] = []
    if effort.contention:
        # Two processes are about to build the same engines on the same device, which must be empty by then
        _free_devices()
        contention = _measure_contention(
            open_here, subject, plan, cache, effort, start, 2 * building, progress
        )
        measured = {one.meeting for one in contention}
        missing = [one.label for one in meetings_of(plan) if one not in measured]
        if missing:
            notes.append(
                f"the budget left no time for {', '.join(missing)}: raise --budget-s and run again with"
                " --force"
            )
    notes += [told for told in (disagreement(contention, effort.seed), other_work(contention)) if told]
    planned = len(plan.points) * effort.repeats
    if len(visits) < planned:
        each = fmean(took or [added(visit.seconds) for visit in visits] or [0.0])
        beside = opened + (2 * building if effort.contention else 0.0)
        notes.append(_budget_told(effort, len(visits), planned, each, beside))
    return CalibrationSession(
        visits=tuple(visits),
        contention=tuple(contention),
        origin=origin,
        planned_points=len(plan.points),
        planned_visits=planned,
        fresh=len(took),
        notes=tuple(notes),
        complete=not missing and len(visits) == planned,
        kept_in=cache.folder,
    )


def calibrate_to(
    path: Path,
    name: str,
    subject: Subject,
    sizes: Sizes,
    cache_folder: Path,
    effort: Effort,
    progress: Progress = lambda *_: None,
    machine: str | None = None,
) -> tuple[CalibrationSession, Calibration, Written]:
    """Measure, fit, and write profile, report and samples. Raises OppoError; the cache keeps what is done."""
    session = measure_session(subject, sizes, cache_folder, effort, progress, machine)
    samples = samples_text(session.visits, session.contention)
    calibration = calibrate_from(
        name,
        session.visits,
        session.contention,
        session.origin,
        session.planned_points,
        samples_reference(path, samples),
        effort.seed,
    )
    return session, calibration, write_calibration(calibration, samples, path)


def read_calibration(path: Path, sizes: Sizes, seed: int) -> tuple[Profile, CalibrationSession]:
    """A profile and what it was made from, of the same ``sizes``, as ``calibrate_to`` wrote them.

    Raises OppoError for files that are missing, malformed, or of another plan.
    """
    profile = load_profile(path)
    samples = samples_path(path)
    engine: Mapping[str, Any] = profile.measured.engine
    plan = make_plan(bounded(sizes, engine.get("actor", {}), engine.get("scorer", {})), seed)
    points = {point.key: point for point in plan.points}
    visits: list[Visit] = []
    contention: list[Contention] = []
    try:
        text = samples.read_text(encoding="utf-8")
        if sha256(text.encode()).hexdigest() not in profile.measured.raw_samples:
            raise OppoError(
                f"{samples} are not the samples that {path} was made from: bring both files from the same"
                " place, or let the command that measured them go on"
            )
        for line in text.splitlines():
            row = json.loads(line)
            if row["kind"] == "contention":
                first, second = (points[key] for key in row["points"])
                meeting = Meeting(tuple(row["activities"]), (first, second))
                rounds = [Round(*(tuple(each[name]) for name in Round._fields)) for each in row["by_round"]]
                contention.append(contention_of(meeting, rounds))
            else:
                made = Point(row["kind"], tuple((past, new) for past, new in row["rows"]))
                visits.append(visit_from_plain(row, points[made.key], row["visit"]))
    except OSError as error:
        raise OppoError(f"cannot read the samples of the calibration, {samples}: {error.strerror}") from None
    except KeyError as error:
        raise OppoError(
            f"{samples} has no {error}, or is of other batches than this scenario and these policies ask for:"
            " give the same ones as when it was measured"
        ) from None
    except (ValueError, TypeError) as error:
        raise OppoError(f"{samples} holds no samples of a calibration ({error})") from None
    notes = tuple(told for told in (disagreement(contention, seed), other_work(contention)) if told)
    origin = Origin(profile.measured.hardware, profile.measured.software, engine)
    planned = len(plan.points)
    measured = len({visit.point.key for visit in visits})
    return profile, CalibrationSession(
        tuple(visits), tuple(contention), origin, planned, len(visits), 0, notes, measured == planned
    )


def _measure_plan(
    bench: Bench,
    plan: CalibrationPlan,
    cache: VisitCache,
    effort: Effort,
    start: float,
    contention: tuple[float, float],
    progress: Progress,
) -> tuple[list[Visit], list[float], float]:
    """The visits, the seconds that each new one took, and those before the first. ``contention``: seconds to
    keep for it, and the fewest in which it can be measured."""
    reserve, least = contention
    order = list(plan.visits(effort.repeats))
    known = {
        (point.key, number): visit_from_plain(plain, point, number)
        for point, number in order
        if (plain := cache.get(point.key, number)) is not None
    }
    todo = [point for point, number in order if (point.key, number) not in known]
    progress(0, len(order), "visits, warming up")
    warm_up(bench, todo)
    opened = perf_counter() - start
    done: list[Visit] = []
    took: dict[str, float] = {}
    fresh: list[float] = []
    for point, number in order:
        visit = known.get((point.key, number))
        if visit is None:
            left = effort.budget_s - (perf_counter() - start)
            # Without the essential points there is no profile, so they may use what is kept for contention;
            # where they leave too little of it, it goes to the other points.
            essential = point.essential and number == 0
            if left - (0.0 if essential or left < least else reserve) < took.get(point.key, 0.0):
                continue
            progress(len(done), len(order), f"visits, {point.label()}")
            begun = perf_counter()
            visit = replace(visit_point(bench, point, number), measured_at=now_told())
            took[point.key] = perf_counter() - begun
            cache.put(point.key, number, visit.to_plain())
            fresh.append(took[point.key])
        done.append(visit)
        progress(len(done), len(order), f"visits, {point.label()}")
    return done, fresh, opened


def _least_of_contention(building_s: float, effort: Effort) -> float:
    """Seconds in which a round of it can be measured, with the building of engines."""
    return building_s + 4 * effort.window_s


def _nothing_measured(effort: Effort, opened_s: float) -> OppoError:
    """``opened_s``: seconds until the engines were up and warm."""
    share = "" if effort.asked_s is None else f" of its {effort.asked_s:g} s to a pass"
    return OppoError(
        f"nothing was measured: the engines took {format_seconds(opened_s)} to start and warm up, and"
        f" --budget-s gives {effort.budget_s:.4g} s{share}: raise it to several times what they took"
    )


def _budget_told(effort: Effort, done: int, planned: int, each_s: float, beside_s: float) -> str:
    """What the budget was enough for, and what would be: ``each_s`` a visit that is left, and ``beside_s``,
    engines and warm-up, whatever is left."""
    asked = effort.budget_s if effort.asked_s is None else effort.asked_s
    share = 1.0 - (_CONTENTION_SHARE if effort.contention else 0.0)
    left = (planned - done) * each_s
    needed = asked + max(left / share, (beside_s + left) / share - effort.budget_s)
    return (
        f"--budget-s {asked:g} was enough for {done} of {planned} visits: about {_rounded_up(needed):g} s are"
        " enough for all; raise it and run again with --force"
    )


def _rounded_up(seconds: float) -> int:
    """To two digits."""
    place: int = 10 ** max(0, len(str(int(seconds))) - 2)
    return ceil(seconds / place) * place


def _measure_contention(
    open_here: Callable[[], Bench],
    subject: Subject,
    plan: CalibrationPlan,
    cache: VisitCache,
    effort: Effort,
    start: float,
    building: float,
    progress: Progress,
) -> list[Contention]:
    meetings = meetings_of(plan)
    cores = {meeting: subject.cores_of(meeting.activities) for meeting in meetings}
    keys = {meeting: _meeting_key(meeting, effort.window_s, cores[meeting]) for meeting in meetings}
    found: dict[Meeting, list[Round]] = {meeting: [] for meeting in meetings}
    for meeting in meetings:
        while len(found[meeting]) < effort.rounds_of(meeting) and (
            plain := cache.get(keys[meeting], len(found[meeting]))
        ):
            found[meeting].append(Round(*(tuple(plain[name]) for name in Round._fields)))
    missing = {
        meeting: wanted
        for meeting, rounds in found.items()
        if (wanted := effort.rounds_of(meeting) - len(rounds)) > 0
    }

    def enough_time(seconds: float) -> bool:
        return perf_counter() - start + seconds <= effort.budget_s

    # Some rounds are better than none.
    left = effort.budget_s - (perf_counter() - start) - building
    done, planned = sum(map(len, found.values())), sum(map(effort.rounds_of, meetings))
    starting = missing and left >= _least_of_contention(0.0, effort)
    progress(done, planned, "rounds of contention" + (", building engines twice" if starting else ""))
    if missing and left >= _least_of_contention(0.0, effort):
        for meeting, measured in measure_contention(
            open_here,
            subject.engines,
            missing,
            window_s=effort.window_s,
            cores=cores,
            enough_time=enough_time,
        ):
            cache.put(keys[meeting], len(found[meeting]), measured._asdict())
            found[meeting].append(measured)
            done += 1
            progress(done, planned, "rounds of contention")
    return [contention_of(meeting, rounds) for meeting, rounds in found.items() if rounds]


def _free_devices() -> None:
    """Give back what closed engines held. ``warm_up`` froze them out of the collector's sight."""
    import gc

    from oppo_real.engines.device import give_back_memory

    gc.unfreeze()
    gc.collect()
    give_back_memory()


def _meeting_key(meeting: Meeting, window_s: float, cores: tuple[int, ...] | None) -> str:
    keys = [point.key for point in meeting.points]
    content: Sequence[Any] = [meeting.activities, *keys, window_s, cores, *Round._fields]
    return "m" + sha256(repr(content).encode()).hexdigest()


def _origin(subject: Subject, bench: Bench, machine: str | None) -> Origin:
    engine = {
        "subject": subject.to_plain(),
        "actor": bench.actor.resolved_config(),
        "scorer": bench.scorer.resolved_config(),
    }
    return Origin(machine or hardware(subject.device), software_versions(), engine)
