"""Rollouts that wait for tools: drawn, imported, shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oppo_sim.columns import RESPONSE_LENGTH, TOOL_SECONDS, TOOL_TOKENS, TURN_COLUMNS, TURN_LENGTHS
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import SynthConfig
from oppo_sim.traces.importers import import_log
from oppo_sim.traces.stats import trace_stats
from oppo_sim.traces.storage import load_trace
from oppo_sim.traces.synth import synthesise
from tests.cli_runs import Oppo, assert_refused


def config(**tools: object) -> SynthConfig:
    return SynthConfig.model_validate(
        {"mean": 400.0, "p99": 2000.0, "rows": 4000, "tools": {"mean_calls": 3.0, "mean_s": 2.0, **tools}}
    )


def test_drawn_calls_have_the_means_asked_for() -> None:
    frame = synthesise(config(p99_s=12.0, mean_tokens=80.0, p99_tokens=300.0))
    calls = frame[TOOL_SECONDS].map(len)
    assert calls.mean() == pytest.approx(3.0, rel=0.03)
    assert calls.max() <= 8
    assert (frame[TURN_LENGTHS].map(len) == calls + 1).all()
    assert (frame[TURN_LENGTHS].map(np.sum) == frame[RESPONSE_LENGTH]).all()
    assert min(part.min() for part in frame[TURN_LENGTHS]) >= 1
    seconds, answers = (np.concatenate(list(frame[name])) for name in (TOOL_SECONDS, TOOL_TOKENS))
    assert seconds.mean() == pytest.approx(2.0, rel=0.05)
    assert np.percentile(seconds, 99) == pytest.approx(12.0, rel=0.1)
    assert answers.mean() == pytest.approx(80.0, rel=0.03)
    # Without calls the lengths are the same draws.
    plain = synthesise(SynthConfig.model_validate({"mean": 400.0, "p99": 2000.0, "rows": 4000}))
    assert (plain[RESPONSE_LENGTH] == frame[RESPONSE_LENGTH]).all()


def test_a_timeout_cuts_calls_and_short_responses_have_fewer() -> None:
    frame = synthesise(config(timeout_s=3.0))
    assert max(part.max(initial=0.0) for part in frame[TOOL_SECONDS]) == 3.0
    short = SynthConfig.model_validate({
        "parameters": {"mu": 0.5, "sigma": 0.3}, "rows": 200, "tools": {"mean_calls": 7.0, "mean_s": 0.0},
    })  # fmt: skip
    drawn = synthesise(short)
    assert (drawn[TOOL_SECONDS].map(len) < drawn[RESPONSE_LENGTH]).all()


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"mean_calls": 9.0}, "raise max_calls"),
        ({"p99_s": 1.0}, "is not above mean_s"),
        ({"p99_tokens": 10.0}, "is not above mean_tokens"),
    ],
)
def test_targets_that_contradict_each_other_are_refused(tools: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**tools)


def test_turns_of_a_log_are_imported(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [
        {
            "response_length": 30,
            "turn_response_lengths": [10, 20],
            "tool_seconds": [1.5],
            "tool_tokens": [40],
        },
        {"response_length": 7},
    ]
    log.write_text("\n".join(map(json.dumps, rows)))
    frame, _ = import_log("generic", log)
    assert [list(frame[name][0]) for name in TURN_COLUMNS] == [[10, 20], [1.5], [40]]
    assert list(frame[TURN_LENGTHS][1]) == [7]
    stats = trace_stats(frame)
    assert (stats.turns_mean, stats.tool_seconds_max, stats.tool_tokens_mean) == (1.5, 1.5, 20.0)
    log.write_text(json.dumps({**rows[0], "tool_seconds": "1.5"}))
    with pytest.raises(OppoError, match=r"tool_seconds is '1.5' but must be a list of numbers"):
        import_log("generic", log)
    log.write_text(json.dumps(rows[1]))
    assert TURN_LENGTHS not in import_log("generic", log)[0].columns


def test_the_command_draws_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    oppo = Oppo(capsys)
    lengths = ("trace", "synth", "--mean", "400", "--p99", "2000", "--rows", "500")
    oppo(*lengths, "--tool-calls", "3", "--tool-seconds", "2", "--tool-tokens", "80", "-o", "agents.parquet")
    assert TURN_LENGTHS in load_trace(tmp_path / "agents.parquet").columns
    shown = oppo("trace", "show", "agents.parquet").out
    assert "turns" in shown
    frame = load_trace(tmp_path / "agents.parquet")
    answers = np.mean([part.sum() for part in frame[TOOL_TOKENS]])
    assert f"{answers:.0f} tokens of answers a rollout" in shown
    assert f"{frame[TOOL_SECONDS].map(np.sum).mean():.3g}" in shown
    assert_refused(
        oppo(*lengths, "--tool-calls", "3", "-o", "b.parquet"), "need --tool-calls and --tool-seconds"
    )
