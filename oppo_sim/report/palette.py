"""One colour and one name per stage, in every picture. The colours are told apart with colour-blind eyes.

Okabe and Ito, "Color Universal Design" (2008), with two of Paul Tol's muted set for the stages beyond eight.
"""

from collections.abc import Mapping, Sequence
from typing import Final

_COLOURS: Final[Mapping[str, str]] = {
    "decode": "#0072B2",
    "gen": "#0072B2",
    "prefill": "#56B4E9",
    "score": "#E69F00",
    "reward": "#E69F00",
    "old_log_prob": "#F0E442",
    "ref": "#009E73",
    "values": "#CC79A7",
    "adv": "#999999",
    "update_critic": "#882255",
    "update_actor": "#D55E00",
    "training": "#D55E00",
    "update_weights": "#222222",
}
_OTHERS: Final = ("#44AA99", "#332288", "#DDCC77", "#AA4499")

INK: Final = "#222222"
FAINT: Final = "#8A8A8A"
IDLE: Final = "#EFEFEF"
TRACE: Final = "#8A8A8A"
TRAINED: Final = "#0072B2"
GAINS: Final = ("#0072B2", "#56B4E9")
LOSSES: Final = ("#D55E00", "#E69F00", "#CC79A7")


def stage_colour(stage: str) -> str:
    """Colour of a stage: joint ones (``old_log_prob+ref``) have that of their first, unknown ones one that
    follows from their name."""
    return _COLOURS.get(_first(stage)) or _OTHERS[sum(stage.encode()) % len(_OTHERS)]


def in_stage_order(stages: set[str]) -> Sequence[str]:
    """Stages in the order of a step, unknown ones last by name."""
    known = list(_COLOURS)
    return sorted(
        stages,
        key=lambda stage: (known.index(_first(stage)) if _first(stage) in known else len(known), stage),
    )


def _first(stage: str) -> str:
    return stage.partition("+")[0]
