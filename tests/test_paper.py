"""The check of the paper: that fits see baselines alone, that claims are computed as they are said, and that a
part of it runs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "paper"))

import answers
import asking
import claims
import fitting
import given
import moved
import others
import paper_page
import policy_map
import production
import questions
import run as whole_run
import setups
import shipped
import synthetic
import unknowns

from oppo_sim.costs.priors import TABLE
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.observe import read_observation
from oppo_sim.policies.registry import check_settings
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.schema import Scenario

FOLDER = setups.FOLDER


FIT = ("oppo_runs", "others", "production", "fitting", "predicting")


def modules_of(*roots: str) -> dict[str, ast.Module]:
    """Modules of the folder that these import, however indirectly, themselves among them."""
    left, found = list(roots), {}
    while left:
        if (name := left.pop()) not in found and (FOLDER / f"{name}.py").exists():
            found[name] = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
            for node in ast.walk(found[name]):
                if isinstance(node, ast.Import):
                    left += [one.name for one in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    left.append(node.module)
    return found


def test_what_fits_imports_no_comparison() -> None:
    found = set(modules_of(*FIT))
    assert {"setups", "unknowns", "study"} < found  # imports are followed
    readers = {path.stem for path in FOLDER.glob("*.py") if "claims" in modules_of(path.stem)}
    assert {"claims", "hypotheses", "paper_page"} <= readers
    assert not found & readers


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(FOLDER), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def test_history_has_the_posteriors_before_their_score() -> None:
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no history here (a shallow clone, or none): which commit came first cannot be seen")
    scored = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", str(claims.COMPARED))
    files = [file(name) for name in setups.SETUPS for file in (fitting.worlds_file, fitting.draws_file)]
    fitted = {_git("log", "-1", "--format=%H", "--", str(path)) for path in (*files, setups.BASELINE)}
    if fitted == {scored}:
        pytest.skip("history has fit and score in one commit: which came first cannot be seen")
    assert scored not in fitted
    assert {_git("merge-base", each, scored) for each in fitted} == fitted  # each is an ancestor


def test_the_fit_here_is_the_one_that_was_scored_last() -> None:
    scorings = pd.read_csv(paper_page.SCORINGS, dtype=str)
    assert scorings["fit"].iloc[-1] == fitting.digest(setups.SETUPS)


@pytest.mark.parametrize(
    ("ids", "roots"), [("C", ("oppo_runs", "fitting", "predicting")), ("P", ("production",))]
)
def test_no_published_result_is_written_where_a_fit_sees_it(ids: str, roots: tuple[str, ...]) -> None:
    results = {
        float(claim.paper)
        for claim in claims.read_claims()
        if claim.id[0] == ids and claim.paper[:1] not in "<>"
    }
    assert len(results) >= 2
    seen = {
        float(node.value)
        for tree in modules_of(*roots).values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    }
    assert 112.0 in seen or ids == "P"  # B
    told = setups.BASELINE.read_text("utf-8") if ids == "C" else " ".join(production.KNOWN)
    seen |= {float(number) for number in re.findall(r"[=.±]([0-9]+(?:\.[0-9]+)?)", told)}
    either = results | {round(100 * value, 3) for value in results if value < 1}
    assert not seen & either


def test_no_prior_of_seconds_rests_on_the_paper() -> None:
    assert len(TABLE) > 50
    assert [row for row in TABLE if re.search(r"paper|OPPO|2509", row.source)] == []


def test_known_numbers_can_be_observed() -> None:
    for name in setups.SETUPS:
        for definition in unknowns.CHOICES["gpu_use"].values:
            for text in setups.known_of(name, definition):
                read_observation(text)
    for other in others.read_others().values():
        for text in other.observe:
            read_observation(text)


def test_a_world_is_its_number() -> None:
    setup = setups.SETUPS["gsm8k-7b"]
    assert unknowns.world_of(setup, 3) == unknowns.world_of(setup, 3)
    assert unknowns.world_of(setup, 3) != unknowns.world_of(setup, 4)
    assert "reward_dtype" not in unknowns.world_of(setup, 3)  # rules have no weights


def test_claimed_quantities_by_hand() -> None:
    runs = pd.DataFrame(
        {
            "draw": [0, 0, 1, 1],
            "world": [7, 7, 9, 9],
            "run": ["sequential", "oppo"] * 2,
            "step_s": [100.0, 50.0, 90.0, 60.0],
            "utilization": [0.5, 0.8, 0.4, 0.6],
            "kernels": [0.1, 0.2, 0.1, 0.3],
            "own_step": [1.0, 0.9, 1.0, 1.0],
            "one_step": [0.0, 0.08, 0.0, 0.0],
        }
    )
    worlds = pd.DataFrame({"world": [7, 9], "gpu_use": ["utilization/kernels", "unrelated"]})

    def values(quantity: str) -> np.ndarray:
        claim = claims.Claim("X", "x", "x", quantity, "oppo", "sequential", "2", "x")
        return claims.values_of(claim, runs, worlds)

    assert values("speedup") == pytest.approx([2.0, 1.5])
    assert values("slower") == pytest.approx([0.5, 1 / 1.5])
    assert values("minutes 4300") == pytest.approx([2150.0, 4300 / 1.5])
    assert values("gpu_use") == pytest.approx([0.2, np.nan], nan_ok=True)
    assert values("gpu_use_gain") == pytest.approx([2.0, np.nan], nan_ok=True)
    assert values("one_step_of_deferred") == pytest.approx([0.8, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("name", "gpu_use"),
    [("se-7b", "unrelated"), ("nodes-7b", "unrelated"), ("gsm8k-7b", "utilization/inference")],
)  # a range of seconds, a number of seconds, a share alone
def test_a_synthetic_case_is_told_by_other_worlds(name: str, gpu_use: str) -> None:
    count = 400
    generator = np.random.default_rng(0)
    seconds = generator.uniform(50, 150, count)
    pool = pd.DataFrame({"world": np.arange(count), "gpu_use": gpu_use, "s_sequential": seconds})
    for at in range(3):
        pool[f"mean_{at}"] = pool[f"told_{at}"] = seconds if at == 0 else seconds / 200
        for to in range(at, 3):
            pool[f"cov_{at}{to}"] = 0.0
    for run in synthetic.POLICIES:
        pool[f"s_{run}"] = 50.0  # the gain follows from the seconds alone
    cases = [synthetic.one_case(name, pool, number) for number in range(100)]
    inside = np.mean([case["oppo_inside"] for case in cases])
    assert 0.88 <= inside <= 1.0
    widths = [case["oppo_high"] / case["oppo_low"] for case in cases]
    assert np.median(widths) < 1.5  # of the prior: 3


def test_the_stored_page_is_what_its_code_gives() -> None:
    stored = paper_page.PAGE.read_text(encoding="utf-8")
    assert paper_page.page_text(claims.compare_all()) == stored, (
        "run 'python experiments/paper/run.py --page'"
    )


def test_the_stored_list_of_given_numbers_is_what_its_code_gives() -> None:
    assert given.page_text() == given.PAGE.read_text("utf-8"), "run 'python experiments/paper/given.py'"


def test_shipped_scenarios_are_what_their_posteriors_say() -> None:
    assert [line for name in shipped.OF for line in shipped.differences(name)] == []


def test_every_part_of_a_run_has_its_files_and_questions_theirs() -> None:
    parts = whole_run.parts()
    files = [file for part in parts.values() for file in part.files]
    assert len(set(files)) == len(files)
    assert all(file.exists() for file in files)
    assert set(whole_run.seconds_known()) <= set(parts)
    assert {claim.study for claim in claims.read_claims() if claim.study} <= set(parts)


def test_seconds_are_taken_out_of_an_observation() -> None:
    assert moved.without("timing_s/step=365.28±18.3", 55.0) == "timing_s/step=310.28±18.3"
    told = {each.partition("=")[0] for name in moved.MOVED_S for each in others.read_others()[name].observe}
    assert {"timing_s/update_actor", "timing_s/step"} <= told


def test_a_patch_replaces_what_has_a_kind_and_keeps_the_rest() -> None:
    plain = {"costs": {"kind": "roofline", "reward": {"kind": "model", "dtype": "bf16"}}, "steps": 4}
    patch = {"costs": {"reward": {"kind": "verifier"}}, "steps": 5}
    assert asking.laid_over(plain, patch) == {
        "costs": {"kind": "roofline", "reward": {"kind": "verifier"}},
        "steps": 5,
    }
    assert plain["steps"] == 4


@pytest.mark.parametrize("letter", list(questions.QUESTIONS))
def test_what_a_question_runs_can_be_said(letter: str) -> None:
    setup = setups.SETUPS["se-7b"]
    world = unknowns.world_of(setup, asking.FIRST_WORLD)
    plain = unknowns.scenario_of(setup, world).to_plain()
    for case in questions.QUESTIONS[letter].cases(world).values():
        Scenario.model_validate(asking.laid_over(plain, case.scenario))
        check_settings(case.policy, dict(case.settings), None)


@pytest.mark.parametrize("letter", list(questions.QUESTIONS))
def test_a_stored_answer_is_what_its_rows_give(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "save", lambda figure, letter: answers.plt.close(figure))
    rows = pd.read_csv(setups.FOLDER / "results" / f"question_{letter}.csv")
    assert set(rows["setup"]) == set(questions.QUESTIONS[letter].setups)
    assert rows.groupby("setup")["world"].nunique().min() == questions.QUESTIONS[letter].machines
    stored = (FOLDER / f"question_{letter}.md").read_text("utf-8")
    assert questions.page_text(letter, rows) == stored, "run 'python experiments/paper/questions.py --page'"


def test_a_cell_of_the_map_has_the_shares_that_it_says() -> None:
    cell = policy_map.Cell(tail=4.0, scoring=0.25, training=0.4, slots=0.5)

    def run(scoring: float, training: float, gen_s: float) -> pd.DataFrame:
        here = cell._replace(scoring=scoring, training=training)
        scenario = policy_map.scenario_of(here, gen_s, None)
        return run_columns(build_setup(scenario, policy="sequential", steps=12, seed=1)).frame()

    gen_s = float(run(0.0, 0.0, 1.0)["timing_s/gen"].mean())
    found = run(cell.scoring, cell.training, gen_s).mean(numeric_only=True)
    assert found["timing_s/reward"] / found["timing_s/step"] == pytest.approx(0.25, abs=0.02)
    assert found["timing_s/update_actor"] / found["timing_s/step"] == pytest.approx(0.4, abs=0.02)


def test_the_best_policy_of_a_cell_by_hand() -> None:
    cell = {"tail": 4.0, "scoring": 0.1, "training": 0.2, "slots": 0.5}
    runs = {"sequential": (10.0, 0), "intra": (8.0, 0), "oppo 0.25 None": (4.0, 3), "oppo 0.25 1": (5.0, 1)}
    rows = pd.DataFrame(
        {**cell, "run": run, "seed": seed, "step_s": step_s * seed, "stalest": stalest, "bias": 0.0}
        for run, (step_s, stalest) in runs.items()
        for seed in (1, 2)
    )
    told = policy_map.gains(rows)
    one, free = (policy_map.best_of(told, band).iloc[0] for band in policy_map.BANDS)
    assert (one["run"], one["faster"], one["policy_next"], one["faster_next"]) == (
        "oppo 0.25 1", pytest.approx(2.0), "intra", pytest.approx(1.25),
    )  # fmt: skip
    assert (free["run"], free["faster"]) == ("oppo 0.25 None", pytest.approx(2.5))


def test_the_stored_map_is_what_its_runs_give() -> None:
    stored = pd.read_csv(policy_map.GAINS)
    made = policy_map.gains(pd.read_csv(policy_map.FILE))
    assert len(set(zip(*(stored[name] for name in policy_map.AXES), strict=True))) == len(
        list(policy_map.cells())
    )
    assert stored["run"].tolist() == made["run"].tolist()
    assert stored["faster"].to_numpy() == pytest.approx(made["faster"].to_numpy(), rel=2e-3)


WATCHED = """
import runpy, sys
opened = open(sys.argv[1], "w", encoding="utf-8")
sys.argv = sys.argv[2:]
sys.addaudithook(lambda event, what: print(what[0], file=opened) if event == "open" else None)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script and writes the name of every file that it opens."""


def test_a_small_part_runs_and_opens_no_published_result(tmp_path: Path) -> None:
    opened = tmp_path / "opened.txt"
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(opened), str(FOLDER / "run.py"), "--part", "-o", str(tmp_path)],
        env={**os.environ, "OPPO_ENGINE": "simpy"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = {Path(line).name for line in opened.read_text("utf-8").splitlines()}
    assert setups.BASELINE.name in names
    assert not names & {path.name for path in claims.CLAIMS}
    runs = pd.read_csv(tmp_path / "runs_gsm8k-7b.csv")
    worlds = pd.read_csv(tmp_path / "worlds_gsm8k-7b.csv")
    assert set(runs["run"]) == {"sequential", "intra", "inter", "oppo", "rollout-overlap"}
    steps = runs.pivot(index="draw", columns="run", values="step_s")
    assert (steps["inter"] < 1.1 * steps["sequential"]).all()
    assert np.isfinite(worlds["log_evidence"]).all()
