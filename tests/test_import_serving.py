"""Serving traces: Azure, BurstGPT, Mooncake."""

import gzip
from pathlib import Path

import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURST_2 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,s1,2.5,ChatGPT,472,18,490,Conversation log
"""


def test_azure_2023(tmp_path: Path) -> None:
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE_2023)
    frame, provenance = import_log("auto", tmp_path / "AzureLLMInferenceTrace_conv.csv")
    assert provenance["framework"] == "azure"
    assert column(frame, "prompt_length") == [374, 396, 879]
    assert column(frame, "response_length") == [44, 109, 55]
    assert column(frame, "arrival_s") == pytest.approx([0, 4.314579, 60])
    assert set(frame["source"]) == {"azure/AzureLLMInferenceTrace_conv"}
    assert column(frame, "finish_reason") == [None] * 3
    assert column(frame, "step") == [None] * 3
    simulated(frame, provenance, tmp_path)


def test_azure_2024_and_a_maximum(tmp_path: Path) -> None:
    (tmp_path / "AzureLLMInferenceTrace_code_1week.csv").write_text(AZURE_2024)
    frame, provenance = import_log("azure", tmp_path, max_response_length=6)
    assert column(frame, "arrival_s") == pytest.approx([0, 0.007405])
    assert column(frame, "finish_reason") == ["stop", "length"]
    assert provenance["finish_reasons"] == {"log": 0, "length": 2, "unknown": 0}


@pytest.mark.parametrize(
    ("text", "sources"),
    [(BURST, ["ChatGPT/Conversation log", "GPT-4/API log"]), (BURST_2, ["ChatGPT/Conversation log"])],
)
def test_burstgpt(text: str, sources: list[str], tmp_path: Path) -> None:
    (tmp_path / "BurstGPT_1.csv").write_text(text)
    frame, provenance = import_log("auto", tmp_path)
    assert provenance["framework"] == "burstgpt"
    assert column(frame, "source") == [f"burstgpt/{each}" for each in sources]
    assert column(frame, "response_length")[0] == 18
    assert column(frame, "prompt_length")[0] == 472
    assert provenance["rows_left_out"] == (
        {"request that failed (no response tokens)": 1} if len(sources) > 1 else {}
    )
    assert provenance["rows_read"] == provenance["rows_kept"] + sum(provenance["rows_left_out"].values())
    simulated(frame, provenance, tmp_path)


def test_packed_csv(tmp_path: Path) -> None:
    (tmp_path / "BurstGPT_1.csv.gz").write_bytes(gzip.compress(BURST.encode()))
    frame, _ = import_log("burstgpt", tmp_path)
    assert len(frame) == 2


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 27482 * at, "input_length": 6955, "output_length": 52 + at, "hash_ids": [46, 47, 48]}
        for at in range(3)
    ]
    frame, provenance = import_log("auto", write_lines(tmp_path / "conversation_trace.jsonl", rows))
    assert provenance["framework"] == "mooncake"
    assert column(frame, "response_length") == [52, 53, 54]
    assert column(frame, "arrival_s") == pytest.approx([0, 27.482, 54.964])
    assert set(frame["source"]) == {"mooncake/conversation_trace"}
    simulated(frame, provenance, tmp_path)
    path = write_lines(tmp_path / "bad_trace.jsonl", [rows[0], {"timestamp": 1, "input_length": 4}])
    assert "bad_trace.jsonl, line 2: there is no field 'output_length'" in refused("mooncake", path)


BAD = [
    (
        "azure",
        AZURE_2023.replace("109", "many"),
        "line 3: GeneratedTokens is 'many' but must be a whole number",
    ),
    ("azure", AZURE_2023.replace("109", ""), "line 3: GeneratedTokens is empty but must be a whole number"),
    ("azure", AZURE_2023.replace(",109", ""), "line 3: there are 2 values but the header names 3"),
    ("azure", AZURE_2023.replace("GeneratedTokens", "Tokens"), "has no column 'GeneratedTokens'"),
    ("azure", AZURE_2023.replace("2023-11-16 18:15:50.9951690", "yesterday"), "a TIMESTAMP that is no time"),
    ("azure", "", "holds no rollouts"),
    ("azure", AZURE_2023.splitlines()[0] + "\n", "holds no rollouts"),
    ("burstgpt", BURST.replace("276", "-4"), "line 4: Response tokens is '-4' but must lie between"),
    ("burstgpt", BURST.replace("472,18", "472,0").replace("276", "0"), "were left out"),
    ("burstgpt", BURST.replace("118,", "soon,"), "line 4: Timestamp is 'soon' but must be a number"),
]


@pytest.mark.parametrize(("source", "text", "said"), BAD)
def test_bad_files_are_refused_by_line(source: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(text)
    message = refused(source, tmp_path / "trace.csv")
    assert "trace.csv" in message
    assert said in message


def test_steps_cannot_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(AZURE_2023)
    assert "has no steps" in refused("azure", tmp_path / "trace.csv", steps=(0, 3))
    assert "has no effect" in refused("azure", tmp_path / "trace.csv", fields={"reward": "GeneratedTokens"})
