"""Trace files: one schema whatever the format, and errors that name file, row and column."""

import gzip
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.columns import TRACE_COLUMNS
from oppo_sim.errors import OppoError
from oppo_sim.traces.schema import check_frame, content_hash
from oppo_sim.traces.storage import load_trace, save_trace

SUFFIXES = (".parquet", ".csv", ".csv.gz")

IDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0", exclude_categories=("Cs",)),
    min_size=1,
    max_size=6,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "source": st.none() | IDS,
            "step": st.none() | st.integers(0, 2**40),
            "prompt_id": st.none() | IDS,
            "sample_id": st.none() | st.integers(0, 99).map(str),
            "prompt_length": st.none() | st.integers(0, 10_000_000),
            "response_length": st.integers(0, 10_000_000),
            "finish_reason": st.sampled_from([None, "stop", "length", "abort"]),
            "reward": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        }
    ),
    min_size=1,
    max_size=8,
)


def frame_of(rows: list[dict[str, object]]) -> pd.DataFrame:
    kinds = {"step": "Int64", "prompt_length": "Int64", "response_length": "int64", "reward": "float64"}
    return check_frame(
        pd.DataFrame(
            {
                name: pd.Series([row[name] for row in rows], dtype=kinds.get(name, "str"))
                for name in TRACE_COLUMNS
            }
        )
    )


@settings(max_examples=50, deadline=None)
@given(rows=ROWS)
def test_every_format_gives_back_the_same_rows(
    rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame = frame_of(rows)
    folder = tmp_path_factory.mktemp("round_trip")
    for suffix in SUFFIXES:
        save_trace(frame, folder / f"t{suffix}")
        loaded = load_trace(folder / f"t{suffix}")
        pd.testing.assert_frame_equal(loaded, frame)
        assert content_hash(loaded) == content_hash(frame)


def test_the_hash_tells_rows_apart_and_nothing_else() -> None:
    frame = check_frame(pd.DataFrame({"response_length": [3, 4], "prompt_id": ["ab", "c"]}))
    assert content_hash(frame) == content_hash(frame.assign(arrival_s=[0.0, 1.0]))
    different = [
        pd.DataFrame({"response_length": [4, 3], "prompt_id": ["ab", "c"]}),
        pd.DataFrame({"response_length": [3, 4], "prompt_id": ["a", "bc"]}),
        pd.DataFrame({"response_length": [3, 4], "prompt_id": ["ab", None]}),
        pd.DataFrame({"response_length": [3, 4], "source": ["ab", "c"]}),
        pd.DataFrame({"response_length": [3, 4]}),
    ]
    hashes = {content_hash(check_frame(each)) for each in (frame, *different)}
    assert len(hashes) == 6


def test_other_tables_names_and_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "serving.csv"
    path.write_text("prompt_tokens,response_tokens,arrival_s\n10,20,0.5\n,0,1.25\n")
    frame = load_trace(path)
    assert list(frame.columns) == [*TRACE_COLUMNS, "arrival_s"]
    assert frame["prompt_length"].tolist() == [10, pd.NA]
    assert frame["response_length"].tolist() == [20, 0]
    assert frame["arrival_s"].tolist() == [0.5, 1.25]


def test_whole_numbers_stored_as_floats_are_whole_numbers(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"response_length": [3.0, 4.0], "step": [0.0, None], "prompt_id": [7.0, None]}),
        tmp_path / "t.parquet",
    )
    frame = load_trace(tmp_path / "t.parquet")
    assert frame["response_length"].tolist() == [3, 4]
    assert frame["step"].tolist() == [0, pd.NA]
    assert frame["prompt_id"].iloc[0] == "7"


def test_ids_that_look_like_numbers_or_blanks_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("response_length,prompt_id\n1,007\n2,NA\n3,\n")
    ids = load_trace(tmp_path / "t.csv")["prompt_id"]
    assert ids.iloc[0] == "007"
    assert ids.iloc[1] == "NA"
    assert ids.isna().tolist() == [False, False, True]


BAD_CSV = {
    "": ["is empty"],
    "response_length\n": ["no rows"],
    "prompt_length\n3\n": ["no column response_length", "prompt_length"],
    "response_len\n3\n": ["rename 'response_len'"],
    "completion_tokens,prompt_tokens\n3,4\n": [
        "(columns: completion_tokens, prompt_tokens): add it",
        "trace import",
    ],
    "response_length;prompt_length\n3;4\n": ["has semicolons between its columns", "with commas"],
    "response_length;prompt_length\n1,500;4\n": ["has semicolons between its columns", "with commas"],
    "response_length\tprompt_length\n3\t4\n": ["has tabs between its columns", "with commas"],
    "response_length\n5\nabc\n": ["data row 2", "column response_length", "'abc'", "number"],
    "response_length\n5\n2.5\n": ["data row 2", "2.5", "whole number"],
    "response_length\n5\n-1\n": ["data row 2", "-1", "negative"],
    "response_length\n5\n10000001\n": ["data row 2", "10,000,001"],
    "response_length\n5\n99999999999999999999999\n": ["data row 2", "above 10,000,000"],
    "response_length\n5\ninf\n": ["data row 2", "inf"],
    "response_length,prompt_length\n5,1\n,2\n": ["data row 2", "column response_length", "empty"],
    "response_length,prompt_length\n5,1\n5,-3\n": ["data row 2", "column prompt_length", "-3"],
    "response_length,step\n5,1\n5,x\n": ["data row 2", "column step", "'x'"],
    "response_length,finish_reason\n5,stop\n5,STOP\n": [
        "data row 2",
        "column finish_reason",
        "'STOP'",
        "stop, length, abort",
    ],
    "response_length,reward\n5,1\n5,inf\n": ["data row 2", "column reward"],
    "response_length,reward\n5,1\n5,-1e308\n": ["data row 2", "column reward is -1e+308"],
    "response_length,finsh_reason\n5,stop\n": ["'finsh_reason'", "'finish_reason'"],
    "response_length,response_tokens\n5,5\n": ["response_length twice"],
    "response_length,step\n5,1\n5\n": ["data row 2", "1 values", "2 columns"],
    "response_length,step\n5,1\n5,1,1\n": ["data row 2", "3 values", "2 columns"],
    "response_length\ntrue\n": ["column response_length", "bool"],
}


@pytest.mark.parametrize(("text", "said"), BAD_CSV.items())
def test_bad_files_are_refused_with_place_and_reason(text: str, said: list[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(OppoError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert "bad.csv" in message
    assert "\n" not in message
    for part in said:
        assert part in message


def test_a_bad_value_late_in_a_long_file_is_found(tmp_path: Path) -> None:
    # Far behind the block from which the column's type is guessed.
    lines = ["response_length"] + ["12345"] * 2_000_000
    lines[1_999_000] = "oops"
    (tmp_path / "long.csv").write_text("\n".join(lines))
    with pytest.raises(OppoError, match=r"data row 1999000, column response_length is 'oops'"):
        load_trace(tmp_path / "long.csv")


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.csv.gz"):
        (tmp_path / name).write_bytes(b"response_length\n3\n")
        with pytest.raises(OppoError, match=f"{name} is not a readable"):
            load_trace(tmp_path / name)
    whole = gzip.compress(b"response_length\n" + b"3\n" * 1000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "latin.csv").write_bytes("response_length,source\n3,é\n".encode("latin-1"))
    (tmp_path / "folder.csv").mkdir()
    for name in ("cut.csv.gz", "latin.csv", "folder.csv", "missing.csv", "no/such.parquet", "trace.txt"):
        with pytest.raises(OppoError, match=name):
            load_trace(tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_other_encodings_are_named_with_their_line_and_nothing_else(
    suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(3).integers(0, 256, 4000, dtype=np.uint8).tobytes()
    late = b"response_length,source\n" + b"3,a\n" * 40 + b"3,a,\xd9\n"
    for written, line in (("response_length\n5\n".encode("utf-16"), 1), (noise, 1), (late, 42)):
        path = tmp_path / f"other{suffix}"
        path.write_bytes(gzip.compress(written) if suffix == ".csv.gz" else written)
        with pytest.raises(OppoError, match=rf"other{suffix}, line {line}, is not UTF-8 text"):
            load_trace(path)
    assert capfd.readouterr() == ("", "")  # pyarrow's threads tell theirs past Python


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    table = pa.table({"response_length": [1]}).replace_schema_metadata(
        {b"oppo_trace_format": b"oppo-trace/9"}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(OppoError, match="oppo-trace/9"):
        load_trace(tmp_path / "t.parquet")


def test_saving_overwrites_only_when_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    good = pd.DataFrame({"response_length": [1, 2]})
    save_trace(good, tmp_path / "t.csv")
    with pytest.raises(OppoError, match="exists"):
        save_trace(good.iloc[:1], tmp_path / "t.csv")
    assert len(load_trace(tmp_path / "t.csv")) == 2
    save_trace(good.iloc[:1], tmp_path / "t.csv", overwrite=True)
    assert len(load_trace(tmp_path / "t.csv")) == 1
    with pytest.raises(OppoError, match="negative"):
        save_trace(pd.DataFrame({"response_length": [-1]}), tmp_path / "new.csv")
    with pytest.raises(OppoError, match="does not exist"):
        save_trace(good, tmp_path / "no" / "t.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_rows_give_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"response_length": np.arange(100), "source": "a,b"})
    save_trace(frame, tmp_path / f"one{suffix}")
    save_trace(frame, tmp_path / f"two{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_two_million_rows_load_in_seconds(suffix: str, tmp_path: Path) -> None:
    rows = 2_000_000
    counts = np.arange(rows)
    save_trace(
        pd.DataFrame(
            {"response_length": counts % 4096, "prompt_length": counts % 512, "step": counts // 112}
        ),
        tmp_path / f"t{suffix}",
    )
    begin = time.perf_counter()
    frame = load_trace(tmp_path / f"t{suffix}")
    assert time.perf_counter() - begin < 10
    assert len(frame) == rows
