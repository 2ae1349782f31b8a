"""Lengths rebuilt from a step's figures meet the figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.fit.log.rebuilt_lengths import LengthFigures, rebuilt_lengths


@st.composite
def figures_of_lengths(draw: st.DrawFn) -> tuple[LengthFigures, np.ndarray]:
    count = draw(st.integers(1, 300))
    seed, sigma = draw(st.integers(0, 2**31)), draw(st.floats(0.05, 2.0))
    cut = draw(st.integers(20, 5000))
    drawn = np.random.default_rng(seed).lognormal(np.log(cut / 4), sigma, count)
    lengths = np.clip(np.rint(drawn), 1, cut).astype(np.int64)
    figures = LengthFigures(
        rollouts=count,
        mean=float(lengths.mean()),
        max=float(lengths.max()),
        min=float(lengths.min()),
        clip_ratio=float((lengths == cut).mean()),
        cut=cut,
    )
    return figures, lengths


@settings(max_examples=150, deadline=None)
@given(figures_of_lengths(), st.integers(0, 100))
def test_every_draw_has_the_logged_mean_extremes_and_cut_share(
    made: tuple[LengthFigures, np.ndarray], seed: int
) -> None:
    figures, lengths = made
    drawn = rebuilt_lengths(figures, 3, np.random.default_rng(seed))
    assert drawn.shape == (3, len(lengths))
    for row in drawn:
        assert row.sum() == lengths.sum()
        assert row.max() == lengths.max()
        assert row.min() == lengths.min()
        assert (row == figures.cut).sum() == (lengths == figures.cut).sum()


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 200), st.floats(1, 900), st.integers(0, 50))
def test_without_a_maximum_it_is_drawn_below_the_cut(count: int, mean: float, seed: int) -> None:
    drawn = rebuilt_lengths(LengthFigures(count, mean, cut=1000), 4, np.random.default_rng(seed))
    assert np.abs(drawn.mean(axis=1) - mean).max() <= 0.5 / count + 1e-9
    assert drawn.max() <= 1000
    assert drawn.min() >= 1


def test_draws_differ_but_not_from_run_to_run() -> None:
    figures = LengthFigures(64, 300.0, 1200, 10, 0.0, 2000)
    one, again = (rebuilt_lengths(figures, 4, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one, again)
    assert len({tuple(sorted(row)) for row in one.tolist()}) == 4


@pytest.mark.parametrize(
    "figures",
    [
        LengthFigures(64, 900.0, 500, 10),
        LengthFigures(8, 0.0, 4),
        LengthFigures(64, 520.0, cut=500),
        LengthFigures(64, 300.0, min=400, cut=1000),
        # Half of them as long as a maximum that is not the run's.
        LengthFigures(64, 300.0, clip_ratio=0.5, cut=1000),
    ],
)
def test_figures_that_no_lengths_have_are_refused(figures: LengthFigures) -> None:
    with pytest.raises(OppoError, match="cannot"):
        rebuilt_lengths(figures, 1, np.random.default_rng(0))
