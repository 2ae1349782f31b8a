"""A whole calibration of a tiny model on the torch engine: files, the simulator's view of them, going on
after an interruption."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from oppo_real.calibrate import session as session_module
from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.cache import VisitCache
from oppo_real.calibrate.contention import Meeting, Round
from oppo_real.calibrate.cut_fit import Cuts
from oppo_real.calibrate.cuts import time_weights
from oppo_real.calibrate.fit import Measured
from oppo_real.calibrate.measure import Visit, visit_from_plain, visit_point
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.profile import Calibration, Origin, Written, calibrate_from
from oppo_real.calibrate.session import CalibrationSession, Effort, calibrate_to, measure_session
from oppo_real.calibrate.sizes import Sizes
from oppo_real.calibrate.subject import Subject, check_profile_matches, hardware, open_bench
from oppo_real.config import RealConfig, parse_real_config
from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.profile import Profile, ProfileRangeWarning, load_profile
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError

MODEL = {
    "model_type": "qwen2",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
TRAINING = TrainingConfig(num_ppo_epochs=1)
SIZES = Sizes(4, 4, 12, 36, (8, 16), 96)
EFFORT = Effort(repeats=2, budget_s=120, contention=False)


def config(**changes: object) -> RealConfig:
    models = {"actor": MODEL, "reward": MODEL}
    return parse_real_config({"models": models, "placement": {"threads": 1}, **changes})


SUBJECT = Subject(config(), TRAINING)


pytestmark = pytest.mark.usefixtures("one_thread")


def context(training: TrainingConfig) -> CostContext:
    return CostContext(
        num_replicas=1,
        num_scoring_workers=1,
        rollout_batch_size=4,
        max_prompt_length=12,
        max_response_length=36,
        training=training,
        colocated_training=True,
        colocated_scoring=False,
    )


@pytest.fixture(scope="module")
def calibrated(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, tuple[CalibrationSession, Calibration, Written]]:
    """A folder with a whole calibration, ``tiny.json`` and what is measured in ``cache``; and what it gave."""
    folder = tmp_path_factory.mktemp("calibrated")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = calibrate_to(folder / "tiny.json", "tiny", SUBJECT, SIZES, folder / "cache", EFFORT)
    finally:
        torch.set_num_threads(before)
    return folder, found


def test_a_calibration_from_engines_to_simulator(
    calibrated: tuple[Path, tuple[CalibrationSession, Calibration, Written]],
) -> None:
    folder, (session, calibration, written) = calibrated
    path = folder / "tiny.json"
    assert session.fresh == session.planned_visits == len(session.visits)
    assert not session.notes
    assert session.complete

    profile = load_profile(path)
    engine = profile.measured.engine
    assert engine["actor"]["layers"] == 1  # type: ignore[index]
    assert engine["subject"]["models"]["actor"] == MODEL  # type: ignore[index]
    assert (
        profile.measured.software["torch"] == torch.__version__.split("+")[0]
        or profile.measured.software["torch"] == torch.__version__
    )
    assert profile.measured.hardware == hardware("cpu")
    assert profile.measured.repeats == 2

    costs = costs_from_profile(profile, context(TRAINING))
    fits = {fit.name: fit for fit in calibration.fits}
    for visit in session.visits:
        point = visit.point
        if point.kind == "decode" and point.cell is not None:
            same = sorted(other.mean for other in session.visits if other.point == point)
            low, high = sorted((sum(same) / 2, fits["decode"].predict(point)))
            seconds = costs.actor.decode_time(point.n, point.kv_tokens)
            assert low * (1 - 1e-9) <= seconds <= high * (1 + 1e-9), "a median drawn to the fit"
    score = [
        visit for visit in session.visits if visit.point.kind == "score" and visit.point.cell is not None
    ]
    assert profile.piece_fixed_s is not None
    assert profile.round_fixed_s is not None
    assert profile.piece_send_s is None, "inline nothing is sent"
    assert costs.cuts == (profile.round_fixed_s, profile.piece_fixed_s, 0.0)
    exact = [
        visit.point for visit in score if visit.point.cell == (visit.point.tokens, visit.point.mean_context)
    ]
    assert len({point.tokens for point in exact}) > 2
    for point in exact:
        repeats = [visit.mean for visit in score if visit.point == point]
        pieces = point.n * profile.piece_fixed_s
        batch = costs.scorer.prefill_time(point.tokens, point.pairs) + pieces
        if pieces < 0.9 * min(repeats):  # else what a piece costs is beyond this machine's noise
            low, high = sorted((sum(repeats) / 2, fits["score"].predict(point) + pieces))
            assert low * (1 - 1e-9) <= batch <= high * (1 + 1e-9), (
                "as a run takes it: the table and its pieces"
            )
    with pytest.warns(ProfileRangeWarning):
        costs.actor.decode_time(4, 10_000.0)
    assert profile.out_of_range["decode"] == 1

    samples = [json.loads(line) for line in written.samples.read_text().splitlines()]
    assert len(samples) == len(session.visits)
    assert written.samples.name in profile.measured.raw_samples
    report = json.loads(written.report.read_text())
    assert {fit["name"] for fit in report["fits"]} >= {
        "decode",
        "host",
        "prefill",
        "score",
        "update_actor",
        "values",
    }
    for fit in calibration.fits:
        assert all(0 <= one.low <= one.value <= one.high for one in fit.coefficients)
    assert check_profile_matches(profile, SUBJECT.config, TRAINING, hardware("cpu")) is None


def test_what_a_cut_costs_is_the_slope_over_rounds_and_pieces() -> None:
    # 0.1 s of iterations and 3 ms a round; a batch of 20 ms and 2 ms a piece; 1 ms on its way and 0.5 ms a
    # piece. A batch of 4 pieces that took 30 ms takes 22 ms beside them.
    points = make_plan(SIZES).points
    rounds = [
        Measured(point, (0.1 + 0.003 * point.cell[0],) * 2)
        for point in points
        if point.kind == "round" and point.cell is not None
    ]
    pieces = [point for point in points if point.kind == "piece"]
    assert [point.n for point in pieces] == [1, 2, 4, 8]
    assert len({point.tokens for point in pieces}) == len({point.pairs for point in pieces}) == 1
    scoring = [Measured(point, (0.02 + 0.002 * point.n,) * 2) for point in pieces]
    sending = [Measured(point, (0.001 + 0.0005 * point.n,) * 2) for point in pieces]
    cuts = Cuts(rounds, scoring, sending, 0)
    found = [cuts.seconds(name) for name in ("round", "piece", "send")]
    assert found == pytest.approx([0.003, 0.002, 0.0005], rel=1e-6)
    (batch,) = cuts.without_pieces([Measured(pieces[2], (0.03,))])
    assert batch.seconds == pytest.approx(0.022)
    nothing = Cuts([], [], [], 0)
    assert nothing.seconds("round") is nothing.seconds("piece") is nothing.seconds("send") is None


def test_a_replica_told_by_messages_makes_the_rounds_that_it_is_asked_for() -> None:
    bench = open_bench(replace(SUBJECT, config=config(placement={"kind": "processes", "threads": 1})), SIZES)
    try:
        assert not bench.inline
        points = make_plan(SIZES).points
        most = max((point for point in points if point.kind == "round"), key=lambda point: point.cell or ())
        before = bench.actor.counts().decoded
        visit = visit_point(bench, most, 0)
        made = bench.actor.counts().decoded - before
        # Three times: 2 iterations to warm up and the rounds' own, of each rollout.
        assert most.cell is not None
        assert made == 3 * most.n * (2 + most.cell[0] * most.cell[1])
        assert min(visit.seconds) > 0
        several = next(point for point in points if point.kind == "piece" and point.n == 4)
        sent = visit_point(bench, several, 0)
        assert min(sent.seconds) > 0
        assert len(sent.host_seconds) == 3
        assert min(sent.host_seconds) > 0
    finally:
        bench.close()


def test_an_interrupted_calibration_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, int]] = []
    stop_after = 11
    done_first = stop_after

    def counting(bench: Bench, point: Point, number: int) -> Visit:
        begun.append((point.key, number))
        if len(begun) > stop_after:
            raise KeyboardInterrupt
        return visit_point(bench, point, number)

    monkeypatch.setattr(session_module, "visit_point", counting)
    with pytest.raises(KeyboardInterrupt):
        measure_session(SUBJECT, SIZES, tmp_path, EFFORT)
    first = begun[:done_first]
    begun.clear()
    stop_after = 10_000
    second = measure_session(SUBJECT, SIZES, tmp_path, EFFORT)
    assert len(second.visits) == second.planned_visits
    assert second.fresh == second.planned_visits - done_first
    assert not set(first) & set(begun), "nothing is measured twice"

    begun.clear()
    again = measure_session(SUBJECT, SIZES, tmp_path, EFFORT)
    assert not begun
    assert again.fresh == 0
    assert again.visits == second.visits

    other = replace(SUBJECT, config=config(models={"actor": {**MODEL, "hidden_size": 16}, "reward": MODEL}))
    stop_after = 0
    with pytest.raises(KeyboardInterrupt):
        measure_session(other, SIZES, tmp_path, EFFORT)  # another model begins anew


def test_a_budget_that_is_too_small_says_what_to_do_and_keeps_what_is_done(tmp_path: Path) -> None:
    told = r"^nothing was measured: the engines took .* and --budget-s gives 0\.001 s: raise it to"
    with pytest.raises(OppoError, match=told):
        calibrate_to(
            tmp_path / "tiny.json",
            "tiny",
            SUBJECT,
            SIZES,
            tmp_path / "cache",
            replace(EFFORT, budget_s=0.001),
        )
    assert not (tmp_path / "tiny.json").exists()


def test_a_budget_that_leaves_visits_out_says_what_would_be_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = 0.0

    def ten_seconds(bench: Any, point: Any, number: int) -> Visit:
        nonlocal now
        now += 10.0
        return Visit(point, number, (0.1,))

    monkeypatch.setattr("oppo_real.calibrate.session.perf_counter", lambda: now)
    monkeypatch.setattr("oppo_real.calibrate.session.visit_point", ten_seconds)
    points = len(make_plan(SIZES).points)
    session = measure_session(SUBJECT, SIZES, tmp_path, replace(EFFORT, repeats=3, budget_s=10.0 * points))
    (told,) = session.notes
    assert len(session.visits) == points
    assert told.startswith(f"--budget-s {10 * points} was enough for {points} of {3 * points} visits")
    needed = int(re.search(r"about (\d+) s are enough", told)[1])  # type: ignore[index]
    assert 30 * points <= needed <= 33 * points
    session = measure_session(SUBJECT, SIZES, tmp_path, replace(EFFORT, repeats=3, budget_s=inf))
    assert session.complete
    assert len(session.visits) == 3 * points
    assert session.fresh == 2 * points


def test_a_calibration_is_of_the_day_on_which_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of cached visits the last one's; those of before times were kept are of today."""
    days = iter(f"2025-03-{1 + number // 60:02}T10:{number % 60:02}:00+00:00" for number in range(1000))
    monkeypatch.setattr("oppo_real.calibrate.session.now_told", lambda: next(days))
    monkeypatch.setattr("oppo_real.calibrate.profile.now_told", lambda: "2026-11-28T00:00:00+00:00")
    found = [
        calibrate_to(
            tmp_path / f"{name}.json", "tiny", SUBJECT, SIZES, tmp_path / "cache", replace(EFFORT, repeats=1)
        )
        for name in ("first", "again")
    ]
    assert [session.fresh for session, _, _ in found] == [len(found[0][0].visits), 0]
    last = max(str(visit.measured_at) for visit in found[0][0].visits)
    assert last.startswith("2025-03")
    assert {load_profile(tmp_path / f"{name}.json").measured.date for name in ("first", "again")} == {last}
    assert _profile().measured.date.startswith("2026-11-28")


def test_a_budget_that_engines_use_up_says_what_would_be_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hundred seconds of engines come again with every run, and what is kept for contention with them."""
    now = 0.0

    def hundred_seconds(*given: Any, **named: Any) -> Any:
        nonlocal now
        now += 100.0
        return open_bench(*given, **named)

    def one_second(bench: Any, point: Any, number: int) -> Visit:
        nonlocal now
        now += 1.0
        return Visit(point, number, (1.0,))

    monkeypatch.setattr("oppo_real.calibrate.session.perf_counter", lambda: now)
    monkeypatch.setattr("oppo_real.calibrate.session.open_bench", hundred_seconds)
    monkeypatch.setattr("oppo_real.calibrate.session.visit_point", one_second)
    monkeypatch.setattr("oppo_real.calibrate.session._measure_contention", lambda *given: [])
    points = len(make_plan(SIZES).points)
    effort, asked = replace(EFFORT, repeats=2, contention=True), 120.0
    seen = []
    for _ in range(3):
        session = measure_session(SUBJECT, SIZES, tmp_path, replace(effort, budget_s=asked))
        seen.append(len(session.visits))
        if (left := re.search(r"about (\d+) s are enough", " ".join(session.notes))) is None:
            break
        asked = float(left[1])
    assert len(seen) == 2
    assert seen[0] < seen[1] == 2 * points
    assert seen[0] in (20, 21), "the 20 s after the engines, in which contention has no room"


@pytest.fixture
def measured(
    calibrated: tuple[Path, tuple[CalibrationSession, Calibration, Written]], tmp_path: Path
) -> Path:
    """A cache of its own, in which all but contention is measured."""
    return Path(shutil.copytree(calibrated[0] / "cache", tmp_path / "cache"))


def test_other_work_is_told_and_only_what_the_budget_left_out_is_incomplete(
    monkeypatch: pytest.MonkeyPatch, measured: Path
) -> None:
    left_out = 1

    def rounds(
        open_bench: Any, engines: Any, rounds: Mapping[Meeting, int], **settings: Any
    ) -> Iterator[tuple[Meeting, Round]]:
        for meeting in list(rounds)[: len(rounds) - left_out]:
            yield meeting, Round((1.0, 1.0), (1.25, 1.25), taken=(0.2, 0.2))

    monkeypatch.setattr("oppo_real.calibrate.session.measure_contention", rounds)
    effort = replace(EFFORT, contention=True, rounds=1)
    told: list[tuple[int, int, str]] = []
    session = measure_session(SUBJECT, SIZES, measured, effort, lambda *one: told.append(one))
    assert told[-1][:2] == (len(session.contention), len(session.contention) + left_out), "of rounds"
    assert "contention" in told[-1][2]
    missing, other = session.notes
    assert not session.complete
    assert missing.startswith("the budget left no time for ")
    assert other.startswith("other work had 20% of the time in which decoding and scoring ran together")
    left_out = 0
    session = measure_session(SUBJECT, SIZES, measured, effort)
    assert session.notes == (other,)
    assert session.complete


def test_rounds_with_an_update_are_as_many_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, measured: Path
) -> None:
    asked: list[dict[tuple[str, str], int]] = []

    def rounds(
        open_bench: Any, engines: Any, rounds: Mapping[Meeting, int], **settings: Any
    ) -> Iterator[tuple[Meeting, Round]]:
        asked.append({meeting.activities: count for meeting, count in rounds.items()})
        for meeting, count in rounds.items():
            yield from [(meeting, Round((1.0, 1.0), (1.25, 1.25)))] * count

    monkeypatch.setattr("oppo_real.calibrate.session.measure_contention", rounds)
    for every, updates in ((4, 1), (8, 2)):
        effort = replace(EFFORT, contention=True, rounds=every, update_rounds=updates)
        session = measure_session(SUBJECT, SIZES, measured, effort)
        assert session.complete
        assert {len(one.by_round) for one in session.decode_beside_score} == {every}
        assert {len(one.by_round) for one in session.contention} == {every, updates}
    assert asked == [{("decode", "score"): 4, ("decode", "train"): 1, ("score", "train"): 1}] * 2
    assert measure_session(SUBJECT, SIZES, measured, effort).complete
    assert len(asked) == 2


def test_activities_meet_on_the_cores_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[tuple[str, str], object] = {}

    def rounds(
        open_bench: Any, engines: Any, rounds: Mapping[Meeting, int], **settings: Any
    ) -> Iterator[tuple[Meeting, Round]]:
        asked.update({meeting.activities: settings["cores"][meeting] for meeting in rounds})
        yield from [(meeting, Round((1.0, 1.0), (1.25, 1.25))) for meeting in rounds]

    monkeypatch.setattr("oppo_real.calibrate.session.measure_contention", rounds)
    # Replica and scorer take turns on core 0, the driver, which trains, has core 1
    placement = {"kind": "processes", "cores": {"driver": [1], "rollout": [[0]], "scoring": [[0]]}}
    subject = replace(SUBJECT, config=config(placement=placement))
    measure_session(subject, SIZES, tmp_path, replace(EFFORT, contention=True, rounds=1))
    assert asked == {("decode", "score"): (0,), ("decode", "train"): (0, 1), ("score", "train"): (0, 1)}


def test_a_damaged_or_foreign_cached_point_is_measured_again(tmp_path: Path) -> None:
    def cache(torch: str = "1", kv: int = 64, version: int = 3) -> VisitCache:
        return VisitCache(
            tmp_path, {"torch": torch, "actor": {"kv_capacity_tokens": kv, "weight_version": version}}
        )

    point = make_plan(SIZES).points[0]
    visit = Visit(point, 0, (0.5, 0.25))
    cache().put(point.key, 0, visit.to_plain())
    assert visit_from_plain(cache().get(point.key, 0), point, 0) == visit
    assert cache().get(point.key, 1) is None
    assert cache(version=4).get(point.key, 0) is not None
    assert cache(torch="2").get(point.key, 0) is None
    assert cache(kv=32).get(point.key, 0) is None
    file = next(tmp_path.rglob("*-0.json"))
    file.write_text(file.read_text()[:-10])
    assert cache().get(point.key, 0) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"models": {"actor": {**MODEL, "num_hidden_layers": 2}, "reward": MODEL}},
            "models.actor.num_hidden_layers",
        ),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"engine": "vllm"}, "engine"),
        ({"devices": {"rollout": ["cuda:0"]}}, "devices.rollout"),
    ],
)
def test_a_profile_of_something_else_is_refused_in_one_sentence(
    changes: dict[str, object], named: str
) -> None:
    profile = _profile()
    check_profile_matches(profile, SUBJECT.config, TRAINING)
    with pytest.raises(OppoError) as refused:
        check_profile_matches(profile, config(**changes))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_hardware_other_ppo_and_a_profile_of_unknown_origin_are_refused() -> None:
    profile = _profile()
    with pytest.raises(OppoError, match=r"measured on .* and this machine has"):
        check_profile_matches(profile, SUBJECT.config, hardware_here="1 of 1 H200")
    with pytest.raises(OppoError, match=r"ppo\.num_ppo_epochs"):
        check_profile_matches(profile, SUBJECT.config, TrainingConfig(num_ppo_epochs=4))
    unknown = profile.model_copy(update={"measured": profile.measured.model_copy(update={"engine": {}})})
    with pytest.raises(OppoError, match="does not say which models"):
        check_profile_matches(unknown, SUBJECT.config)


def _profile() -> Profile:
    """A profile of synthetic seconds: what it is compared by does not depend on them."""
    visits = []
    for point in make_plan(SIZES).points:
        seconds = 1e-3 + 1e-6 * (point.tokens + point.kv_tokens)
        stages = {
            "update_actor": seconds,
            **dict.fromkeys(("old_log_prob", "ref", "values", "adv", "update_critic"), 0.0),
        }
        host = (1e-6, 1e-6, 1e-6) if point.kind == "decode" else ()
        visits.append(Visit(point, 0, (seconds,), host, stages if point.kind == "train" else {}))
    origin = Origin(
        hardware("cpu"), {}, {"subject": SUBJECT.to_plain(), "actor": {"kv_capacity_tokens": 4096}}
    )
    return calibrate_from("synthetic", visits, (), origin, len(visits), "none").profile


def test_kv_of_the_engine_and_stages_that_never_ran() -> None:
    profile = _profile()
    assert profile.kv_capacity_tokens == 4096
    assert profile.training.ref is None
    assert profile.training.update_actor


def test_streamed_reference_model_is_measured_beside_the_reward_model(tmp_path: Path) -> None:
    sizes = replace(SIZES, stream_ref=True)
    subject = replace(SUBJECT, training=TrainingConfig(num_ppo_epochs=1, stream_ref=True))
    _, calibration, _ = calibrate_to(
        tmp_path / "tiny.json", "tiny", subject, sizes, tmp_path / "cache", replace(EFFORT, repeats=1)
    )
    profile = load_profile(tmp_path / "tiny.json")
    assert profile.score_ref is not None
    costs = costs_from_profile(profile, context(subject.training))
    assert costs.scorer.prefill_time(96, 96 * 12.0) > profile.score.seconds[-1][0] * 0.5
    assert "score_ref" in {fit.name for fit in calibration.fits}


def test_a_streamed_reference_model_is_measured_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a pair comes first in turn, so a machine that slows down meanwhile adds little."""
    from oppo_real.calibrate import measure

    now = [0.0]
    bench = SimpleNamespace(scorer=object(), scorer_with_ref=object())
    costs = {id(bench.scorer): 2.0, id(bench.scorer_with_ref): 5.0}
    asked: list[int] = []

    def append(_bench: object, scorer: object, _point: object) -> float:
        asked.append(id(scorer))
        drift = 1.0 + now[0]
        now[0] += 0.01
        return costs[id(scorer)] * drift

    monkeypatch.setattr(measure, "_append", append)
    point = Point("score_ref", ((0, 8),))
    visit = visit_point(cast(Bench, bench), point, 0)
    assert visit.mean == pytest.approx(3.0, rel=0.2)
    alone, both = id(bench.scorer), id(bench.scorer_with_ref)
    assert asked[:4] == [alone, both, both, alone]


def test_new_weights_reach_a_replica_by_the_way_of_a_run() -> None:
    bench = open_bench(SUBJECT, SIZES)
    before = bench.weights()["model.norm.weight"].clone()
    bench.weights()["model.norm.weight"].mul_(3.0)
    for inline in (True, False):
        bench.inline = inline
        bench.version += 1
        assert len(time_weights(bench)) >= 3
    model = bench.actor._packed.model  # type: ignore[attr-defined]
    assert torch.equal(model.state_dict()["model.norm.weight"], 3.0 * before)
    bench.close()
