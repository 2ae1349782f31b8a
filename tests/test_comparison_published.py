"""Comparisons held against published speed-ups, and the scenarios that carry draws which come with the
package."""

import json
from pathlib import Path

import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim.comparison.published import held_against, published_record
from oppo_sim.costs.shipped_draws import PREFIX, SHIPPED_FOLDER, draws_path
from oppo_sim.costs.terms import read_draws
from oppo_sim.errors import OppoError
from oppo_sim.runs.machine import machine_of
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.scenario.relocate import relocated
from oppo_sim.scenario.schema import Published
from tests.cli_runs import TINY, Oppo, write_scenario

ENDS = (c.SPEEDUP_LOW, c.SPEEDUP_HIGH, c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH)


@pytest.fixture
def oppo(capsys: pytest.CaptureFixture[str]) -> Oppo:
    return Oppo(capsys)


def table(**rows: tuple[float, float, float, float]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(ENDS))


def test_a_published_speedup_lies_inside_above_or_below() -> None:
    published = Published(source="them", speedups={"intra": 1.2, "inter": 1.56, "oppo": 1.1, "april": 2.0})
    ranges = table(intra=(1.3, 1.4, 1.1, 1.5), inter=(1.1, 1.6, 1.2, 1.5), oppo=(1.0, 2.0, 1.2, 1.9))
    places = {one.policy: one.place for one in held_against(published, ranges)}
    assert places == {"intra": "inside", "inter": "above", "oppo": "below"}
    # Without draws of the machine the interval of the rollouts is all there is.
    alone = ranges.drop(columns=[c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH])
    places = {one.policy: one.place for one in held_against(published, alone)}
    assert places == {"intra": "below", "inter": "inside", "oppo": "inside"}
    assert published_record(published, ranges)["sentence"] == (
        "published (them): inside the ranges intra 1.2×; inter 1.56× is above its range, oppo 1.1× is below"
        " its range"
    )


def test_nothing_is_said_of_what_was_not_compared() -> None:
    ranges = table(intra=(float("nan"),) * 4)
    assert published_record(None, ranges) == {}
    assert published_record(Published(source="them", speedups={"oppo": 2.0}), ranges) == {}
    assert published_record(Published(source="them", speedups={"intra": 2.0}), ranges) == {}


def test_compare_says_it_in_every_output_and_no_result_depends_on_it(tmp_path: Path, oppo: Oppo) -> None:
    told = write_scenario(tmp_path, published={"source": "them", "speedups": {"oppo": 900.0}})
    arguments = ("--policies", "oppo", "--seeds", "2", "--no-figures", "--no-attribution")
    code, out, _ = oppo("compare", str(told), *arguments, "-o", str(tmp_path / "one"))
    assert code == 0
    assert "published (them): oppo 900× is above its range" in out
    code, out, _ = oppo("compare", str(told), *arguments, "-o", str(tmp_path / "two"), "--json")
    assert code == 0
    assert json.loads(out)["published"]["speedups"][0]["place"] == "above"
    plain = load_scenario(write_scenario(tmp_path, "plain.yaml"))
    assert plain.content_hash == load_scenario(told).content_hash


@pytest.mark.parametrize("published", [{"source": "them", "speedups": {}}, {"speedups": {"oppo": 2.0}}])
def test_published_without_a_source_or_a_number_is_refused(tmp_path: Path, published: object) -> None:
    with pytest.raises(OppoError, match="published"):
        load_scenario(write_scenario(tmp_path, published=published))


def test_shipped_draws_belong_to_a_scenario_whose_point_lies_among_them() -> None:
    carrying = [name for name in shipped_scenarios() if load_scenario(name).costs.draws is not None]
    assert carrying == sorted(path.stem for path in SHIPPED_FOLDER.glob("*.csv"))
    assert carrying
    for name in carrying:
        scenario = load_scenario(name)
        assert scenario.costs.draws == f"{PREFIX}{name}"
        drawn = read_draws(draws_path(scenario.costs.draws))
        assert machine_of(scenario, 40).draws == drawn[:40]
        for term, value in scenario.costs.terms.stated().items():
            values = [getattr(draw, term) for draw in drawn]
            assert min(values) <= value <= max(values), f"{name}: {term}"


def test_shipped_draws_go_along_into_another_folder_and_a_wrong_name_is_told(tmp_path: Path) -> None:
    plain = load_scenario("paper-gsm8k-7b").to_plain()
    assert relocated(plain, None, tmp_path)["costs"]["draws"] == "shipped:paper-gsm8k-7b"
    assert draws_path("draws.csv", tmp_path) == tmp_path / "draws.csv"
    path = write_scenario(tmp_path, costs={**TINY["costs"], "draws": "shipped:paper-gsm8k-7c"})
    with pytest.raises(OppoError, match="no shipped draws 'paper-gsm8k-7c': there are paper-gsm8k-7b"):
        machine_of(load_scenario(path), 2)
