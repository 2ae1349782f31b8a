"""Training logs as tables of steps: every framework, and logs that are not as they should be."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import oppo_sim
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.step_log import StepLog
from tests.import_cases import write_lines

BASE = {
    "timing_s/gen": 20.0,
    "timing_s/ref": 4.0,
    "timing_s/update_actor": 10.0,
    "timing_s/step": 36.0,
    "response_length/mean": 500.0,
    "response_length/max": 1000.0,
    "prompt_length/mean": 100.0,
}


def console(path: Path, steps: list[tuple[int, dict[str, float]]], end: str = "\n") -> Path:
    lines = [
        " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in {**BASE, **changed}.items())])
        for step, changed in steps
    ]
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def reasons(log: StepLog) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in log.left_out.items())


def refused(path: Path, **options: object) -> str:
    with pytest.raises(OppoError) as caught:
        read_step_log(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_verl_console_log_gives_our_columns(tmp_path: Path) -> None:
    path = console(
        tmp_path / "a.log",
        [(1, {}), (2, {"timing_s/gen": 22.5}), (10, {"timing_s/testing": 50.0, "timing_s/step": 86.0})],
    )
    for log in (read_step_log(path), read_step_log(path, "verl")):
        assert log.framework == "verl"
        assert log.frame["step"].tolist() == [1, 2, 10]
        assert log.frame["timing_s/gen"].tolist() == [20.0, 22.5, 20.0]
        assert log.frame["cold_start"].tolist() == [True, False, False]
        assert log.covers["timing_s/gen"] == ("gen", "update_weights")
        assert log.frame["timing_s/testing"].notna().tolist() == [False, False, True]


def nemo_step(step: int, gen: float, mean: float, checked_s: float = 0.0) -> str:
    """What NeMo RL prints of a step, in the course of it and at its end."""
    return f"""
========================= Step {step}/50 =========================
▶ Preparing batch...
▶ Generating responses for batch of size 512...
(VllmGenerationWorker pid=5889) Processed prompts: 100%|██████████| 64/64 [00:28<00:00, 2.3it/s, est. speed input: 1.0 toks/s]

📊 Training Results:
  • Loss: -0.0213
  • Avg Reward: 0.4121
  • Mean Generation Length: {mean:.4f}

⏱️  Timing:
  • Total step time: {gen + 10 + checked_s:.2f}s
  • generation: {gen:.2f}s (74.1%)
  • policy_training: 6.00s (11.2%)
  • policy_and_reference_logprobs: 2.50s (5.0%)
  • prepare_for_generation/total: 1.25s (3.0%)

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: {mean + 90:.4f}
  • Throughputs (per GPU):
    - E2E (Samples/sec/gpu): 1.44
"""


def test_what_nemo_rl_prints_of_a_step_is_read_as_its_other_logs(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    checked = """
📊 Validation Results:
    • Accuracy: 0.4000
    • Average response length: 400.0 tokens

⏱️  Validation Timing:
    • Total validation time: 20.50s
"""
    text = (
        nemo_step(8, 30.0, 512.0)
        + nemo_step(9, 30.0, 512.0)
        + nemo_step(10, 31.5, 500.25, 20.5).replace("\n📊", checked + "\n📊", 1)
    )
    # The last step was cut off within a number.
    path.write_text(text + nemo_step(11, 33.5, 490.0).split("3.50s (74")[0], encoding="utf-8")
    for log in (read_step_log(path), read_step_log(path, "nemo_rl")):
        assert log.framework == "nemo_rl"
        frame = log.frame[log.frame["timing_s/gen"].notna()]
        frame = frame[frame["step"] > 8]
        assert frame["step"].tolist() == [9, 10]
        assert frame["timing_s/gen"].tolist() == [30.0, 31.5]
        assert frame["timing_s/step"].tolist() == [40.0, 62.0]
        assert frame["timing_s/old_log_prob+ref"].tolist() == [2.5, 2.5]
        assert frame["timing_s/update_weights"].tolist() == [1.25, 1.25]
        assert frame["response_length/mean"].tolist() == [512.0, 500.25]
        assert frame["prompt_length/mean"].tolist() == [90.0, 90.0]
        assert frame["timing_s/testing"].fillna(0).tolist() == [0.0, 20.5]


def test_numpy_values_and_gzip_read_alike(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(1, {}), (2, {})])
    wrapped = path.read_text().replace("timing_s/gen:20.0", "timing_s/gen:np.float64(20.0)")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(wrapped.encode()))
    one, two = read_step_log(path).frame, read_step_log(tmp_path / "b.log.gz").frame
    assert one.equals(two)


def test_what_was_trained_is_known_from_seconds_a_token(tmp_path: Path) -> None:
    per_token = 10.0 * 1000 / (48 * 600)
    log = read_step_log(console(tmp_path / "a.log", [(1, {"timing_per_token_ms/update_actor": per_token})]))
    assert log.frame["rollouts/trained"].tolist() == [48]


@pytest.mark.parametrize("said", [0.007, 0.008])
def test_digits_that_leave_what_was_trained_open_take_nothing_off_it(said: float, tmp_path: Path) -> None:
    """148,468 tokens in 1.1 s are 0.0074 ms a token, printed with three decimals."""
    figures = {
        "timing_per_token_ms/update_actor": said,
        "timing_s/update_actor": 1.06 if said == 0.007 else 1.17,
        "timing_s/step": 36.0,
        "response_length/mean": 185.754,
        "prompt_length/mean": 104.223,
    }
    steps = [(step, {**figures, "perf/total_num_tokens": 148468.0}) for step in (1, 2)]
    log = read_step_log(console(tmp_path / "a.log", steps), "verl")
    assert log.frame["rollouts/trained"].tolist() == [512, 512]
    # 123,871 tokens in 1.0525 s are 0.00850 ms a token, which is printed as 0.008 beside 1.053 s.
    edge = {**figures, "timing_per_token_ms/update_actor": 0.008, "timing_s/update_actor": 1.053,
            "response_length/mean": 137.24, "prompt_length/mean": 104.695, "perf/total_num_tokens": 123871.0}  # fmt: skip
    frame = read_step_log(console(tmp_path / "d.log", [(1, edge), (2, edge)]), "verl").frame
    assert frame["rollouts/trained"].tolist() == [512, 512]
    unknown = read_step_log(console(tmp_path / "b.log", [(1, figures), (2, figures)]), "verl")
    assert "rollouts/trained" not in unknown.frame
    # A part of the batch shows where no rounding explains it.
    half = [(step, {**figures, "perf/total_num_tokens": 2 * 148468.0}) for step in (1, 2)]
    part = read_step_log(console(tmp_path / "c.log", half), "verl").frame["rollouts/trained"]
    assert part.between(470, 560).all()


FRAMEWORKS: list[tuple[str, dict[str, float], str, tuple[str, ...]]] = [
    ("openrlhf", {"timing/make_experience": 5.0, "rollout/response_length_mean": 9.0}, "timing_s/reward+old_log_prob+ref+values+adv", ("reward", "old_log_prob", "ref", "values", "adv")),
    ("slime", {"perf/rollout_time": 5.0, "rollout/response_len/mean": 9.0}, "timing_s/gen+reward", ("gen", "reward")),
    ("nemo_rl", {"timing/train/policy_and_reference_logprobs": 5.0, "train/mean_gen_tokens_per_sample": 9.0}, "timing_s/old_log_prob+ref", ("old_log_prob", "ref")),
    ("roll", {"time/step_train": 5.0, "token/response_length/mean": 9.0}, "timing_s/update_critic+update_actor", ("update_critic", "update_actor")),
    ("skyrl", {"timing/sync_weights": 5.0, "generate/avg_num_tokens": 9.0}, "timing_s/update_weights", ("update_weights",)),
    ("trl", {"profiling/Time taken: GRPOTrainer.vLLM.generate": 5.0, "completions/mean_length": 9.0, "step_time": 8.0}, "timing_s/gen", ("gen",)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FRAMEWORKS)))
def test_each_framework_is_recognised_by_its_names(case: int, tmp_path: Path) -> None:
    name, figures, column, stages = FRAMEWORKS[case]
    log = read_step_log(
        write_lines(tmp_path / "history.jsonl", [{"_step": 3, **figures}, {"_step": 4, **figures}])
    )
    assert log.framework == name
    assert log.frame[column].tolist() == [5.0, 5.0]
    assert log.covers[column] == stages
    assert log.frame["response_length/mean"].tolist() == [9.0, 9.0]


@pytest.mark.parametrize("ending", ["log", "jsonl"])
def test_rolls_rlvr_pipeline_logs_a_whole_step_with_the_next(ending: str, tmp_path: Path) -> None:
    lines = [
        {
            "time/step_total": 0 if step == 0 else 30.0 + step - 1,
            "time/step_model_update": 1.5,
            "time/step_generate": 16.0 + step,
            "time/ref_log_probs_values": 2.0,
            "time/old_log_probs": 3.0,
            "math/time/compute_advantage": 0.1,
            "time/step_train": 7.0,
            "token/response_length/mean": 400.0,
            "math/token/response_length/mean": 390.0,
            "system/global_step": step,
        }
        for step in range(5)
    ]
    path = tmp_path / f"run.{ending}"
    if ending == "log":
        tagged = [f"metrics_tag: {json.dumps({'step': s, 'metrics': each})}" for s, each in enumerate(lines)]
        path.write_text("".join(f"[2026-08-19 10:00:0{s}] {each}\n" for s, each in enumerate(tagged)))
    else:
        write_lines(path, [{"_step": step, **each} for step, each in enumerate(lines)])
    log = read_step_log(path)
    assert log.framework == "roll"
    assert log.frame["step"].tolist() == [0, 1, 2, 3, 4]
    assert log.frame["timing_s/step"].tolist()[:4] == [30.0, 31.0, 32.0, 33.0]
    assert np.isnan(log.frame["timing_s/step"].iloc[4])
    assert log.frame["timing_s/gen+reward"].tolist() == [16.0, 17.0, 18.0, 19.0, 20.0]
    assert log.covers["timing_s/ref"] == ("ref",)
    assert log.covers["timing_s/old_log_prob"] == ("old_log_prob", "values")
    assert log.frame["response_length/mean"].tolist() == [400.0] * 5
    assert "the step after it" in " ".join(log.notes)


def test_rolls_agentic_pipeline_has_names_of_its_own(tmp_path: Path) -> None:
    figures = {
        "time/step_model_update": 1.5,
        "time/step_rollout": 16.0,
        "time/step_ref_log_probs_values_reward": 2.0,
        "time/step_old_log_probs_values": 3.0,
        "time/step_adv": 0.25,
        "time/step_train": 7.0,
        "rollout/response_length/mean": 400.0,
        "rollout/response_length/max": 900.0,
        "rollout/prompt_length/mean": 60.0,
        "tokens/response_length/mean": 380.0,
    }
    lines = [{"_step": step, **figures, "time/step_total": 30.0 + step} for step in range(3)]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", lines))
    assert log.framework == "roll"
    assert log.frame["timing_s/step"].tolist() == [30.0, 31.0, 32.0]
    seconds = {"gen+reward": 16.0, "ref": 2.0, "old_log_prob": 3.0, "adv": 0.25}
    for stage, value in seconds.items():
        assert log.frame[f"timing_s/{stage}"].tolist() == [value] * 3
    assert log.frame["response_length/mean"].tolist() == [400.0] * 3
    assert log.frame["response_length/max"].tolist() == [900.0] * 3
    assert log.frame["prompt_length/mean"].tolist() == [60.0] * 3


@pytest.mark.parametrize("begun", [0, 500])
def test_what_trl_times_is_a_steps_mean_where_a_line_is_of_ten(begun: int, tmp_path: Path) -> None:
    """TRL's default is a line every ten steps; the functions it times are logged at every call, those of an
    evaluation too."""
    generated = "profiling/Time taken: GRPOTrainer.vLLM.generate"
    lines: list[dict[str, float]] = []
    for step in range(begun + 1, begun + 41):
        lines.append({generated: 5.0 + step / 1000})
        if step % 10 == 0:
            lines.append({"train/global_step": step, "train/step_time": 8.0})
        if step % 20 == 0:
            lines += [{generated: 90.0}, {"train/global_step": step, "eval/completions/mean_length": 3.0}]
    numbered = [{"_step": number, **line} for number, line in enumerate(lines)]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", numbered))
    assert log.frame["step"].tolist() == [begun + each for each in (10, 20, 30, 40)]
    means = [5.0 + (begun + each - 4.5) / 1000 for each in (10, 20, 30, 40)]
    assert log.frame["timing_s/gen"].tolist() == pytest.approx(means)
    assert (log.notes, log.left_out) == ((), {})


def swift_line(step: int, seconds: float, begun: int, **figures: object) -> dict[str, object]:
    """As ms-swift's callback writes it: seconds so far, rounded, and their mean since the run began."""
    hours, rest = divmod(round(seconds), 3600)
    said = [f"{number}{unit}" for number, unit in ((hours, "h"), (rest // 60, "m"), (rest % 60, "s"))]
    return {
        "loss": 0.01,
        **figures,
        "global_step/max_steps": f"{step}/100",
        "elapsed_time": " ".join(said[0 if hours else 1 if rest >= 60 else 2 :]),
        "remaining_time": "2h 3m 4s",
        "memory(GiB)": 61.5,
        "train_speed(s/it)": round(seconds / (step - begun), 6),
    }


def test_ms_swift_tells_the_seconds_of_a_run(tmp_path: Path) -> None:
    """Steps of 40.5 s and more, a line for two of them, validation of 100 s after step 6, a restart at 8."""
    lengths = {
        "completions/mean_length": 300.0,
        "completions/max_length": 900.0,
        "completions/clipped_ratio": 0.25,
    }
    lines: list[dict[str, object]] = []
    seconds = 0.0
    for step in range(2, 12, 2):
        seconds += 2 * (40.5 + step)
        lines.append(swift_line(step, seconds, 0, **lengths))
        if step == 6:
            seconds += 100.0
            lines.append(swift_line(step, seconds, 0, eval_loss=0.5, **{"eval_completions/mean_length": 1.0}))
    for step, so_far in ((10, 120.25), (12, 240.5)):
        lines.append(swift_line(step, so_far, 8, **lengths))
    lines.append(
        {"last_model_checkpoint": "out/12", "global_step": 12, "log_history": [{"loss": 1.0, "step": 1}]}
    )
    path = write_lines(tmp_path / "logging.jsonl", lines)
    for log in (read_step_log(path), read_step_log(path, "ms-swift")):
        assert log.framework == "ms_swift"
        assert log.frame["step"].tolist() == [2, 4, 6, 8, 10, 12]
        expected = [42.5, 44.5, 46.5, 48.5, 60.125, 60.125]
        assert log.frame["timing_s/step"].tolist() == pytest.approx(expected, abs=1e-4)
        assert log.frame["response_length/mean"].tolist() == [300.0] * 6
        assert log.frame["response_length/clip_ratio"].tolist() == [0.25] * 6


def test_trl_names_continuous_batching_otherwise(tmp_path: Path) -> None:
    batched = "profiling/Time taken: GRPOTrainer.transformers.generate_batch"
    lines = [
        {"_step": step, "train/global_step": step, batched: 5.0, "train/step_time": 8.0} for step in (1, 2)
    ]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", lines))
    assert log.frame["timing_s/gen"].tolist() == [5.0, 5.0]
    assert log.frame["timing_s/step"].tolist() == [8.0, 8.0]


def trl_line(step: int, tokens: float) -> str:
    return str(
        {"loss": 0.01, "num_tokens": tokens * step, "completions/mean_length": 500.0, "step_time": 30.0 + step,
         "epoch": step / 100}
    )  # fmt: skip


def bar(step: int, of: int) -> str:
    return f"{100 * step // of:3d}%|███▌      | {step}/{of} [01:20<03:00, 20.01s/it]"


def test_trls_progress_bar_says_of_which_step_a_line_is(tmp_path: Path) -> None:
    """Its lines name no step, and with ``logging_steps`` are of several; an evaluation has a bar of its own."""
    printed = ["  0%|          | 0/100 [00:00<?, ?it/s]"]
    for step in range(5, 26, 5):
        printed += [
            "\r".join(bar(each, 100) for each in range(step - 4, step + 1)) + "\r" + trl_line(step, 9e3)
        ]
        if step == 15:
            printed += [
                bar(9, 9),
                str({"eval_completions/mean_length": 90.0, "eval_runtime": 9.0, "epoch": 0.15}),
            ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(printed) + "\n", encoding="utf-8")
    log = read_step_log(path)
    assert log.frame["step"].tolist() == [5, 10, 15, 20, 25]
    assert log.frame["timing_s/step"].tolist() == [35.0, 40.0, 45.0, 50.0, 55.0]
    assert log.frame["tokens/total"].tolist() == [9000.0] * 5
    assert not log.notes


def test_without_a_bar_that_counts_each_line_tokens_of_a_step_are_not_known(tmp_path: Path) -> None:
    """Nobody knows of how many steps a line is; in blocks, lines come after bars of later steps."""
    lines = [trl_line(step, 9e3) for step in range(5, 26, 5)]
    blocks = [bar(15, 100), *lines[:3], bar(25, 100), *lines[3:]]
    of_none = [*lines, "  0%|          | 0/0 [00:00<?, ?it/s]"]
    for said in (lines, blocks, of_none):
        path = tmp_path / "train.log"
        path.write_text("\n".join(said) + "\n", encoding="utf-8")
        log = read_step_log(path)
        assert log.frame["step"].tolist() == [0, 1, 2, 3, 4]
        assert "tokens/total" not in log.frame
        assert any("tokens of a step are not known" in note for note in log.notes)


def test_slimes_waits_for_tools_are_read_and_its_updates_are_no_steps(tmp_path: Path) -> None:
    """A rollout of two updates: what was generated, the updates, the trainer's seconds."""
    lines = []
    for rollout in range(4):
        generated = {
            "rollout/response_len/mean": 300.0,
            "rollout/response_len/max": 900,
            "perf/rollout_time": 40.0,
            "perf/non_generation_time/max": 9.0,
            "perf/longest_sample_non_generation_time": 6.0 + rollout,
        }
        trained = {"perf/train_wait_time": 45.0, "perf/actor_train_time": 12.0, "perf/step_time": 60.0}
        lines += [f"[2026-08-21] rollout_metrics.py:269 - perf {rollout}: {generated}"]
        for update in (2 * rollout, 2 * rollout + 1):
            lines += [f"model.py:918 - step {update}: { ({'train/loss': 0.1, 'train/step': update}) }"]
        lines += [f"train_metric_utils.py:401 - perf {rollout}: {trained}"]
    path = tmp_path / "slime.log"
    path.write_text("\n".join(lines) + "\n")
    log = read_step_log(path)
    assert log.framework == "slime"
    assert log.frame["step"].tolist() == [0, 1, 2, 3]
    assert log.frame["slowest/tool_calls_s"].tolist() == [6.0, 7.0, 8.0, 9.0]
    assert log.tool_tokens_apart  # response_len leaves out what tools answered
    assert log.left_out == {}


def test_skyrls_lengths_are_of_what_the_actor_made(tmp_path: Path) -> None:
    made = {"avg": 300.0, "max": 800.0, "min": 10.0, "std": 120.0}
    figures = {"timing/generate": 20.0, "timing/step": 40.0}
    figures |= {f"generate/{name}_num_tokens": 2 * value for name, value in made.items()}
    figures |= {f"generate/{name}_assistant_tokens": value for name, value in made.items()}
    log = read_step_log(write_lines(tmp_path / "history.jsonl", [{"_step": 1, **figures}]))
    assert [log.frame[f"response_length/{name}"].iloc[0] for name in ("mean", "max", "min", "std")] == [
        300.0, 800.0, 10.0, 120.0,
    ]  # fmt: skip


@pytest.mark.parametrize("ray", ["", "\x1b[36m(skyrl_entrypoint pid=1234)\x1b[0m "])
def test_what_skyrl_prints_of_a_step_is_read(ray: str, tmp_path: Path) -> None:
    """A dictionary of a figure a line under the step; other processes print in between."""
    head = "2026-08-01 10:00:00.123 | INFO     | skyrl.train.utils.tracking:log:189 - Step {step}: "
    lines = []
    for step in (1, 2, 3):
        lines += [
            head.format(step=step),
            f"{{'generate/avg_num_tokens': '{500 + step}.2500',",
            " 'generate/max_num_tokens': 1500,",
            f" 'timing/generate': '{20 + step}.5000',",
            "(vLLMWorker pid=9) prompt length: 100",
            " 'timing/policy_train': '8.0000',",
            f" 'timing/step': '{36 + step}.0000',",
            " 'trainer/epoch': 0}",
        ]
    path = tmp_path / "run.log"
    path.write_text("".join(f"{ray}{line}\n" for line in lines), encoding="utf-8")
    log = read_step_log(path)
    assert (log.framework, log.left_out, log.notes) == ("skyrl", {}, ())
    assert log.frame["step"].tolist() == [1, 2, 3]
    assert log.frame["timing_s/gen+reward"].tolist() == [21.5, 22.5, 23.5]
    assert log.frame["timing_s/step"].tolist() == [37.0, 38.0, 39.0]
    assert log.frame["response_length/mean"].tolist() == [501.25, 502.25, 503.25]


def test_nemo_rls_ppo_and_its_rollout_manager(tmp_path: Path) -> None:
    """NeMo Gym's and the newer rollouts name lengths otherwise; PPO times the critic's values."""
    figures = {
        "timing/train/generation": 30.0,
        "timing/train/value_inference": 2.0,
        "timing/train/policy_and_reference_logprobs": 4.0,
        "timing/train/value_training": 3.0,
        "timing/train/policy_training": 6.0,
        "timing/train/total_step_time": 50.0,
        "train/mean_gen_tokens_per_sample": 512.0,
        "train/gen_tokens_per_sample/mean": 512.0,
        "train/gen_tokens_per_sample/max": 2048,
        "train/gen_tokens_per_sample/min": 8,
        "train/gen_tokens_per_sample/median": 400.0,
        "train/gen_tokens_per_sample/stddev": 350.0,
        "train/truncation_rate": 0.0625,
    }
    lines = [{"_step": step, **figures} for step in (1, 2)]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", lines))
    assert log.framework == "nemo_rl"
    assert log.frame["timing_s/values"].tolist() == [2.0, 2.0]
    assert log.covers["timing_s/old_log_prob+ref"] == ("old_log_prob", "ref")
    figures_of = {"mean": 512.0, "max": 2048.0, "min": 8.0, "median": 400.0, "std": 350.0}
    for name, value in {**figures_of, "clip_ratio": 0.0625}.items():
        assert log.frame[f"response_length/{name}"].tolist() == [value] * 2


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_history_of_wandb_is_of_the_steps_that_the_trainer_names(ending: str, tmp_path: Path) -> None:
    """TRL: a line for each function that is timed, then one of the step; ``_step`` counts them all."""
    generated = "profiling/Time taken: GRPOTrainer.vLLM.generate"
    lines: list[dict[str, float]] = []
    for step in range(1, 6):
        for seconds in (2.0 + step, 3.0):  # two generations a step
            lines.append({"_step": len(lines), generated: seconds})
        lines.append(
            {
                "_step": len(lines),
                "train/global_step": step,
                "train/step_time": 20.0 + step,
                "train/num_tokens": 1000.0 * step,
                "train/completions/mean_length": 9.0,
            }
        )
    lines.append({"_step": len(lines), generated: 4.0})  # the run was stopped
    path = tmp_path / f"history.{ending}"
    if ending == "csv":
        pd.DataFrame(lines).to_csv(path, index=False)
    else:
        write_lines(path, lines)
    log = read_step_log(path)
    assert log.frame["step"].tolist() == [1, 2, 3, 4, 5]
    assert log.frame["timing_s/gen"].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0]
    assert log.frame["timing_s/step"].tolist() == [21.0, 22.0, 23.0, 24.0, 25.0]
    assert log.left_out == {"line of a step that the log does not end": 1}


def test_a_folder_of_csv_exports_is_one_run(tmp_path: Path) -> None:
    for name in ("timing_s/gen", "response_length/mean"):
        text = f'"Step","run - {name}"\n1,5\n2,6\n'
        (tmp_path / f"{name.replace('/', '_')}.csv").write_text(text)
    log = read_step_log(tmp_path)
    assert log.frame["timing_s/gen"].tolist() == [5.0, 6.0]
    assert not log.left_out


def test_names_of_ones_own(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m.jsonl",
        [{"step": 1, "my_gen": 5.0, "len": 40.0}, {"step": 2, "my_gen": 6.0, "len": 41.0}],
    )
    assert "--field timing_s/gen=NAME" in refused(path)
    log = read_step_log(path, fields={"timing_s/gen": "my_gen", "response_length/mean": "len"})
    assert log.covers == {"timing_s/gen": ("gen",)}
    assert "there is no column 'timing_s/generation'" in refused(
        path, fields={"timing_s/generation": "my_gen"}
    )
    assert "no framework 'vrl'" in refused(path, framework="vrl")


@pytest.mark.parametrize("dropped", [0, 7])
@pytest.mark.parametrize("why", ["filter_groups", "rollout_failure"])
def test_groups_that_verls_v1_trainer_replaces_are_told_of(why: str, dropped: int, tmp_path: Path) -> None:
    figures = {f"training/{why}/evicted_samples": dropped}
    path = console(tmp_path / "a.log", [(step, figures) for step in (1, 2)])
    assert any("more rollouts than the scenario's batch" in note for note in read_step_log(path).notes) == (
        dropped > 0
    )


def test_a_repeated_step_counts_once(tmp_path: Path) -> None:
    log = read_step_log(console(tmp_path / "a.log", [(1, {}), (2, {}), (2, {"timing_s/gen": 21.0}), (3, {})]))
    assert log.frame["step"].tolist() == [1, 2, 3]
    assert log.frame["timing_s/gen"].tolist() == [20.0, 21.0, 20.0]
    assert "1 step logged twice" in reasons(log)


def test_a_restart_replaces_what_it_repeats(tmp_path: Path) -> None:
    steps = [*range(1, 8), *range(5, 11)]
    log = read_step_log(console(tmp_path / "a.log", [(step, {}) for step in steps]))
    assert log.frame["step"].tolist() == list(range(1, 11))
    assert log.frame[log.frame["cold_start"]]["step"].tolist() == [1, 5]
    assert "3 step repeated after a restart" in reasons(log)
    assert log.notes == ("the run was restarted at step 5",)


def test_of_two_runs_in_a_file_the_longest_counts(tmp_path: Path) -> None:
    steps = [*range(1, 4), *range(1, 9)]
    log = read_step_log(console(tmp_path / "a.log", [(step, {}) for step in steps]))
    assert log.frame["step"].tolist() == list(range(1, 9))
    assert "3 step of another run" in reasons(log)
    assert any("2 runs" in note for note in log.notes)


def test_a_cut_line_is_used_without_its_last_number(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(1, {}), (2, {}), (3, {})])
    text = path.read_text()
    path.write_text(text[: text.rindex("timing_s/ref:4.0") + len("timing_s/ref:4")])
    log = read_step_log(path)
    assert log.frame["timing_s/gen"].tolist() == [20.0, 20.0, 20.0]
    assert np.isnan(log.frame["timing_s/ref"].iloc[2])
    assert "1 step without timing_s/ref" in reasons(log)
    bare = console(tmp_path / "b.log", [(1, {}), (2, {}), (3, {})])
    bare.write_text(bare.read_text() + "step:4 - val/score/mean:0.25 - val/length/ma\n")
    assert "1 step whose line names no seconds" in reasons(read_step_log(bare))


def test_seconds_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    steps: list[tuple[int, dict[str, float]]] = [(step, {}) for step in range(1, 8)]
    steps[2] = (3, {"timing_s/gen": -1.0})
    steps[3] = (4, {"timing_s/gen": 0.0})
    steps[4] = (5, {"timing_s/ref": 0.0})
    steps[5] = (6, {"timing_s/ref": 400.0})
    log = read_step_log(console(tmp_path / "a.log", steps))
    assert log.frame["step"].tolist() == [1, 2, 5, 6, 7]
    assert log.frame["timing_s/ref"].isna().tolist() == [False, False, True, True, False]
    assert "1 step with negative seconds" in reasons(log)
    assert "1 step whose generation or whole took zero seconds" in reasons(log)
    assert "1 timing_s/ref of zero seconds" in reasons(log)
    assert "1 timing_s/ref longer than its step" in reasons(log)


def test_milliseconds_among_seconds_are_found(tmp_path: Path) -> None:
    some = console(
        tmp_path / "some.log", [(step, {"timing_s/gen": 2e4} if step == 3 else {}) for step in range(1, 8)]
    )
    log = read_step_log(some)
    assert log.frame["timing_s/gen"].tolist() == [20.0] * 7
    assert "1 timing_s/gen in milliseconds" in reasons(log)
    column = console(tmp_path / "column.log", [(step, {"timing_s/gen": 2e4}) for step in range(1, 5)])
    log = read_step_log(column)
    assert log.frame["timing_s/gen"].tolist() == [20.0] * 4
    assert any("milliseconds" in note for note in log.notes)
    every = {name: 1000 * value for name, value in BASE.items() if name.startswith("timing_s/")}
    log = read_step_log(console(tmp_path / "all.log", [(1, every), (2, every)]), unit="ms")
    assert log.frame["timing_s/step"].tolist() == [36.0, 36.0]


def test_generation_beside_training_is_not_in_milliseconds(tmp_path: Path) -> None:
    """OpenRLHF's asynchronous trainer: a step is the time between two, generation that of another batch."""
    lines = []
    for step in range(1, 9):
        figures = {
            "timing/make_experience": 6.5,
            "timing/ppo_train": 38.25,
            "timing/broadcast": 1.5,
            "rollout/response_length_mean": 412.5,
            "timing/generation": 66.0 + step,
            "timing/step_total": 58.0 + step,
        }
        lines.append(f"INFO 08-13 10:00:0{step} ppo_trainer_async.py:248] Global step {step}: {figures}\n")
    path = tmp_path / "train.log"
    path.write_text("".join(lines))
    log = read_step_log(path)
    assert log.framework == "openrlhf"
    assert log.frame["timing_s/gen"].tolist() == [66.0 + step for step in range(1, 9)]
    assert log.notes == ()


def test_a_line_in_milliseconds_is_told_from_a_checkpoint_of_hours(tmp_path: Path) -> None:
    every = {name: 1000 * value for name, value in BASE.items() if name.startswith("timing_s/")}
    line = console(tmp_path / "line.log", [(step, every if step == 3 else {}) for step in range(1, 8)])
    log = read_step_log(line)
    assert log.frame["timing_s/step"].tolist() == [36.0] * 7
    assert log.frame["timing_s/gen"].tolist() == [20.0] * 7
    saved = [{"timing_s/save_checkpoint": 50.0, "timing_s/step": 86.0} for _ in range(7)]
    saved[3] = {"timing_s/save_checkpoint": 22_000.0, "timing_s/step": 22_036.0}
    log = read_step_log(console(tmp_path / "saved.log", list(enumerate(saved, start=1))))
    assert log.frame["timing_s/save_checkpoint"].max() == 22_000.0
    assert log.frame["timing_s/step"].max() == 22_036.0
    assert not log.left_out
    # Every third step saves, in more seconds than other steps take.
    third = [
        {"timing_s/save_checkpoint": 60.0, "timing_s/step": 96.0} if step % 3 == 0 else {}
        for step in range(12)
    ]
    log = read_step_log(console(tmp_path / "third.log", list(enumerate(third, start=1))))
    assert log.frame["timing_s/save_checkpoint"].dropna().unique().tolist() == [60.0]
    assert not log.left_out
    assert not log.notes


def test_steps_that_generate_for_others_are_refused(tmp_path: Path) -> None:
    """OpenRLHF with a generation batch of two training batches: every other step takes the rest."""
    steps = [(step, {"timing_s/gen": 2e-5 if step % 2 else 60.0}) for step in range(1, 13)]
    assert "6 of 12 steps generated nothing" in refused(console(tmp_path / "a.log", steps))


def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    assert "no figures of any step" in refused(tmp_path / "empty.log")
    assert "does not exist" in refused(tmp_path / "missing.log")
    lengths = write_lines(tmp_path / "l.jsonl", [{"step": 1, "response_length/mean": 5.0}])
    assert "names no seconds" in refused(lengths)
    bad = console(tmp_path / "bad.log", [(1, {"timing_s/gen": -1.0})])
    assert "no step" in refused(bad)
    packed = tmp_path / "cut.log.gz"
    packed.write_bytes(gzip.compress(b"step:1 - timing_s/gen:5.0\n" * 50)[:40])
    assert "not a whole gzip file" in refused(packed)


def test_a_log_whose_seconds_are_all_zero_is_refused_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    nothing = {name: 0.0 for name in BASE if name.startswith("timing_s/")}
    path = console(tmp_path / "zero.log", [(step, nothing) for step in range(4)])
    assert "no step of" in refused(path)
    assert "timing_s/gen of zero seconds (4)" in refused(path)
    assert not recwarn.list


def test_a_step_by_a_name_of_ones_own_is_a_whole_number(tmp_path: Path) -> None:
    """Epochs would have given two steps the same number."""
    lines = [{**BASE, "epoch": 0.5 * number, "back": -number} for number in range(1, 5)]
    path = write_lines(tmp_path / "m.jsonl", lines)
    assert "--field step=epoch: " in refused(path, fields={"step": "epoch"})
    assert "has 0.5 there, which is no step" in refused(path, fields={"step": "epoch"})
    assert "has -1 there, which is no step" in refused(path, fields={"step": "back"})


def test_a_metric_of_several_stages_beside_one_of_them_is_refused(tmp_path: Path) -> None:
    """It was left out without a word."""
    path = console(tmp_path / "a.log", [(step, {"both": 9.0}) for step in range(4)])
    for name in ("timing_s/old_log_prob+ref", "timing_s/ref+old_log_prob"):
        said = refused(path, fields={name: "both"})
        assert f"--field {name}=both: the log has timing_s/ref by itself" in said
    assert "the log has timing_s/gen by itself" in refused(path, fields={"timing_s/gen+reward": "both"})
    assert "there is no column 'timing_s/values+values'" in refused(
        path, fields={"timing_s/values+values": "both"}
    )
    log = read_step_log(path, fields={"timing_s/old_log_prob+values": "both"})
    assert log.covers["timing_s/old_log_prob+values"] == ("old_log_prob", "values")


def test_a_trainer_state_is_read(tmp_path: Path) -> None:
    rows = [
        {"step": s, "step_time": 8.0, "completions/mean_length": 90.0, "num_tokens": 1000 * s}
        for s in (1, 2, 3)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    log = read_step_log(tmp_path / "trainer_state.json")
    assert log.framework == "trl"
    assert log.frame["timing_s/step"].tolist() == [8.0] * 3
    assert log.frame["tokens/total"].tolist()[1:] == [1000.0, 1000.0]


def test_from_python_it_is_a_data_frame(tmp_path: Path) -> None:
    frame = oppo_sim.read_step_log(console(tmp_path / "a.log", [(1, {}), (2, {})])).frame
    assert frame["timing_s/step"].mean() == 36.0


def test_a_log_without_known_seconds_is_told_which_of_its_own_may_be(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    own = {"time/sampling": 41.0, "time/train_step": 12.0, "env/all/ac_tokens_per_turn": 700.0}
    path.write_text("".join(json.dumps({"step": step, **own}) + "\n" for step in range(3)))
    with pytest.raises(OppoError, match=r"one of time/sampling, time/train_step may hold seconds"):
        read_step_log(path)
    read = read_step_log(path, fields={"timing_s/gen": "time/sampling"})
    assert read.frame["timing_s/gen"].tolist() == [41.0] * 3
    rows = [{"step": s, "completions/mean_length": 90.0, "num_tokens": 1000 * s} for s in (1, 2)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    with pytest.raises(OppoError, match=r"none of its 3 figures \(.*\) is of seconds by its name"):
        read_step_log(tmp_path / "trainer_state.json")


def _of_transformers_5(each: int, steps: int = 60) -> list[str]:
    """Lines of TRL as transformers prints them since version 5: text of four digits. Steps of ``each``
    tokens, and of one more where the step is odd."""
    lines, tokens = [], 0
    for step in range(1, steps + 1):
        tokens += each + step % 2
        figures = {
            "loss": "-0.0262",
            "num_tokens": f"{tokens:.4g}",
            "completions/mean_length": f"{40 + step % 3}",
            "completions/max_length": "64",
            "step_time": f"{8 + 0.01 * step:.4g}",
            "epoch": f"{step * 0.009:.4g}",
        }
        lines.append(str(figures))
    return lines


def _bars(steps: int) -> list[str]:
    return [
        f" {100 * step // steps:2d}%|██  | {step}/{steps} [00:12<08:18, 12.77s/it]"
        for step in range(steps + 1)
    ]


def test_a_sum_of_tokens_shown_by_four_digits_tells_no_step_that_it_leaves_open(tmp_path: Path) -> None:
    def read(each: int) -> StepLog:
        printed = zip(_bars(80)[1:], _of_transformers_5(each, 80), strict=True)
        path = tmp_path / "console.log"
        path.write_text("".join(f"{bar}\n{line}\n" for bar, line in printed))
        return read_step_log(path)

    long = read(451)  # sums up to 36,120, shown to 10
    assert long.frame["tokens/total"].notna().all() and not long.notes
    short = read(180)  # 10 of 180
    assert short.frame["step"].tolist() == list(range(1, 81))
    known = short.frame["tokens/total"]
    assert known[:55].notna().all() and known[56:].isna().all()
    assert any("the console shows 4 digits of their sum" in note for note in short.notes)


def test_lines_of_one_stream_before_the_bar_of_the_other_are_counted_where_each_is_a_step(
    tmp_path: Path,
) -> None:
    path, lines, whole = (
        tmp_path / "job.log",
        _of_transformers_5(451),
        {"train_runtime": "340", "epoch": "0.3"},
    )
    path.write_text("\n".join([*lines, str(whole), *_bars(60)]) + "\n")
    log = read_step_log(path)
    assert log.frame["step"].tolist() == list(range(1, 61)) and not log.notes
    assert log.frame["tokens/total"].tolist()[1:3] == [451.0, 452.0]
    # In blocks, a line for every second step.
    path.write_text("\n".join([*_bars(60)[:41], *lines[1:41:2], *_bars(60)[41:], *lines[41::2]]) + "\n")
    log = read_step_log(path)
    assert log.frame["step"].tolist() == list(range(2, 61, 2))
    assert log.frame["tokens/total"].tolist()[1:3] == [451.5, 451.5]
    # The first step and then every second, or a run that was stopped: nothing says which step a line is.
    for text in ([lines[0], *lines[1::2], *_bars(60)], [*lines, *_bars(60)[:-1]]):
        path.write_text("\n".join(text) + "\n")
        assert any("its lines were counted from 0" in note for note in read_step_log(path).notes)


def _table(figures: dict[str, float], pairs: int = 2) -> list[str]:
    """As AReaL prints them: a grid of names and numbers, the first column from top to bottom first."""
    cells = [f" {name:<24} │ {value:.4e} " for name, value in figures.items()]
    rows = -(-len(cells) // pairs)
    lines = ["╒══╤══╤══╤══╕"]
    for row in range(rows):
        of_row = [cells[row + column * rows] for column in range(pairs) if row + column * rows < len(cells)]
        lines += [f"│{'│'.join(of_row)}│", "├──┼──┼──┼──┤"]
    return [*lines[:-1], "╘══╧══╧══╧══╛"]


def test_the_tables_of_areals_console_are_read_as_its_other_logs(tmp_path: Path) -> None:
    lines = []
    for step in range(3):
        figures = {
            "timeperf/rollout": 20.0,
            "timeperf/train_step": 9.0 + step,
            "timeperf/update_weights": 1.5,
            "ppo_actor/seq_len/avg": 1120.0 + step,
            "ppo_actor/prompt_len/avg": 120.0,
        }
        lines += [
            f"20260708-12:00:01.1 StatsLogger INFO: Epoch 1/2 Step {step + 1}/9 Train step {step + 1}/18 done.",
            "20260708-12:00:01.2 StatsLogger INFO: Stats (1/1):",
            *_table(figures),
            "20260708-12:00:02.0 other │ 3 │",
        ]
    path = tmp_path / "main.log"
    path.write_text("\n".join(lines) + "\n")
    log = read_step_log(path)
    assert log.framework == "areal"
    assert log.frame["step"].tolist() == [0, 1, 2]  # as wandb and TensorBoard count them
    assert log.frame["timing_s/update_actor"].tolist() == [9.0, 10.0, 11.0]
    assert log.frame["response_length/mean"].tolist() == [1000.0, 1001.0, 1002.0]
    assert log.frame["prompt_length/mean"].tolist() == [120.0] * 3
    # Stopped within the last table.
    path.write_text("\n".join(lines[:-3]) + "\n")
    assert read_step_log(path).frame["step"].tolist() == [0, 1]


def test_the_console_of_roll_names_its_steps_within_its_figures(tmp_path: Path) -> None:
    def text(every: int) -> str:
        lines = []
        for step in range(20, 40):
            figures = {
                "system/global_step": step,
                "token/response_length/mean": 500.0,
                "time/step_generate": 20.0,
                "time/step_train": 9.0,
                "time/step_total": 31.0 + step,
                "system/step": step,
            }
            head = "[2026-01-05 10:11:12] [INFO] [rlvr_pipeline.py (838)] [DRIVER 0 / 1]:"
            lines.append(f"{head} pipeline step {step} start...")
            lines += [f"{head} {json.dumps(figures)}"] * (step % every == 0)
        return "\n".join(lines) + "\n"

    path = tmp_path / "driver.log"
    path.write_text(text(1))
    log = read_step_log(path)
    assert log.frame["step"].tolist() == list(range(20, 40))
    assert log.frame["timing_s/step"].tolist()[:2] == [52.0, 53.0]  # those of a step come with the next
    assert any("were moved there" in note for note in log.notes)
    path.write_text(text(5))
    log = read_step_log(path)
    assert log.frame["step"].tolist() == [20, 25, 30, 35]
    assert "timing_s/step" not in log.frame  # of steps 19, 24, …, of which there are no lines
    assert any("which no line is of" in note for note in log.notes)


def test_the_panels_of_open_instructs_console_are_read_as_its_other_logs(tmp_path: Path) -> None:
    def panel(step: int) -> list[str]:
        rows = [
            "  objective  kl: 0.02",
            f"  other      training_step: {step} | episode: {512 * step} | lr: 1.00e-06",
            f"  time       training: {30 + step}.50 | weight_sync: 1.50 | trainer_waiting_for_data:",
            "             3.00 | total: 47.78",
            "  val        sequence_lengths: 888.84 | stop_rate: 0.90 | sequence_lengths_max:",
            "             4096.00",
        ]
        return [f"╭{' Metrics ':─^80}╮", *(f"│{row:<80}│" for row in rows), f"╰{'':─^80}╯"]

    path = tmp_path / "job.out"
    evaluation = [f"╭{' Metrics ':─^80}╮", f"│{'  time       training: 1.00':<80}│", f"╰{'':─^80}╯"]
    path.write_text("\n".join([*panel(1), *evaluation, *panel(2), *panel(3)[:-3]]) + "\n")
    log = read_step_log(path)
    assert log.framework == "open_instruct"
    assert log.frame["step"].tolist() == [1, 2]  # the third lacks its end
    assert log.frame["timing_s/old_log_prob+ref+update_actor"].tolist() == [31.5, 32.5]
    assert log.frame["timing_s/update_weights"].tolist() == [1.5, 1.5]
    assert log.frame["response_length/mean"].tolist() == [888.84, 888.84]
    assert log.frame["response_length/max"].tolist() == [4096.0, 4096.0]


@pytest.mark.parametrize("step", ["1e+999", "-3", "3.5"])
def test_a_panel_whose_step_is_none_is_passed_over(tmp_path: Path, step: str) -> None:
    def panel(step: str) -> list[str]:
        rows = [f"  other  training_step: {step}", "  time   training: 31.50 | weight_sync: 1e+999"]
        return [f"╭{' Metrics ':─^80}╮", *(f"│{row:<80}│" for row in rows), f"╰{'':─^80}╯"]

    path = tmp_path / "job.out"
    path.write_text("\n".join([*panel(step), *panel("4"), *panel("5")]) + "\n")
    frame = read_step_log(path).frame
    assert frame["step"].tolist() == [4, 5]
    assert "timing_s/update_weights" not in frame
