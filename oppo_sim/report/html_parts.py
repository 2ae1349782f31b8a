"""What the chapters of a report are made of, before they are HTML: texts, tables, figures, points.

Plain text and numbers; nothing here is markup but ``Picture.svg``."""

import base64
import io
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from oppo_sim import columns as c
from oppo_sim.costs.evidence import evidence_text
from oppo_sim.files import file_errors
from oppo_sim.png import write_png
from oppo_sim.report.labels import (
    MEASURES,
    Measure,
    field_label,
    is_missing,
    measure_of,
    option_text,
    value_label,
    value_text,
)
from oppo_sim.report.points import Points, heat_axes, is_grid
from oppo_sim.report.ranges import MACHINE_ENDS
from oppo_sim.report.style import FAINT, IDLE, INK
from oppo_sim.runs.machine import DEFAULT_DRAWS
from oppo_sim.runs.statistics import ROLLOUTS
from oppo_sim.scenario.overrides import without_own_trace
from oppo_sim.scenario.yaml_text import dump_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure, as inline SVG in the page's colours or as PNG bytes."""

    name: str
    """File-name stem."""
    title: str
    alt: str
    """What it shows, for those who do not see it."""
    svg: str = ""
    png_base64: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of texts; the first column heads its rows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    """Columns set flush right."""


@dataclass(frozen=True)
class Section:
    """A part of a chapter under a heading of its own."""

    title: str
    texts: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    code: str = ""
    """Text to copy as it is."""
    blocks: tuple[tuple[str, str], ...] = ()
    """(what it is, text) of several texts to copy, each by itself."""
    folded: bool = False


@dataclass(frozen=True)
class Explorer:
    """Points to sort, filter and map; ``data``: as ``explorer_data`` gives it."""

    data: Mapping[str, Any]
    heat: Picture | None = None
    """Shown where scripts do not run."""


@dataclass(frozen=True)
class Chapter:
    """Everything about one folder."""

    title: str
    kind: str
    """``sweep``, ``comparison``, ``simulated run``, …"""
    source: str
    """Where the numbers come from: predicted or measured, in a sentence."""
    measured: bool
    question: str
    answer: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """(field, value) of the choice."""
    copy_text: str = ""
    """The same for the command line or a scenario file."""
    sections: tuple[Section, ...] = ()
    explorer: Explorer | None = None
    provenance: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Warnings: what is likely not meant."""

    def made_by(self, command: str) -> "Chapter":
        """With the command that was given; empty: there was none."""
        rows = (("command", command), *self.provenance) if command else self.provenance
        return replace(self, provenance=rows)


MOST_SVG_BYTES: Final = 250_000
"""A larger picture (timelines of thousands of pieces) is embedded as PNG."""

_IN_PAGE: Final = {
    INK.lower(): "var(--ink)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    FAINT.lower(): "var(--faint)",
    IDLE.lower(): "var(--idle)",
}
_PNG_DPI: Final = 120


def picture(name: str, figure: "Figure", title: str, alt: str) -> Picture:
    """Embed a figure under ``name`` (unique in the page; it becomes part of element ids)."""
    svg = svg_text(figure)
    if len(svg) <= MOST_SVG_BYTES:
        return Picture(name, title, alt, svg=in_page(svg, name))
    figure.set_dpi(_PNG_DPI)
    return Picture(name, title, alt, png_base64=base64.b64encode(png_bytes(figure)).decode())


def stored_picture(path: Path, name: str, title: str, alt: str) -> Picture:
    """A PNG that a command drew into its folder. Raises OppoError when it cannot be read."""
    with file_errors(path):
        return Picture(name, title, alt, png_base64=base64.b64encode(path.read_bytes()).decode())


def svg_text(figure: "Figure") -> str:
    """The figure as a stand-alone SVG document; the same figure gives the same text, free of dates."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "oppo", "svg.fonttype": "path"}):
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def png_bytes(figure: "Figure") -> bytes:
    """The figure as PNG, at its own resolution."""
    buffer = io.BytesIO()
    write_png(figure, buffer)
    return buffer.getvalue()


def in_page(svg: str, name: str) -> str:
    """An SVG document as an element of a page: no prolog, ids of its own, ink and paper as the page's theme
    has them."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>\s*", "", element, flags=re.DOTALL)
    prefix = re.sub(r"[^A-Za-z0-9]", "-", name)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'href="#', f'href="#{prefix}-', element)
    element = element.replace("url(#", f"url(#{prefix}-")
    element = re.sub(
        "|".join(_IN_PAGE), lambda match: _IN_PAGE[match.group().lower()], element, flags=re.IGNORECASE
    )
    # Sized by the page's style sheet.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        r"<svg \1",
        re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", element, count=1),
        count=1,
    )


def joined(items: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f" {last} ".join(part for part in (", ".join(items[:-1]), *items[-1:]) if part)


def times_faster(ratio: float, low: float, high: float, baseline: str, both: tuple[float, float]) -> str:
    """``1.24 times the speed of sequential (95 % interval 1.20 to 1.28)``. ``both``: the interval of rollouts
    and machine together, where draws of the machine are known."""
    within = (
        f"95 % interval {low:.2f} to {high:.2f}"
        if np.isfinite((low, high)).all()
        else "one seed: no interval"
    )
    if np.isfinite(both).all():
        together = f"95 % interval {both[0]:.2f} to {both[1]:.2f} of rollouts and machine"
        within = f"{together}; rollouts alone: {within}"
    return f"{ratio:.2f} times the speed of {baseline} ({within})"


def cost_source(costs: Mapping[str, Any]) -> str:
    """Where a simulation's seconds come from, stage by stage."""
    kind, measured = costs.get("kind", "unknown"), costs.get("measured")
    on = measured.get("hardware") if isinstance(measured, Mapping) else None
    known = evidence_text(costs.get("evidence", {})) or "not said by its manifest"
    return f"Predicted: simulated seconds. Costs ({kind}){f', on {value_label(on)}' if on else ''}: {known}."


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


def run_text(scenario: str, fixed: Mapping[str, Any] | None, choice: Iterable[tuple[str, Any]] = ()) -> str:
    """A command that simulates a scenario under the ``fixed`` settings of everything and those of a
    choice, one option a line."""
    trace, rest = without_own_trace(fixed or {})
    lines = [shlex.join(["oppo", "simulate", scenario])]
    lines += [] if trace is None else [shlex.join(["--trace", trace])]
    lines += [shlex.join(["--set", f"{field}={option_text(value)}"]) for field, value in rest.items()]
    return " \\\n".join(text for text in (*lines, overrides_text(choice)) if text)


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
    words = ["oppo", "sweep", str(spec["scenario"])]
    trace, fixed = without_own_trace(spec.get("set", {}))
    words += [] if trace is None else ["--trace", trace]
    for option, given in (
        ("--grid", spec.get("grid", {})),
        ("--random", spec.get("random", {})),
        ("--set", fixed),
    ):
        for name, values in given.items():
            listed = (
                ",".join(option_text(value) for value in values)
                if isinstance(values, list) and option != "--set"
                else option_text(values)
            )
            words += [option, f"{name}={listed}"]
    if spec.get("random"):
        words += ["--samples", str(spec["samples"]), "--sampler-seed", str(spec["sampler_seed"])]
        words += ["--sobol"] if spec["sampler"] == "sobol" else []
    words += ["--seeds", str(spec["seeds"])]
    words += ["--draws", str(spec["draws"])] if spec.get("draws", DEFAULT_DRAWS) != DEFAULT_DRAWS else []
    words += ["--steps", str(spec["steps"])] if spec.get("steps") is not None else []
    words += ["--objective", str(spec["objective"])] if spec.get("objective") != ROLLOUTS else []
    words += ["--stop-dominated"] if spec.get("stop_dominated") else []
    words += ["--practical", f"{spec['practical']:g}"] if spec.get("practical") else []
    return shlex.join(words)


_DIGITS = 6


def measures_in(points: Points) -> list[Measure]:
    """The objective, other known measures, then other numeric columns; intervals and what has no value at all
    are left out."""
    intervals = {name for measure in MEASURES.values() for name in measure.interval or ()} | MACHINE_ENDS
    order = sorted(MEASURES, key=lambda column: column != points.objective)
    known = [MEASURES[column] for column in order if points.has(column)]
    others = [
        str(column)
        for column, kind in points.table.dtypes.items()
        if kind.kind in "fiu"
        and column not in MEASURES
        and column not in intervals
        and column not in points.axes
    ]
    return known + [measure_of(column) for column in others if points.has(column)]


def explorer_data(points: Points, label: str, fixed: str = "") -> dict[str, Any]:
    """What ``report.js`` reads. ``label`` names the points in sentences (``configuration``, ``policy``),
    ``fixed`` is the command that they share, to which a point adds its ``--set`` options.

    ``axes[].at`` holds each row's position in ``axes[].values``; ``measures[].values``, ``low`` and ``high``
    (of the rollouts), ``machine_low`` and ``machine_high`` hold null where there is no number.
    """
    axes = []
    for axis in points.axes:
        values = points.values(axis)
        place = {value_text(value): at for at, value in enumerate(values)}
        axes.append(
            {
                "field": axis,
                "label": field_label(axis, values),
                "values": [value_label(value) for value in values],
                "texts": [value_text(value) for value in values],
                "missing": [is_missing(value) for value in values],
                "numeric": points.numeric(axis),
                "at": [place[value_text(value)] for value in points.table[axis]],
            }
        )
    measures = []
    for measure in measures_in(points):
        low, high, machine_low, machine_high = (
            _rounded(points.measured(name)) if name and points.has(name) else None
            for name in (*(measure.interval or ("", "")), *(measure.machine or ("", "")))
        )
        measures.append(
            {
                "column": measure.column,
                "label": measure.label,
                "kind": measure.kind,
                "better": measure.better,
                "values": _rounded(points.measured(measure.column)),
                "low": low,
                "high": high,
                "machine_low": machine_low,
                "machine_high": machine_high,
            }
        )
    heat = heat_axes(points) if is_grid(points) else None
    return {
        "label": label,
        "fixed": fixed,
        "axes": axes,
        "measures": measures,
        "best": points.best_row(),
        "region": sorted(points.region),
        "bounds": points.bounds(),
        "objective": points.objective,
        "status": (
            [str(value) for value in points.table[c.STATUS]] if c.STATUS in points.table.columns else None
        ),
        "errors": (
            [None if is_missing(value) else str(value) for value in points.table[c.ERROR]]
            if c.ERROR in points.table.columns
            else None
        ),
        "heat": list(heat) if heat else None,
    }


def _rounded(values: NDArray[np.float64]) -> list[float | int | None]:
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
