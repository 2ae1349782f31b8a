"""What stands beside every result: scenario, trace, costs, seed and versions, so that it can be made
again."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

from oppo_sim.policies.registry import source_digest
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.scenario.build import Setup, policy_settings_of
from oppo_sim.scenario.schema import Scenario

PACKAGES = ("oppo-toolkit", "simpy", "numba", "numpy", "pandas", "pyarrow", "scipy", "pydantic")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def run_manifest(
    setup: Setup, policy: str, policy_settings: Mapping[str, Any] | None = None, *, engine: str
) -> dict[str, Any]:
    """Provenance of one run. Holds no wall-clock time and no path that was not typed: the same run gives the
    same manifest.

    ``policy_settings``: None, those that the scenario gives the policy. ``engine``: what ran, ``simpy`` or
    ``compiled`` (docs/architecture.md).
    """
    settings = policy_settings_of(setup.scenario, policy) if policy_settings is None else policy_settings
    return {
        "kind": SIMULATED,
        "engine": engine,
        "policy": policy,
        "policy_settings": dict(settings),
        "policy_source_sha256": source_digest(policy, setup.scenario.base_dir),
        "seed": setup.seed,
        "steps": setup.steps,
        **provenance(setup.scenario, setup),
        "warnings": list(setup.warnings),
    }


def provenance(scenario: Scenario, setup: Setup) -> dict[str, Any]:
    """What every result of a scenario rests on, whatever was run; ``setup``: one of its runs."""
    return {
        "scenario": scenario.name,
        "scenario_sha256": scenario.content_hash,
        "scenario_yaml": scenario.to_yaml(),
        "warmup_steps": scenario.warmup_steps,
        "num_gpus": scenario.num_gpus,
        "trace": dict(setup.replay.provenance),
        "trace_sha256": setup.replay.content_hash,
        "costs": {**setup.costs.provenance, "evidence": dict(setup.costs.evidence)},
        "versions": versions(),
    }
