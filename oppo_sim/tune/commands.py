"""Commands that follow a search: what to run next, and the search again with more in it."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.labels import option_text
from oppo_sim.scenario.overrides import Overrides, override_fields, override_texts, without_own_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.request import TuneRequest
from oppo_sim.tune.space import POLICY, Space


def next_commands(
    request: TuneRequest, scenario: Scenario, space: Space, best: Path | str, policy: str
) -> list[str]:
    """What can run next, where ``best`` holds the choice. A scenario that real engines can run has the search
    validated whole, as it may rank wrongly what it did not choose; one of more than policies cannot be."""
    folder = request.folder
    policies = ",".join(dict.fromkeys((BASELINE, policy)))
    of_policies = all(field.startswith(POLICY) for field in space.fields)
    if scenario.real is not None and folder is not None and of_policies:
        validate = scenario_command("validate", scenario, request.overrides, ["--from-tune", str(folder)])
    else:
        validate = shlex.join(["oppo", "validate", str(best), "--policies", policies])
    compare = shlex.join(["oppo", "compare", str(best), "--policies", policies])
    return [
        shlex.join(["oppo", "simulate", str(best)]),
        *([] if policy == BASELINE else [compare]),
        *([validate] if scenario.real is not None else []),
    ]


def scenario_command(command: str, scenario: Scenario, overrides: Overrides, words: Iterable[str]) -> str:
    """``oppo COMMAND`` of the scenario as it was given, with its trace and overrides, then ``words``."""
    trace, fixed = without_own_trace(override_fields(override_texts(overrides)))
    given = [] if trace is None else ["--trace", named(trace)]
    for field, value in fixed.items():
        given += ["--set", f"{field}={option_text(value)}"]
    return shlex.join(["oppo", command, named(scenario.source), *given, *words])


def named(source: str) -> str:
    """A scenario or file as a command takes it: a file from the current folder, or a shipped name."""
    return os.path.relpath(source) if os.path.isfile(source) else source
