"""``oppo_sim.compare``: intervals, baselines, paired seeds and the attribution of time, worked out by
hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from oppo_sim import columns as c
from oppo_sim import compare, load_scenario, simulate
from oppo_sim.comparison.folder import compare_to_folder
from oppo_sim.comparison.plan import baseline_of, plan_comparison
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.policies.registry import BASELINE
from oppo_sim.progress import unheard
from oppo_sim.runs.execute import Executor
from oppo_sim.runs.statistics import interval, ratio_interval
from oppo_sim.scenario import build
from tests.cli_runs import write_scenario


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_scenario(tmp_path)


# ---- intervals ---------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students() -> None:
    values = [3.1, 2.7, 3.9, 3.3, 2.2]
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values) == pytest.approx(expected, rel=1e-12)
    assert interval(values, 0.9) == pytest.approx(
        stats.t.interval(0.9, 4, loc=np.mean(values), scale=stats.sem(values)), rel=1e-12
    )
    # Two values 1 and 3: mean 2, standard error 1, t(0.975, 1) = 12.7062.
    assert interval([1.0, 3.0]) == pytest.approx((2 - 12.7062047362, 2 + 12.7062047362))


def test_the_interval_of_ratios_is_students_on_the_log_scale() -> None:
    ratios = [1.3, 1.1, 1.45, 1.2]
    logs = np.log(ratios)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert ratio_interval(ratios) == pytest.approx(
        (stats.gmean(ratios), math.exp(low), math.exp(high)), rel=1e-12
    )
    # Turned round, everything turns round: that is why logs.
    mean, low, high = ratio_interval([1 / ratio for ratio in ratios])
    assert (1 / mean, 1 / high, 1 / low) == pytest.approx(ratio_interval(ratios))


def test_seeds_that_are_worlds_apart_have_no_upper_end() -> None:
    assert ratio_interval([1.0, 1e300]) == (pytest.approx(1e150), 0.0, math.inf)


def test_one_value_has_no_interval() -> None:
    assert ratio_interval([1.25])[0] == pytest.approx(1.25)
    assert all(
        math.isnan(bound)
        for bound in (*interval([1.0]), *ratio_interval([1.25])[1:], *interval([1.0, math.inf]))
    )


# ---- speed-up ----------------------------------------------------------------------------------------------


def test_speed_ups_are_paired_ratios_of_the_runs(tiny: Path) -> None:
    result = compare(tiny, ["inter", "oppo"], seeds=3, attribution=False)
    seconds: dict[str, list[float]] = {}
    tokens: dict[str, list[float]] = {}
    for policy in ("sequential", "inter", "oppo"):
        runs = [simulate(tiny, policy=policy, seed=seed).steps[1:] for seed in range(3)]
        seconds[policy] = [run[c.TIMING_STEP].sum() for run in runs]
        tokens[policy] = [run[c.TOKENS_TRAINED].sum() for run in runs]
        row = result.table.loc[policy]
        assert row[c.STEP_S] == pytest.approx(np.mean(seconds[policy]) / 5)
        logs = np.log(np.array(seconds["sequential"]) / seconds[policy])
        assert row[c.SPEEDUP] == pytest.approx(math.exp(logs.mean()))
        if policy != "sequential":
            low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
            assert (row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]) == pytest.approx((math.exp(low), math.exp(high)))
        pace = (
            np.array(seconds["sequential"])
            / tokens["sequential"]
            / (np.array(seconds[policy]) / tokens[policy])
        )
        assert row[c.SPEEDUP_PER_TOKEN] == pytest.approx(stats.gmean(pace))
        assert row[c.HOURS_PER_10K] == pytest.approx(np.mean(seconds[policy]) / 20 * 10_000 / 3600)
    assert result.table[c.SPEEDUP]["inter"] > 1


def test_the_baseline_is_exactly_as_quick_as_itself(tiny: Path) -> None:
    row = compare(tiny, ["sequential", "intra"], seeds=3, attribution=False).table.loc["sequential"]
    exact = [name for name in row.index if name.startswith("speedup")]
    assert len(exact) == 9
    assert all(row[name] == 1.0 for name in exact)


def test_the_baseline_is_first_whether_it_is_named_or_not(tiny: Path) -> None:
    unnamed = compare(tiny, ["inter"], seeds=1, attribution=False)
    named = compare(tiny, ["inter", "sequential"], seeds=1, attribution=False)
    assert unnamed.table.index.tolist() == named.table.index.tolist() == ["sequential", "inter"]
    assert named.attribution.index.tolist() == ["inter"]


def test_progress_counts_the_runs(tiny: Path) -> None:
    seen: list[tuple[int, int]] = []
    compare(tiny, ["oppo"], seeds=1, progress=lambda at: seen.append((at.done, at.total)))
    assert seen == [(done, 5) for done in range(1, 6)]


@pytest.mark.parametrize(
    ("policies", "changes", "words"),
    [
        ([], {}, "at least one name"),
        ("oppo", {}, "give a list"),
        (["oppo", "intra", "oppo"], {}, "name oppo twice"),
        (["oppo"], {"seeds": 0}, "seeds 0 is out of range"),
        (["oppo"], {"seeds": 2.5}, "seeds is 2.5: give a whole number from 1 to 10,000"),
        (["oppo"], {"practical": float("nan")}, "practical is nan: give a share"),
        (["oppo"], {"practical": -1}, "practical is -1: give a share"),
        (["nope.py:X"], {}, "does not exist"),
        (["oppo"], {"overrides": ["trace.sampling=in_order"]}, "use seeds 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    policies: Any, changes: dict[str, Any], words: str, tiny: Path
) -> None:
    with pytest.raises(OppoError) as refused:
        compare(tiny, policies, **changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- settings in a label ----------------------------------------------------------------------------------


def test_one_policy_is_compared_under_several_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    extra: int = 1\n\n"
        "    def plan(self, pool):\n        return self.refill(pool, overcommit=self.extra, chunk_size=8)\n"
    )
    scenario = write_scenario(tmp_path)
    labels = ["oppo", "oppo:chunk_size=3:overcommit=3", "oppo:overcommit=0", "mine.py:Mine"]
    labels.append("mine.py:Mine:extra=3")
    found = compare(scenario, labels, seeds=2, folder=tmp_path / "out", figures=False)
    assert [name for name in found.table.index if not name.startswith(BASELINE)] == labels
    own = dict(load_scenario(scenario).policy.settings)
    settings = [own, own | {"chunk_size": 3, "overcommit": 3}, own | {"overcommit": 0}, {}, {"extra": 3}]
    for label, given in zip(labels, settings, strict=True):
        policy = "mine.py:Mine" if label.startswith("mine") else "oppo"
        runs = [
            simulate(scenario, policy=policy, policy_settings=given, seed=seed).step_s for seed in range(2)
        ]
        assert found.table.loc[label, c.STEP_S] == pytest.approx(np.mean(runs)), label
        assert [simulate(scenario, policy=label, seed=seed).step_s for seed in range(2)] == runs
    assert found.table.loc["oppo", c.STEP_S] != found.table.loc["oppo:overcommit=0", c.STEP_S]
    manifest = read_run_folder(tmp_path / "out").manifest
    assert manifest["policies"] == labels
    assert list(manifest["policy_settings"].values()) == settings


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    name = "a=b:c=1.py"
    (tmp_path / name).write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    extra: int = 1\n\n"
        "    def plan(self, pool):\n        return self.refill(pool, overcommit=self.extra, chunk_size=8)\n"
    )
    labels = [f"{name}:Mine", f"{name}:Mine:extra=2"]
    table = compare(write_scenario(tmp_path), labels, seeds=1).table
    assert table.index.tolist() == [BASELINE, *labels]


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("oppo:chunk_size=", "chunk_size"),
        ("=3", "name:setting=value"),
        ("oppo:chunk_size=3:4", "name:setting=value"),
        ("oppo:chunk=3", "chunk"),
        ("oppo:chunk_size=zero", "chunk_size"),
        ("oppi:chunk_size=3", "unknown policy 'oppi'"),
    ],
)
def test_what_is_no_setting_is_refused(tiny: Path, label: str, sentence: str) -> None:
    for asked in (lambda: compare(tiny, [label]), lambda: simulate(tiny, policy=label)):
        with pytest.raises(OppoError) as refused:
            asked()
        assert sentence in str(refused.value) and "\n" not in str(refused.value)


# ---- baselines ---------------------------------------------------------------------------------------------


def test_each_policy_is_measured_against_a_baseline_that_stops_as_it_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    stop_check = 'chunk'\n    chunk_size = 6\n\n"
        "    def plan(self, pool):\n        return self.refill(pool, overcommit=2,"
        " chunk_size=self.chunk_size)\n"
    )
    policies = {"partial-rollout": {"token_budget": 10}, "inter": {"stop_check": "chunk", "chunk_size": 5}}
    scenario = write_scenario(tmp_path, policies=policies)
    compared = ["oppo", "partial-rollout", "inter", "mine.py:Mine", "async"]
    labels = {policy: baseline_of(load_scenario(scenario), policy)[0] for policy in compared}
    assert labels == {
        "oppo": "sequential",
        "partial-rollout": "sequential (rounds of 10)",
        "inter": "sequential (rounds of 5)",
        "mine.py:Mine": "sequential (rounds of 6)",
        "async": "sequential",
    }
    table = compare(scenario, compared, seeds=2, attribution=False).table
    assert table.index.tolist() == [*dict.fromkeys(labels.values()), *compared]
    for policy, chunk in (("partial-rollout", 10), ("inter", 5), ("mine.py:Mine", 6)):
        label, settings = labels[policy], {"stop_check": "chunk", "chunk_size": chunk}
        runs = [
            simulate(scenario, policy="sequential", policy_settings=settings, seed=seed).step_s
            for seed in range(2)
        ]
        assert table.loc[label, c.STEP_S] == pytest.approx(np.mean(runs))
        assert table.loc[label, c.SPEEDUP] == 1.0
        own = [simulate(scenario, policy=policy, seed=seed).step_s for seed in range(2)]
        assert table.loc[policy, c.SPEEDUP] == pytest.approx(stats.gmean(np.array(runs) / own))


def test_a_scenario_in_rounds_has_a_baseline_in_rounds(tmp_path: Path) -> None:
    scenario = load_scenario(
        write_scenario(
            tmp_path, policy={"name": "oppo", "overcommit": 2, "chunk_size": 8, "stop_check": "chunk"}
        )
    )
    assert baseline_of(scenario, "oppo") == (BASELINE, {"stop_check": "chunk", "chunk_size": 8})
    assert baseline_of(scenario, "intra") == baseline_of(scenario, "oppo")
    assert baseline_of(scenario, "april") == ("sequential (token)", {})


def test_rounds_of_explored_size_are_told_apart(tmp_path: Path) -> None:
    def explored(*candidates: int) -> dict[str, Any]:
        return {
            "stop_check": "chunk",
            "chunk_size": {"control": "explore", "candidates": list(candidates), "explore_every": 4},
        }

    scenario = write_scenario(tmp_path, policies={"inter": explored(4, 8), "intra": explored(5, 9)})
    table = compare(scenario, ["inter", "intra"], seeds=2, attribution=False).table
    assert table.index[:2].tolist() == [
        f"sequential (rounds of {sizes}, 1 step(s) each every 4)" for sizes in ("4/8", "5/9")
    ]
    assert (table[c.SPEEDUP][:2] == 1.0).all()


def test_a_policy_in_rounds_that_does_not_say_which_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    stop_check = 'chunk'\n"
    )
    with pytest.raises(OppoError, match="stops in rounds: give it an attribute chunk_size"):
        compare(write_scenario(tmp_path), ["mine.py:Mine"], seeds=1)


# ---- attribution, by hand ----------------------------------------------------------------------------------


def attributed(
    folder: Path,
    policy: str,
    settings: dict[str, Any],
    rows: Sequence[tuple[int, int]],
    steps: int,
    batch: int,
    costs: dict[str, Any],
    **sections: Any,
) -> dict[str, float]:
    """Seconds a step of each share, and the speed-up; iterations take 1 s, ``rows`` are (prompt, response)
    tokens in order."""
    (folder / "rows.csv").write_text(
        "prompt_length,response_length\n" + "".join(f"{prompt},{response}\n" for prompt, response in rows)
    )
    scenario = write_scenario(
        folder,
        steps=steps,
        warmup_steps=0,
        rollout_batch_size=batch,
        max_prompt_length=50,
        trace={"path": "rows.csv", "sampling": "in_order"},
        policy={"name": policy, **settings},
        costs={"kind": "linear", "decode": {"fixed": 1.0}, **costs},
        **{"rollout": {"num_replicas": 1}, **sections},
    )
    result = compare(scenario, [policy], seeds=1)
    shares = {str(name): float(column[policy]) for name, column in result.attribution.items()}
    return shares | {c.SPEEDUP: float(result.table[c.SPEEDUP][policy])}


def test_hidden_by_overlap(tmp_path: Path) -> None:
    # One rollout of 10 tokens, prompt 4, scored at 0.5 s a token. Whole: 14 · 0.5 = 7 s after gen. In chunks
    # of 4 (see test_by_hand) 1 s is left: 6 s are hidden. Speed-up 17/11. Nothing else can differ: no Δ, no
    # recomputation, devices apart, no padding.
    shares = attributed(tmp_path, "intra", {"chunk_size": 4}, [(4, 10)], 3, 1, {"score": {"per_token": 0.5}})
    assert shares.pop(c.HIDDEN_BY_OVERLAP_S) == pytest.approx(6.0)
    assert shares.pop(c.SPEEDUP) == pytest.approx(17 / 11)
    assert all(math.isnan(value) for value in shares.values())


def test_saved_by_the_shorter_tail(tmp_path: Path) -> None:
    # B = 2, lengths 2, 9, 3, 4, 4, 4, 4. Without Δ: 9, 4, 4 s. With Δ = 1 (see test_by_hand): 3, 4, 4 s.
    # Saved 6/3 = 2 s a step.
    rows = [(1, length) for length in (2, 9, 3, 4, 4, 4, 4)]
    shares = attributed(tmp_path, "inter", {"overcommit": 1}, rows, 3, 2, {})
    assert shares[c.SAVED_BY_SHORTER_TAIL_S] == pytest.approx(2.0)
    assert shares[c.SPEEDUP] == pytest.approx(17 / 11)
    assert shares[c.LOST_TO_RECOMPUTATION_S] == pytest.approx(0.0)
    assert math.isnan(shares[c.HIDDEN_BY_OVERLAP_S])


def test_lost_to_recomputation(tmp_path: Path) -> None:
    # Lengths 2 and 6, prompts 10, B = 1, Δ = 1, prefill 0.1 s a token. Step 0: 2 + 2 s. Step 1: 10 new tokens
    # and 10 + 2 again, 2.2 s, then 2 s; were it free, 1 + 2 s. Lost 1.2/2 s a step. Kept KV loses nothing.
    costs = {"prefill": {"per_token": 0.1}}
    for clear, lost in ((True, 0.6), (False, 0.0)):
        rollout = {"num_replicas": 1, "clear_kv_cache_on_weight_sync": clear}
        shares = attributed(
            tmp_path, "inter", {"overcommit": 1}, [(10, 2), (10, 6)], 2, 1, costs, rollout=rollout
        )
        assert shares[c.LOST_TO_RECOMPUTATION_S] == pytest.approx(lost)


@pytest.mark.parametrize(("sharing", "lost"), [("streams", 1.0), ("time_slice", 2.0)])
def test_lost_to_contention(sharing: str, lost: float, tmp_path: Path) -> None:
    # Scoring on the rollout device (see test_by_hand): with devices apart the 2 s of scoring would fit beside,
    # gen 8 s. Kernels that run together: memory 1.5, gen 9 s. In time slices both run at half speed: 10 s.
    costs = {"score": {"fixed": 2.0}, "demands": {"score": {"memory": 0.5, "arithmetic": 1.0}}}
    placement = {"scoring": "rollout", "training": "separate", "sharing": sharing}
    shares = attributed(tmp_path, "rollout-overlap", {}, [(1, 4), (1, 8)], 1, 2, costs, placement=placement)
    assert shares[c.LOST_TO_CONTENTION_S] == pytest.approx(lost)
    # Scored at the end, both in one batch: 8 + 2 s, against gen and 2 s.
    assert shares[c.HIDDEN_BY_OVERLAP_S] == pytest.approx(-lost)
    assert shares[c.SPEEDUP] == pytest.approx(10 / (10 + lost))


def test_lost_to_padding(tmp_path: Path) -> None:
    # Static (see test_by_hand): prompts 2 and 4, lengths 1 and 3, 0.5 s a row, 0.01 s a KV token, prefill 0.1
    # s a token: 7.1 s. Unpadded: prefill 6 tokens, 0.6 s; iterations with 2, 1, 1 rows and 2 + 4, 5, 6 KV
    # tokens: 2.06 + 1.55 + 1.56 s. 5.77 s: 1.33 s are lost.
    costs = {
        "decode": {"fixed": 1.0, "per_rollout": 0.5, "per_kv_token": 0.01},
        "prefill": {"per_token": 0.1},
    }
    rollout = {"num_replicas": 1, "batching": "static"}
    shares = attributed(tmp_path, "intra", {}, [(2, 1), (4, 3)], 1, 2, costs, rollout=rollout)
    assert shares[c.LOST_TO_PADDING_S] == pytest.approx(1.33)
    assert shares[c.SPEEDUP] == pytest.approx(1.0)


def test_lost_to_cuts(tmp_path: Path) -> None:
    # One rollout of 10 tokens in rounds of 4, prompt 4, 0.5 s a scored token, 1 s a round, 0.25 s a piece at
    # the scorer. Free: gen 10, pieces of 8, 4, 2 tokens at 4, 8 and 10: scored by 8, 10 and 11. Step 11 s.
    # With their costs: gen 13; pieces at 4, 9 and 12, each 0.25 s longer: scored by 8.25, 11.25 and 13.25:
    # 2.25 s are lost.
    costs = {"score": {"per_token": 0.5}, "terms": {"round_fixed_s": 1.0, "piece_fixed_s": 0.25}}
    settings = {"chunk_size": 4, "stop_check": "chunk"}
    shares = attributed(tmp_path, "intra", settings, [(4, 10)], 2, 1, costs)
    assert shares[c.LOST_TO_CUTS_S] == pytest.approx(2.25)
    assert math.isnan(shares[c.LOST_TO_RECOMPUTATION_S])
    # Streamed, each 1 s on its way: the last one arrives at 11 instead of 10. Nothing to lose without costs.
    for costs, lost in (({}, math.nan), ({"terms": {"piece_send_s": 1.0}}, 1.0)):
        shares = attributed(
            tmp_path, "intra", {"chunk_size": 4}, [(4, 10)], 2, 1, {"score": {"per_token": 0.5}, **costs}
        )
        assert shares[c.LOST_TO_CUTS_S] == pytest.approx(lost, nan_ok=True)


def test_what_a_round_does_not_keep_is_lost_to_recomputation(tmp_path: Path) -> None:
    # Rounds of 4 of one rollout of 10 tokens, prompt 4, prefill 0.1 s a token: 8 and 12 tokens again.
    shares = attributed(
        tmp_path,
        "intra",
        {"chunk_size": 4, "stop_check": "chunk"},
        [(4, 10)],
        2,
        1,
        {"prefill": {"per_token": 0.1}},
        rollout={"num_replicas": 1, "keeps_kv_between_rounds": False},
    )
    assert shares[c.LOST_TO_RECOMPUTATION_S] == pytest.approx(2.0)
    assert math.isnan(shares[c.LOST_TO_CUTS_S])


def test_only_what_a_policy_can_lose_is_replayed(tiny: Path) -> None:
    variants: dict[str, set[str]] = {}
    compared = ["intra", "inter", "oppo", "one-step-off", "async"]
    for cell in plan_comparison(load_scenario(tiny), compared, 1, 6, True).cells:
        variants.setdefault(cell.label, set()).add(cell.variant)
    assert variants == {
        "sequential": {"actual"},
        "intra": {"actual", "batch_scoring"},
        "inter": {"actual", "no_tail", "free_recompute"},
        "oppo": {"actual", "batch_scoring", "no_tail", "free_recompute"},
        "one-step-off": {"actual"},
        "async": {"actual", "batch_scoring", "free_recompute"},
    }
    assert {cell.variant for cell in plan_comparison(load_scenario(tiny), ["oppo"], 1, 6, False).cells} == {
        "actual"
    }


@pytest.mark.parametrize("policy", ["intra", "rollout-overlap", "one-step-off"])
def test_what_is_preempted_under_a_small_kv_is_lost_to_recomputation(policy: str, tmp_path: Path) -> None:
    rollout = {"num_replicas": 1, "kv_capacity_tokens": 60, "kv_block_tokens": 1}
    scenario = write_scenario(tmp_path, rollout=rollout)
    result = compare(scenario, [policy], seeds=2)
    assert simulate(scenario, policy=policy).steps[c.TOKENS_RECOMPUTED].sum() > 0
    assert result.attribution.loc[policy, c.LOST_TO_RECOMPUTATION_S] > 0


# ---- the run store -----------------------------------------------------------------------------------------


def test_a_comparison_reads_its_trace_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths.csv").write_text("prompt_length,response_length\n4,7\n4,30\n4,12\n")
    scenario = load_scenario(write_scenario(tmp_path, trace={"path": "lengths.csv"}))
    built, opened = build.build_replay, []

    def counted(*arguments: Any, **named: Any) -> Any:
        opened.append(arguments)
        return built(*arguments, **named)

    monkeypatch.setattr(build, "build_replay", counted)
    plan = plan_comparison(scenario, ["rollout-overlap", "intra", "inter", "oppo"], 2, None, True)
    compare_to_folder(plan, tmp_path / "cmp", Executor("serial"), unheard)
    assert plan.runs > 20
    assert len(opened) == 1


def test_a_bound_is_marked_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    oracle = True\n\nclass Fair(Policy):\n    pass\n"
    )
    policies = ["oppo", "oracle", "mine.py:Mine", "mine.py:Fair"]
    table = compare(write_scenario(tmp_path), policies, seeds=1, attribution=False).table
    assert table[c.BOUND_ONLY].to_dict() == {
        "sequential": False,
        "oppo": False,
        "oracle": True,
        "mine.py:Mine": True,
        "mine.py:Fair": False,
    }


def test_length_bias_is_that_against_sequential_on_the_same_seeds(tmp_path: Path) -> None:
    """Sampling moves the lengths of all policies alike; sequential itself has none, to the last digit."""
    found = compare(write_scenario(tmp_path), ["intra", "oppo"], seeds=3, attribution=False)
    table, cells = found.table, found.cells
    assert table.loc["sequential", c.LENGTH_BIAS] != 0.0
    assert table.loc["sequential", c.LENGTH_BIAS_PAIRED] == 0.0
    assert table.loc["intra", c.LENGTH_BIAS_PAIRED] == 0.0  # the same rollouts in the same steps
    lengths = cells.pivot(index="seed", columns="policy", values="length_mean")
    by_hand = (lengths["oppo"] / lengths["sequential"]).mean() - 1.0
    assert by_hand != 0.0
    assert table.loc["oppo", c.LENGTH_BIAS_PAIRED] == pytest.approx(by_hand, abs=1e-12)
