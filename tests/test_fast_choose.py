"""Which engine runs what: the compiled path where it covers a run, the model elsewhere, and the same
refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim.comparison.call import compare
from oppo_sim.comparison.result import Comparison
from oppo_sim.costs.interface import Costs, DecodeLines, Demand, EngineCost, Line
from oppo_sim.costs.linear import LinearEngine
from oppo_sim.costs.lowering import Lowering
from oppo_sim.costs.profile import Profile, ProfileRangeWarning, save_profile
from oppo_sim.errors import OppoError
from oppo_sim.fast import choose, compiled_run, records
from oppo_sim.fast.choose import run_columns, run_summary, why_not
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.cli_runs import compile_first
from tests.fast_setups import profile_content, shipped

SCENARIO = "paper-stackexchange-7b"


ALONE = ("placement.training=separate",)


@pytest.mark.parametrize(
    ("name", "policy", "overrides"),
    [
        (SCENARIO, "tail-batching", ()),
        ("h200x8-vllm", "one-step-off", ALONE),
        ("h200x8-vllm", "async", ALONE),
        ("h200-single", "oppo", ()),
        ("h100x64-32b", "sequential", ()),  # a thousand pieces are sent at once
        ("agentic-a800x4", "oppo", ("rollout.kv_capacity_tokens=900000",)),
        (SCENARIO, "oppo", ("placement.scoring=rollout",)),
        (SCENARIO, "oppo", ("placement.shares_host=true", "placement.interference=1.3")),
    ],
)
def test_what_users_run_is_compiled(name: str, policy: str, overrides: tuple[str, ...]) -> None:
    setup = shipped(name, policy, 3, "warmup_steps=0", *overrides)
    assert why_not(setup) is None
    assert run_summary(setup)[1] == "compiled"
    fast, slow = run_columns(setup), run_columns(setup, engine="simpy")
    assert (fast.engine, slow.engine) == ("compiled", "simpy")
    pd.testing.assert_frame_equal(fast.frame(), slow.frame(), check_exact=True)


class Quadratic(LinearEngine):
    """Somebody's change of a shipped model: what it inherits in numbers is no longer what it answers."""

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return super().prefill_time(tokens, pairs) + 1e-9 * tokens * tokens


class Own:
    """Somebody's cost model: what the simulator asks for, and nothing else."""

    peak = None

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        return 0.01

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        return Line(0.01, 0.0, float("inf"))

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        return Demand(1.0, 0.0)

    def decode_work(self, n_running: int, kv_tokens: float) -> None:
        return None

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return 0.02

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return Demand(0.0, 1.0)

    def prefill_work(self, tokens: float, pairs: float) -> None:
        return None

    def without_padding(self) -> Own:
        return self

    def with_host(self, factor: float) -> Own:
        return self


class Lowered(Own):
    """The same, which says itself in numbers, too."""

    decode_time, decode_line, decode_demand, decode_work = (
        Own.decode_time, Own.decode_line, Own.decode_demand, Own.decode_work,
    )  # fmt: skip
    prefill_time, prefill_demand, prefill_work = Own.prefill_time, Own.prefill_demand, Own.prefill_work

    def decode_lines(self, n_running: int) -> DecodeLines:
        return DecodeLines((self.decode_line(n_running, 0.0),))

    def lower_prefill(self, to: Lowering) -> None:
        to.linear(self.prefill_demand(1.0, 0.5), 0.02)


def with_actor(setup: Setup, actor: EngineCost) -> Setup:
    return replace(setup, costs=Costs(actor, setup.costs.scorer, setup.costs.training, {}))


def test_a_cost_model_that_says_itself_in_numbers_is_compiled() -> None:
    setup = shipped(SCENARIO, "oppo", 3, "warmup_steps=0")
    alone, lowered = with_actor(setup, Own()), with_actor(setup, Lowered())
    assert why_not(lowered) is None
    fast, slow = run_columns(lowered, engine="compiled"), run_columns(alone)
    assert slow.engine == "simpy"
    assert list(fast.columns[c.TIMING_STEP]) == list(slow.columns[c.TIMING_STEP])


def test_a_cost_model_without_numbers_runs_on_the_model() -> None:
    setup = shipped(SCENARIO, "oppo", 2, "warmup_steps=0")
    for actor, words in (
        (Own(), "cost model Own has no decode_lines() of its own"),
        (Quadratic(0.01), "cost model Quadratic has no lower_prefill() of its own"),
    ):
        own = with_actor(setup, actor)
        assert words in (why_not(own) or "")
        assert run_summary(own)[1] == "simpy"
    with pytest.raises(OppoError, match="engine compiled cannot make this run"):
        run_summary(own, engine="compiled")


ANSWERS = {
    "half a group": ("plan", "StepPlan(3, 256)"),
    "an impossible chunk": ("plan", "StepPlan(8, 0)"),
    "who was not dropped": ("plan", "StepPlan(8, 256, readmit=(0, 1))"),
    "too few": ("plan", "StepPlan(2, 256)"),
    "an early end": ("plan", "StepPlan(8, 256, stop_after=2)"),
    "a replica that is not": ("arrange", "Arrangement(move={0: 99})"),
    "all held": ("arrange", "Arrangement(hold=frozenset(range(8)))"),
    "too few to train": ("select", "[0, 1]"),
    "the unknown": ("select", "[0, 1, 2, 77]"),
    "who is not there": ("drop", "[99]"),
    "a part of a group": ("drop", "[view.rollout_id for view in pool.unfinished][:1]"),
    "no plan": ("plan", "7"),
    "an accident": ("select", "1 // 0"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_wrong_answer_is_refused_in_the_same_words(case: str, tmp_path: Path) -> None:
    method, answer = ANSWERS[case]
    plan = "" if method == "plan" else "    def plan(self, pool):\n        return StepPlan(8, 256)\n"
    (tmp_path / "mine.py").write_text(
        "from oppo_sim.policies import Arrangement, Policy, StepPlan\n\nclass Mine(Policy):\n    name ="
        f" 'mine'\n{plan}    def {method}(self, pool):\n        return {answer}\n"
    )
    setup, batch = shipped(SCENARIO, "oppo", 3, "warmup_steps=0"), Batch(4, 2)
    mine = replace(
        setup,
        batch=batch,
        replay=replace(setup.replay, group_size=2, blocks=((0, len(setup.replay.clipped) // 2),)),
        policy_factory=lambda: make_policy(f"{tmp_path}/mine.py:Mine", batch, {}),
    )
    assert why_not(mine) is None
    sentences = []
    for engine in ("simpy", "compiled"):
        with pytest.raises(OppoError) as found:
            run_columns(mine, engine=engine)  # type: ignore[arg-type]
        sentences.append(str(found.value))
    assert sentences[0] == sentences[1]
    assert "mend the policy" in sentences[0]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(OppoError, match="choose auto, simpy or compiled"):
        run_summary(shipped(SCENARIO, "oppo", 20), engine="fast")  # type: ignore[arg-type]


def profiled(tmp_path: Path, content: dict[str, Any]) -> Setup:
    save_profile(Profile.model_validate(content), tmp_path / "profile.json")
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "format: oppo-scenario/1\nsteps: 5\nrollout_batch_size: 4\nmax_response_length: 40\ntrace: {synth:"
        " {distribution: lognormal, mean: 12, p50: 8, max_response_length: 40, rows: 200, prompt_mean:"
        " 5}}\ncosts: {kind: profile, path: profile.json}\npolicy: {name: oppo, overcommit: 2, chunk_size:"
        " 5}\n"
    )
    return build_setup(load_scenario(scenario))


def test_a_profile_that_extrapolates_to_no_time_says_the_same_sentence(tmp_path: Path) -> None:
    content = profile_content()
    content["decode"]["rows"][0]["seconds"] = [0.02, 0.5, 0.9]
    content["decode"]["rows"][1]["seconds"] = [0.02, 0.03, 0.04]
    content["decode"]["rows"][2]["seconds"] = [0.0001, 0.0002, 0.0003]
    content["host"] = {}
    sentences = []
    for engine in ("simpy", "auto"):
        setup = profiled(tmp_path, content)
        with warnings.catch_warnings(), pytest.raises(OppoError, match="extrapolates to no time") as found:
            warnings.simplefilter("ignore")
            run_summary(setup, engine=engine)  # type: ignore[arg-type]
        sentences.append(str(found.value))
    assert sentences[0] == sentences[1]


def test_extrapolations_are_counted_and_said_once(tmp_path: Path) -> None:
    counts, said = [], []
    for engine in ("simpy", "compiled"):
        setup = profiled(tmp_path, profile_content())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run_summary(setup, engine=engine)  # type: ignore[arg-type]
            run_summary(setup, engine=engine)  # type: ignore[arg-type]
        counts.append(dict(setup.costs.actor.ranges.counts))  # type: ignore[attr-defined]
        said.append(
            sorted(str(warning.message) for warning in seen if warning.category is ProfileRangeWarning)
        )
    assert counts[0] == counts[1]
    assert counts[0]
    assert said[0] == said[1]
    assert len(said[0]) == len(counts[0])


def test_a_trace_with_other_prompts_is_not_taken_for_the_one_before() -> None:
    setup = shipped(SCENARIO, "sequential", 12)
    run_columns(setup, engine="compiled")
    longer = [length + 500 for length in setup.replay.prompt_lengths]
    changed = replace(setup, replay=replace(setup.replay, prompt_lengths=longer))
    fast, slow = run_columns(changed, engine="compiled"), run_columns(changed, engine="simpy")
    import pandas as pd

    pd.testing.assert_frame_equal(fast.frame(), slow.frame(), check_exact=True)
    assert fast.columns["prompt_length/mean"].min() > 500


def test_buffers_that_are_too_small_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_first()  # which makes runs of its own
    setup = shipped(SCENARIO, "oppo", 3, "warmup_steps=0", "policy.chunk_size=1")
    rooms: list[int] = []
    real = compiled_run.make_state

    def counted(setup: Setup, policy: Any, counterfactual: Any, block: int, room: int, *kept: Any) -> Any:
        rooms.append(room)
        memory = real(setup, policy, counterfactual, block, room, *kept)
        if room == 1:
            memory.states["length"][0, list(records.TABLES).index("inbox")] = 1
        return memory

    monkeypatch.setattr(compiled_run, "make_state", counted)
    assert run_columns(setup, engine="compiled").frame().equals(run_columns(setup, engine="simpy").frame())
    assert rooms == [4**number for number in range(len(rooms))]
    assert len(rooms) > 1


def test_rollouts_and_timelines_are_compiled_and_the_manifest_says_so() -> None:
    plain = simulate(SCENARIO, steps=20, keep_rollouts=False)
    whole = simulate(SCENARIO, steps=20, timeline=(2, 3))
    assert (plain.manifest["engine"], whole.manifest["engine"]) == ("compiled", "compiled")
    assert plain.rollouts.empty
    assert len(whole.rollouts) == 20 * 112
    assert {span.step for span in whole.spans} == {2, 3}
    assert plain.manifest == whole.manifest
    pd.testing.assert_frame_equal(plain.steps, whole.steps, check_exact=True)
    pd.testing.assert_frame_equal(plain.summary, whole.summary, check_exact=True)


def test_rows_of_the_steps_before_a_refusal_are_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim.policies import Policy, StepPlan\n\nclass Mine(Policy):\n    name = 'mine'\n    def"
        " plan(self, pool):\n        return StepPlan(112, 256 if pool.step < 3 else 0)\n"
    )
    setup = shipped(SCENARIO, "oppo", 9, "warmup_steps=0")
    mine = replace(setup, policy_factory=lambda: make_policy(f"{tmp_path}/mine.py:Mine", setup.batch, {}))
    for engine in ("simpy", "compiled"):
        sink = FrameSink()
        with pytest.raises(OppoError, match="chunk_size 0, below 1 token"):
            choose.run_into(mine, sink, engine=engine)  # type: ignore[arg-type]
        assert list(sink.steps()[c.STEP]) == [0, 1, 2]
        assert len(sink.rollouts()) == 3 * 112


def test_a_comparison_is_the_same_on_either_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Comparison:
        return compare(SCENARIO, ["oppo", "april"], seeds=2, steps=6, draws=3, overrides=["warmup_steps=2"])

    fast = made()
    monkeypatch.setattr(choose, "why_not", lambda setup, **how: "not today")
    slow = made()
    pd.testing.assert_frame_equal(fast.cells, slow.cells, check_exact=True)


def test_a_change_of_any_compiled_file_changes_the_key_of_the_cache() -> None:
    from oppo_sim.fast import sources

    folder = Path(sources.__file__).parent
    listed = {(folder / name).resolve() for name in sources.COMPILED}
    for file in folder.glob("*.py"):
        text = file.read_text()
        if "@compiled\n" in text or "_numba.njit" in text:
            assert file in listed, f"{file.name} is compiled but not in sources.COMPILED"
    assert compiled_run.load_kernel().advance.py_func.__closure__[0].cell_contents == int(
        sources.source_digest()[:15], 16
    )


def test_numba_is_imported_only_when_a_compiled_run_starts() -> None:
    code = "import sys, oppo_sim.fast.choose, oppo_sim.simulation; print('numba' in sys.modules)"
    assert _python(code).strip() == "False"


def test_the_cached_kernel_starts_without_compiling_and_without_words() -> None:
    compile_first()
    code = (
        "import json, sys\nfrom time import process_time\nbegan = process_time()\nfrom oppo_sim.fast.compiled_run"
        " import load_kernel\nkernel = load_kernel()\nhits = [sum(d.stats.cache_misses.values()) for d in"
        " (kernel.advance, kernel.add_moments)]\nfrom oppo_sim.simulation import"
        f" simulate\nsimulate({SCENARIO!r}, steps=20,"
        " keep_rollouts=False)\nprint(json.dumps([sum(d.stats.cache_misses.values()) for d in"
        " (kernel.advance, kernel.add_moments)]))\n"
    )
    assert json.loads(_python(code)) == [0, 0]


def _python(code: str) -> str:
    """What a fresh interpreter prints; nothing may go to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stderr == ""
    return done.stdout
