"""A scenario file for a model on so many GPUs, written for a person who will go on with it."""

from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, product
from typing import Final

from oppo_sim.costs.devices import find_device
from oppo_sim.costs.models import find_model
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.yaml_text import parse_yaml, show_value

ENGINES: Final = {
    "vllm": "vLLM with CUDA graphs",
    "vllm-async": "vLLM as an asynchronous server, which verl runs",
    "vllm-eager": "vLLM with enforce_eager",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "generate": "generate() of transformers, one padded batch",
}
"""Host presets, in words."""
TRACE: Final = "reason_r1distill_math"
DEFAULT_ENGINE: Final = {"verl": "vllm-async", "slime": "sglang", "TRL": "generate"}
"""What a framework generates with; vLLM otherwise."""
_DEGREES: Final = (1, 2, 4, 8, 16, 32)
_NODE: Final = 8
"""GPUs of a node of an HGX or DGX machine, and of most others with eight links."""
_NODES: Final = {"GB200": 72, "GB300": 72}
"""GPUs that NVLink joins, where they are more (NVL72)."""
_WITHOUT_CRITIC: Final = ("NeMo RL", "prime-rl")
"""Frameworks that train none."""
_ASYNCHRONOUS: Final = ("prime-rl",)
"""Frameworks that generate on GPUs of their own, whatever is asked."""


@dataclass(frozen=True)
class _Shape:
    """What is tried until it fits."""

    degree: int
    """Of tensor parallelism."""
    saving: bool
    """Activations recomputed, an engine that sleeps."""
    critic: bool
    """And a reward model; else rules check the answers."""
    eight_bits: bool
    """Rollouts in fp8."""


@dataclass(frozen=True)
class Wanted:
    """What a scenario is asked for by."""

    model: str
    gpus: int
    device: str
    engine: str
    framework: str | None = None
    """Name of a framework, ``verl``."""
    no_critic: bool = False
    """GRPO and others that train none; rules check the answers."""
    lora_rank: int = 0
    """Of adapters that alone are trained; 0: none."""


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
    if _apart(wanted) and wanted.gpus % 2:
        raise OppoError(
            f"{wanted.framework} trains and generates on GPUs of their own, half of them each here: give an"
            f" even number, not {wanted.gpus}"
        )
    part = wanted.gpus // 2 if _apart(wanted) else wanted.gpus
    node = _node(wanted)
    degrees = [degree for degree in _DEGREES if part % degree == 0]
    inside = [degree for degree in degrees if degree <= node]
    beyond = [degree for degree in degrees if degree % node == 0 and degree > node and not _static(wanted)]
    critics = (False,) if wanted.no_critic or wanted.framework in _WITHOUT_CRITIC else (True, False)
    precisions = (False, True) if find_device(wanted.device).fp8_flops and not _static(wanted) else (False,)
    ways = (product(precisions, critics, (False, True), some) for some in (inside, beyond))
    for eight_bits, critic, saving, degree in chain.from_iterable(ways):
        text = _text(wanted, _Shape(degree, saving, critic, eight_bits), file)
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
        f"{wanted.model} does not fit on {wanted.gpus} × {wanted.device} with {_where(wanted)}"
        f"{either}: take more of them{adapters}; with the most tensor parallelism:"
        f" {(of_memory or reasons)[-1]}"
    )


def _apart(wanted: Wanted) -> bool:
    return wanted.framework in _ASYNCHRONOUS


def _static(wanted: Wanted) -> bool:
    return wanted.engine == "generate"


def _weight_sync(wanted: Wanted) -> str:
    """How new weights come to the engine: a line of the file's training section."""
    if _apart(wanted):
        return "{kind: online_refit} # sent to the other GPUs; the rate is what frameworks report"
    if _static(wanted):
        return "{kind: shared} # generate() uses the trained weights themselves"
    return "{kind: reshard} # the engine on the same GPUs loads them; the rate is what frameworks report"


def _where(wanted: Wanted) -> str:
    return "half of the GPUs for generation" if _apart(wanted) else "everything on the same GPUs"


def _node(wanted: Wanted) -> int:
    """GPUs of a node."""
    return _NODES.get(find_device(wanted.device).name, _NODE)


def _ranks(wanted: Wanted, degree: int) -> str:
    """What an engine over several nodes is divided into: experts among all GPUs, attention within a node, or,
    with latents, which tensor parallelism does not divide, whole on each."""
    shape, node = find_model(wanted.model), _node(wanted)
    if degree <= node or not shape.num_experts or shape.num_experts % degree:
        return ""
    attention = degree if shape.latent else degree // node
    return f", expert_parallel: {degree}, attention_data_parallel: {attention}"


def _text(wanted: Wanted, shape: _Shape, file: str) -> str:
    degree = shape.degree
    apart = _apart(wanted)
    part = wanted.gpus // 2 if apart else wanted.gpus
    device, replicas = find_device(wanted.device), part // degree
    model = show_value(wanted.model, 1000)
    static = _static(wanted)
    kv = f"auto # what the weights leave of {device.hbm_bytes / 2**30:.0f} GiB"
    kv = "null # a static batch" if static else kv
    adapters = f"  lora_rank: {wanted.lora_rank} # adapters alone are trained\n" if wanted.lora_rank else ""
    if wanted.lora_rank and wanted.framework == "TRL":
        adapters += "  lora_merge: true # TRL merges them and sends all weights\n"
    recomputed = "  gradient_checkpointing: true # it would not fit without\n" if shape.saving else ""
    sleeps = ", sleep_mode: true" if shape.saving else ""
    dtype = ", dtype: fp8" if shape.eight_bits else ""
    why = ["in 16 bits the model would not fit"] if shape.eight_bits else []
    named = f"{wanted.gpus} × {device.name}, {wanted.model.rsplit('/', 1)[-1]}"
    told = "" if wanted.framework is None else f" --framework {show_value(wanted.framework, 100)}"
    node = _node(wanted)
    within = min(degree, node)  # of what does not span nodes
    ranks = _ranks(wanted, degree)
    if degree > node:
        why.append(f"{degree // node} nodes an engine: it does not fit into one")
    nodes = f"  num_gpus_per_node: {node} # assumed\n" if wanted.gpus > node else ""
    trl = wanted.framework == "TRL"
    epochs = "1 # assumed: the default of verl, OpenRLHF, slime; TRL's PPO: 4"
    if trl:
        epochs = "4 # the default of TRL's PPO" if shape.critic else "1 # num_iterations of TRL's GRPO"
    placement = (
        "placement: # everything on the same GPUs; training: separate gives generation its own, for async"
    )
    placement += " policies\n  training: rollout"
    placed = "  offload: true # training state leaves the GPUs while the engines run\n"
    policy = "  name: sequential # generate, score, train; what oppo tune compares with\n"
    kept = "  clear_kv_cache_on_weight_sync: false # it keeps them\n" if apart else ""
    if apart:
        placement = "placement:\n  training: separate # generation goes on meanwhile"
        placed = f"  num_gpus: {wanted.gpus - part} # assumed: half of them\n"
        policy = "  name: async # generation runs ahead of training\n  max_staleness: 1 # assumed\n"
    if shape.critic:
        scored_on, workers = "rollout", replicas
        critic = "separate # assumed: a critic as large as the actor; none for GRPO"
        scorer = f"{{kind: model, model: {model}, tensor_parallel: {within}}}"
        scorer += " # assumed: as large as the actor; kind: verifier for rules"
    else:
        scored_on, workers = "separate", 1
        no_critic = wanted.framework in _WITHOUT_CRITIC
        asked = "as asked: GRPO and others train none" if wanted.no_critic else "it would not fit with one"
        critic = f"none # {f'{wanted.framework} trains none' if no_critic else asked}"
        scorer = "{kind: verifier, fixed_s: 0.05, per_token_s: 1.0e-6}"
        scorer += " # assumed: rules check the answers; kind: model for a reward model"
    reasons = f" # {'; '.join(why)}" if why else ""
    return f"""\
# {named}: {_where(wanted)}, {ENGINES[wanted.engine]}.
# Lines marked "assumed" are for you to change. All fields: oppo scenario show --schema
# Next: oppo compare {file}, then oppo tune {file}{told}
# Own lengths: --trace FILE. Own seconds from a training log: oppo fit LOG --scenario {file}
format: oppo-scenario/1
name: my-run
description: {named}; lengths of a shipped trace, seconds predicted.
steps: 100
warmup_steps: 10 # simulated, but kept apart in summaries

rollout_batch_size: 256 # assumed: B, rollouts trained a step
group_size: 1 # assumed: samples of one prompt; for more the trace must have as many (oppo trace synth --like)
max_prompt_length: 1024 # assumed, tokens
max_response_length: 8192 # assumed, tokens; longer ones of the trace are cut

trace:
  name: {TRACE} # assumed: an R1-distilled 7B model on mathematics (oppo trace list)
  sampling: resample
  prompt_length: 128 # prompts of this trace are not recorded; assumed

cluster:
  num_gpus: {wanted.gpus}
{nodes}
rollout:
  num_replicas: {replicas} # {part} GPUs, {degree} each: the least tensor parallelism that fits
  batching: {"static # one padded batch" if static else "continuous"}
  kv_capacity_tokens: {kv}
{kept}
{placement}
  scoring: {scored_on}
  interference: 1.0 # not measured

scoring:
  num_workers: {workers}

training:
  num_ppo_epochs: {epochs}
  critic: {critic}
{placed}  tensor_parallel: {within}
{adapters}{recomputed}  weight_sync: {_weight_sync(wanted)}

costs:
  kind: roofline # composed (measured kernels) is closer where there are tables: docs/costs.md
  device: {device.name} # {device.source}
  actor_model: {model} # shape from its public config.json
  reward_model: {scorer}
  rollout: {{host: {wanted.engine}, tensor_parallel: {degree}{ranks}{sleeps}{dtype}}}{reasons}

policy:
{policy}"""
