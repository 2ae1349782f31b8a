"""Sentences, tables and provenance that the chapters of a report share."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oppo_sim.report.html_parts import Section
from oppo_sim.report.measures import is_missing, value_label, value_text
from oppo_sim.scenario.yaml_text import dump_yaml

if TYPE_CHECKING:
    import pandas as pd


def joined(items: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f" {last} ".join(part for part in (", ".join(items[:-1]), *items[-1:]) if part)


def counted(number: int, one: str, many: str = "") -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cost_source(costs: Mapping[str, Any]) -> str:
    """Where a simulation's seconds come from."""
    kind = costs.get("kind", "unknown")
    measured = costs.get("measured")
    if not measured:
        return f"Predicted: simulated seconds from assumed costs ({kind}); nothing here was measured."
    on = measured.get("hardware") if isinstance(measured, Mapping) else None
    return (
        f"Predicted: simulated seconds, from costs ({kind}) that were"
        f" measured{f' on {value_label(on)}' if on else ''}."
    )


def trace_name(trace: Mapping[str, Any]) -> str:
    """A length trace in a word or two."""
    synthetic = trace.get("synth")
    named = trace.get("name") or trace.get("path")
    return (
        str(named)
        if named
        else f"synthetic, {synthetic['distribution']}"
        if isinstance(synthetic, Mapping)
        else "unnamed"
    )


def run_provenance(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is in every manifest: scenario, trace, costs, versions."""
    rows = [
        ("scenario", str(manifest.get("scenario", ""))),
        ("scenario, SHA-256", str(manifest.get("scenario_sha256", ""))),
        ("trace", trace_name(manifest["trace"]) if isinstance(manifest.get("trace"), Mapping) else ""),
        ("trace, SHA-256", str(manifest.get("trace_sha256", ""))),
        ("costs", str(manifest.get("costs", {}).get("kind", ""))),
        ("hardware", value_label(manifest["hardware"]) if manifest.get("hardware") else ""),
        ("versions", versions_text(manifest.get("versions", {}))),
    ]
    return [(name, value) for name, value in rows if value]


def versions_text(versions: Mapping[str, Any]) -> str:
    """``python 3.11.2, numpy 2.1``."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def command_text(*words: Any) -> str:
    """A command line to copy, quoted for a shell."""
    return shlex.join(str(word) for word in words)


def overrides_text(settings: Iterable[tuple[str, Any]]) -> str:
    """Settings as ``--set`` options, one a line."""
    lines = [
        shlex.join(["--set", f"{field}={value_text(value)}"])
        for field, value in settings
        if not is_missing(value)
    ]
    return " \\\n".join(lines)


def flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted field, value)."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", "null" if value is None else value_label(value)))
    return rows


def policy_yaml(policy: str, settings: Mapping[str, Any]) -> str:
    """The policy section of a scenario file."""
    return dump_yaml({"policy": {"name": policy, **settings}})


def scenario_section(manifest: Mapping[str, Any]) -> Section | None:
    """The scenario file, to run it again; None where the manifest has none."""
    text = manifest.get("scenario_yaml")
    return Section("The scenario file", code=str(text), folded=True) if text else None


def not_told_apart(values: "pd.DataFrame", best: str) -> list[str]:
    """Columns whose paired difference from column ``best`` is not significant at 5 % (t-test of log ratios
    over rows); without ``best``.

    ``values``: one row a seed, positive. With fewer than two seeds nothing can be told apart: then the list
    is empty.
    """
    from scipy.stats import ttest_rel

    if len(values) < 2:
        return []
    found = []
    there: NDArray[np.float64] = np.log(values[best].to_numpy(dtype=np.float64))
    for name in values.columns:
        here = np.log(values[name].to_numpy(dtype=np.float64))
        if name == best or not np.isfinite(here).all():
            continue
        difference = here - there
        if (
            np.ptp(difference) <= 1e-12
        ):  # equal on every seed by the same amount: no test is needed, and none is possible
            if abs(float(difference[0])) <= 1e-12:
                found.append(str(name))
        elif float(ttest_rel(here, there).pvalue) > 0.05:
            found.append(str(name))
    return found


def safe_stem(path: Path) -> str:
    """A folder's name as part of element ids."""
    return (
        "".join(
            letter if letter.isalnum() and letter.isascii() else "-" for letter in path.resolve().name
        ).strip("-")
        or "folder"
    )


def sweep_command(record: Mapping[str, Any]) -> str:
    """The command line of a sweep, from the spec that its record keeps."""
    spec = record["spec"]
    words = ["oppo", "sweep", f"{record['scenario']}.yaml"]
    for option, key in (("--grid", "grid"), ("--random", "random"), ("--set", "set")):
        for field, given in spec.get(key, {}).items():
            listed = (
                ",".join(value_text(value) for value in given)
                if isinstance(given, list) and option != "--set"
                else value_text(given)
            )
            words += [option, f"{field}={listed}"]
    if spec.get("random"):
        words += ["--samples", str(spec["samples"]), "--sampler-seed", str(spec["sampler_seed"])]
        words += ["--sobol"] if spec["sampler"] == "sobol" else []
    words += ["--seeds", str(spec["seeds"])]
    words += ["--steps", str(spec["steps"])] if spec.get("steps") is not None else []
    words += ["--objective", str(spec["objective"])] if spec.get("objective") != "time" else []
    words += ["--stop-dominated"] if spec.get("stop_dominated") else []
    return shlex.join(words)
