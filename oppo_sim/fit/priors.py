"""What is believed of the terms before a log is seen."""

from typing import Final, NamedTuple


class Prior(NamedTuple):
    term: str
    median: float
    sigma: float
    unit: str
    source: str


_TABLE: Final = [
    ("decode", 1.0, 0.35, "factor"),
    ("host", 1.0, 0.7, "factor"),
    ("iteration_s", 5e-4, 1.5, "s"),
    ("rollout_iteration_s", 1e-5, 1.5, "s"),
    ("prefill", 1.0, 0.5, "factor"),
    ("gen_phase_s", 3.0, 1.0, "s"),
    ("score", 1.0, 0.5, "factor"),
    ("score_batch_s", 5e-3, 2.0, "s"),
    ("other_s", 1.0, 1.5, "s"),
    *(
        (s, 1.0, 0.4, "factor")
        for s in ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
    ),
    *((s + "_s", 1.0, 1.2, "s") for s in ("old_log_prob", "ref", "values", "update_critic", "update_actor")),
    ("tool_tokens", 0.1, 1.0, "share"),
    ("adv_s", 0.05, 1.5, "s"),
    ("update_weights", 1.0, 0.8, "factor"),
    ("update_weights_s", 0.3, 1.2, "s"),
]
PRIORS: Final = {row[0]: Prior(*row, "") for row in _TABLE}


def priors_for(scenarios: object) -> dict[str, Prior]:
    return dict(PRIORS)
