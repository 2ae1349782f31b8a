"""Per-step figures of every framework: read from what they log, and lengths drawn that fit them."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines

VERL_FIGURES = {
    "response_length/mean": 500.0, "response_length/max": 1024.0, "response_length/min": 20.0, "response_length/clip_ratio": 0.125,
    "prompt_length/mean": 81.4, "critic/score/mean": 0.25, "timing_s/gen": 12.0,
}  # fmt: skip


def cut_share(frame: pd.DataFrame) -> float:
    return float((frame["finish_reason"] == "length").mean())


def test_verls_file_logger_gives_lengths_that_fit(tmp_path: Path) -> None:
    steps = [
        {"step": step, "data": {**VERL_FIGURES, "response_length/mean": 400.0 + 20 * step}}
        for step in range(1, 6)
    ]
    frame, provenance = import_log("verl", write_lines(tmp_path / "metrics.jsonl", steps), rows_per_step=512)
    assert len(frame) == 5 * 512
    means = frame.groupby("step")["response_length"].mean()
    assert means.to_numpy() == pytest.approx([420, 440, 460, 480, 500], rel=0.02)
    assert frame["response_length"].max() == 1024
    assert frame["response_length"].min() >= 20
    assert cut_share(frame) == pytest.approx(0.125, abs=0.004)
    assert set(frame["prompt_length"]) == {81}
    assert set(frame["reward"]) == {0.25}
    assert provenance["lengths"].startswith("drawn, not measured: 512 a step")
    assert provenance["measured"] is False
    assert provenance["steps"] == 5
    assert provenance["worst_mean_error"] < 0.02
    simulated(frame, provenance, tmp_path, sampling="by_step")


def test_a_log_of_rollouts_with_tools_says_what_drawn_ones_lack(tmp_path: Path) -> None:
    def notes(**figures: float) -> str:
        rows = [{"step": step, "data": {**VERL_FIGURES, **figures}} for step in (1, 2)]
        _, provenance = import_log("verl", write_lines(tmp_path / "metrics.jsonl", rows), rows_per_step=64)
        return " ".join(provenance["notes"])

    # 6.4 messages: a prompt, then calls and their answers, then the last response. 2.2 calls, 8.8 s.
    tools = notes(**{"num_turns/mean": 6.4, "timing_s/agent_loop/tool_calls/mean": 8.8})
    assert "rollouts wait for tools (about 2.2 calls, 8.8 s in all), and a drawn one does not" in tools
    assert "'oppo trace synth --like THIS --tool-calls 2.2 --tool-seconds 4'" in tools
    assert "wait for tools" not in notes(**{"num_turns/mean": 2.0})
    # Figures count all tokens of a prompt; what texts lack is not of them.
    assert "texts leave out" not in tools


def test_the_same_log_gives_the_same_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "data": VERL_FIGURES}])
    one, _ = import_log("verl", path, rows_per_step=64)
    two, _ = import_log("verl", path, rows_per_step=64)
    pd.testing.assert_frame_equal(one, two)


def test_verls_console(tmp_path: Path) -> None:
    line = " - ".join(["step:{}", *(f"{name}:{value}" for name, value in VERL_FIGURES.items())])
    lines = [f"\x1b[36m(TaskRunner pid=71)\x1b[0m {line.format(step)}" for step in (1, 2)]
    newer = (
        line.format(3)
        .replace("500.0", "np.float64(500.0)")
        .replace("step:3", "step:3 - training/global_step:3")
    )
    (tmp_path / "train.log").write_text(
        "\n".join(["Loading 5/7 shards", *lines, newer, "done in 3:22"]) + "\n"
    )
    frame, _ = import_log("verl", tmp_path / "train.log", rows_per_step=256)
    assert sorted(set(frame["step"])) == [1, 2, 3]
    assert frame["response_length"].mean() == pytest.approx(500, rel=0.02)


def test_slimes_console_has_a_median(tmp_path: Path) -> None:
    figures = {
        "rollout/response_len/mean": 900.0,
        "rollout/response_len/median": 600.0,
        "rollout/response_len/max": 8192,
        "rollout/response_len/min": 7,
    }
    (tmp_path / "slime.log").write_text(
        f"[2026-01-01] rollout.py:12 - rollout 4: { ({**figures, 'rollout/truncated_ratio': 0.0}) }\n"
    )
    frame, provenance = import_log("slime", tmp_path / "slime.log", rows_per_step=4096)
    assert set(frame["step"]) == {4}
    assert frame["response_length"].mean() == pytest.approx(900, rel=0.03)
    assert frame["response_length"].median() == pytest.approx(600, rel=0.03)
    assert "mean and median" in provenance["lengths"]


def test_trls_state_and_console(tmp_path: Path) -> None:
    figures = {
        "completions/mean_length": 120.0, "completions/max_length": 256.0, "completions/min_length": 9.0,
        "completions/clipped_ratio": 0.25, "reward": 0.5,
    }  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": 5, **figures}, {"step": 10, **figures}, {"train_loss": 1.0}]})
    )
    frame, _ = import_log("trl", tmp_path / "trainer_state.json", rows_per_step=128, max_response_length=256)
    assert sorted(set(frame["step"])) == [5, 10]
    assert cut_share(frame) == pytest.approx(0.25, abs=0.01)
    (tmp_path / "out.txt").write_text(
        "".join(f"{ {name: str(value) for name, value in figures.items()} }\n" for _ in range(3))
    )
    frame, provenance = import_log("trl", tmp_path / "out.txt", rows_per_step=128)
    assert sorted(set(frame["step"])) == [0, 1, 2]
    assert any("no steps" in note for note in provenance["notes"])


def _trl_state(path: Path, lines: dict[int, dict[str, float]]) -> Path:
    path.write_text(json.dumps({"log_history": [{"step": step, **each} for step, each in lines.items()]}))
    return path


def _trl_run(prompts: list[int], every: int, rows: int = 8) -> dict[int, dict[str, float]]:
    """Lines of a run whose responses have 100 and 140 tokens in turn: means over ``every`` steps, and the
    tokens so far."""
    lines: dict[int, dict[str, float]] = {}
    so_far, since = 0.0, list[int]()
    for step, prompt in enumerate(prompts, start=1):
        since.append(100 if step % 2 else 140)
        so_far += rows * (prompt + since[-1])
        if step % every == 0:
            lines[step] = {
                "completions/mean_length": float(np.mean(since)),
                "completions/max_length": 2.0 * float(np.mean(since)),
                "num_tokens": so_far,
            }
            since = []
    return lines


def test_trls_sums_of_tokens_tell_the_prompts_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    frame, provenance = import_log("trl", _trl_state(path, _trl_run([30, 50, 70], 1)), rows_per_step=8)
    assert column(frame.groupby("step").first(), "prompt_length") == [30, 50, 70]
    assert "the mean length of their step" in str(provenance["notes"])
    several, _ = import_log("trl", _trl_state(path, _trl_run([30, 50] * 6, 4)), rows_per_step=8)
    assert set(several["prompt_length"]) == {40}
    twice, _ = import_log(
        "trl",
        _trl_state(path, {2 * s - 1: f for s, f in _trl_run([30, 50], 1).items()} | {2: {"loss": 0.1}}),
        rows_per_step=8,
    )  # num_iterations: 2
    assert column(twice.groupby("step").first(), "prompt_length") == [30, 50]


def test_prompts_that_sums_of_tokens_leave_open_have_the_mean_of_the_run(tmp_path: Path) -> None:
    """Four digits of them, as on the console of transformers 5; rollouts that were no more than half as many,
    of which no prompt is left, are asked about."""
    path, run = tmp_path / "trainer_state.json", _trl_run([30] * 120, 1)
    rounded = {s: {**f, "num_tokens": float(f"{f['num_tokens']:.4g}")} for s, f in run.items()}
    frame, provenance = import_log("trl", _trl_state(path, rounded), rows_per_step=8)
    assert frame["prompt_length"].between(29, 31).all()
    assert "the mean length of all prompts of the run (" in str(provenance["notes"])
    frame, provenance = import_log("trl", _trl_state(path, run), rows_per_step=16)
    assert frame["prompt_length"].isna().all()
    assert "is --rows-per-step what the run had?" in str(provenance["notes"])


def test_means_over_several_steps_do_not_say_that_nothing_was_cut(tmp_path: Path) -> None:
    """The mean of the longest responses is below the cut where some steps cut none."""
    lines = {
        step: {**figures, "completions/clipped_ratio": 0.05, "completions/max_length": 380.0}
        for step, figures in _trl_run([30] * 30, 10).items()
    }
    frame, provenance = import_log(
        "trl", _trl_state(tmp_path / "trainer_state.json", lines), rows_per_step=400, max_response_length=512
    )
    notes = str(provenance["notes"])
    assert "a line holds means over 10 steps" in notes
    assert "nothing was cut" not in notes
    assert cut_share(frame) == pytest.approx(0.05, abs=0.01)
    assert set(frame[frame["finish_reason"] == "length"]["response_length"]) == {512}
    lines = {step: {**figures, "completions/max_length": 379.2} for step, figures in lines.items()}
    _, provenance = import_log("trl", _trl_state(tmp_path / "trainer_state.json", lines), rows_per_step=400)
    assert "cut at 380, the largest mean of 10 longest ones, though it was there or above" in str(
        provenance["notes"]
    )


def test_openrlhf_has_a_mean_and_a_share(tmp_path: Path) -> None:
    rows = [
        {"_step": step, "rollout/response_length_mean": 700.0, "rollout/truncated_rate": 0.1}
        for step in (1, 2)
    ]
    path = write_lines(tmp_path / "history.jsonl", rows)
    assert "--max-response-length" in refused("openrlhf", path, rows_per_step=128)
    frame, _ = import_log("openrlhf", path, rows_per_step=512, max_response_length=2048)
    assert frame["response_length"].mean() == pytest.approx(700, rel=0.02)
    assert cut_share(frame) == pytest.approx(0.1, abs=0.005)


def test_a_mean_alone_takes_the_shape_of_another_trace(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "history.jsonl",
        [{"_step": 1, "rollout/response_length_mean": 350.0, "rollout/truncated_rate": 0.0}],
    )
    assert "--like" in refused("openrlhf", path, rows_per_step=128)
    frame, provenance = import_log("openrlhf", path, rows_per_step=4096, like="math_qwen25math_math100")
    assert frame["response_length"].mean() == pytest.approx(350, rel=0.05)
    assert frame["response_length"].std() / frame["response_length"].mean() == pytest.approx(0.55, abs=0.15)
    assert "shape of another trace" in provenance["lengths"]
    assert "no shipped trace" in refused("openrlhf", path, rows_per_step=8, like="nosuch")


FIGURES: list[tuple[str, dict[str, float], float]] = [
    ("nemo_rl", {"train/mean_gen_tokens_per_sample": 300.0, "train/max_gen_tokens_per_sample": 2000.0}, 300),
    (
        "roll",
        {
            "token/response_length/mean": 300.0,
            "token/response_length/max": 2000.0,
            "token/response_length/min": 3.0,
        },
        300,
    ),
    (
        "skyrl",
        {
            "generate/avg_num_tokens": 300.0,
            "generate/std_num_tokens": 150.0,
            "generate/max_num_tokens": 2000.0,
        },
        300,
    ),
    (
        "open_instruct",
        {"val/sequence_lengths": 300.0, "val/sequence_lengths_max": 2000.0, "val/sequence_lengths_min": 2.0},
        300,
    ),
]


@pytest.mark.parametrize(("source", "figures", "mean"), FIGURES, ids=[each[0] for each in FIGURES])
def test_names_of_the_other_frameworks(
    source: str, figures: dict[str, float], mean: float, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "history.jsonl", [{"_step": 3, **figures}])
    frame, _ = import_log(source, path, rows_per_step=512)
    assert frame["response_length"].mean() == pytest.approx(mean, rel=0.05)
    detected, provenance = import_log("auto", path, rows_per_step=512)
    assert provenance["framework"] == source
    assert column(detected, "response_length") == column(frame, "response_length")


def test_the_longest_of_many_says_how_wide_lengths_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lengths = np.rint(np.exp(rng.normal(6, 0.8, (200, 64))))
    rows = [
        {"_step": step, "token/response_length/mean": each.mean(), "token/response_length/max": each.max()}
        for step, each in enumerate(lengths)
    ]
    frame, _ = import_log("roll", write_lines(tmp_path / "h.jsonl", rows), rows_per_step=64)
    assert np.log(frame["response_length"]).std() == pytest.approx(0.8, abs=0.08)
    assert frame["response_length"].quantile(0.99) == pytest.approx(np.quantile(lengths, 0.99), rel=0.15)


def test_wandbs_csv(tmp_path: Path) -> None:
    run = "warm-sun-3"
    header = ["Step", *(f"{run} - {name}{end}" for name in VERL_FIGURES for end in ("", "__MIN", "__MAX"))]
    rows = [
        [str(step), *(str(value) for value in VERL_FIGURES.values() for _ in range(3))] for step in (1, 2)
    ]
    text = "\n".join(",".join(f'"{each}"' for each in row) for row in [header, *rows])
    (tmp_path / "wandb_export.csv").write_text(text + "\n")
    frame, provenance = import_log("auto", tmp_path / "wandb_export.csv", rows_per_step=256)
    assert provenance["framework"] == "verl"
    assert frame["response_length"].mean() == pytest.approx(500, rel=0.02)
    (tmp_path / "wandb_export.csv").write_text(text + '\n"3","1"\n')
    assert "line 4: there are 2 values" in refused("verl", tmp_path / "wandb_export.csv", rows_per_step=256)


def test_tensorboards_exports_come_together_from_several_files(tmp_path: Path) -> None:
    for name, values in (("mean", (500.0, 510.0)), ("max", (1024.0, 1024.0)), ("clip_ratio", (0.1, 0.2))):
        rows = [f"{1700000000 + step}.5,{step},{value}" for step, value in enumerate(values)]
        (tmp_path / f"run-a_b-tag-response_length_{name}.csv").write_text(
            "\n".join(["Wall time,Step,Value", *rows]) + "\n"
        )
    frame, _ = import_log("verl", tmp_path, rows_per_step=512)
    assert frame.groupby("step")["response_length"].mean().to_numpy() == pytest.approx([500, 510], rel=0.02)
    assert frame.groupby("step")["finish_reason"].apply(
        lambda each: (each == "length").mean()
    ).to_numpy() == pytest.approx([0.1, 0.2], abs=0.01)
    (tmp_path / "run-a_b-tag-response_length_mean.json").write_text(
        "[[1700000000.5, 0, 700.0], [1700000001.5, 1, 700.0]]"
    )
    single, _ = import_log(
        "verl",
        tmp_path / "run-a_b-tag-response_length_mean.json",
        rows_per_step=64,
        like="math_qwen25math_math100",
    )
    assert single["response_length"].mean() == pytest.approx(700, rel=0.1)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, figures: dict[str, float], *, tensor: bool = False) -> bytes:
    """A record of a TensorBoard event file with scalars, old style or as tensors."""
    values = b""
    for name, number in figures.items():
        packed = struct.pack("<f", number)
        scalar = (
            field(8, varint(1 << 3) + varint(1) + field(4, packed)) if tensor else varint(2 << 3 | 5) + packed
        )
        values += field(1, field(1, name.encode()) + scalar)
    data = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + varint(2 << 3) + varint(step) + field(5, values)
    return struct.pack("<Q", len(data)) + b"\0\0\0\0" + data + b"\0\0\0\0"


@pytest.mark.parametrize("tensor", [False, True])
def test_tensorboards_own_files(tensor: bool, tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    version = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + field(3, b"brain.Event:2")
    path.write_bytes(
        struct.pack("<Q", len(version)) + b"\0\0\0\0" + version + b"\0\0\0\0"
        + b"".join(event(step, {name: value}, tensor=tensor) for step in (1, 300) for name, value in VERL_FIGURES.items())
    )  # fmt: skip
    frame, provenance = import_log("auto", tmp_path, rows_per_step=256)
    assert provenance["framework"] == "verl"
    assert sorted(set(frame["step"])) == [1, 300]
    assert frame["response_length"].mean() == pytest.approx(500, rel=0.02)
    path.write_bytes(path.read_bytes()[:-5])
    assert len(import_log("verl", path, rows_per_step=8)[0]) == 16, (
        "a record that was being written is left out"
    )
    path.write_bytes(b"\x05\0\0\0\0\0\0\0aaaa\xff\xff\xff\xff\xffbbbb")
    assert "no TensorBoard event file" in refused("verl", path, rows_per_step=8)


@pytest.mark.parametrize("kind", ["events", "json", "csv"])
def test_scalars_of_tensorboard_that_are_no_number_are_counted(kind: str, tmp_path: Path) -> None:
    known = {"timing_s/gen": 20.0, "timing_s/step": 40.0, "response_length/mean": 300.0}
    records = b"".join(
        event(step, {**known, **({"timing_s/ref": math.nan} if kind == "events" else {})})
        for step in range(3)
    )
    (tmp_path / "events.out.tfevents.1700000000.host.1.0").write_bytes(records)
    name = tmp_path / "run-a-tag-timing_s_ref"
    if kind == "json":
        name.with_suffix(".json").write_text("[[1.7e9, 0, NaN], [1.7e9, 1, NaN], [1.7e9, 2, null]]")
    elif kind == "csv":
        name.with_suffix(".csv").write_text("Wall time,Step,Value\n1.7e9,0,nan\n1.7e9,1,nan\n1.7e9,2,nan\n")
    log = read_step_log(tmp_path)
    assert list(log.covers) == ["timing_s/gen"]
    assert log.left_out == {"timing_s/ref that is no number in any step": 3}


def one(**figures: float) -> list[dict[str, Any]]:
    return [{"step": 7, "data": {f"response_length/{name}": value for name, value in figures.items()}}]


BAD_FIGURES = [
    (one(mean=500.0, max=1000.0), {}, "--rows-per-step"),
    (one(max=1000.0), {"rows_per_step": 8}, "has no step with a mean response length"),
    (one(mean=0.0, max=1000.0), {"rows_per_step": 8}, "step 7: the mean length is 0"),
    (
        one(mean=500.0, max=1000.0, clip_ratio=7.0),
        {"rows_per_step": 8},
        "step 7: the share of cut responses is 7",
    ),
    (one(mean=500.0, max=1000.0, min=1e308), {"rows_per_step": 8}, "step 7: min of the lengths is 1e+308"),
    (one(mean=500.0, clip_ratio=0.5), {"rows_per_step": 8}, "give --max-response-length"),
    (one(mean=500.0, max=600.0), {"rows_per_step": 8, "max_response_length": 400}, "above the cut at 400"),
    (one(mean=500.0, max=600.0), {"rows_per_step": 8, "steps": (1, 2)}, "has no step with a mean"),
]


@pytest.mark.parametrize(("rows", "options", "said"), BAD_FIGURES)
def test_figures_that_say_too_little_or_contradict(
    rows: list[dict[str, Any]], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refused("verl", write_lines(tmp_path / "metrics.jsonl", rows), **options)


def test_steps_without_spread_and_steps_all_cut(tmp_path: Path) -> None:
    rows = [
        {
            "step": 1,
            "data": {
                "response_length/mean": 64.0,
                "response_length/max": 64.0,
                "response_length/clip_ratio": 1.0,
            },
        },
        {
            "step": 2,
            "data": {
                "response_length/mean": 30.0,
                "response_length/max": 30.0,
                "response_length/clip_ratio": 0.0,
            },
        },
    ]
    frame, _ = import_log("verl", write_lines(tmp_path / "m.jsonl", rows), rows_per_step=3)
    assert column(frame, "response_length") == [64] * 3 + [30] * 3
    assert column(frame, "finish_reason") == ["length"] * 3 + ["stop"] * 3


def test_a_share_at_the_width_of_the_batch_is_no_share_of_cut_responses(tmp_path: Path) -> None:
    def one(step: int, longest: float, share: float) -> dict[str, Any]:
        figures = {"response_length/max": longest, "response_length/clip_ratio": share}
        return {"step": step, "data": {**VERL_FIGURES, **figures}}

    steps = [*(one(step, 1000.0, 0.005) for step in range(1, 10)), one(10, 4096.0, 0.02)]
    frame, provenance = import_log(
        "verl", write_lines(tmp_path / "m.jsonl", steps), rows_per_step=200, max_response_length=4096
    )
    below, cut = frame[frame["step"] < 10], frame[frame["step"] == 10]
    assert below["response_length"].max() <= 1000
    assert below["response_length"].mean() == pytest.approx(500, rel=0.02)
    # Mean and share alone would be a lognormal whose median is below 300.
    assert below["response_length"].median() > 400
    assert cut_share(below) == 0
    assert cut_share(cut) == pytest.approx(0.02, abs=0.01)
    assert "below the cut at 4096" in str(provenance)


def test_a_metric_of_ones_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "my/len_avg": 200.0, "my/len_top": 900.0}])
    frame, _ = import_log(
        "prime_rl", path, rows_per_step=256, fields={"mean": "my/len_avg", "max": "my/len_top"}
    )
    assert frame["response_length"].mean() == pytest.approx(200, rel=0.05)
    assert "no step with a mean" in refused(
        "prime_rl", path, rows_per_step=8, fields={"mean": "my/other", "max": "my/len_top"}
    )


def test_wandbs_binary_log_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "run-1.wandb").write_bytes(b":W&B\xa6\x1d")
    assert "export the run's history" in refused("verl", tmp_path, rows_per_step=8)
