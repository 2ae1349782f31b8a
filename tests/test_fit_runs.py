"""What the develop runs taught the fit: large constants, waits that overlap, runs that train part of a batch."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import oppo_sim
from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.checks.judging import Judgement, _apart, predict
from oppo_sim.fit.estimate import HeldOut, judge_rest
from oppo_sim.fit.inference.posterior import member_seconds
from oppo_sim.fit.sources import open_log
from oppo_sim.scenario.build import build_setup, cost_context
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.simulation_folder import SimulationRequest, simulate_to_folder
from oppo_sim.traces.recorder import Recorder
from tests.fit_logs import ALL, COSTS, TRUTH, fit_scenario, short_chains, verl_log


def _of(held: HeldOut, column: str) -> Judgement:
    return next(each for each in held.judgements if each.column == column)


def _changed(log: Path, to: Path, change: dict[str, list[float]], more: dict[str, list[float]]) -> Path:
    """The log with seconds multiplied by ``change`` or longer by ``more`` (one a step); ``step`` follows."""
    lines = []
    for place, line in enumerate(log.read_text().splitlines()):
        head, *pairs = line.split(" - ")
        row = {
            name: float(value.split("(")[1][:-1]) for name, value in (each.split(":", 1) for each in pairs)
        }
        before = sum(row[name] for name in {*change, *more})
        row |= {name: row[name] * factors[place] for name, factors in change.items()}
        row |= {name: row[name] + seconds[place] for name, seconds in more.items()}
        row["timing_s/step"] += sum(row[name] for name in {*change, *more}) - before
        lines.append(" - ".join((head, *(f"{name}:{value}" for name, value in row.items()))))
    to.write_text("\n".join(lines) + "\n")
    return to


def test_a_stage_that_is_mostly_constant_is_told_from_a_slow_one(tmp_path: Path) -> None:
    """60 of some 66 seconds do not depend on tokens; the rest has fewer of these."""
    terms = TRUTH.then(CostTerms(update_actor_s=58.0))
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, terms, noise=0.003)
    result = fit(log, scenario, fit_steps=15)
    (held,) = result.held_out
    update = _of(held, "timing_s/update_actor").model
    assert update.p90 < 0.02
    assert result.point.update_actor_s == pytest.approx(60.0, rel=0.05)


@short_chains()
def test_a_stage_that_the_run_did_not_run_is_found_and_left_out(tmp_path: Path) -> None:
    """The configuration names a reference model and a critic; nothing of the log's seconds is theirs."""
    ran = fit_scenario(training={"critic": "none", "ref": False, "num_ppo_epochs": 1})
    stages = {
        **COSTS["stages"],
        "values": {"per_token": 8e-5},
        "update_critic": {"fixed": 0.5, "per_token": 2e-4},
    }
    given = fit_scenario(training={"num_ppo_epochs": 1}, costs={**COSTS, "stages": stages})
    log = verl_log(tmp_path / "a.log", ran, TRUTH.model_copy(update={"other_s": 0.05}))
    seen: list[oppo_sim.Progress] = []
    result = oppo_sim.fit(log, given, fit_steps=15, folder=tmp_path / "fit", progress=seen.append)
    assert [(at.done, at.total) for at in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert repr(result).startswith("FitResult(")
    assert result._repr_html_().count("<tr") == len(result.estimates) + 1
    (held,) = result.held_out
    assert _of(held, TIMING_STEP).model.median < 0.03
    told = [note for note in result.notes if "taken as not run" in note]
    assert [note.split("names ")[1].split(",")[0] for note in told] == ["ref", "update_critic or values"]
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    assert (written.training.ref, written.training.critic) == (False, "none")


@short_chains()
def test_old_probabilities_that_verl_only_copies_are_not_run(tmp_path: Path) -> None:
    """Its ``bypass_mode`` still times them."""
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH)
    log.write_text(re.sub(r"timing_s/old_log_prob:\S+", "timing_s/old_log_prob:0.002", log.read_text()))
    result = oppo_sim.fit(log, fit_scenario(), fit_steps=15, folder=tmp_path / "fit")
    (note,) = [note for note in result.notes if "taken as not run" in note]
    assert "timing_s/old_log_prob takes 0.002 s where" in note
    assert "old_log_prob" not in {each.term for each in result.estimates}
    assert load_scenario(tmp_path / "fit" / "scenario.yaml").training.old_log_prob == "behaviour"


@short_chains()
def test_a_stage_that_no_metric_names_but_that_has_room_is_told(tmp_path: Path) -> None:
    """Seconds beyond all metrics may be a critic's, or not."""
    stages = {**COSTS["stages"], "update_critic": {"fixed": 0.5, "per_token": 2e-4}}
    given = fit_scenario(training={"num_ppo_epochs": 1}, costs={**COSTS, "stages": stages})
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH.model_copy(update={"other_s": 9.0}))
    result = fit(log, given, fit_steps=ALL)
    (said,) = [note for note in result.notes if "no metric names" in note]
    assert said.endswith("fit again with --set training.critic=none")
    again = fit(log, fit_scenario(), fit_steps=ALL)
    assert not any("no metric names" in note for note in again.notes)


@short_chains()
@pytest.mark.parametrize("counted", [0.4, 0.9])
def test_how_much_of_a_wait_counts_is_estimated(tmp_path: Path, counted: float) -> None:
    scenario = fit_scenario()
    plain = verl_log(tmp_path / "plain.log", scenario, TRUTH, noise=0.005)
    waits = [[0.0, 3.0, 8.0][number % 3] for number in range(24)]
    longer = _changed(plain, tmp_path / "b.log", {}, {"timing_s/gen": [counted * wait for wait in waits]})
    lines = [
        f"{line} - timing_s/agent_loop/slowest/tool_calls:{wait}"
        for line, wait in zip(longer.read_text().splitlines(), waits, strict=True)
    ]
    longer.write_text("\n".join(lines) + "\n")
    result = fit(longer, scenario, draws=200, fit_steps=ALL)
    assert np.median(result.posterior.terms["tool_wait"]) == pytest.approx(counted, abs=0.1)
    assert result.wait_s == pytest.approx(counted * float(np.mean(waits)), rel=0.15)
    # Rollouts of a trace that wait themselves do not wait in every phase again.
    assert f"gen_phase_s holds {result.wait_s:.3g} s a step" in result.fitted[0].waits
    own = fit_scenario(trace={"name": "synth_tools_openagentrl"})
    waiting = fit(longer, own, draws=200, fit_steps=ALL)
    assert "those of the trace's rollouts" in waiting.fitted[0].waits
    phases = [
        float(np.mean([draw.gen_phase_s for draw in each.fitted[0].draws])) for each in (result, waiting)
    ]
    assert phases[0] - phases[1] == pytest.approx(result.wait_s, rel=0.2)


@short_chains()
@pytest.mark.parametrize("own_first", [True, False])
def test_each_scenario_says_where_its_own_waits_are(tmp_path: Path, own_first: bool) -> None:
    """Rollouts of one of two traces wait themselves."""
    waits: dict[int, dict[str, float]] = {
        step: {"timing_s/agent_loop/slowest/tool_calls": 3.0 * (step % 3)} for step in range(1, ALL + 1)
    }
    own = fit_scenario(name="agent", trace={"name": "synth_tools_openagentrl"})
    both = [own, fit_scenario(name="plain")] if own_first else [fit_scenario(name="plain"), own]
    logs = [
        verl_log(tmp_path / f"{seed}.log", fit_scenario(), TRUTH, seed=seed, extra=waits) for seed in (0, 1)
    ]
    result = fit(logs, both, fit_steps=ALL, folder=tmp_path / "fit", figures=False)
    assert any(note.startswith("agent: waits for tools are those of the trace") for note in result.notes)
    assert any(note.startswith("plain: gen_phase_s") for note in result.notes)
    for each, file in zip(both, ("scenario.yaml", "scenario-2.yaml"), strict=True):
        text = (tmp_path / "fit" / file).read_text()
        assert ("those of the trace's rollouts" in text) == (each is own)
        assert text.count("Tools:") == 1


def _rollouts(steps: int, each: int) -> pd.DataFrame:
    """Of every step the second is the longest, and the first ends last: a tool made it wait."""
    rows = [
        {"step": step, "response_length": 200 + place, "tool_seconds": [2.0, 1.5] if place == 0 else []}
        | {"finished_s": 9.0 if place == 0 else 1.0, "tool_tokens": [40, 7] if place == 0 else []}
        | {"turn_response_lengths": [50, 100, 50] if place == 0 else [200 + place]}
        for step in range(1, steps + 1)
        for place in range(each)
    ]
    return pd.DataFrame(rows)


def test_recorded_rollouts_tell_for_what_a_phase_waited(tmp_path: Path) -> None:
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH)
    frame = _rollouts(24, 64)
    known = open_log(log, lengths=frame)
    assert known.frame["slowest/tool_calls_s"].tolist() == [3.5] * 24
    assert known.frame["slowest/response_length"].tolist() == [200.0] * 24
    assert known.tool_tokens_apart
    unknown = open_log(log, lengths=frame.drop(columns="finished_s"))
    assert "slowest/tool_calls_s" not in unknown.frame
    assert any("nothing shows which of them finished last" in note for note in unknown.notes)


@short_chains()
def test_a_log_too_short_to_be_judged_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """They were fitted to the lengths of other runs, the last to those of none."""
    large, small = fit_scenario(), fit_scenario(rollout_batch_size=16)
    runs = [(large, 12), (small, 5), (small, 14), (large, 3), (large, 13)]
    logs = [
        verl_log(tmp_path / f"{number}.log", scenario, TRUTH, steps=steps, seed=number)
        for number, (scenario, steps) in enumerate(runs)
    ]
    result = fit(logs, [scenario for scenario, _ in runs], fit_steps=8, draws=50)
    assert [each.log for each in result.held_out] == ["0.log", "2.log", "4.log"]
    for held in result.held_out:
        assert _of(held, TIMING_STEP).model.median < 0.05
    told = [note for note in result.notes if "held back" in note]
    assert told == [
        f"{number}.log: none of its {steps} steps are held back and judged, too few are left"
        for number, steps in ((1, 5), (3, 3))
    ]


@short_chains()
def test_logs_of_one_file_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """Each run's folder has a ``train.log``."""
    logs = []
    for seed, folder in enumerate(("one", "two", "three")):
        (tmp_path / folder).mkdir()
        steps = 8 + seed
        log = verl_log(tmp_path / folder / "train.log", fit_scenario(), TRUTH, steps=steps, seed=seed)
        logs.append(log)
    result = fit(logs[:2], fit_scenario(), from_step=3, judge=[(logs[2], fit_scenario())], draws=50)
    names = ["one/train.log", "two/train.log", "three/train.log"]
    assert list(result.left_out) == names
    assert [result.left_out[name].get("step before --from-step 3", 0) for name in names] == [2, 2, 0]
    assert [each.log for each in (*result.held_out, *result.judged)] == names
    read = [replace(oppo_sim.read_step_log(log), path="") for log in logs[:2]]
    assert list(fit(read, fit_scenario(), fit_steps=9, draws=50).left_out) == [
        "train.log (1)",
        "train.log (2)",
    ]


@short_chains()
def test_recorded_runs_whose_prompts_are_not_all_known_are_simulated_together(tmp_path: Path) -> None:
    """A recorder need not say how long a prompt is."""
    for number in (1, 2):
        with Recorder(tmp_path / f"run{number}", framework="mine") as recorder:
            for step in range(4):
                recorder.start_step(step)
                for place in range(64):
                    known = step > 0 or place > 0
                    recorder.rollout_finished(
                        200 + place + 10 * step + number, prompt_length=100 if known else None
                    )
                recorder.stage("gen", 5.0 + step)
                recorder.stage("update_actor", 9.0)
    runs = [tmp_path / "run1", tmp_path / "run2"]
    result = fit(runs, fit_scenario(), fit_steps=4, draws=50, log_lengths=True)
    (lengths,) = (each.lengths for each in result.fitted)
    assert lengths is not None and lengths.frame is not None
    assert lengths.frame["prompt_length"].tolist() == [100] * 64 * 8  # the scenario's own, too


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rollout_batch_size": 128},
            r"has 64 rollouts a step \(median\), but the scenario's rollout_batch_size",
        ),
        ({"rollout_batch_size": 32}, "is 32: correct it"),
        (
            {"max_response_length": 150},
            "has a response of 263 tokens, but max_response_length of the scenario",
        ),
    ],
)
def test_rollouts_that_are_known_are_those_of_the_scenario(
    changes: dict[str, int], said: str, tmp_path: Path
) -> None:
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, steps=6)
    with pytest.raises(OppoError, match=said):
        fit(open_log(log, lengths=_rollouts(6, 64)), fit_scenario(**changes), draws=20)


@short_chains()
def test_stages_that_a_log_does_not_time_stay_unknown(tmp_path: Path) -> None:
    """A log of generation alone, as a recorder of rollouts writes it."""
    section = {
        "kind": "roofline",
        "device": "H100",
        "actor_model": "qwen2.5-0.5b",
        "reward_model": {"kind": "verifier"},
    }
    scenario = fit_scenario(costs=section)
    terms = CostTerms(decode=1.2, update_actor=1.4, gen_phase_s=1.0, other_s=0.3)
    whole = verl_log(tmp_path / "whole.log", scenario, terms)
    kept = re.compile(r"timing_s/(?!gen)\w+:np\.float64\([^)]*\) - ")
    (tmp_path / "gen.log").write_text(kept.sub("", whole.read_text()))
    result = oppo_sim.fit(tmp_path / "gen.log", scenario, draws=100, folder=tmp_path / "fit", figures=False)
    assert any("no seconds of whole steps, nor of old_log_prob" in note for note in result.notes)
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    evidence = build_setup(written).costs.evidence
    assert (evidence["gen"], evidence["update_actor"]) == ("fitted", "assumed")
    updates = np.array([draw.update_actor for draw in result.fitted[0].draws])
    prior = next(
        each for each in scenario.costs.priors(cost_context(scenario)) if each.term == "update_actor"
    )
    assert np.log(updates).std() == pytest.approx(prior.sigma, rel=0.3)
    # What the scenario states of them stays.
    stated = fit_scenario(costs={**section, "terms": {"update_actor": 1.4}})
    again = fit(tmp_path / "gen.log", stated, draws=50, fit_steps=ALL)
    assert {draw.update_actor for draw in again.fitted[0].draws} == {1.4}
    assert "update_actor" not in again.fitted[0].believed
    assert fit(whole, scenario, draws=50, fit_steps=ALL).fitted[0].believed == ()


@short_chains()
def test_scores_that_verl_took_within_adv_are_no_advantage(tmp_path: Path) -> None:
    """Until 0.3 verl scored in ``adv`` and timed no reward: a reward model came out far too fast."""
    scenario = fit_scenario(costs={**COSTS, "score": {"fixed": 0.05, "per_token": 4e-4}})
    whole = verl_log(tmp_path / "new.log", scenario, TRUTH)
    figure = r"timing_s/{}:np\.float64\(([^)]*)\) - "
    lines = []
    for line in whole.read_text().splitlines():
        scored = re.search(figure.format("reward"), line)
        assert scored is not None
        rest = re.search(figure.format("adv"), line)
        assert rest is not None
        both = f"timing_s/adv:{float(scored[1]) + float(rest[1])} - "
        lines.append(line.replace(scored[0], "").replace(rest[0], both))
    (tmp_path / "old.log").write_text("\n".join(lines) + "\n")
    seconds = []
    for name in ("new", "old"):
        folder = tmp_path / name
        fit(tmp_path / f"{name}.log", scenario, draws=50, fit_steps=ALL, folder=folder, figures=False)
        steps = simulate(load_scenario(folder / "scenario.yaml"), policy="sequential", steps=4).steps
        seconds.append((steps["timing_s/reward"].mean(), steps["timing_s/adv"].mean()))
    assert seconds[0][0] > 5.0
    assert seconds[1][0] == pytest.approx(seconds[0][0], rel=0.05)
    assert seconds[1][1] < 0.5


def _half_trained(folder: Path, scenario: Scenario, seed: int) -> Path:
    """A run that trains 45 % of its rollouts; its lengths are of these, and how many they are is not said."""
    log = verl_log(folder / f"{seed}-all.log", scenario, TRUTH, seed=seed)
    path = _changed(log, folder / f"{seed}.log", {"timing_s/update_actor": [0.45] * 24}, {})
    lines = []
    for line in path.read_text().splitlines():
        mean = line.split("response_length/mean:")[1].split(" ")[0]
        lines.append(line.replace(f"length/mean:{mean}", f"length/mean:{0.9 * float(mean)}"))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_that_trains_an_unknown_part_tells_nothing_of_the_others(tmp_path: Path) -> None:
    scenario = fit_scenario()
    logs = [
        _half_trained(tmp_path, scenario, 1),
        verl_log(tmp_path / "2.log", scenario, TRUTH, seed=2),
        _half_trained(tmp_path, scenario, 3),
    ]
    whole = verl_log(tmp_path / "4.log", scenario, TRUTH, seed=4)
    result = fit(logs, scenario, judge=[(whole, scenario)], draws=200)
    update = _of(result.judged[0], "timing_s/update_actor").model
    assert update.p90 < 0.06
    assert _of(result.judged[0], TIMING_STEP).model.p90 < 0.06
    part = _of(result.held_out[0], "timing_s/update_actor").model
    assert part.p90 < 0.08
    assert part.coverage is not None
    assert part.coverage >= 0.8


def test_seconds_of_a_part_are_the_run_s_own_and_uncertain_of_another(tmp_path: Path) -> None:
    scenario = fit_scenario()
    log = _half_trained(tmp_path, scenario, 1)
    whole = verl_log(tmp_path / "2.log", scenario, TRUTH, seed=2)
    result = fit(log, scenario, judge=[(whole, scenario)], draws=200)
    own = _of(result.held_out[0], "timing_s/update_actor").model
    other = _of(result.judged[0], "timing_s/update_actor").model
    assert own.p90 < 0.08
    assert other.coverage is not None
    assert other.coverage > 0.9
    assert own.width is not None
    assert other.width is not None
    assert other.width > 3 * own.width
    # However much the part differs from step to step, it is never more than all of the batch.
    (part,) = result.parts
    (update,) = (each for each in part.members if each.column == "timing_s/update_actor")
    unsteady = {kind: np.ones_like(noise) for kind, noise in result.posterior.noise.items()}
    posterior = replace(result.posterior, noise=unsteady)
    found = predict(part.features, [update], posterior, seen=True)[update.column]
    all_of_it = member_seconds(update, part.features, posterior.terms).max(axis=0)
    assert (found.high <= 1.11 * all_of_it).all()
    # The written scenario trains all, in the seconds that the run had.
    assert result.point.update_actor * 1.2 + result.point.update_actor_s < 0.6 * (1.2 * 1.2 + 2.0) + 2.0


def test_intervals_hold_when_engines_drift(tmp_path: Path) -> None:
    """After twelve steps generation is slower or faster for good, by 2.5 % as a rule."""
    generator = np.random.default_rng(11)
    scenario = fit_scenario()
    inside = total = 0
    for case in range(5):
        plain = verl_log(tmp_path / f"{case}.log", scenario, TRUTH, noise=0.02, seed=case)
        drift = float(np.exp(0.025 * generator.standard_normal()))
        log = _changed(plain, tmp_path / f"{case}-drift.log", {"timing_s/gen": [1.0] * 12 + [drift] * 12}, {})
        held = judge_rest(open_log(log), scenario, fit_steps=12, draws=200)
        model = _of(held, "timing_s/gen").model
        assert model.coverage is not None
        inside += round(model.coverage * model.steps)
        total += model.steps
    assert total == 60
    assert inside / total >= 0.9


def test_what_a_round_costs_is_told_by_a_run_in_rounds(tmp_path: Path) -> None:
    """Rounds of a run of ours cost seconds that its iterations do not; a run in one call cannot tell."""
    scenario = fit_scenario(
        policy={"name": "sequential", "stop_check": "chunk", "chunk_size": 100},
        rollout={"num_replicas": 2, "keeps_kv_between_rounds": False},
    )
    result = fit(_own_run(tmp_path / "run", scenario, round_fixed_s=0.8), scenario, fit_steps=ALL, draws=200)
    (told,) = (each for each in result.estimates if each.term == "round_fixed_s")
    low, middle, high = told.posterior
    assert low <= 0.8 <= high
    assert middle == pytest.approx(0.8, rel=0.3)
    assert told.verdict == "identified"
    assert not any("round_fixed_s" in note for note in result.notes)
    assert any(note.startswith("piece_send_s cannot be identified") for note in result.notes)
    log = verl_log(tmp_path / "v.log", fit_scenario(), TRUTH)
    with short_chains():
        one_call = fit(log, fit_scenario(), draws=50, fit_steps=ALL)
    assert "round_fixed_s" not in {each.term for each in one_call.estimates}
    assert any(note.startswith("round_fixed_s, piece_send_s cannot be identified") for note in one_call.notes)


def test_what_a_piece_costs_is_told_by_runs_of_two_batch_sizes(tmp_path: Path) -> None:
    """Of one size, rollouts and the stage as a whole may cost the same seconds."""
    scenarios = [fit_scenario(rollout_batch_size=size, name=f"b{size}") for size in (16, 64)]
    runs = [_own_run(tmp_path / each.name, each, piece_fixed_s=0.02) for each in scenarios]
    both = fit(runs, scenarios, fit_steps=ALL, draws=200)
    alone = fit(runs[1], scenarios[1], fit_steps=ALL, draws=200)
    told, untold = (
        next(each for each in result.estimates if each.term == "piece_fixed_s") for result in (both, alone)
    )
    assert told.posterior[1] == pytest.approx(0.02, rel=0.2)
    assert told.posterior[0] > 0.01 > untold.posterior[0]
    assert (told.verdict, untold.verdict) == ("identified", "not identified")


def _own_run(folder: Path, scenario: Scenario, **terms: float) -> Path:
    """A run of this toolkit, whose costs are those of the scenario under ``terms``."""
    costs = scenario.costs.model_copy(update={"terms": CostTerms(gen_phase_s=2.0, **terms)})
    setup = build_setup(scenario.model_copy(update={"costs": costs}))
    simulate_to_folder(
        SimulationRequest(setup, "sequential", folder, False, (0, 0), True, False), lambda _: None
    )
    return folder


def test_without_a_longest_response_a_fit_learns_how_far_steps_scatter(tmp_path: Path) -> None:
    """Rebuilt lengths of a mean alone differ mostly in kind, and the kind is the same in all steps."""
    scenario = fit_scenario()
    told = verl_log(tmp_path / "told.log", scenario, TRUTH)
    untold = tmp_path / "untold.log"
    figure = re.compile(r" - response_length/(max|min|clip_ratio):np\.float64\([^)]*\)")
    untold.write_text(figure.sub("", told.read_text(encoding="utf-8")), encoding="utf-8")
    result = fit(untold, scenario, fit_steps=15, draws=100)
    (scatter,) = result.posterior.scatter.values()
    assert np.median(scatter) < 0.8
    (held,) = result.held_out
    step = next(each for each in held.judgements if each.column == TIMING_STEP).model
    assert step.coverage is not None
    assert step.coverage > 0.85
    assert step.median < 0.15
    with short_chains():
        assert not fit(told, scenario, fit_steps=ALL, draws=50).posterior.scatter


def test_a_run_of_a_model_of_another_size_has_wider_intervals(tmp_path: Path) -> None:
    scenario = fit_scenario()
    result = fit(verl_log(tmp_path / "a.log", scenario, TRUTH, noise=0.01), scenario, fit_steps=ALL)
    (part,) = result.parts
    near, far = (
        predict(part.features, part.members, result.posterior, seen=False, apart=apart)[TIMING_STEP]
        for apart in (0.0, np.log(14.0))
    )
    assert far.predicted == pytest.approx(near.predicted, rel=0.03)
    # Metrics move by 13 % one by one, generation and updates are most of the step: it moves by some 9 %.
    half = np.median((far.high - far.low) / far.predicted) / 2
    assert 0.14 < half < 0.3
    assert half > 1.5 * np.median((near.high - near.low) / near.predicted) / 2
    # Of 3.1 and 0.49 billion parameters the nearer counts; where nobody knows them, nothing does.
    sizes = [replace(part.features, parameters=size) for size in (0.494e9, 3.086e9, 0.0)]
    of_7b = replace(part.features, parameters=7.616e9)
    assert _apart(of_7b, sizes) == pytest.approx(np.log(7.616 / 3.086))
    assert _apart(of_7b, sizes[2:]) == _apart(sizes[2], [of_7b]) == 0


def test_seconds_that_no_prior_allows_name_the_settings_to_check(tmp_path: Path) -> None:
    """A run whose update is five times as long as its scenario's costs say, and one that is as they say."""
    scenario = fit_scenario()
    for name, truth in (("as.log", TRUTH), ("other.log", TRUTH.model_copy(update={"update_actor": 6.0}))):
        verl_log(tmp_path / name, scenario, truth, steps=ALL)
        with short_chains():
            found = fit(tmp_path / name, scenario, fit_steps=ALL, figures=False)
        said = [note for note in found.notes if "outside the 95 % of their priors" in note]
        assert bool(said) == (name == "other.log")
        if said:
            assert "update_actor (" in said[0]
            assert "gradient_checkpointing" in said[0]
            assert "old_log_prob" not in said[0]


def test_runs_that_are_all_far_from_their_scenario_tell_its_costs(tmp_path: Path) -> None:
    """Rewards take a tenth of what the scenario says, in both runs: not two runs that are both odd."""
    scenario = fit_scenario()
    terms = TRUTH.then(CostTerms(score=1e-4, score_batch_s=0.01))
    logs = [
        verl_log(tmp_path / f"{name}.log", scenario, terms, noise=0.02, seed=seed)
        for seed, name in enumerate("ab")
    ]
    result = fit(logs, scenario, fit_steps=ALL)
    costs = scenario.costs.model_copy(update={"terms": result.point})
    written = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential", steps=ALL)
    logged = pd.concat([part.log.frame["timing_s/reward"] for part in result.parts])
    assert written.steps["timing_s/reward"].mean() == pytest.approx(logged.mean(), rel=0.3)


def test_seconds_of_scoring_that_steps_do_not_tell_apart_are_drawn_in_every_way(tmp_path: Path) -> None:
    """Two seconds beside the tokens in every step of 64 rollouts: of a reward model that is woken, or of
    requests."""
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, TRUTH, noise=0.01)
    slow = _changed(log, tmp_path / "b.log", {}, {"timing_s/reward": [2.0] * ALL})
    said = "do not tell whether of each rollout (piece_fixed_s"
    assert not any(said in note for note in fit(log, scenario, fit_steps=ALL, draws=50).notes)
    result = fit(slow, scenario, fit_steps=ALL)
    assert any(said in note for note in result.notes)
    of_step = np.array([draw.reward_phase_s for draw in result.draws])
    of_rollouts = 64 * np.array([draw.piece_fixed_s for draw in result.draws])
    assert (of_step > 1.0).mean() > 0.5 and (of_rollouts > 0.3).any() and (of_step < 1.0).any()
    batches = np.median(result.parts[0].features.score_batches.max(axis=0))
    beyond = of_step + of_rollouts + batches * np.array([draw.score_batch_s for draw in result.draws])
    assert np.percentile(beyond, 97.5) < 1.3 * np.percentile(beyond, 2.5)
    known = fit_scenario(costs={**COSTS, "terms": {"piece_fixed_s": 0.0, "score_batch_s": 0.0}})
    told = fit(slow, known, fit_steps=ALL)
    assert not any(said in note for note in told.notes)
    assert min(draw.reward_phase_s for draw in told.draws) > 1.5


def test_one_known_number_needs_no_list_in_python() -> None:
    """It was read letter by letter."""
    found = oppo_sim.observe(fit_scenario(), "timing_s/step=25..35", draws=20)
    assert [one.text for one in found.observations] == ["timing_s/step=25..35"]


def test_python_refuses_numbers_that_cannot_be(tmp_path: Path) -> None:
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, TRUTH, steps=6)
    few: dict[str, object] = {"draws": 0}
    for given in (few, {"draws": "many"}, {"seed": -1}, {"fit_steps": 2}):
        with pytest.raises(OppoError, match=f"{next(iter(given))} .*give"):
            oppo_sim.fit(log, scenario, **given)  # type: ignore[arg-type]
    with pytest.raises(OppoError, match=r"give one, such as"):
        oppo_sim.observe(scenario, {})


@pytest.mark.parametrize("times", [0.03, 30.0])
def test_a_scenario_that_is_far_off_is_fitted_from_few_steps(tmp_path: Path, times: float) -> None:
    """Costs of training that a user guessed thirty times too small or too large."""
    stages = {name: _times(value, times) for name, value in COSTS["stages"].items()}
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, steps=ALL)
    result = fit(log, fit_scenario(costs={**COSTS, "stages": stages}), fit_steps=8, draws=200)
    (held,) = result.held_out
    # The table and the note are of one prior.
    (ref,) = (each for each in result.estimates if each.term == "ref")
    assert not ref.prior[0] < ref.posterior[1] < ref.prior[2]
    assert any("outside the 95 %" in note and "ref (" in note for note in result.notes)
    errors = {each.column: each.model.median for each in held.judgements}
    assert max(errors["timing_s/update_actor"], errors["timing_s/ref"], errors[TIMING_STEP]) < 0.06


def test_a_step_whose_stages_are_all_of_it_leaves_no_seconds_beyond_them(tmp_path: Path) -> None:
    truth = TRUTH.model_copy(update={"other_s": 0.0})
    result = fit(
        verl_log(tmp_path / "a.log", fit_scenario(), truth, steps=ALL), fit_scenario(), fit_steps=ALL
    )
    assert result.point.other_s < 0.003 * result.parts[0].log.frame[TIMING_STEP].median()


def _times(value: Any, times: float) -> Any:
    return {key: each * times for key, each in value.items()} if isinstance(value, dict) else value * times
