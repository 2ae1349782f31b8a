"""What happens along a run: seconds that come back, drift, and intervals that widen with both."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from oppo_sim.columns import TIMING_STEP
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.checks.periodic import found_beside, found_in
from oppo_sim.fit.checks.trends import lasting_change
from oppo_sim.fit.estimate import FitResult
from oppo_sim.fit.inference.drifting import (
    CHANGE,
    CHANGES,
    LASTS,
    RETURN,
    Ahead,
    Residuals,
    drawn_drift,
    walks_of_run,
)
from oppo_sim.fit.sources import open_log
from tests.fit_logs import TRUTH, fit_scenario, short_chains, verl_log

STEPS = 40


def with_step_seconds(log: Path, to: Path, more: dict[int, float]) -> Path:
    """``timing_s/step`` of some steps longer by seconds that no metric names."""
    lines = []
    for number, line in enumerate(log.read_text().splitlines(), start=1):
        before = line.split("timing_s/step:np.float64(")[1].split(")")[0]
        after = float(before) + more.get(number, 0.0)
        lines.append(line.replace(f"timing_s/step:np.float64({before})", f"timing_s/step:{after}"))
    to.write_text("\n".join(lines) + "\n")
    return to


def slower(log: Path, to: Path, factor: float, steps: range) -> Path:
    """Generation of some steps takes ``factor`` as long; ``step`` follows."""
    lines = []
    for number, line in enumerate(log.read_text().splitlines(), start=1):
        values = {
            name: line.split(f"timing_s/{name}:np.float64(")[1].split(")")[0] for name in ("gen", "step")
        }
        more = (factor - 1) * float(values["gen"]) if number in steps else 0.0
        for name, value in values.items():
            line = line.replace(  # noqa: PLW2901
                f"timing_s/{name}:np.float64({value})", f"timing_s/{name}:{float(value) + more}"
            )
        lines.append(line)
    to.write_text("\n".join(lines) + "\n")
    return to


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = fit_scenario(steps=STEPS)
    return verl_log(tmp_path_factory.mktemp("log") / "plain.log", scenario, TRUTH, steps=STEPS)


def test_a_checkpoint_that_no_metric_names_is_predicted_where_it_comes_back(
    plain: Path, tmp_path: Path
) -> None:
    saved = dict.fromkeys(range(6, STEPS + 1, 6), 30.0)
    log = with_step_seconds(plain, tmp_path / "saved.log", saved)
    result = fit(log, fit_scenario(), fit_steps=15, draws=200)
    (held,) = result.held_out
    step = next(each for each in held.judgements if each.column == TIMING_STEP)
    assert step.model.p90 < 0.06
    assert step.model.worst < 0.1
    assert any("one step in 6 (6, 12, 18, …) takes 30" in note for note in result.notes)
    # A simulated run saves nothing.
    assert result.point.other_s == pytest.approx(0.7, rel=0.15)


def fitted_with_validations(plain: Path, folder: Path, seconds: dict[int, float]) -> FitResult:
    """Of a log with validations of 30 s in steps that take so much longer, all of which is predicted."""
    log = with_step_seconds(plain, folder / "checked.log", seconds)
    lines = log.read_text(encoding="utf-8").splitlines()
    for step in seconds:
        lines[step - 1] += " - timing_s/testing:np.float64(30.0)"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = fit(log, fit_scenario(), fit_steps=15, draws=200)
    (held,) = result.held_out
    step = next(each for each in held.judgements if each.column == TIMING_STEP)
    assert step.model.worst < 0.1
    return result


def test_what_a_validation_takes_beyond_its_own_seconds_is_predicted_from_one(
    plain: Path, tmp_path: Path
) -> None:
    """An engine is woken and put to sleep around it; the log times what lies between."""
    result = fitted_with_validations(plain, tmp_path, {10: 35.0, 20: 36.0, 30: 34.0, 40: 35.0})
    assert any("steps that validate or save (10, 20, 30, …) take 5" in note for note in result.notes)
    assert result.point.other_s == pytest.approx(0.7, rel=0.15)


@short_chains()
def test_a_slow_first_step_that_validates_says_nothing_of_other_validations(
    plain: Path, tmp_path: Path
) -> None:
    result = fitted_with_validations(plain, tmp_path, {1: 44.0, 20: 30.0})
    assert not any("validate or save" in note for note in result.notes)


@short_chains()
def test_drift_is_told_in_words(plain: Path, tmp_path: Path) -> None:
    log = slower(plain, tmp_path / "slow.log", 1.4, range(20, 31))
    result = fit(log, fit_scenario(), draws=200, fit_steps=STEPS)
    (trend,) = result.trends
    assert trend.column == "timing_s/gen"
    assert trend.change == pytest.approx(0.4, abs=0.08)
    assert trend.slow[0] >= 18
    assert trend.slow[1] <= 32
    assert trend.since is None
    assert any("timing_s/gen drifts" in note for note in result.notes)
    steady = fit(plain, fit_scenario(), draws=50, fit_steps=STEPS)
    assert not steady.trends
    assert not any("one step in" in note for note in steady.notes)


@short_chains()
def test_a_level_that_stays_is_told_from_its_first_step(plain: Path, tmp_path: Path) -> None:
    log = slower(plain, tmp_path / "changed.log", 1.15, range(26, STEPS + 1))
    result = fit(log, fit_scenario(), draws=50, fit_steps=STEPS)
    (trend,) = result.trends
    assert trend.column == "timing_s/gen"
    assert trend.since in (25, 26, 27)
    assert trend.lasting == pytest.approx(0.15, abs=0.03)
    (said,) = [note for note in result.notes if "more than before" in note]
    assert f"from step {trend.since} on" in said and f"--from-step {trend.since}" in said
    # From there on the run is steady, and is what was left.
    after = fit(open_log(log, from_step=26), fit_scenario(), draws=50, fit_steps=STEPS)
    assert not after.trends
    assert after.left_out == {"changed.log": {"step before --from-step 26": 25}}
    with pytest.raises(OppoError, match="no step from 41 on, its last is 40"):
        open_log(log, from_step=41)


def test_a_ramp_is_no_change_of_level() -> None:
    steps = np.arange(60)
    generator = np.random.default_rng(0)
    for ramp in (0.1, 0.3):
        off = ramp * steps / 60 + 0.01 * generator.standard_normal(60)
        assert lasting_change(off, 0.0125)[0] is None


@given(
    period=st.integers(3, 12),
    phase=st.integers(0, 11),
    count=st.integers(30, 80),
    usual=st.floats(0.1, 2.0),
    more=st.floats(20.0, 200.0),
    seed=st.integers(0, 99),
)
def test_any_period_is_found(
    period: int, phase: int, count: int, usual: float, more: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    steps = np.arange(1, count + 1)
    seconds = usual * np.exp(0.2 * generator.standard_normal(count))
    seconds = seconds + np.where(steps % period == phase % period, more, 0.0)
    found = found_in(steps, seconds, 100.0 + seconds)
    assert found is not None
    assert (found.period, found.phase) == (period, phase % period)
    assert found.seconds == pytest.approx(more, rel=0.1, abs=1.0)
    assert found.at(steps).sum() == pytest.approx(found.seconds * (steps % period == phase % period).sum())


def test_steps_that_stall_at_random_have_no_period() -> None:
    steps = np.arange(1, 61)
    seconds = np.where(np.isin(steps, [4, 11, 25, 26, 47]), 90.0, 0.5)
    assert found_in(steps, seconds, 100.0 + seconds) is None
    assert found_in(steps[:3], seconds[:3], 100.0 + seconds[:3]) is None


def whole_steps(seed: int, count: int = 45) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps whose seconds are of generation: their numbers, seconds, and what a cost model says of them."""
    generator = np.random.default_rng(seed)
    said = 40.0 * np.exp(0.15 * generator.standard_normal(count)) * np.linspace(1.0, 1.4, count)
    return np.arange(1, count + 1), 9.0 + 1.2 * said * np.exp(0.02 * generator.standard_normal(count)), said


@pytest.mark.parametrize("phase", [0, 1])
def test_a_checkpoint_is_found_in_seconds_that_hold_generation(phase: int) -> None:
    """As where whole steps alone are logged: no step is many times as long as another."""
    for seed in range(10):
        steps, seconds, said = whole_steps(seed)
        seconds[22] *= 1.25  # and one stalled
        seconds = seconds + np.where(steps % 10 == phase, 12.0, 0.0)
        assert found_in(steps, seconds, seconds) is None
        found = found_beside(steps[1:], seconds[1:], seconds[1:], said[1:])
        assert found is not None, seed
        assert (found.period, found.phase) == (10, phase)
        assert found.seconds == pytest.approx(12.0, abs=2.0)


def test_stalls_in_seconds_that_hold_generation_have_no_period() -> None:
    found = 0
    for seed in range(200):
        steps, seconds, said = whole_steps(seed)
        generator = np.random.default_rng(seed)
        seconds[generator.choice(len(steps), 4, replace=False)] *= 1.25
        found += found_beside(steps, seconds, seconds, said) is not None
    assert found <= 2


def drawn(
    residuals: np.ndarray, after: list[float], beyond: float = 0.0, noise: float = 0.02, draws: int = 20_000
) -> np.ndarray:
    """Draws of the drift at steps after a run with these residuals."""
    (walk,) = walks_of_run(
        {"timing_s/gen": Residuals(residuals, noise, True)}, np.arange(len(residuals))
    ).values()
    ahead = Ahead(np.array(after), np.full(len(after), beyond))
    generator = np.random.default_rng(1)
    return drawn_drift(ahead, walk, generation=True, draws=draws, generator=generator)[0]


def width(drift: np.ndarray) -> float:
    low, high = np.percentile(drift[:, -1], (2.5, 97.5))
    return float(high - low)


def test_drift_grows_with_the_steps_and_with_the_distance() -> None:
    residuals = 0.02 * np.random.default_rng(0).standard_normal(15)
    assert width(drawn(residuals, [100.0])) > 1.5 * width(drawn(residuals, [1.0])) > 0
    assert width(drawn(residuals, [1.0], beyond=1.0)) > 1.2 * width(drawn(residuals, [1.0]))
    # A walk: the same whatever lies between, until it has returned.
    near, far = drawn(residuals, [10.0, 40.0]), drawn(residuals, [10.0, 400.0])
    assert np.corrcoef(near.T)[0, 1] > 0.3 > np.corrcoef(far.T)[0, 1]
    assert width(far) == pytest.approx(width(drawn(residuals, [400.0])), rel=0.05)
    # Of a run that was not fitted there is no walk, only the distance.
    near = Ahead(np.array([0.0]), np.array([0.0]))
    moved, _ = drawn_drift(near, None, generation=True, draws=50, generator=np.random.default_rng(0))
    assert not moved.any()


@pytest.mark.parametrize("last", [1, 2])
def test_a_last_step_that_stalled_says_nothing_of_the_next(last: int) -> None:
    """One that saved a checkpoint, for example; of a new level two steps tell."""
    residuals = 0.01 * np.random.default_rng(4).standard_normal(30)
    usual = np.median(drawn(residuals, [1.0]))
    stalled = residuals.copy()
    stalled[-last] += 0.4
    assert np.median(drawn(stalled, [1.0])) == pytest.approx(usual, abs=0.01)
    moved = residuals.copy()
    moved[-3:] += 0.4
    assert np.median(drawn(moved, [1.0])) > 0.1


def test_drift_is_as_wide_as_the_noise_of_the_log() -> None:
    """But for changes of level, which few steps hardly have."""
    calm = 0.01 * np.random.default_rng(0).standard_normal(15)
    assert width(drawn(3 * calm, [2.0])) == pytest.approx(3 * width(drawn(calm, [2.0])), rel=0.05)
    # Without residuals the noise of the fit stands.
    assert width(drawn(np.full(15, np.nan), [2.0], noise=0.04)) > 1.9 * width(
        drawn(calm[:2], [2.0], noise=0.02)
    )


def test_the_walk_of_one_metric_tells_of_another_of_the_run() -> None:
    generator = np.random.default_rng(2)
    calm = 0.02 * generator.standard_normal(60)
    calm[15:] = np.nan
    walking = [np.cumsum(0.02 * generator.standard_normal(60)) for _ in range(3)]
    steady = [0.02 * generator.standard_normal(60) for _ in range(3)]

    def ratio(others: list[np.ndarray]) -> float:
        metrics = {str(number): Residuals(each, 0.02, False) for number, each in enumerate([calm, *others])}
        walk = walks_of_run(metrics, np.arange(60))["0"]
        return float(walk.weight @ np.arange(len(walk.weight)))

    assert ratio(walking) > ratio([]) > ratio(steady)


@pytest.mark.parametrize(("ratio", "times"), [(0.0, 1.0), (0.3, 1.8), (2.0, 4.0)])
def test_what_a_walk_explains_is_not_counted_as_noise_again(ratio: float, times: float) -> None:
    """A fit without a walk takes steps to lie around one level: their scale is ``times`` the noise."""
    generator = np.random.default_rng(5)
    fitted, found = [], []
    for _ in range(40):
        walk = np.cumsum(0.02 * np.sqrt(ratio) * generator.standard_normal(60))
        seconds = walk + 0.02 * generator.standard_normal(60)
        (told,) = walks_of_run({"a": Residuals(seconds, 0.02, False)}, np.arange(60)).values()
        fitted.append(seconds.std())
        near = Ahead(np.array([1.0]), np.array([0.0]))
        _, alone = drawn_drift(near, told, generation=False, draws=200, generator=generator)
        found.append(seconds.std() * alone.mean())
    assert np.mean(fitted) == pytest.approx(0.02 * times, rel=0.2)
    # What fifteen or sixty steps say of a walk is less than all of it.
    assert 0.016 <= np.mean(found) <= 0.035


def test_a_long_steady_log_has_narrow_drift_and_a_change_widens_it() -> None:
    generator = np.random.default_rng(3)
    steady = 0.02 * generator.standard_normal(150)
    changed = steady + np.where(np.arange(150) >= 110, 0.3, 0.0)
    assert width(drawn(steady, [50.0])) < 0.6 * width(drawn(steady[:15], [50.0]))
    assert width(drawn(changed, [50.0])) > 2 * width(drawn(steady, [50.0]))
    # The walk is followed from where it was, not from the mean of the run.
    assert np.median(drawn(changed, [1.0])) == pytest.approx(0.3, abs=0.03)
    # One step that stalls is no change.
    stalled = steady + np.where(np.arange(150) == 110, 1.0, 0.0)
    assert width(drawn(stalled, [50.0])) < 1.3 * width(drawn(steady, [50.0]))


def test_a_walk_returns_to_the_model() -> None:
    """The last five of fifteen steps took a tenth more: so will the next, and the hundredth after not."""
    high = 0.005 * np.random.default_rng(0).standard_normal(15) + np.r_[np.zeros(10), np.full(5, 0.1)]
    found = np.median(drawn(high, [1.0, 100.0, 400.0]), axis=0)
    assert found[0] > 0.07
    assert found[1] < 0.4 * found[0]
    assert abs(found[2]) < 0.01
    spread = [width(drawn(high, [after])) for after in (100.0, 400.0)]
    assert spread[1] < 1.6 * spread[0]


@pytest.mark.parametrize("steps", [95, 615])
def test_intervals_hold_as_often_as_they_say_where_logs_are_as_believed(steps: int) -> None:
    """Walks and changes of level as often and as large as they are taken to be. Where no level changes, more."""
    generator = np.random.default_rng(4)
    inside = []
    for _ in range(60):
        ratio = 0.02 * np.exp(2.0 * generator.standard_normal())
        changes = generator.random(steps) < generator.gamma(CHANGES[0], CHANGES[1] / CHANGES[0])
        innovations = 0.02 * np.sqrt(ratio) * generator.standard_normal(steps)
        walk = lfilter([1.0], [1.0, -np.exp(-1.0 / RETURN)], innovations)
        for begin in np.flatnonzero(changes):
            walk[begin : begin + round(generator.exponential(LASTS))] += CHANGE * generator.standard_normal()
        seconds = walk + 0.02 * generator.standard_normal(steps)
        drift = drawn(seconds[:15], (np.arange(steps - 15) + 1.0).tolist(), draws=1000)
        noisy = drift + 0.02 * generator.standard_normal(drift.shape)
        low, high = np.percentile(noisy, (2.5, 97.5), axis=0)
        inside.append(np.mean((low <= seconds[15:]) & (seconds[15:] <= high)))
    assert 0.9 <= np.mean(inside) <= 0.98


def test_a_thousand_steps_ahead_is_little_less_certain_than_three_hundred() -> None:
    """A change of level ends: nothing moves away for ever, and nobody must doubt so."""
    quiet = 0.01 * np.random.default_rng(2).standard_normal(15)
    near, far, further = (width(drawn(quiet, [after])) for after in (30.0, 300.0, 1000.0))
    assert near < far
    assert further < 1.15 * far
