"""What the engines give vLLM is known to every version that can be installed, by the names that
experiments/vllm_names.py read from their files."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from oppo_real.engines import vllm_actor
from oppo_real.engines.vllm_arguments import POOLING, Sizes, actor_arguments, scorer_arguments
from oppo_sim.errors import OppoError
from tests.real.tiny import CONFIG
from tests.real.vllm_given import engine_arguments, request_arguments

_STORED = (Path(__file__).parent / "vllm_names.txt").read_text().splitlines()
VERSIONS = _STORED[0].removeprefix("# versions: ").split()


@cache
def names_of(version: str) -> frozenset[str]:
    """Of one version."""
    place = VERSIONS.index(version)
    found = set()
    for line in _STORED[2:]:
        name, _, spans = line.rpartition(": ")
        for span in spans.split():
            first, _, last = span.partition("-")
            if VERSIONS.index(first) <= place <= VERSIONS.index(last or first):
                found.add(name)
    return frozenset(found)


def unknown(owner: str, given: dict[str, Any], version: str) -> list[str]:
    """Arguments that the class does not have, and words that it does not take."""
    names = names_of(version)
    missing = [f"{owner}.{name}" for name in given if f"{owner}.{name}" not in names]
    for name, value in given.items():
        listed = {one for one in names if one.startswith(f"{owner}.{name} = ")}
        if listed and f"{owner}.{name} = {value}" not in listed:
            missing.append(f"{owner}.{name} = {value}")
    return missing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    (found / "config.json").write_text(json.dumps(CONFIG))
    return found


def test_the_versions_are_those_that_can_be_installed() -> None:
    minors = [int(version.split(".")[1]) for version in VERSIONS]
    assert minors == list(range(19, minors[-1] + 1)) and minors[-1] >= 32


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_engine_arguments_are_known(version: str, device_type: str, folder: Path) -> None:
    for name, given in engine_arguments(folder, device_type):
        assert (name, unknown("EngineArgs", given, version)) == (name, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_arguments_of_requests_are_known(version: str) -> None:
    for given in request_arguments():
        assert unknown("SamplingParams", {**given, "output_kind": None}, version) == []
    assert unknown("PoolingParams", dict(POOLING), version) == []
    assert {
        "RequestOutputKind.DELTA",
        "TokensPrompt.prompt_token_ids",
        "_PromptOptions.cache_salt",
    } <= names_of(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_actor_calls_is_there(version: str) -> None:
    """Every method of the engine that the actor calls, with its named arguments."""
    assert vllm_actor.__file__ is not None
    calls = [
        node
        for node in ast.walk(ast.parse(Path(vllm_actor.__file__).read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "self._engine"
    ]
    wanted = {
        f"LLMEngine.{node.func.attr}" + (f"({word.arg})" if word else "")
        for node in calls
        if isinstance(node.func, ast.Attribute)
        for word in (None, *node.keywords)
    }
    assert "LLMEngine.add_request(priority)" in wanted
    wanted.add("GPUModelRunner.reload_weights(weights_iterator)")
    assert sorted(wanted - names_of(version)) == []


def test_a_name_that_a_version_lacks_is_found(folder: Path) -> None:
    given = actor_arguments(
        folder, "cuda", Sizes(), lock_step=False, samples=True, caches=False, own={"no_such_size": 1}
    )
    assert unknown("EngineArgs", given, VERSIONS[-1]) == ["EngineArgs.no_such_size"]
    given = {"scheduling_policy": "shortest"}
    assert unknown("EngineArgs", given, VERSIONS[0]) == ["EngineArgs.scheduling_policy = shortest"]


def test_budgets_by_hand(folder: Path) -> None:
    def budget(device_type: str, **changes: Any) -> Any:
        options = {"lock_step": True, "samples": True, "caches": False} | changes
        sizes = Sizes(max_model_len=100, max_num_seqs=4, kv_capacity_tokens=250)
        return actor_arguments(folder, device_type, sizes, own={}, **options).get("max_num_batched_tokens")

    assert budget("cuda") == 254  # any join at once: as much as the KV holds, and a token for each
    assert budget("cuda", lock_step=False) is None
    assert budget("cpu", lock_step=False) == 2048
    assert budget("cpu", lock_step=False, samples=False) is None
    with pytest.raises(OppoError, match="kv_capacity_tokens is 0"):
        scorer_arguments(folder, "cuda", Sizes(kv_capacity_tokens=0), {})
