"""Advice of ``oppo tune`` as the frameworks' own parsers read it: TRL's, verl's configuration by Hydra, the
argparse of OpenRLHF. None of them is run."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.scenario.load import load_scenario
from oppo_sim.tune.frameworks.catalog import FRAMEWORKS, advice_of
from oppo_sim.tune.frameworks.facts import recommended

POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sequential", {}),
    ("intra", {"chunk_size": 16}),
    ("rollout-overlap", {}),
    ("inter", {"overcommit": 12}),
    ("inter", {"overcommit": 12, "max_deferrals": 2}),
    ("oppo", {"overcommit": 18, "chunk_size": 24, "max_deferrals": 1}),
    ("oppo", {}),
    ("april", {"overcommit": 1.0}),
    ("partial-rollout", {"token_budget": 16, "overcommit": 18}),
    ("tail-batching", {}),
    ("one-step-off", {}),
    ("async", {"max_staleness": 0}),
    ("async", {"max_staleness": 2}),
    ("async", {"max_staleness": 3, "max_staleness_strategy": "wait"}),
    ("async", {"max_staleness": 2, "max_staleness_strategy": "wait", "partial_rollout": False}),
)
"""All that advise a framework: every shipped policy but the oracle."""


def _words(framework: str, policy: str, settings: dict[str, Any], *changes: str) -> list[str]:
    """The words of the command that is to be pasted."""
    placement = [f"placement.{group}=separate" for group in ("training", "scoring")]
    shape = ["rollout.num_replicas=2", "rollout.max_num_seqs=64", *placement]
    given = load_scenario("grpo-h200x8", [*shape, "policy=sequential", *changes])
    batch = Batch(given.rollout_batch_size, given.group_size)
    it = recommended(
        given.model_copy(
            update={"policy": given.policy.model_copy(update={"name": policy, "settings": settings})}
        ),
        make_policy(policy, batch, settings),
    )
    block = advice_of(it, framework)[framework]["blocks"][0]
    return shlex.split(block["text"].replace("\\\n", " "))


def _home(package: str) -> Path:
    """Folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None and "OPPO_REQUIRE_TRL" not in os.environ:
        pytest.skip(f"{package} is not installed")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.mark.parametrize("critic", ["separate", "none"])
@pytest.mark.parametrize(("policy", "settings"), POLICIES)
def test_trl_takes_the_arguments(tmp_path: Path, policy: str, settings: dict[str, Any], critic: str) -> None:
    _home("trl")
    from transformers import HfArgumentParser
    from trl import GRPOConfig
    from trl.experimental.ppo import PPOConfig

    words = _words("TRL", policy, settings, f"training.critic={critic}")
    extra = ["--output_dir", str(tmp_path), "--bf16", "False", "--report_to", "none"]
    kind = GRPOConfig if critic == "none" else PPOConfig
    (config,) = HfArgumentParser(kind).parse_args_into_dataclasses([*words, *extra])
    for flag, value in zip(words[::2], words[1::2], strict=True):
        assert str(getattr(config, flag.removeprefix("--"))).lower() == value


@pytest.mark.parametrize(("policy", "settings"), POLICIES)
def test_hydra_takes_the_overrides_of_verl(policy: str, settings: dict[str, Any]) -> None:
    home = _home("verl")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    words = _words("verl", policy, settings)
    names = {
        "verl.trainer.main_ppo": ("trainer/config", "ppo_trainer"),
        "verl.experimental.one_step_off_policy.main_ppo": (
            "experimental/one_step_off_policy/config",
            "one_step_off_ppo_trainer",
        ),
    }
    folder, name = names[words[2]]
    search = [f"hydra.searchpath=[file://{home / 'trainer/config'}]"] if "one_step" in name else []
    with initialize_config_dir(str(home / folder), version_base=None):
        config = compose(name, overrides=[*words[3:], *search])  # a struct: unknown names are refused
    for word in words[3:]:
        key, _, value = word.partition("=")
        found = OmegaConf.select(config, key)
        assert ("null" if found is None else str(found).lower()) == value.lower()


@pytest.mark.parametrize(("policy", "settings"), POLICIES)
def test_openrlhf_takes_the_flags(
    policy: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _home("openrlhf") / "cli" / "train_ppo_ray.py"
    words = _words("OpenRLHF", policy, settings)
    script = ast.parse(source.read_text(encoding="utf-8")).body
    main = next(node for node in script if isinstance(node, ast.If))
    # What builds the parser and reads the command line, without the imports of the training itself.
    last = next(place for place, node in enumerate(main.body) if "parse_args" in ast.unparse(node))
    standard = [
        node
        for node in script
        if (isinstance(node, ast.Import) and node.names[0].name in sys.stdlib_module_names)
        or (isinstance(node, ast.ImportFrom) and node.module in sys.stdlib_module_names)
    ]
    space: dict[str, Any] = {}
    monkeypatch.setattr(sys, "argv", words[2:])
    part = ast.Module([*standard, *main.body[: last + 1]], type_ignores=[])
    exec(compile(part, str(source), "exec"), space)
    found = vars(space["args"])
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            expected = "True" if following.startswith("--") else following
            assert str(found[word.removeprefix("--")]) == expected


def test_the_stored_names_are_of_the_installed_versions() -> None:
    from importlib.metadata import version

    for framework, package in (("TRL", "trl"), ("verl", "verl"), ("OpenRLHF", "openrlhf")):
        _home(package)
        names = FRAMEWORKS[framework].names
        assert names is not None
        assert version(package) == names.version
