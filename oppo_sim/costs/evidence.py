"""How well the seconds of each stage are known."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.context import StagesRun

Evidence = Literal["measured", "composed", "fitted", "given", "assumed"]

WORDS: Final[Mapping[str, str]] = {
    "measured": "measured in this run's profile",
    "composed": "composed of measured kernels",
    "fitted": "fitted",
    "given": "given by the scenario",
    "assumed": "assumed",
}
"""As reports say it, the best known first."""

PLACES: Final = ("gen", "prefill", "host", "reward", *TRAINING_STAGES, "phases")
"""What has evidence: decode on the device (``gen``), the actor's prefills, the host's part of an iteration,
scoring, training stages, and seconds of phases."""

_TRAINING: Final = "training"
_TOUCHED: Final[Mapping[str, tuple[str, ...]]] = {
    "decode": ("gen",),
    "host": ("host",),
    "iteration_s": ("host",),
    "rollout_iteration_s": ("host",),
    "prefill": ("prefill",),
    "score": ("reward",),
    "score_batch_s": ("reward",),
    "piece_fixed_s": ("reward",),
    "reward_phase_s": ("reward",),
    "training": TRAINING_STAGES,
    **{stage: (stage,) for stage in TRAINING_STAGES},
    **{f"{stage}_s": (stage,) for stage in TRAINING_STAGES},
    **dict.fromkeys(("gen_phase_s", "first_step_s", "other_s", "round_fixed_s", "piece_send_s"), ("phases",)),
}
"""Term → the places whose seconds it changes."""


def all_of(evidence: Evidence, **but: Evidence) -> dict[str, Evidence]:
    """The same everywhere, ``but`` in some places."""
    found: dict[str, Evidence] = dict.fromkeys(PLACES, evidence)
    return {**found, **but}


def under_terms(
    evidence: Mapping[str, Evidence],
    given: Iterable[str],
    fitted: Iterable[str],
    believed: Iterable[str] = (),
) -> dict[str, Evidence]:
    """Evidence under terms: what a ``fitted`` one changes is fitted, phases that are ``given`` are given
    unless some of their seconds are only ``believed``. All three name terms."""
    found = dict(evidence)
    if "phases" in _touched(given) and "phases" not in _touched(believed):
        found["phases"] = "given"
    return {**found, **dict.fromkeys(_touched(fitted), "fitted")}


def of_stages(evidence: Mapping[str, Evidence], run: StagesRun) -> dict[str, Evidence]:
    """Without the stages that take no time."""
    runs = run._asdict()
    return {place: kind for place, kind in evidence.items() if runs.get(place, True)}


def evidence_text(evidence: Mapping[str, str]) -> str:
    """Stage by stage in one line, such as ``gen, prefill: composed of measured kernels; host, training,
    phases: assumed``; training stages are named where they differ."""
    stages = {place: kind for place, kind in evidence.items() if place in TRAINING_STAGES}
    together = len(set(stages.values())) == 1
    parts = []
    for kind, words in WORDS.items():
        places = [place for place in PLACES if evidence.get(place) == kind]
        if together:
            places = list(dict.fromkeys(_TRAINING if place in stages else place for place in places))
        if places:
            parts.append(f"{', '.join(places)}: {words}")
    return "; ".join(parts)


def _touched(terms: Iterable[str]) -> Collection[str]:
    return {place for term in terms for place in _TOUCHED[term]}
