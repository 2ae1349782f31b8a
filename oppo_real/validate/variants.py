"""Which runs a validation of a search compares."""

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_real.validate.search import on_profile_of
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.scenario.build import policy_settings_of
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.policy_label import LabelledPolicy, labelled_policy
from oppo_sim.sweep.ranking import OK
from oppo_sim.sweep.resolve import POLICY_NAME
from oppo_sim.tables import read_table
from oppo_sim.tune.folder import BEST, TRIALS, TUNE

if TYPE_CHECKING:
    from oppo_sim.scenario.schema import Scenario

FIRST: Final = 3
"""Settings that a search ranks first, and are validated."""
_APART: Final = 0.01
"""Of the best step, between predicted steps of two settings of one policy, at least: half of what five
repeats tell from each other on a quiet machine."""
_POLICY: Final = "policy."
_SAME: Final = (
    "rollout_batch_size", "group_size", "max_prompt_length", "max_response_length", "trace", "rollout",
    "scoring", "training", "placement", "cluster",
)  # fmt: skip
"""Sections that a search leaves as they are, and that decide what is best."""


def variants_of_search(scenario: "Scenario", folder: Path) -> tuple[LabelledPolicy, ...]:
    """The baseline, the three settings that a search (``oppo tune``) ranks first, its choice before all, the
    one in the middle of the rest and the last one. Of settings of one policy that ran within 1 % of each
    other, which repeats would hardly tell apart, the one that it ranks first, unless too few are left.

    Raises OppoError for a folder without a finished search, one of another scenario, one in which fewer than
    two settings ran, and one that searched more than the policy.
    """
    path = folder / TRIALS
    if not (folder / TUNE).is_file() or not path.is_file():
        raise OppoError(f"{folder} holds no finished search ({TUNE}): give the folder of 'oppo tune'")
    record = _read(folder / TUNE)
    _refuse_other(scenario, folder, record)
    frame = read_table(path, "run the search again")
    if missing := sorted({POLICY_NAME, c.REGRET, c.STATUS, c.BROKEN} - set(frame.columns)):
        raise OppoError(f"{path} lacks the column {missing[0]}: run the search again")
    fields = [name for name in frame.columns if "." in name and name != POLICY_NAME]
    if other := next((field for field in fields if not field.startswith(_POLICY)), None):
        raise OppoError(
            f"{folder} searched {other} too, and a validation changes only the policy: search with --space"
            f" {other}=VALUE for one value, and set it in the scenario"
        )
    ran = frame[(frame[c.STATUS] == OK) & (frame[c.BROKEN] == "") & frame[c.REGRET].notna()]
    # The choice kept its bounds on fresh seeds, too, which one that ranks before it may not have done.
    first = ran[c.TRIAL] != (record.get("chosen") or {}).get(c.TRIAL)
    ranked = ran.assign(first=first).sort_values(["first", c.REGRET], kind="stable")
    trials = [{str(name): value for name, value in row.items()} for row in ranked.to_dict("records")]
    found = [
        (_of_trial(scenario, trial, fields), float(trial[c.REGRET]))
        for trial in trials
        if trial[POLICY_NAME] != BASELINE
    ]
    settings = _told_apart(found, _APART)
    if len(settings) < FIRST + 2:
        # As fast to the last digit under all seeds: one schedule, of which what never binds differs.
        settings = _told_apart(found, 0.0)
    if len(settings) < 2:
        raise OppoError(
            f"{folder} ranks {len(settings)} setting(s) beside {BASELINE}: search with more trials"
        )
    rest = settings[FIRST:]
    others = [rest[(len(rest) - 1) // 2], rest[-1]] if len(rest) > 1 else rest
    return (labelled_policy(scenario, BASELINE), *settings[:FIRST], *others)


def _told_apart(ranked: Sequence[tuple[LabelledPolicy, float]], apart: float) -> list[LabelledPolicy]:
    """Of settings and what each loses to the best, in order, those that are further than ``apart`` from all
    of their policy that were taken before them."""
    kept: list[tuple[LabelledPolicy, float]] = []
    for one, regret in ranked:
        if all(one.policy != other.policy or abs(regret - lost) > apart for other, lost in kept):
            kept.append((one, regret))
    return [one for one, _ in kept]


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OppoError(f"cannot read {path} ({error}): run the search again") from None
    if not isinstance(record, dict):
        raise OppoError(f"{path} is no record of a search: run the search again")
    return record


def _refuse_other(scenario: "Scenario", folder: Path, record: Mapping[str, Any]) -> None:
    """Raise OppoError where the search was of another run: its choice may be none here."""
    path = folder / BEST
    if not path.is_file():  # nothing kept all bounds
        known = {one.content_hash for one in (scenario, on_profile_of(scenario, folder))}
        if record.get("scenario_sha256") not in known:
            raise OppoError(
                f"{folder} searched another scenario than {scenario.source} (their SHA-256 differ): search"
                " this one, or give the --set that the search was given"
            )
        return
    searched, own = _compared(load_scenario(path)), _compared(scenario)
    if scenario.placement.shares_host is None:  # a validation, and its search, say it themselves
        del searched["placement.shares_host"], own["placement.shares_host"]
    for name in sorted({*searched, *own}):
        there, here = (json.dumps(plain.get(name)) for plain in (searched, own))
        if there != here:
            raise OppoError(
                f"{folder} searched another scenario than {scenario.source} ({name} is {there} there and"
                f" {here} here): search this one"
            )


def _compared(scenario: "Scenario") -> dict[str, Any]:
    """What must be the same, by section and field. The trace's path starts nowhere in particular."""
    plain = scenario.to_plain()
    if (given := plain["trace"].get("path")) is not None:
        plain["trace"]["path"] = str(((scenario.base_dir or Path()) / given).resolve())
    found: dict[str, Any] = {}
    for name in _SAME:
        section = plain.get(name)
        found |= (
            {f"{name}.{key}": value for key, value in section.items()}
            if isinstance(section, dict)
            else {name: section}
        )
    return found


def _of_trial(scenario: "Scenario", row: Mapping[str, Any], fields: Sequence[str]) -> LabelledPolicy:
    policy, given = str(row[POLICY_NAME]), {}
    for field in fields:
        value = row[field]
        if isinstance(value, str):  # values to choose from are JSON
            value = json.loads(value)
        elif value is None or isnan(value):  # the policy has no such knob
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        given[field.removeprefix(_POLICY)] = value
    shown = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    return LabelledPolicy(":".join([policy, *shown]), policy, policy_settings_of(scenario, policy) | given)
