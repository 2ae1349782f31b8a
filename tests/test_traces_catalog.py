"""The shipped traces are what the catalog says, with provenance for each."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.files import sha256_of
from oppo_sim.traces import catalog
from oppo_sim.traces.catalog import (
    CatalogEntry,
    find_trace,
    list_traces,
    load_named,
    load_step_table,
    shipped_folder,
)
from oppo_sim.traces.opening import open_trace

ROLLOUTS = [entry for entry in list_traces() if entry.kind == "rollouts"]
STEPS = [entry for entry in list_traces() if entry.kind == "steps"]


@pytest.mark.parametrize("entry", ROLLOUTS, ids=lambda entry: entry.name)
def test_rollout_traces_match_their_entries(entry: CatalogEntry) -> None:
    frame = load_named(entry.name)
    assert len(frame) == entry.rows
    assert sha256_of(shipped_folder() / entry.file) == entry.sha256
    assert frame["source"].notna().all()
    assert all(re.search(r"@ [0-9a-f]{12}", origin) for origin in entry.origin), (
        "every origin names its commit"
    )


@pytest.mark.parametrize("entry", STEPS, ids=lambda entry: entry.name)
def test_step_tables_match_their_entries(entry: CatalogEntry) -> None:
    frame = load_step_table(entry.name)
    assert len(frame) == entry.rows
    assert frame[["source", "step", "response_length/mean"]].notna().all().all()
    assert (frame["response_length/mean"] > 0).all()


def test_the_folder_holds_what_the_catalog_lists_and_stays_small() -> None:
    folder = shipped_folder()
    assert {path.name for path in folder.glob("*.parquet")} == {entry.file for entry in list_traces()}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000_000


def test_the_readme_names_every_trace_with_licence_and_origin() -> None:
    text = (shipped_folder() / "README.md").read_text(encoding="utf-8")
    for entry in list_traces():
        assert f"`{entry.name}`" in text
        assert entry.licence in text
        for origin in entry.origin:
            repository, commit = re.match(r"github\.com/(\S+) @ ([0-9a-f]+)", origin).groups()  # type: ignore[union-attr]
            assert repository in text
            assert commit in text


def test_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(OppoError, match=r"did you mean .*reason_r1distill_math"):
        find_trace("reason_r1distil_math")
    with pytest.raises(OppoError, match="per-step table"):
        find_trace("rl_steps_rasbt")
    with pytest.raises(OppoError, match=r"did you mean .*chat_hh_rlhf"):
        open_trace("chat_hh_rlfh")
    with pytest.raises(OppoError, match=r"nothing\.csv does not exist"):
        open_trace("nothing.csv")


def test_an_altered_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = find_trace("math_qwen25math_math100")
    shutil.copy(shipped_folder() / entry.file, tmp_path / entry.file)
    shutil.copy(shipped_folder() / find_trace("math_gsm8k_gpt3").file, tmp_path / entry.file)
    monkeypatch.setattr(catalog, "shipped_folder", lambda: tmp_path)
    with pytest.raises(OppoError, match="differs from its catalog entry"):
        load_named(entry.name)


def test_an_installed_package_finds_its_traces(tmp_path: Path) -> None:
    # As the wheel lays it out: the data inside the package, no checkout around it.
    package = Path(catalog.__file__).parent.parent
    shutil.copytree(package, tmp_path / "oppo_sim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(shipped_folder(), tmp_path / "oppo_sim" / "shipped_traces")
    code = (
        "from oppo_sim.traces.catalog import load_named, shipped_folder; print(shipped_folder(),"
        " len(load_named('math_gsm8k_gpt3')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "oppo_sim" / "shipped_traces"), "5276"]


def test_known_facts_of_the_origins() -> None:
    # Row counts and cuts as the origins publish them.
    assert load_named("serving_azure2023_conv")["response_length"].max() == 1000
    assert load_named("rl_grpo_r1v_qwen2vl2b")["response_length"].max() == 256
    assert load_named("serving_mooncake_conversation")["prompt_length"].mean() == pytest.approx(12035, abs=1)
    assert load_named("serving_mooncake_conversation")["response_length"].mean() == pytest.approx(343, abs=1)
