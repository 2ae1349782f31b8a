"""Any table of rollouts, and what all importers share: recognition, options, memory."""

import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers import IMPORTERS, find_importer, import_log
from oppo_sim.traces.importers.provenance import provenance_path, read_provenance, save_imported
from oppo_sim.traces.storage import load_trace, save_trace
from tests.import_cases import column, refused, simulated, write_lines

ROWS = [
    {"usage": {"in": 7, "out": 11}, "why": "eos", "it": 3, "score": 0.5, "q": "a"},
    {"usage": {"in": 8, "out": 12}, "why": "max_tokens", "it": 4, "score": None, "q": "a"},
]
FIELDS = {
    "response_length": "usage.out",
    "prompt_length": "usage.in",
    "finish_reason": "why",
    "step": "it",
    "reward": "score",
    "prompt_id": "q",
}


def test_named_fields(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", ROWS)
    frame, provenance = import_log("generic", path, fields=FIELDS, name="mine")
    assert column(frame, "response_length") == [11, 12]
    assert column(frame, "prompt_length") == [7, 8]
    assert column(frame, "finish_reason") == ["stop", "length"]
    assert column(frame, "step") == [3, 4]
    assert column(frame, "reward") == [0.5, None]
    assert column(frame, "source") == ["mine", "mine"]
    assert provenance["options"]["fields"] == FIELDS
    simulated(frame, provenance, tmp_path)
    flat = pd.DataFrame([{"n_out": row["usage"]["out"], "why": row["why"]} for row in ROWS])
    flat.to_parquet(tmp_path / "log.parquet")
    flat.to_csv(tmp_path / "log.csv", index=False)
    for name in ("log.parquet", "log.csv"):
        frame, _ = import_log(
            "generic", tmp_path / name, fields={"response_length": "n_out", "finish_reason": "why"}
        )
        assert column(frame, "response_length") == [11, 12]
        assert column(frame, "finish_reason") == ["stop", "length"]


def test_common_names_token_ids_and_text_need_no_mapping(tmp_path: Path) -> None:
    lengths, _ = import_log(
        "auto", write_lines(tmp_path / "a.jsonl", [{"prompt_tokens": 5, "completion_tokens": 6}])
    )
    ids, _ = import_log(
        "generic", write_lines(tmp_path / "b.jsonl", [{"prompt": [1, 2], "response": [3, 4, 5]}])
    )
    text, _ = import_log(
        "generic",
        write_lines(tmp_path / "c.jsonl", [{"prompt": "p" * 8, "response": "r" * 12}]),
        chars_per_token=4.0,
    )
    for frame, expected in ((lengths, [5, 6]), (ids, [2, 3]), (text, [2, 3])):
        assert frame[["prompt_length", "response_length"]].to_numpy().tolist() == [expected]
    assert column(text, "prompt_id") != [None]


def test_our_own_traces_are_read_too(tmp_path: Path) -> None:
    save_trace(pd.DataFrame({"response_length": [4, 5], "step": [1, 1]}), tmp_path / "t.parquet")
    frame, provenance = import_log("auto", tmp_path / "t.parquet")
    assert provenance["framework"] == "generic"
    assert column(frame, "response_length") == [4, 5]


@pytest.mark.parametrize("more", ["", ",reward", ",prompt_id,sample_id"])
def test_a_table_of_rollouts_with_our_column_is_no_table_of_means(more: str, tmp_path: Path) -> None:
    lines = [
        f"response_length,step{more}",
        *(f"{n},{n // 2}{',1' * more.count(',')}" for n in (120, 300, 90)),
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    frame, provenance = import_log("auto", path)
    assert provenance["framework"] == "generic"
    assert column(frame, "response_length") == [120, 300, 90]
    path.write_text("step,response_length,reward\n1,120.25,0.5\n2,131.5,0.5\n")
    with pytest.raises(OppoError, match="holds figures a step"):
        import_log("auto", path)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ('{"response_length": 3}\n{"response_length": null, "x": 1}\n', {}, "line 2: response_length is empty"),
    (
        '{"a": 1}\n',
        {},
        "no field is known to hold a response's length: give --field response_length= one of a",
    ),
    (
        '{"a": 1}\n',
        {"fields": {"response_length": "b"}},
        "line 1: there is no field 'b': give --field one of a",
    ),
    (
        '{"a": -1}\n',
        {"fields": {"response_length": "a"}},
        "line 1: a is -1 but must lie between 0 and 10,000,000",
    ),
    ('{"a": 99999999999}\n', {"fields": {"response_length": "a"}}, "must lie between 0 and 10,000,000"),
    ('{"a": 1e400}\n', {"fields": {"response_length": "a"}}, "must be a whole number"),
    ('{"a": NaN}\n', {"fields": {"response_length": "a"}}, "must be a whole number"),
    ('{"a": 1}\n', {"fields": {"respnse": "a"}}, "did you mean response?"),
    (
        '{"a": 1}\n',
        {"fields": {"response_length": "a", "median": "a"}},
        "--field median=a has no effect on rollouts of generic",
    ),
    (
        '{"a": 1}\n',
        {"fields": {"response_length": "a"}, "max_response_length": 0},
        "max_response_length is 0",
    ),
    ('{"a": 1}\n', {"fields": {"response_length": "a"}, "steps": (5, 2)}, "steps 5:2 is not a range"),
    ('{"a": 1}\n', {"fields": {"response_length": "a"}, "steps": (1, 2)}, "line 1: there is no step"),
    ('{"a": 1}\n', {"chars_per_token": 4.0, "tokenizer": "x"}, "contradict"),
    ('{"a": 1}\n', {"chars_per_token": 0.0}, "chars_per_token is 0"),
    ('{"a": 1, "step": 3}\n', {"fields": {"response_length": "a"}, "steps": (4, 5)}, "all rows"),
    ("[" * 100_000 + "\n", {}, "line 1: this is no JSON"),
    ("\xff\n", {}, "line 1: this is no JSON"),
    ("\xff\xfe\n", {}, "is UTF-16 text"),
    ("", {}, "holds no rollouts"),
]


@pytest.mark.parametrize(("text", "options", "said"), BAD)
def test_what_cannot_be_is_said(text: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(text.encode("latin1"))
    assert said in refused("generic", tmp_path / "log.jsonl", **options)


def test_importers_by_name() -> None:
    assert find_importer("NeMo-RL").name == "nemo_rl"
    assert find_importer("april").name == "slime"
    with pytest.raises(OppoError, match="did you mean verl"):
        find_importer("verll")
    names = {
        "verl",
        "slime",
        "areal",
        "nemo_rl",
        "trl",
        "open_instruct",
        "roll",
        "prime_rl",
        "pipelinerl",
        "skyrl",
        "tinker",
        "openrlhf",
    }
    assert {each.name for each in IMPORTERS} == names | {
        "azure",
        "burstgpt",
        "mooncake",
        "ms_swift",
        "generic",
    }


def test_what_is_not_recognised_is_said(tmp_path: Path) -> None:
    assert "is empty" in refused("auto", tmp_path)
    write_lines(tmp_path / "a" / "1.jsonl", [{"colour": "red"}])
    assert "--from generic" in refused("auto", tmp_path)
    write_lines(tmp_path / "b" / "1.jsonl", [{"seqlen": 3, "prompt_len": 1}])
    write_lines(tmp_path / "c" / "1.jsonl", [{"input": "a", "output": "b", "score": 1, "step": 1}])
    message = refused("auto", tmp_path)
    assert "verl" in message
    assert "areal" in message
    assert "say which with --from" in message


def test_provenance_lies_beside_the_trace_and_speaks_of_these_rows_only(tmp_path: Path) -> None:
    frame, provenance = import_log("generic", write_lines(tmp_path / "log.jsonl", ROWS), fields=FIELDS)
    path = tmp_path / "t.csv"
    save_imported(frame, provenance, path)
    held = read_provenance(path, load_trace(path))
    assert held is not None
    assert held["files"] == provenance["files"]
    with pytest.raises(OppoError, match="exists"):
        save_imported(frame, provenance, path)
    save_trace(frame.iloc[:1], path, overwrite=True)
    assert read_provenance(path, load_trace(path)) is None
    provenance_path(path).write_text("{")
    with pytest.raises(OppoError, match="no JSON"):
        read_provenance(path, load_trace(path))


def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = b'{"response": "' + b"x" * 200_000 + b'", "prompt": "p"}\n'
    with path.open("wb") as file:
        for _ in range(300):
            file.write(line)
    import_log("generic", write_lines(tmp_path / "warm.jsonl", [{"response": "x"}]), chars_per_token=4.0)
    tracemalloc.start()
    frame, _ = import_log("generic", path, chars_per_token=4.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(frame) == 300
    assert peak < 6_000_000, "60 MB of text, 200 kB a line"


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=3)
)
KEYS = st.sampled_from(
    [
        "response_length",
        "prompt_length",
        "step",
        "finish_reason",
        "reward",
        "prompt_id",
        "response",
        "prompt",
        "source",
        "x",
    ]
)
RECORDS = st.lists(
    st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, max_size=2)), min_size=1, max_size=4
)


@settings(max_examples=50, deadline=None)
@given(records=RECORDS)
def test_odd_records_give_a_trace_or_one_sentence(
    records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_lines(tmp_path_factory.mktemp("odd") / "log.jsonl", records)
    try:
        frame, provenance = import_log("generic", path, chars_per_token=3.0)
    except OppoError as error:
        assert "log.jsonl" in str(error)
    else:
        assert len(frame) == len(records) == provenance["rows_kept"]
