"""A scenario file for a model on so many GPUs, written for a person who will go on with it."""

from difflib import get_close_matches
from itertools import chain, product
from typing import Final

from oppo_sim.costs.devices import find_device
from oppo_sim.costs.models import find_model
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.fresh_sections import ENGINES, Shape, Wanted, scenario_text
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.yaml_text import parse_yaml

DEFAULT_ENGINE: Final = {"verl": "vllm-async", "slime": "sglang", "AReaL": "sglang", "TRL": "generate"}
"""What a framework generates with; vLLM otherwise."""
_DEGREES: Final = (1, 2, 4, 8, 16, 32)


def check_engine(name: str) -> None:
    """Raises OppoError for one that is not known."""
    if name not in ENGINES:
        close = get_close_matches(name.lower(), ENGINES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"choose {', '.join(ENGINES)}"
        raise OppoError(f"there is no engine '{name}': {hint}")


def fresh_text(wanted: Wanted, file: str) -> str:
    """The text of a scenario that runs: everything on the same GPUs, with the least tensor parallelism that
    fits, if need be with activations recomputed and an engine that sleeps while others compute, then without
    a critic, then with rollouts in fp8, and only then with engines over several nodes. ``file``: what it will
    be called, for its comments. Raises OppoError for an unknown device, model or engine, and where the model
    does not fit."""
    find_device(wanted.device)
    find_model(wanted.model)
    check_engine(wanted.engine)
    reasons: list[OppoError] = []
    if wanted.apart and wanted.gpus % 2:
        raise OppoError(
            f"{wanted.framework} trains and generates on GPUs of their own, half of them each here: give an"
            f" even number, not {wanted.gpus}"
        )
    node = wanted.node
    degrees = [degree for degree in _DEGREES if wanted.rollout_gpus % degree == 0]
    inside = [degree for degree in degrees if degree <= node]
    beyond = [degree for degree in degrees if degree % node == 0 and degree > node and not wanted.static]
    critics = (True, False) if wanted.trains_critic and not wanted.no_critic else (False,)
    precisions = (False, True) if find_device(wanted.device).fp8_flops and not wanted.static else (False,)
    # TRL's vLLM stays, and so does its training state; where both do not fit, they have to take turns.
    vllm = wanted.framework == "TRL" and not wanted.static and not wanted.apart
    staying = (True, False) if vllm else (False,)
    ways = (product(precisions, critics, (False, True), some, staying) for some in (inside, beyond))
    for eight_bits, critic, saving, degree, stays in chain.from_iterable(ways):
        text = scenario_text(wanted, Shape(degree, saving, stays, critic, eight_bits), file)
        try:
            build_setup(scenario_from_plain(parse_yaml(text, file), where=file))
        except OppoError as error:
            reasons.append(error)
            continue
        return text
    of_memory = [reason for reason in reasons if "does not divide" not in str(reason)]
    either = ", without a critic either" if critics[0] else ""
    adapters = "" if wanted.lora_rank else ", or adapters alone (--lora-rank 16)"
    raise OppoError(
        f"{wanted.model} does not fit on {wanted.gpus} × {wanted.device} with {wanted.where}"
        f"{either}: take more of them{adapters}; with the most tensor parallelism:"
        f" {(of_memory or reasons)[-1]}"
    )
