"""A policy under settings of its own in one word, as commands and tables name it: ``oppo``,
``oppo:chunk_size=256:overcommit=8``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED, name_and_settings
from oppo_sim.scenario.build import policy_settings_of
from oppo_sim.scenario.schema import PolicyConfig, Scenario
from oppo_sim.scenario.yaml_text import parse_yaml


@dataclass(frozen=True)
class LabelledPolicy:
    """A policy under settings."""

    label: str
    """As tables have it: name, then settings, with colons."""
    policy: str
    settings: Mapping[str, Any]


def labelled_policy(scenario: Scenario, label: str) -> LabelledPolicy:
    """A policy's name, or ``name:setting=value:…``: what it has in the scenario with these over it.

    Raises OppoError for what is neither; the settings are checked where the run is built.
    """
    policy, given = _parsed(label)
    return LabelledPolicy(label, policy, policy_settings_of(scenario, policy) | given)


def scenario_under(scenario: Scenario, label: str) -> tuple[Scenario, str]:
    """The scenario as if the label's settings stood in it, and the label's policy. Raises OppoError as
    ``labelled_policy``."""
    policy, given = _parsed(label)
    if not given:
        return scenario, policy
    settings = policy_settings_of(scenario, policy) | given
    if policy == scenario.policy.name:
        return scenario.model_copy(update={"policy": PolicyConfig(name=policy, **settings)}), policy
    return scenario.model_copy(update={"policies": {**scenario.policies, policy: settings}}), policy


def for_policy(overrides: Sequence[str], label: str | None) -> list[str]:
    """Overrides as ``a.b=c`` texts: settings of a policy in them are of the label's policy, where that is a
    shipped one that has them, or else of the scenario's own. Raises OppoError as ``labelled_policy``."""
    name = "" if label is None else _parsed(label)[0]
    paths = [text.partition("=")[0].strip().split(".") for text in overrides]
    named = {path[1] for path in paths if path[0] == "policy" and len(path) > 1}
    if name not in SHIPPED or not named or not named <= SHIPPED[name].Settings.model_fields.keys():
        return list(overrides)
    return [f"policy.name={name}", *overrides]


def settings_in(label: str) -> dict[str, Any]:
    """What a label says itself of its policy's settings. Raises OppoError as ``labelled_policy``."""
    return _parsed(label)[1]


def _parsed(label: str) -> tuple[str, dict[str, Any]]:
    policy, written = name_and_settings(label)
    wrong = f"policy '{label}': write settings as name:setting=value, as intra:chunk_size=48"
    if "=" in policy.rpartition(".py:")[2]:
        raise OppoError(wrong)
    given = {}
    for part in written:
        name, equals, text = part.partition("=")
        if not (name and equals):
            raise OppoError(wrong)
        given[name] = parse_yaml(text, f"policy '{label}'")
    return policy, given
