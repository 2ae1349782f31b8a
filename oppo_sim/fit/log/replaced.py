"""Groups that were dropped while others were generated in their place, one by one: what is generated is more
than what is trained, and no count of batches says by how much."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from oppo_sim.fit.log.names import LogNames
from oppo_sim.fit.log.segments import Line
from oppo_sim.traces.importers.figures import PREFIXES

_ALL: Final = 100.0
"""Percent."""


def replaced_note(lines: Iterable[Line], names: LogNames, rows: Collection[int]) -> str | None:
    """What a user should know of it; None: the log tells of no such group. ``rows``: steps of the log, of
    which those that dropped none may not have the metric."""
    wanted = [
        *((name, _dropped) for name in names.replaced),
        *((name, _not_kept) for name in names.kept_percent),
    ]
    # Lines that name no step are one each.
    logged = [(-1 - number if step is None else step, each) for number, (step, each) in enumerate(lines)]
    for name, tells in wanted:
        steps = {
            step
            for step, figures in logged
            if (step < 0 or step in rows) and (value := _sum_of(figures, name)) is not None and tells(value)
        }
        if steps:
            return (
                f"groups were dropped and others generated in their place in {min(len(steps), len(rows))} of"
                f" {len(rows)} steps ({name}): generation is of more rollouts than the scenario's batch, and"
                " the fit takes their seconds for slower decoding; --leave-out gen fits the rest alone"
            )
    return None


def _dropped(groups: float) -> bool:
    return groups > 0.0


def _not_kept(percent: float) -> bool:
    return percent < _ALL


def _sum_of(figures: Mapping[str, float], name: str) -> float | None:
    """Of the metrics that ``name`` is, or is the beginning (``name*``) or the ending (``*name``) of."""
    if name.endswith("*"):
        found = [value for each, value in figures.items() if each.startswith(_either(name[:-1]))]
    elif name.startswith("*"):
        found = [value for each, value in figures.items() if each.endswith(_either(name[1:]))]
    else:
        whole = {each for prefix in PREFIXES for each in _either(prefix + name)}
        found = [value for each, value in figures.items() if each in whole][:1]
    return sum(found) if found else None


def _either(name: str) -> tuple[str, str]:
    """TensorBoard writes the / of a name as _ in the names of exported files."""
    return name, name.replace("/", "_")
