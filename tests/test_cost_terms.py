"""Terms on costs: how they combine, and draws of them as files."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppo_sim.costs.terms import FACTORS, NO_TERMS, SECONDS, CostTerms, read_draws, write_draws
from oppo_sim.errors import OppoError


def terms() -> st.SearchStrategy[CostTerms]:
    values = {name: st.floats(0.1, 10.0) for name in FACTORS} | {
        name: st.floats(0.0, 10.0) for name in SECONDS
    }
    return st.fixed_dictionaries({}, optional=values).map(lambda given: CostTerms(**given))


@given(terms(), terms(), terms())
def test_factors_multiply_and_seconds_add(first: CostTerms, second: CostTerms, third: CostTerms) -> None:
    both = first.then(second)
    for name in FACTORS:
        assert getattr(both, name) == getattr(first, name) * getattr(second, name)
    for name in SECONDS:
        assert getattr(both, name) == getattr(first, name) + getattr(second, name)
    assert first.then(NO_TERMS) == NO_TERMS.then(first) == first
    for name, value in both.then(third):
        assert value == pytest.approx(getattr(first.then(second.then(third)), name), rel=1e-12)


@given(st.lists(terms(), min_size=1, max_size=5))
def test_draws_are_read_as_they_were_written(draws: list[CostTerms]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draws.csv"
        write_draws(path, draws)
        assert read_draws(path) == tuple(draws)


def test_columns_left_out_are_at_the_point(tmp_path: Path) -> None:
    path = tmp_path / "draws.csv"
    path.write_text("decode, gen_phase_s\n1.5,2\n\n0.5,0\n")
    found = read_draws(path, CostTerms(decode=9.0, other_s=3.0))
    assert found == (
        CostTerms(decode=1.5, gen_phase_s=2.0, other_s=3.0),
        CostTerms(decode=0.5, other_s=3.0),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no draws"),
        ("decode\n", "no draws"),
        ("decod\n1\n", "'decod' is no term"),
        ("decode,decode\n1,1\n", "decode is there twice"),
        ("decode,host\n1\n", "line 2: 1 values under 2 columns"),
        ("decode\n1\nfast\n", "line 3: decode is 'fast': give a factor above 0"),
        ("decode\n0\n", "line 2: decode is '0': give a factor above 0"),
        ("decode\ninf\n", "line 2: decode is 'inf'"),
        ("other_s\n-1\n", "line 2: other_s is '-1': give seconds of 0 or more"),
        ("other_s,decode\n1,\n", "line 2: decode is ''"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "draws.csv"
    path.write_text(text)
    with pytest.raises(OppoError, match=said) as refused:
        read_draws(path)
    assert "draws.csv" in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match=r"nowhere\.csv"):
        read_draws(tmp_path / "nowhere.csv")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "draws.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OppoError, match=r"draws\.csv is no text"):
        read_draws(path)


def test_terms_say_what_they_change() -> None:
    assert str(NO_TERMS) == "as given"
    assert str(CostTerms(decode=1.1, gen_phase_s=4.0)) == "decode × 1.10, gen_phase_s + 4 s"
