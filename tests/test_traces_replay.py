"""Which rollout gets which row: order, draws, steps, groups, and what is left out."""

import pickle
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.draws import draw_index, stream_key
from oppo_sim.errors import OppoError
from oppo_sim.run_files import TRACE
from oppo_sim.run_folder import open_run_folder
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.traces.config import TraceConfig
from oppo_sim.traces.replay import Replay, build_replay, replay_frame
from oppo_sim.traces.schema import check_frame, content_hash
from oppo_sim.traces.storage import save_trace


def trace(**columns: object) -> pd.DataFrame:
    return check_frame(pd.DataFrame({"prompt_length": 10, **columns}))


def replay(frame: pd.DataFrame, **settings: object) -> Replay:
    return replay_frame(frame, **{"max_response_length": 1000, **settings})  # type: ignore[arg-type]


def lengths(made: Replay, per_step: list[int]) -> list[list[int]]:
    """Response lengths by step when ``per_step`` rollouts are admitted."""
    cursor, rollout_id, found = made.cursor(), 0, []
    for step, count in enumerate(per_step):
        found.append([made.response_lengths[cursor.draw(rollout_id + k, step)] for k in range(count)])
        rollout_id += count
    return found


def test_in_order_is_cyclic() -> None:
    made = replay(trace(response_length=[5, 6, 7]), sampling="in_order")
    assert lengths(made, [2, 2, 3]) == [[5, 6], [7, 5], [6, 7, 5]]
    assert made.mean_response_length(0) == made.mean_response_length(99) == 6


def test_resample_is_the_documented_hash() -> None:
    made = replay(trace(response_length=list(range(1, 51))), seed=3)
    cursor, key = made.cursor(), stream_key(3, "trace")
    assert [cursor.draw(i, 0) for i in range(30)] == [draw_index(key, i, 50) for i in range(30)]


def test_by_step_takes_each_steps_rows_then_draws_from_the_same_step() -> None:
    frame = trace(response_length=[71, 11, 12, 72, 31], step=[7, 1, 1, 7, 3])
    made = replay(frame, sampling="by_step")
    found = lengths(made, [2, 1, 4, 2, 1])
    assert found[0] == [11, 12]
    assert found[1] == [31]
    assert found[2][:2] == [71, 72]
    assert set(found[2][2:]) <= {71, 72}
    assert found[3] == [11, 12], "past the last step the steps begin again"
    assert found[4] == [31]
    assert [made.mean_response_length(step) for step in range(4)] == [11.5, 31, 71.5, 11.5]


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 30),
    seed=st.integers(0, 2**63 - 1),
    sampling=st.sampled_from(["in_order", "resample", "by_step"]),
    group_size=st.integers(1, 3),
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_a_row_is_a_function_of_seed_and_admission(
    count: int, seed: int, sampling: str, group_size: int, steps: list[int]
) -> None:
    rows = count * group_size
    frame = trace(response_length=range(1, rows + 1), step=[i // group_size % 3 for i in range(rows)])
    made = replay(frame, sampling=sampling, seed=seed, group_size=group_size)
    per_step = [admitted * group_size for admitted in steps]
    assert lengths(made, per_step) == lengths(pickle.loads(pickle.dumps(made)), per_step)
    if sampling != "by_step":
        # When a rollout is admitted makes no difference: every policy sees the same rollouts.
        assert [length for step in lengths(made, per_step) for length in step] == lengths(
            made, [sum(per_step)]
        )[0]
    # Groups are whole: each is a run of consecutive rows that starts at a multiple of the size.
    cursor, rollout_id = made.cursor(), 0
    for step, admitted in enumerate(per_step):
        for _ in range(admitted // group_size):
            drawn = [cursor.draw(rollout_id + k, step) for k in range(group_size)]
            assert drawn == list(range(drawn[0], drawn[0] + group_size))
            assert drawn[0] % group_size == 0
            rollout_id += group_size


def test_by_step_does_not_depend_on_earlier_steps_admissions() -> None:
    frame = trace(response_length=range(1, 41), step=[i // 10 for i in range(40)])
    made = replay(frame, sampling="by_step")
    assert lengths(made, [3, 5])[1][:5] == lengths(made, [9, 5])[1][:5] == [11, 12, 13, 14, 15]


def test_groups_come_from_one_prompt_of_one_source_and_step() -> None:
    frame = trace(
        response_length=[1, 11, 2, 12, 3, 21, 22, 4],
        prompt_id=["a", "b", "a", "b", "a", "a", "a", "c"],
        source=["x", "x", "x", "x", "x", "y", "y", "x"],
    )
    made = replay(frame, sampling="in_order", group_size=2)
    assert made.response_lengths == [1, 2, 11, 12, 21, 22]
    assert made.provenance["rows_left_out_by_grouping"] == 2
    assert "2 of 8 rows" in " ".join(made.warnings)
    steps = trace(response_length=[1, 2, 3, 4], prompt_id="a", step=[0, 1, 0, 1])
    assert replay(steps, sampling="in_order", group_size=2).response_lengths == [1, 3, 2, 4]


def test_without_prompt_ids_groups_are_consecutive_rows() -> None:
    made = replay(trace(response_length=[1, 2, 3, 4, 5]), sampling="in_order", group_size=2)
    assert made.response_lengths == [1, 2, 3, 4]
    assert made.provenance["rows_left_out_by_grouping"] == 1
    with pytest.raises(OppoError, match="group_size") as refused:
        replay(trace(response_length=[1, 2]), group_size=3)
    assert "'oppo trace synth --like TRACE --samples-per-prompt 3' makes one" in str(refused.value)


def test_cleaning_is_counted() -> None:
    frame = trace(
        response_length=[0, 50, 2000, 7, 30, 40],
        prompt_length=[10, None, 9000, 10, 10, 10],
        finish_reason=["stop", "length", "stop", "abort", "stop", None],
    )
    made = replay(frame, sampling="in_order", prompt_length=77, max_prompt_length=512)
    assert made.response_lengths == [1, 50, 1000, 30, 40]
    assert made.prompt_lengths == [10, 77, 512, 10, 10]
    assert made.clipped == [False, True, True, False, False]
    counts = {name: value for name, value in made.provenance.items() if isinstance(value, int)}
    assert counts == {
        "rows_in_trace": 6,
        "rows_used": 5,
        "rows_left_out_aborted": 1,
        "rows_left_out_by_grouping": 0,
        "zero_lengths_raised_to_1": 1,
        "responses_cut": 1,
        "prompts_cut": 1,
        "prompt_lengths_assumed": 1,
    }
    said = " ".join(made.warnings)
    assert "aborted" in said
    assert "no token" in said
    assert "longest at 50 tokens" in said
    assert made.content_hash == content_hash(frame)


def test_a_response_exactly_at_the_maximum_is_not_cut() -> None:
    made = replay(trace(response_length=[1000, 1001]), sampling="in_order")
    assert made.response_lengths == [1000, 1000]
    assert made.clipped == [False, True]


def test_rewards_are_used_only_if_complete() -> None:
    assert replay(trace(response_length=[1, 2], reward=[0.5, 1.0])).rewards == [0.5, 1.0]
    assert replay(trace(response_length=[1, 2])).rewards is None
    partly = replay(trace(response_length=[1, 2], reward=[0.5, None]))
    assert partly.rewards is None
    assert "1 rows of the trace have no reward" in " ".join(partly.warnings)


@pytest.mark.parametrize(
    ("frame", "wanted", "said"),
    [
        (trace(response_length=[1], finish_reason="abort"), {}, "aborted"),
        (trace(response_length=[1, 2], prompt_length=[None, None]), {}, "2 of 2 rows .* trace.prompt_length"),
        (trace(response_length=[1]), {"sampling": "by_step"}, "no steps"),
        (trace(response_length=[1, 2], step=[0, None]), {"sampling": "by_step"}, "1 of 2 rows .* no step"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    frame: pd.DataFrame, wanted: dict[str, object], said: str
) -> None:
    with pytest.raises(OppoError, match=said):
        replay(frame, **wanted)


def test_prompts_of_unknown_length_are_taken_as_the_others_or_as_half_of_the_longest() -> None:
    some = replay(trace(response_length=[1, 2, 3, 4], prompt_length=[5, None, 9, 9]))
    assert some.prompt_lengths == [5, 9, 9, 9]
    assert "1 of 4 rows of the trace" in some.warnings[0]
    assert "9 tokens, the median of the others" in some.warnings[0]
    none = replay(trace(response_length=[1, 2], prompt_length=[None, None]), max_prompt_length=513)
    assert none.prompt_lengths == [256, 256]
    assert "half of max_prompt_length 513: set trace.prompt_length" in none.warnings[0]
    said = replay(trace(response_length=[1], prompt_length=[None]), max_prompt_length=512, prompt_length=7)
    assert (said.prompt_lengths, said.warnings) == ([7], ())


def built(config: TraceConfig, base_dir: Path | None = None, **changed: int) -> Replay:
    given = {"max_prompt_length": 1024, "max_response_length": 4096, "group_size": 1, "seed": 0, **changed}
    return build_replay(config, base_dir=base_dir, **given)


def test_a_file_is_found_beside_the_scenario_and_named_without_its_folder(tmp_path: Path) -> None:
    frame = trace(response_length=[3, 4], source=["a", "b"])
    save_trace(frame, tmp_path / "t.parquet")
    save_trace(frame, tmp_path / "t.csv")
    one, two = (
        built(TraceConfig(path="t.parquet"), tmp_path),
        built(TraceConfig(path=str(tmp_path / "t.csv"))),
    )
    assert one.content_hash == two.content_hash
    assert one.response_lengths == two.response_lengths == [3, 4]
    assert one.provenance["path"] == "t.parquet"
    assert two.provenance["path"] == "t.csv"


def test_a_shipped_trace_by_name_with_sources() -> None:
    made = built(
        TraceConfig(name="rl_reinforcepp_logic_qwen3b", sources=("*/train",), sampling="by_step"),
        group_size=8,
    )
    assert made.provenance["name"] == "rl_reinforcepp_logic_qwen3b"
    assert made.provenance["licence"] == "Apache-2.0"
    assert made.provenance["rows_used"] == 640
    assert len(made.blocks) == 9
    with pytest.raises(OppoError, match=r"no source of trace 'math_gsm8k_gpt3' matches '6b': .*6b_"):
        built(TraceConfig(name="math_gsm8k_gpt3", sources=("6b",)))
    with pytest.raises(OppoError, match="did you mean math_gsm8k_gpt3"):
        built(TraceConfig(name="gsm8k_gpt3"))


def test_the_trace_of_another_seed_has_the_same_hash_and_other_draws() -> None:
    one, two = (built(TraceConfig(name="math_gsm8k_gpt3"), seed=seed) for seed in (1, 2))
    assert one.content_hash == two.content_hash
    assert lengths(one, [20]) != lengths(two, [20])


def test_a_synthetic_trace_does_not_change_with_the_scenarios_seed() -> None:
    config = TraceConfig.model_validate({"synth": {"mean": 300, "p99": 2000, "rows": 500, "prompt_mean": 50}})
    one, two = (built(config, seed=seed) for seed in (1, 2))
    assert one.response_lengths == two.response_lengths
    assert one.provenance["synth"]["mean"] == 300


def test_configs_that_contradict_themselves() -> None:
    bad: list[dict[str, object]] = [
        {},
        {"name": "a", "path": "b.csv"},
        {"name": "a", "sources": []},
        {"synth": {"mean": 10, "p50": 5}, "sources": ["synth"]},
        {"name": "a", "sampling": "random"},
        {"name": "a", "prompt_length": 0},
        {"name": "a", "seed": 1},
    ]
    for data in bad:
        with pytest.raises(ValueError, match="validation error"):
            TraceConfig.model_validate(data)


def test_the_lengths_of_a_real_run_can_be_replayed(tmp_path: Path) -> None:
    frame = trace(response_length=[3, 4])
    folder = open_run_folder(tmp_path / "run", SIMULATED)
    folder.write_frame(TRACE, frame)
    folder.finish({})
    made = built(TraceConfig(path="run", sampling="in_order"), tmp_path)
    assert made.response_lengths == [3, 4]
    assert made.content_hash == content_hash(frame)
    whole = (tmp_path / "run" / TRACE).read_bytes()
    (tmp_path / "run" / TRACE).write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(OppoError, match="was changed after the run"):
        built(TraceConfig(path="run", sampling="in_order"), tmp_path)
    empty = open_run_folder(tmp_path / "simulated", SIMULATED)
    empty.finish({})
    with pytest.raises(OppoError, match=r"is no folder of a real run"):
        built(TraceConfig(path="simulated", sampling="in_order"), tmp_path)
