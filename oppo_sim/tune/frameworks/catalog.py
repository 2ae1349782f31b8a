"""All frameworks by name: how each is told, and what it can do as simulated here.

Option names are checked against the stored copy of each framework's own configuration
(``frameworks/names``).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.tune.frameworks import flagged, mapped, verl
from oppo_sim.tune.frameworks.facts import Block, Line, Recommended
from oppo_sim.tune.frameworks.stored import StoredNames, stored_names


@dataclass(frozen=True)
class Framework:
    """A framework: how it is told, and what it can do as simulated here."""

    name: str
    lines: Callable[[Recommended], list[Line]]
    blocks: Callable[[Recommended, list[Line]], list[Block]]
    stored: str | None
    """Name of its stored option names; None: an engine, whose arguments are its documentation's."""
    policies: tuple[str, ...]
    """Those that it runs as they are simulated."""
    scores: str = "rollout"
    """How finely it scores in synchronous training: ``batch`` or ``rollout``."""
    bounds_deferrals: bool = False
    """It can bound how often a response is carried over."""
    least_staleness: int = 0
    """The least bound of ``async`` that it takes."""
    keeps_kv: bool | None = False
    """KV of carried rollouts after an update: kept, computed anew (False), or as it is told (None)."""
    counts_nodes: tuple[str, ...] = ()
    """Of ``rollout`` and ``training`` on GPUs of their own, those whose GPUs it counts in whole nodes."""

    @property
    def names(self) -> StoredNames | None:
        """Its options, with their version."""
        return None if self.stored is None else stored_names(self.stored)


FRAMEWORKS: Final[Mapping[str, Framework]] = {
    each.name: each
    for each in (
        Framework("TRL", flagged.trl_lines, flagged.trl_blocks, "TRL", ("sequential",), "batch"),
        Framework(
            "verl", verl.lines, verl.blocks, "verl",
            ("sequential", "rollout-overlap", "april", "inter", "one-step-off", "async"),
            bounds_deferrals=True, counts_nodes=("rollout", "training"),
        ),
        Framework(
            "OpenRLHF", flagged.openrlhf_lines, flagged.openrlhf_blocks, "OpenRLHF",
            ("sequential", "one-step-off"), "batch", counts_nodes=("training",),
        ),
        Framework(
            "slime", flagged.slime_lines, flagged.slime_blocks, "slime",
            ("sequential", "rollout-overlap", "april", "inter", "one-step-off"), counts_nodes=("training",),
        ),
        Framework(
            "NeMo RL", mapped.nemo_lines, mapped.nemo_blocks, "NeMo-RL",
            ("sequential", "async"), "batch", least_staleness=1, keeps_kv=None, counts_nodes=("rollout",),
        ),
        Framework(
            "AReaL", mapped.areal_lines, mapped.areal_blocks, "AReaL",
            ("sequential", "rollout-overlap", "async"),
        ),
        Framework(
            "ROLL", mapped.roll_lines, mapped.roll_blocks, "ROLL",
            ("sequential", "rollout-overlap", "async"), least_staleness=1,
        ),
        Framework(
            "prime-rl", mapped.prime_lines, mapped.prime_blocks, "prime-rl", ("async",),
            keeps_kv=True, counts_nodes=("rollout", "training"),
        ),
        Framework("vLLM", mapped.vllm_lines, mapped.vllm_blocks, None, ()),
    )
}  # fmt: skip


def framework(name: str, *, engines: bool = False) -> Framework:
    """By name, whatever its capitals; ``engines``: one that only generates, too. Raises OppoError for one
    that is not known."""
    known = {_plain(each.name): each for each in FRAMEWORKS.values() if engines or each.policies}
    found = known.get(_plain(name))
    if found is None:
        close = difflib.get_close_matches(_plain(name), known, n=1)
        names = ", ".join(each.name for each in known.values())
        hint = f"did you mean '{known[close[0]].name}'?" if close else f"choose {names}"
        generates = any(_plain(name) == _plain(each) for each in FRAMEWORKS)
        what = "only generates, and trains nothing" if generates else "is unknown"
        raise OppoError(f"framework '{name}' {what}: {hint}")
    return found


def frameworks_of(policy: str) -> list[str]:
    """Names of the frameworks that run a policy as it is simulated."""
    return [each.name for each in FRAMEWORKS.values() if policy in each.policies]


def advice_of(it: Recommended, only: str | None) -> dict[str, dict[str, Any]]:
    """Framework → its lines, text to paste, and the version that its names were checked against; of one
    framework alone where it is named."""
    found = {}
    told = FRAMEWORKS.values() if only is None else (framework(only),)
    for each in told:
        lines = each.lines(it)
        found[each.name] = {
            "lines": [line._asdict() for line in lines],
            "blocks": [block._asdict() for block in each.blocks(it, lines)],
            "names": None if each.names is None else each.names.said,
        }
    return found


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
