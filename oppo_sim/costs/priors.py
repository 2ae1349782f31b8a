"""What is believed of the terms of costs before anything was measured: one table, each row with its source.

A factor is log-normal with median 1, unless the row says otherwise; seconds are log-normal with the median of
the row. ``sigma`` is the standard deviation of the logarithm: 95 % lie within a factor exp(±1.96 · sigma).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from oppo_sim.costs.evidence import Evidence
from oppo_sim.costs.terms import SECONDS, CostTerms


class Prior(NamedTuple):
    """A log-normal belief about one term."""

    term: str
    median: float
    sigma: float
    """Of the logarithm."""
    source: str

    @property
    def unit(self) -> str:
        """``s``, or ``factor``."""
        return "s" if self.term in SECONDS else "factor"


class Row(NamedTuple):
    """A prior and where it holds."""

    term: str
    where: str
    """Evidence of the place below; ``no kernel``: assumed for a device of which nobody measured one;
    ``experts``: composed or assumed for a mixture of them; a host preset; ``sleeps`` or ``any`` for phases;
    ``log``: only where a log is there to decide (``log_priors``), ``in place`` if the log's generation holds
    the weight sync, ``weights stay`` if those of the engine do while training runs, ``awake`` if the scenario
    says that nothing is woken."""
    median: float
    sigma: float
    source: str


IDENTIFIED: Final = "identified"
UNIDENTIFIED: Final = "not identified"
"""What a fit says of a term beside its prior; ``partly`` lies between them."""

_AIC = "kernel tables of aiconfigurator-core 0.12"
_VIDUR = "vidur's layers (A100-80, H100, A40)"
_VERL = "verl steps, jianghoucheng/Agent_On_Policy_Distillation (4 × A800), develop runs"
_GPG = "verl steps, diqiuzhuanzhuan/verldata (8 × A100-80)"
_SERVED = "served time per token, ai-dynamo/aiconfigurator silicon_sample.csv"
_SPLITWISE = "vLLM of 2023, splitwise-sim"
_MI300X = "verl steps, yushengsu-thu/verl_training_log (8 × MI300X)"
_EXPERTS = "NeMo RL, steps of Qwen3-30B-A3B and 235B-A22B (H100, GB200): 18 to 45 % too fast"
_SERVED_EXPERTS = "time per token of five served mixtures of experts (experiments/served)"
_RAY = "ray-project/ray @08444c4c, release/perf_metrics/microbenchmark.json"
_SYNC = "verl, slime and NeMo RL, reports of 15 GB to 1.3 TB"
_PROFILE = "repeats of a calibration"

TABLE: Final = (
    Row("decode", "measured", 1.0, 0.05, _PROFILE),
    Row("decode", "composed", 1.0, 0.1, f"{_SERVED}: 4 % on vLLM, 5 to 6 % on others; {_VIDUR}: 11 to 21 %"),
    Row("decode", "assumed", 1.0, 0.15, f"{_AIC}: 1 to 7 % off; {_VIDUR}: 15 to 19 %; {_SERVED}: 4 to 10 %"),
    Row(
        "decode", "no kernel", 1.0, 0.35, f"{_MI300X}: generation 1.9 to 2.0 times as long, the host included"
    ),
    Row("decode", "experts", 1.0, 0.25, f"{_SERVED_EXPERTS}: 0.8 to 1.2 times as long by model"),
    Row("prefill", "measured", 1.0, 0.05, _PROFILE),
    Row("prefill", "composed", 1.0, 0.15, f"{_VIDUR}: 17 to 21 % off"),
    Row(
        "prefill",
        "assumed",
        1.0,
        0.2,
        f"{_AIC}: 3 to 19 % off; {_VIDUR}: 3 to 14 %; {_SPLITWISE}: 24 to 29 %",
    ),
    Row("prefill", "no kernel", 1.0, 0.4, "as training"),
    Row("score", "measured", 1.0, 0.05, _PROFILE),
    Row("score", "composed", 1.0, 0.15, "as prefill"),
    Row("score", "assumed", 1.0, 0.2, "as prefill"),
    Row("score", "no kernel", 1.0, 0.4, "as training"),
    Row("host", "measured", 1.0, 0.05, _PROFILE),
    Row("host", "vllm", 1.0, 0.4, f"{_SERVED}: 4 % of a token, of which a third is the host's"),
    Row("host", "vllm-eager", 1.0, 0.5, f"{_SPLITWISE} and two logs of H100, where launches bound it"),
    Row("host", "vllm-async", 1.0, 0.4, f"{_VERL}: 0.3 to 0.6 of the preset, with decode × 1.3 to 1.8"),
    Row("host", "sglang", 1.0, 0.4, f"{_SERVED}: 6 % of a token"),
    Row("host", "trtllm", 1.0, 0.4, "its preset has no seconds of the host: nothing to scale"),
    Row("host", "generate", 1.0, 0.6, "assumed"),
    Row("host", "own", 1.0, 0.6, "assumed"),
    *(
        Row(stage, *known)
        for stage in ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
        for known in (
            ("measured", 1.0, 0.05, _PROFILE),
            ("assumed", 1.0, 0.25, f"{_VERL}: 4 to 23 % off; other clusters and frameworks assumed alike"),
            ("no kernel", 1.0, 0.4, f"{_MI300X}: 1.4 to 1.7 times as long as its best products say"),
            ("experts", 1.0, 0.5, f"{_EXPERTS}; no stage told"),
        )
    ),
    Row("update_weights", "measured", 1.0, 0.05, _PROFILE),
    Row("update_weights", "assumed", 1.0, 0.8, f"{_SYNC}: 2 to 87 GB/s, 0.3 to 10 times the default"),
    Row("gen_phase_s", "sleeps", 2.0, 1.0, f"{_VERL}: 0.6 to 1.5 s at 3B; larger models wake longer"),
    Row(
        "first_step_s",
        "vllm-async",
        7.0,
        1.2,
        f"{_VERL}: 6 to 8 s of the actor, 50 to 63 s of an offloaded 32B ref",
    ),
    Row(
        "first_step_s",
        "vllm-eager",
        4.0,
        1.2,
        f"{_GPG}: 1.1 s in old_log_prob, 2.5 s in update_actor, none in gen",
    ),
    *(
        Row(
            "first_step_s",
            host,
            5.0,
            1.2,
            "assumed: between vllm-async and vllm-eager, a trainer's first passes",
        )
        for host in ("vllm", "sglang", "trtllm", "own")
    ),
    Row("other_s", "any", 0.2, 1.0, f"{_VERL}: 0.04 to 0.27 s"),
    *(
        Row(factor, "log", 1.0, sigma, "assumed, wide: a log decides")
        for factor, sigma in (
            ("decode", 0.35),
            ("host", 0.7),
            ("prefill", 0.5),
            ("score", 0.5),
            *((stage, 0.4) for stage in ("old_log_prob", "ref", "values", "adv")),
            *((stage, 0.4) for stage in ("update_critic", "update_actor")),
            ("update_weights", 0.8),
        )
    ),
    Row("update_weights", "in place", 0.3, 1.2, "assumed: an engine that is resharded converts nothing"),
    Row("iteration_s", "log", 5e-4, 1.5, f"{_SERVED}: host presets differ by 2 ms an iteration"),
    Row("rollout_iteration_s", "log", 1e-5, 1.5, f"{_SERVED}: host presets differ by 60 µs a rollout"),
    Row("score_batch_s", "log", 5e-3, 2.0, "assumed: a request to a server"),
    Row(
        "piece_fixed_s",
        "log",
        5e-4,
        1.2,
        f"{_RAY}: a call of an actor takes 0.1 to 0.5 ms; Ray Serve's documentation: a request 1 to 2 ms",
    ),
    Row(
        "piece_send_s",
        "log",
        5e-4,
        1.2,
        f"{_RAY}: to put an object and to get it takes 0.3 ms, from a client 2 ms",
    ),
    Row(
        "round_fixed_s",
        "log",
        0.027,
        1.6,
        "a call of transformers' generate() takes 4 ms of the host, with the collection of garbage that TRL's"
        " PPO does 180 ms (experiments/generate_calls.py): the median lies between; a round of engines, as"
        " 'oppo calibrate' times it: 1.1 ms on torch, up to 0.1 ms on vLLM",
    ),
    Row("gen_phase_s", "log", 2.0, 1.0, f"{_VERL}: seconds"),
    Row("reward_phase_s", "log", 0.05, 2.0, "assumed: little, or seconds of a reward model that is woken"),
    Row("gen_phase_s", "weights stay", 0.5, 1.5, "assumed: the KV cache alone comes back, or nothing"),
    Row("gen_phase_s", "awake", 0.05, 1.5, "assumed: requests are prepared and sent"),
    *(
        Row(f"{stage}_s", "log", 1.0, 1.2, f"{_VERL}: 1 to 2 s of loading what was offloaded")
        for stage in ("old_log_prob", "ref", "values", "update_critic", "update_actor")
    ),
    Row("adv_s", "log", 0.05, 1.5, f"{_VERL}: 0.06 to 0.2 s"),
    Row("update_weights_s", "log", 0.3, 1.2, "assumed"),
    Row("other_s", "log", 0.5, 1.5, f"{_VERL}: 0.04 to 0.27 s; {_GPG}: 0.15 to 0.3 s"),
)
"""Edited here and nowhere else."""

_OF_EXPERTS: Final = frozenset(row.term for row in TABLE if row.where == "experts")
_OF_KERNELS: Final = frozenset(row.term for row in TABLE if row.where == "no kernel")
_PLACE_OF: Final = {
    "decode": "gen",
    "score": "reward",
    **dict.fromkeys(("gen_phase_s", "first_step_s", "other_s"), "phases"),
}


def priors_of(
    evidence: Mapping[str, Evidence],
    host: str | None = None,
    sleeps: bool = False,
    device_measured: bool = True,
    trains_experts: bool = False,
) -> tuple[Prior, ...]:
    """Priors of the terms on a cost model, in the table's order.

    ``evidence``: of its places (a missing one takes no time and has no prior; what is given is exact);
    ``host``: preset of the rollout engine, ``own`` for overheads given inline; ``sleeps``: the engine gives
    its memory to training and is woken for every phase; ``device_measured``: kernels of the devices were,
    by somebody; ``trains_experts``: the actor is a mixture of experts.
    """
    return tuple(
        Prior(row.term, row.median, row.sigma, row.source)
        for row in TABLE
        if row.where in _known(row.term, evidence, host, sleeps, device_measured, trains_experts)
    )


def median_terms(priors: Iterable[Prior], stated: CostTerms) -> CostTerms:
    """The machine that nothing was measured of: what is ``stated``, and the median of each term that is
    not."""
    known = stated.stated()
    return stated.model_copy(update={prior.term: prior.median for prior in priors if prior.term not in known})


def log_priors(known: Iterable[Prior] = (), *, also: Iterable[str] = ()) -> dict[str, Prior]:
    """A prior of every term that a log of measured seconds can identify: ``known`` where they hold, else wide
    ones; before both the rows of ``also`` (``Row.where``), the last first."""
    found = _rows("log") | {prior.term: prior for prior in known}
    for where in also:
        found |= _rows(where)
    return found


def _rows(where: str) -> dict[str, Prior]:
    return {
        row.term: Prior(row.term, row.median, row.sigma, row.source) for row in TABLE if row.where == where
    }


def _known(
    term: str,
    evidence: Mapping[str, Evidence],
    host: str | None,
    sleeps: bool,
    device_measured: bool,
    trains_experts: bool,
) -> tuple[str, ...]:
    """Rows of a term that hold."""
    kind = evidence.get(_PLACE_OF.get(term, term))
    if kind is None:
        return ()
    if term in ("host", "first_step_s") and kind == "assumed":
        return (host or "own",)
    if kind == "assumed" and term == "gen_phase_s":
        return ("sleeps",) if sleeps else ()
    if kind == "assumed" and term == "other_s":
        return ("any",)
    if kind == "assumed" and not device_measured and term in _OF_KERNELS:
        return ("no kernel",)
    if kind in ("assumed", "composed") and trains_experts and term in _OF_EXPERTS:
        return ("experts",)
    return (kind,)
