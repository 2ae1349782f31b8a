"""Policies: what they see, that they survive a checkpoint, settings, and policies of a user's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic.fields import FieldInfo

from oppo_sim import columns as c
from oppo_sim import simulate
from oppo_sim.errors import OppoError
from oppo_sim.policies import (
    Arrangement,
    Batch,
    OraclePoolView,
    Policy,
    PoolView,
    RolloutView,
    StepPlan,
    StepReport,
)
from oppo_sim.policies import registry as policy_registry
from oppo_sim.policies.registry import SHIPPED, make_policy
from oppo_sim.scenario.load import load_scenario
from oppo_sim.tune.space import build_space
from tests.cli_runs import write_scenario
from tests.small import Result, linear_costs, run

DOCS = Path(__file__).parent.parent / "docs" / "policies.md"
BATCH = Batch(4)
RESPONSES = [3 + (i * i * 7 + i * 5) % 37 for i in range(400)]
REWARDS = [0.0, 0.5, 0.4, 0.9, 1.1, 0.7, 0.6, 1.4, 1.5, 1.3, 1.8, 1.2]
CONTROLLED: dict[str, Any] = {
    "chunk_size": {"control": "explore", "candidates": [3, 8], "explore_every": 5, "explore_steps": 2}
}
DELTA = {"overcommit": {"control": "reward_slope", "initial": 2, "max": 6, "window": 2}}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(SHIPPED, CONTROLLED),
    "inter": CONTROLLED | DELTA | {"max_deferrals": 2},
    "oppo": CONTROLLED | DELTA,
    "partial-rollout": {"token_budget": 9},
    "tail-batching": CONTROLLED | {"over_issue": 1.5},
    "async": CONTROLLED | {"max_staleness": 2},
}


class Relay(Policy):
    """Passes everything on to another policy, which ``before_plan`` may replace; ``look`` sees every pool."""

    def __init__(self, own: Policy) -> None:
        super().__init__(own.batch)
        self.own = own
        self.plans: list[StepPlan] = []
        self.before_plan: Callable[[PoolView], None] = lambda pool: None
        self.look: Callable[[PoolView], None] = lambda pool: None
        for attribute in (
            "name",
            "schedule",
            "oracle",
            "score_granularity",
            "stop_check",
            "max_deferrals",
            "max_staleness",
        ):
            setattr(self, attribute, getattr(own, attribute))

    def plan(self, pool: PoolView) -> StepPlan:
        self.before_plan(pool)
        self.look(pool)
        self.plans.append(self.own.plan(pool))
        return self.plans[-1]

    def arrange(self, pool: PoolView) -> Arrangement:
        self.look(pool)
        return self.own.arrange(pool)

    def select(self, pool: PoolView) -> Sequence[int]:
        self.look(pool)
        return self.own.select(pool)

    def drop(self, pool: PoolView) -> Collection[int]:
        self.look(pool)
        return self.own.drop(pool)

    def observe(self, report: StepReport) -> None:
        self.own.observe(report)


def simulated(policy: Policy, steps: int, responses: list[int] | None = None) -> Result:
    costs = linear_costs(
        (1.0, 0.1, 0.0),
        (0.2, 0.01, 0.0),
        (0.3, 0.05, 0.0),
        {"update_actor": (2.0, 0.0, 0.0)},
        update_weights=0.5,
    )
    return run(
        policy,
        RESPONSES if responses is None else responses,
        steps=steps,
        batch=4,
        prompts=3,
        costs=costs,
        rewards=REWARDS,
    )


def made(name: str) -> Relay:
    return Relay(make_policy(name, BATCH, SETTINGS[name]))


# ---- what a policy sees ------------------------------------------------------------------------------------


def test_a_view_has_the_fields_that_the_documentation_names_and_no_length() -> None:
    assert RolloutView._fields == (
        "rollout_id", "group_id", "prompt_length", "generated", "replica", "admitted_step", "deferrals", "head_version", "finished_step",
        "turns_done", "waits_for_tool",
    )  # fmt: skip
    text = DOCS.read_text()
    assert all(f"`{field}`" in text for field in RolloutView._fields)


@pytest.mark.parametrize("name", SHIPPED)
def test_no_view_of_an_unfinished_response_tells_its_length(name: str) -> None:
    policy = made(name)
    seen = {"unfinished": 0, "finished": 0}

    def look(pool: PoolView) -> None:
        assert isinstance(pool, OraclePoolView) == hasattr(pool, "response_lengths") == (name == "oracle")
        for view in pool.unfinished:
            assert view.finished_step is None
            # Asynchronous: also those that have finished and are not scored yet.
            assert view.generated < RESPONSES[view.rollout_id] + (name == "async")
        for view in pool.finished:
            assert view.generated == RESPONSES[view.rollout_id]
            assert view.finished_step is not None
        seen["unfinished"] += len(pool.unfinished)
        seen["finished"] += len(pool.finished)

    policy.look = look
    simulated(policy, 8)
    assert seen["unfinished"] > 0
    assert seen["finished"] > 0


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "oracle"])
def test_how_long_unfinished_responses_will_become_changes_no_decision(name: str) -> None:
    policy = made(name)
    unfinished: set[int] = set()

    def look(pool: PoolView) -> None:
        if pool.step == 7:
            unfinished.clear()
            unfinished.update(view.rollout_id for view in pool.unfinished)

    policy.look = look
    shorter = simulated(policy, 8)
    longer_policy = made(name)
    longer = simulated(
        longer_policy, 8, [n + 1000 if i in unfinished or i >= 60 else n for i, n in enumerate(RESPONSES)]
    )
    assert longer.trained() == shorter.trained()
    assert longer_policy.plans == policy.plans
    if name in ("inter", "oppo", "april", "partial-rollout", "async"):
        assert unfinished


# ---- checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_policy_restored_in_mid_run_makes_the_same_decisions(name: str) -> None:
    whole = made(name)
    expected = simulated(whole, 12)
    for restart in (1, 4, 7):
        policy = made(name)

        def restore(pool: PoolView, policy: Relay = policy, restart: int = restart) -> None:
            if pool.step == restart:
                state = json.loads(json.dumps(policy.own.state_dict()))
                policy.own = make_policy(name, BATCH, SETTINGS[name])
                policy.own.load_state_dict(state)

        policy.before_plan = restore
        result = simulated(policy, 12)
        assert policy.plans == whole.plans
        pd.testing.assert_frame_equal(result.steps, expected.steps)
        pd.testing.assert_frame_equal(result.rollouts, expected.rollouts)


def test_without_its_state_a_policy_decides_differently() -> None:
    # That the test above can fail: a fresh policy in mid-run does change the plans of those that keep state.
    for name in ("oppo", "tail-batching"):
        whole, policy = made(name), made(name)
        simulated(whole, 12)

        def forget(pool: PoolView, policy: Relay = policy, name: str = name) -> None:
            if pool.step == 4:
                policy.own = make_policy(name, BATCH, SETTINGS[name])

        policy.before_plan = forget
        simulated(policy, 12)
        assert policy.plans != whole.plans


# ---- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("oppo", {"overcomit": 1}, "policy 'oppo' has no field 'overcomit': did you mean 'overcommit'?"),
        (
            "sequential",
            {"overcommit": 1},
            "policy 'sequential' has no field 'overcommit': it has stop_check, chunk_size",
        ),
        ("oppo", {"overcommit": "8"}, "policy 'oppo', overcommit = '8'"),
        ("oppo", {"chunk_size": 8.0}, "policy 'oppo', chunk_size = 8.0"),
        ("inter", {"max_deferrals": True}, "policy 'inter', max_deferrals = True"),
        ("inter", {"overcommit": {"control": "reward_slope", "window": "3"}}, "policy 'inter', overcommit"),
        (
            "intra",
            {"chunk_size": {"control": "explore", "candidates": [8, 8]}},
            "must be different numbers of tokens",
        ),
        ("async", {"max_staleness": -1}, "policy 'async', max_staleness = -1"),
        ("tail-batching", {"over_issue": 0.5}, "policy 'tail-batching', over_issue = 0.5"),
        ("oracle", {"window": 0}, "policy 'oracle', window = 0"),
        ("intra", {"chunk_size": {1, 2}}, "no plain values"),
        ("opo", {}, "unknown policy 'opo': did you mean 'oppo'?"),
        ("zzz", {}, "unknown policy 'zzz': shipped are sequential, intra"),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_nothing_is_converted(
    name: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(OppoError) as refused:
        make_policy(name, BATCH, settings)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_overcommit_is_a_number_a_share_or_controlled() -> None:
    def planned(name: str, overcommit: Any, batch: Batch) -> int:
        settings = {} if overcommit is None else {"overcommit": overcommit}
        return (
            make_policy(name, batch, settings).plan(PoolView(0, 0, 0, 0, 1, lambda _: ())).admit
            - batch.rollout_batch_size
        )

    assert planned("inter", 3, Batch(100)) == 3
    assert planned("inter", 0.07, Batch(100)) == 7  # 0.07 · 100 is 7.000000000000001 in binary
    assert planned("inter", 0.071, Batch(100)) == 8
    assert planned("inter", 1.0, Batch(100)) == 100
    assert planned("april", None, Batch(100)) == 100
    assert planned("partial-rollout", None, Batch(100)) == 50
    assert planned("inter", 0.07, Batch(100, 4)) == 8
    assert planned("oppo", None, Batch(112)) == 7  # half of an eighth
    with pytest.raises(OppoError, match="overcommit 3 is not a multiple of group_size 4"):
        planned("inter", 3, Batch(100, 4))


def table_rows(heading: str) -> dict[str, str]:
    section = DOCS.read_text().split(heading)[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|", section, re.MULTILINE))


def default_of(field: FieldInfo) -> str:
    default = field.default
    if hasattr(default, "control"):
        return f"{{control: {default.control}}}"
    return "null" if default is None else str(default)


def test_the_documented_settings_and_defaults_are_the_real_ones() -> None:
    rows = table_rows("## Shipped ones")
    assert list(rows) == list(SHIPPED)
    for name, shipped in SHIPPED.items():
        documented = dict(
            re.findall(
                r"`(\w+)` (\{[^}]*\}|[\w.]+)", rows[name].replace(" (a round, under `stop_check: chunk`)", "")
            )
        )
        assert documented == {
            field: default_of(info) for field, info in shipped.Settings.model_fields.items()
        }, name


# ---- one's own ---------------------------------------------------------------------------------------------


def own(folder: Path, body: str, name: str = "mine.py") -> str:
    (folder / name).write_text("from oppo_sim import Policy, StepPlan\n\n\nclass Mine(Policy):\n" + body)
    return f"{name}:Mine"


def tried(folder: Path, body: str, **options: Any) -> str:
    """The sentence with which a run under such a policy is refused."""
    scenario = write_scenario(folder)
    with pytest.raises(OppoError) as refused:
        simulate(scenario, policy=own(folder, body), **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_policy_of_the_documentation_runs_as_it_says(tmp_path: Path) -> None:
    source = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(source) == 1
    (tmp_path / "oldest.py").write_text(source[0])
    scenario = write_scenario(tmp_path, policies={"oldest.py:OldestFirst": {"extra": 4}})
    result = simulate(scenario, policy="oldest.py:OldestFirst")
    assert result.steps[c.OVERCOMMIT].tolist() == [4] * 6
    ranks = result.rollouts.sort_values([c.TRAINED_STEP, c.TRAINED_RANK])
    for _, batch in ranks.groupby(c.TRAINED_STEP):
        assert batch[c.ROLLOUT_ID].is_monotonic_increasing
    assert (
        simulate(scenario, policy="oldest.py:OldestFirst", policy_settings={}).steps[c.OVERCOMMIT].tolist()
        == [2] * 6
    )
    digest = result.manifest["policy_source_sha256"]
    assert (len(digest), result.manifest["policy_settings"]) == (64, {"extra": 4})
    assert simulate(scenario).manifest["policy_source_sha256"] is None


def test_a_policy_without_overrides_is_the_sequential_baseline(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    mine, baseline = (
        simulate(scenario, policy=own(tmp_path, "    pass\n")),
        simulate(scenario, policy="sequential", policy_settings={}),
    )
    pd.testing.assert_frame_equal(mine.steps, baseline.steps)
    pd.testing.assert_frame_equal(mine.rollouts, baseline.rollouts)


def test_a_policy_may_use_dataclasses_numpy_and_every_schedule(tmp_path: Path) -> None:
    source = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from oppo_sim import Policy, StepPlan

@dataclass
class Memory:
    steps: int = 0

class Mine(Policy):
    schedule = "async"
    score_granularity = "rollout"
    memory: list = []

    def __init__(self, batch, settings):
        super().__init__(batch, settings)
        self.own = Memory()

    def plan(self, pool):
        self.memory.append(1)
        self.own.steps += 1
        assert len(self.memory) == self.own.steps
        return StepPlan(admit=np.int64(4 * (pool.weight_version + 2) - pool.admitted), chunk_size=np.int32(8))

    def select(self, pool):
        return np.array([view.rollout_id for view in pool.finished])[:4]
"""
    (tmp_path / "mine.py").write_text(source)
    scenario = write_scenario(tmp_path)
    for _ in range(2):  # what one run appends, the next must not find
        mine = simulate(scenario, policy="mine.py:Mine", policy_settings={"memory": []})
    asynchronous = simulate(scenario, policy="async")
    assert mine.rollouts[c.ROLLOUT_ID].tolist() == asynchronous.rollouts[c.ROLLOUT_ID].tolist()


WRONG = {
    "an exception, on one line": (
        (
            "    def plan(self, pool):\n"
            "        if pool.step == 2:\n"
            "            raise ValueError('no\\n  good')\n"
            "        return super().plan(pool)\n"
        ),
        "policy 'mine.py:Mine', step 2: plan() raised ValueError: no good (mine.py, line 7); mend the policy",
    ),
    "an exception in select": (
        "    def select(self, pool):\n        return pool.finished[99]\n",
        (
            "policy 'mine.py:Mine', step 0: select() raised IndexError: tuple index out of range (mine.py,"
            " line 6); mend the policy"
        ),
    ),
    "an exception in arrange": (
        "    def arrange(self, pool):\n        assert False\n",
        "step 0: arrange() raised AssertionError (mine.py, line 6)",
    ),
    "an exception in drop": (
        "    def drop(self, pool):\n        exit(3)\n",
        "step 0: drop() raised SystemExit: 3 (mine.py, line 6); mend the policy",
    ),
    "an exception in observe": (
        "    def observe(self, report):\n        1 / (1 - report.step)\n",
        "step 1: observe() raised ZeroDivisionError: division by zero (mine.py, line 6)",
    ),
    "nothing as a plan": (
        "    def plan(self, pool):\n        pass\n",
        "step 0: plan() answered None, which is no StepPlan",
    ),
    "half a rollout": (
        "    def plan(self, pool):\n        return StepPlan(admit=4.5, chunk_size=8)\n",
        "step 0: plan() answered admit 4.5, which is no whole number",
    ),
    "no arrangement": (
        "    def arrange(self, pool):\n        return {}\n",
        "arrange() answered {}, which is no Arrangement",
    ),
    "no ids": (
        "    def select(self, pool):\n        return None\n",
        "select() answered None, which is no collection of rollout ids",
    ),
    "views instead of ids": (
        "    def select(self, pool):\n        return pool.finished\n",
        "select() answered rollout id RolloutView(",
    ),
    "unfinished ids": (
        (
            "    def plan(self, pool):\n"
            "        return self.refill(pool, overcommit=4, chunk_size=8)\n"
            "\n"
            "    def select(self, pool):\n"
            "        return [view.rollout_id for view in (*pool.unfinished, *pool.finished)][:4]\n"
        ),
        "policy 'mine.py:Mine', step 0: select() must name finished rollouts, rollout",
    ),
    "too few": (
        "    def select(self, pool):\n        return [pool.finished[0].rollout_id]\n",
        "select() must name 4 different rollouts, it named 1",
    ),
    "no end": (
        "    def plan(self, pool):\n        return StepPlan(admit=4, chunk_size=8, stop_after=9)\n",
        (
            "step 0: plan() ends the phase at 9 finished rollouts but only 4 are in flight and not held; mend"
            " the policy"
        ),
    ),
    "no end, asynchronous": (
        (
            "    schedule = 'async'\n\n    def plan(self, pool):\n        return StepPlan(admit=0 if"
            " pool.step else 6, chunk_size=8)\n"
        ),
        "step 1: plan() leaves 2 rollouts in flight and not held, too few for a batch",
    ),
    "no such granularity": (
        "    score_granularity = 'token'\n",
        "score_granularity 'token', which is none of batch, rollout, chunk",
    ),
    "no such schedule": (
        "    schedule = 'sync'\n",
        "schedule 'sync', which is none of synchronous, one-step-off, async",
    ),
    "deferrals below zero": (
        "    max_deferrals = -1\n",
        "max_deferrals -1, which is no whole number from 0 on",
    ),
    "another constructor": (
        "    def __init__(self):\n        pass\n",
        "policy 'mine.py:Mine' cannot be made: it raised TypeError: ",
    ),
    "a file that does not import": (
        "    import no_such_module\n",
        "mine.py cannot be imported (ModuleNotFoundError: No module named 'no_such_module')",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_policy_that_goes_wrong_is_said_in_one_sentence(case: str, tmp_path: Path) -> None:
    body, words = WRONG[case]
    assert words in tried(tmp_path, body)


def test_settings_of_ones_own_policy_are_its_class_attributes(tmp_path: Path) -> None:
    body = "    extra: int = 2\n\n    def helper(self):\n        pass\n"
    for wrong in ({"more": 1}, {"helper": 1}, {"_step": 1}):
        said = tried(tmp_path, body, policy_settings=wrong)
        assert f"policy 'Mine' has no setting '{next(iter(wrong))}'" in said


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("none.py:Mine", "none.py does not exist"),
        ("mine.py:Yours", "has no class 'Yours'"),
        ("mine.py:Path", "is not a policy: make it a subclass of oppo_sim.policies.Policy"),
    ],
)
def test_a_file_that_gives_no_policy_is_refused(policy: str, words: str, tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    (tmp_path / "mine.py").write_text("from pathlib import Path\n")
    with pytest.raises(OppoError, match=re.escape(words)):
        simulate(scenario, policy=policy)


def test_an_entry_point_is_a_policy_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(
        "from oppo_sim import Policy\n\nclass Theirs(Policy):\n    extra = 1\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{policy_registry.ENTRY_POINT_GROUP}]\ntheirs = their_package:Theirs\nbroken ="
        " their_package_2:Theirs\nwrong = os:getcwd\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scenario = write_scenario(tmp_path)
    result = simulate(scenario, policy="theirs")
    pd.testing.assert_frame_equal(result.rollouts, simulate(scenario, policy="sequential").rollouts)
    assert len(result.manifest["policy_source_sha256"]) == 64
    with pytest.raises(
        OppoError, match=r"'broken' \(their_package_2:Theirs\) cannot be imported \(ModuleNotFoundError"
    ):
        simulate(scenario, policy="broken")
    with pytest.raises(OppoError, match="entry point 'wrong' is not a policy"):
        simulate(scenario, policy="wrong")


# ---- what a policy says it is ------------------------------------------------------------------------------

NEW = """
from pydantic import Field
from oppo_sim.policies.interface import ScoreGranularity, StopCheck
from oppo_sim.policies.refill import Refill
from oppo_sim.policies.settings import PolicySettings


class EagerSettings(PolicySettings):
    overcommit: int = Field(2, ge=0)
    max_deferrals: int | None = None
    chunk_size: int = 8
    stop_check: StopCheck = "token"
    score_granularity: ScoreGranularity = "chunk"


class Eager(Refill):
    name = "eager"
    summary = "takes a little more than it needs"
    without_tail = {"overcommit": 0}
    Settings = EagerSettings
    inherited = ("stop_check",)
"""
ADDED = """
import sys
import oppo_sim.policies.shipped as package
package.__path__.append(sys.argv[1])
import oppo_sim
from oppo_sim.fast.choose import why_not
from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.json_schema import json_schema
from oppo_sim.tune.space import build_space

scenario = load_scenario(sys.argv[2])
assert "eager" in oppo_sim.POLICIES
assert json_schema()["$defs"]["policy eager"]["description"] == "takes a little more than it needs"
space = build_space(scenario, None, (), None)
assert {knob.field for knob in space.knobs["eager"]} == {
    "policy.chunk_size", "policy.overcommit", "policy.max_deferrals"}
assert why_not(build_setup(scenario, policy="eager")) is None
table = oppo_sim.compare(scenario, ["eager", "intra"], seeds=2).attribution
assert table.loc["eager", "saved_by_shorter_tail_s"] > 0
points = oppo_sim.sweep(scenario, grid={"policy.name": "eager,intra", "policy.chunk_size": "4,8"}, seeds=2)
assert set(points.points["policy.name"]) == {"eager", "intra"}
print("found")
"""


def test_a_shipped_policy_is_one_file(tmp_path: Path) -> None:
    """Its file alone: it is listed, described, compared, swept, tuned with its knobs, and compiled."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "eager.py").write_text(NEW)
    ran = subprocess.run(
        [sys.executable, "-c", ADDED, str(tmp_path / "more"), str(write_scenario(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "found\n"), ran.stderr


def test_a_policy_of_ones_own_says_its_settings_and_knobs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim.policies import Knob, Policy, PolicySettings\n\n\nclass More(PolicySettings):\n    extra:"
        " int = 2\n\n\nclass Mine(Policy):\n    Settings = More\n    summary = 'mine'\n\n    def knobs(self,"
        " max_response_length):\n        return [Knob('extra', 'int', 0, self.batch.rollout_batch_size)]\n\n   "
        " def plan(self, pool):\n        return self.refill(pool, overcommit=self.extra, chunk_size=8)\n"
    )
    scenario = load_scenario(write_scenario(tmp_path))
    name = f"{tmp_path}/mine.py:Mine"
    assert (
        simulate(scenario, policy=name, policy_settings={"extra": 3}).steps[c.OVERCOMMIT].tolist() == [3] * 6
    )
    with pytest.raises(OppoError, match="has no field 'extr': did you mean 'extra'"):
        simulate(scenario, policy=name, policy_settings={"extr": 3})
    knobs = build_space(scenario, (name,), (), None).knobs[name]
    assert [(knob.field, knob.low, knob.high) for knob in knobs] == [
        ("policy.extra", 0, scenario.rollout_batch_size)
    ]
    with pytest.raises(OppoError, match="has no max_deferrals, so the bound of 4 cannot be kept"):
        build_space(scenario, (name,), (), 4)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    carries = 'yes'\n", "carries 'yes', which is neither True nor False"),
        ("    def knobs(self, length):\n        return [1]\n", "knobs() answered 1, which is no Knob"),
    ],
)
def test_what_a_policy_says_of_itself_wrongly_is_refused(tmp_path: Path, body: str, words: str) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    with pytest.raises(OppoError, match=re.escape(words)):
        build_space(scenario, (f"{tmp_path}/{own(tmp_path, body)}",), (), None)
