"""What stands beside every result: scenario, trace, costs, seed and versions, so that it can be made again."""

from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

from oppo_sim.scenario.build import Setup

PACKAGES = ("oppo-toolkit", "simpy", "numpy", "pandas", "pyarrow", "scipy", "pydantic")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def run_manifest(setup: Setup, policy: str) -> dict[str, Any]:
    """Provenance of one run. Holds no wall-clock time and no path of the machine: the same run gives the same manifest."""
    return {
        "kind": "simulated",
        "scenario": setup.scenario.name,
        "scenario_sha256": setup.scenario.content_hash,
        "scenario_yaml": setup.scenario.to_yaml(),
        "policy": policy,
        "seed": setup.seed,
        "steps": setup.steps,
        "warmup_steps": setup.warmup_steps,
        "trace": dict(setup.replay.provenance),
        "trace_sha256": setup.replay.content_hash,
        "costs": dict(setup.costs.provenance),
        "versions": versions(),
        "warnings": list(setup.warnings),
    }
