"""Timelines read back from the traces that ``report/perfetto.py`` writes."""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.report.perfetto import STEPS
from oppo_sim.report.timeline import Timeline
from oppo_sim.results.spans import Marker, Span

_PARALLEL: Final = re.compile(r" \(parallel \d+\)$")
_NUMBER: Final = re.compile(r" (\d+)$")


def read_trace(path: str | Path) -> dict[str, Timeline]:
    """Timelines by run, times in seconds to the microsecond. Raises OppoError for a file that is missing or
    no such trace."""
    path = Path(path)
    try:
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
        groups, lanes = _names(events)
        found: dict[str, tuple[list[Span], list[Marker]]] = {
            run: ([], []) for _, (run, _group) in sorted(groups.items())
        }
        for event in events:
            if event["ph"] not in ("X", "i") or groups[event["pid"]][1] == STEPS:
                continue
            run, group = groups[event["pid"]]
            spans, markers = found[run]
            index, start = lanes[(event["pid"], event["tid"])], event["ts"] / 1e6
            args = dict(event["args"])
            step = args.pop("step")
            if event["ph"] == "X":
                spans.append(
                    Span(group, index, event["cat"], start, (event["ts"] + event["dur"]) / 1e6, step, args)
                )
            else:
                markers.append(Marker(event["name"], group, index, start, step))
    except FileNotFoundError:
        raise OppoError(f"there is no timeline {path}: check the path") from None
    except OSError as error:
        raise OppoError(f"cannot read {path} ({error.strerror or error}): check its permissions") from error
    except (ValueError, KeyError, TypeError, EOFError):
        raise OppoError(f"{path} is no timeline that this program wrote: make the run again") from None
    return dict(found)


def _names(events: list[Mapping[str, Any]]) -> tuple[dict[int, tuple[str, str]], dict[tuple[int, int], int]]:
    """(run, group) by process, and the lane's number by thread."""
    groups: dict[int, tuple[str, str]] = {}
    lanes: dict[tuple[int, int], int] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        if event["name"] == "process_name":
            run, _, group = event["args"]["name"].rpartition(" · ")
            groups[event["pid"]] = (run, group)
        elif event["name"] == "thread_name":
            number = _NUMBER.search(_PARALLEL.sub("", event["args"]["name"]))
            lanes[(event["pid"], event["tid"])] = int(number.group(1)) if number else 0
    return groups, lanes
