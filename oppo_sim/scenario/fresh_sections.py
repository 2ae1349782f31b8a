"""The text of a fresh scenario file, section by section."""

from dataclasses import dataclass
from typing import Final

from oppo_sim.costs.devices import find_device
from oppo_sim.costs.models import find_model
from oppo_sim.scenario.yaml_text import show_value

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
_NODE: Final = 8
"""GPUs of a node of an HGX or DGX machine, and of most others with eight links."""
_NODES: Final = {"GB200": 72, "GB300": 72}
"""GPUs that NVLink joins, where they are more (NVL72)."""
_WITHOUT_CRITIC: Final = ("NeMo RL", "prime-rl")
"""Frameworks that train none."""
_ASYNCHRONOUS: Final = {
    "prime-rl": "1 # assumed",
    "AReaL": "2 # max_head_offpolicyness of its examples; 0 trains on the newest weights alone",
}
"""Frameworks that generate on GPUs of their own, whatever is requested, and how stale they train."""
_KEEPS_KV: Final = ("prime-rl",)
_ENGINES_OWN: Final = ("prime-rl",)
"""Frameworks whose trainer computes no probabilities but those that it trains on."""


@dataclass(frozen=True)
class Wanted:
    """What a new scenario is requested by."""

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

    @property
    def apart(self) -> bool:
        """Generation has GPUs of its own."""
        return self.framework in _ASYNCHRONOUS

    @property
    def static(self) -> bool:
        """One padded batch at a time."""
        return self.engine == "generate"

    @property
    def trains_critic(self) -> bool:
        """The framework can."""
        return self.framework not in _WITHOUT_CRITIC

    @property
    def rollout_gpus(self) -> int:
        """GPUs that generate."""
        return self.gpus // 2 if self.apart else self.gpus

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return _NODES.get(find_device(self.device).name, _NODE)

    @property
    def where(self) -> str:
        """In words, where what runs."""
        return "half of the GPUs for generation" if self.apart else "everything on the same GPUs"


@dataclass(frozen=True)
class Shape:
    """What is tried until it fits."""

    degree: int
    """Of tensor parallelism."""
    saving: bool
    """Activations recomputed, an engine that sleeps."""
    stays: bool
    """Engine and training state share the memory, as with TRL's vLLM: neither leaves."""
    critic: bool
    """And a reward model; else rules check the answers."""
    eight_bits: bool
    """Rollouts in fp8."""


def scenario_text(wanted: Wanted, shape: Shape, file: str) -> str:
    """A whole file; ``file``: its name, for its comments."""
    parts = (
        _head(wanted, file),
        _batch(),
        _cluster(wanted),
        _rollout(wanted, shape),
        _placement(wanted, shape),
        _training(wanted, shape),
        _costs(wanted, shape),
        _policy(wanted),
    )
    return "\n".join(parts)


def _head(wanted: Wanted, file: str) -> str:
    framework = "" if wanted.framework is None else f" --framework {show_value(wanted.framework, 100)}"
    named = f"{wanted.gpus} × {find_device(wanted.device).name}, {wanted.model.rsplit('/', 1)[-1]}"
    return f"""\
# {named}: {wanted.where}, {ENGINES[wanted.engine]}.
# Lines marked "assumed" are for you to change. All fields: oppo scenario show --schema
# Next: oppo compare {file}, then oppo tune {file}{framework}
# Own lengths: --trace FILE. Own seconds from a training log: oppo fit LOG --scenario {file}
format: oppo-scenario/1
name: my-run
description: {named}; lengths of a shipped trace, seconds predicted.
steps: 100
warmup_steps: 10 # simulated, but kept apart in summaries
"""


def _batch() -> str:
    return f"""\
rollout_batch_size: 256 # assumed: B, rollouts trained a step
group_size: 1 # assumed: samples of one prompt; for more the trace must have as many (oppo trace synth --like)
max_prompt_length: 1024 # assumed, tokens
max_response_length: 8192 # assumed, tokens; longer ones of the trace are cut

trace:
  name: {TRACE} # assumed: an R1-distilled 7B model on mathematics (oppo trace list)
  sampling: resample
  prompt_length: 128 # prompts of this trace are not recorded; assumed
"""


def _cluster(wanted: Wanted) -> str:
    nodes = f"  num_gpus_per_node: {wanted.node} # assumed\n" if wanted.gpus > wanted.node else ""
    return f"""\
cluster:
  num_gpus: {wanted.gpus}
{nodes}"""


def _rollout(wanted: Wanted, shape: Shape) -> str:
    part, degree = wanted.rollout_gpus, shape.degree
    kv = f"auto # what the weights leave of {find_device(wanted.device).hbm_bytes / 2**30:.0f} GiB"
    kept = "  clear_kv_cache_on_weight_sync: false # it keeps them\n" if wanted.framework in _KEEPS_KV else ""
    return f"""\
rollout:
  num_replicas: {part // degree} # {_gpus(part)}, {degree} each: the least tensor parallelism that fits
  batching: {"static # one padded batch" if wanted.static else "continuous"}
  kv_capacity_tokens: {"null # a static batch" if wanted.static else kv}
{kept}"""


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def _placement(wanted: Wanted, shape: Shape) -> str:
    training = (
        "placement: # everything on the same GPUs; training: separate gives generation its own, for async"
        " policies\n  training: rollout"
    )
    if wanted.apart:
        training = "placement:\n  training: separate # generation goes on meanwhile"
    return f"""\
{training}
  scoring: {"rollout" if shape.critic else "separate"}
  interference: 1.0 # not measured

scoring:
  num_workers: {wanted.rollout_gpus // shape.degree if shape.critic else 1}
"""


def _training(wanted: Wanted, shape: Shape) -> str:
    epochs = "1 # assumed: the default of verl, OpenRLHF, slime; TRL's PPO: 4"
    if wanted.framework == "TRL":
        epochs = "4 # the default of TRL's PPO" if shape.critic else "1 # num_iterations of TRL's GRPO"
    placed = "  offload: true # training state leaves the GPUs while the engines run\n"
    if shape.stays or (wanted.framework == "TRL" and wanted.static):
        placed = ""  # generate() runs beside it
    if wanted.apart:
        placed = f"  num_gpus: {wanted.gpus - wanted.rollout_gpus} # assumed: half of them\n"
    adapters = f"  lora_rank: {wanted.lora_rank} # adapters alone are trained\n" if wanted.lora_rank else ""
    if wanted.lora_rank and wanted.framework == "TRL":
        adapters += "  lora_merge: true # TRL merges them and sends all weights\n"
    if wanted.framework == "TRL" and wanted.gpus == 1:
        adapters += "  sharding: none # one GPU: no FSDP, no DeepSpeed\n"
    forwards = ""
    if wanted.framework in _ENGINES_OWN:
        forwards = (
            f"  old_log_prob: behaviour # {wanted.framework} takes the engine's\n"
            f"  ref: false # {wanted.framework} computes none\n"
        )
    elif wanted.framework == "TRL" and not shape.critic:
        forwards = "  ref: false # beta of TRL's GRPO is 0; true with a KL term\n"
    recomputed = "  gradient_checkpointing: true # it would not fit without\n" if shape.saving else ""
    return f"""\
training:
  num_ppo_epochs: {epochs}
  critic: {_critic(wanted, shape)}
{forwards}{placed}  tensor_parallel: {min(shape.degree, wanted.node)}
{adapters}{recomputed}  weight_sync: {_weight_sync(wanted, shape)}
"""


def _critic(wanted: Wanted, shape: Shape) -> str:
    if shape.critic:
        return "separate # assumed: a critic as large as the actor; none for GRPO"
    if not wanted.trains_critic:
        return f"none # {wanted.framework} trains none"
    why = "as asked: GRPO and others train none" if wanted.no_critic else "it would not fit with one"
    return f"none # {why}"


def _weight_sync(wanted: Wanted, shape: Shape) -> str:
    """How new weights come to the engine."""
    if shape.stays and wanted.gpus == 1:
        return "{kind: reshard, load_bytes_per_s: 5.0e+10} # assumed: copied within the process and the GPU"
    if wanted.apart:
        return "{kind: online_refit} # sent to the other GPUs; the rate is what frameworks report"
    if wanted.static:
        return "{kind: shared} # generate() uses the trained weights themselves"
    return "{kind: reshard} # the engine on the same GPUs loads them; the rate is what frameworks report"


def _costs(wanted: Wanted, shape: Shape) -> str:
    device, model = find_device(wanted.device), show_value(wanted.model, 1000)
    awake = "  terms: {gen_phase_s: 0} # the engine does not sleep (vllm_enable_sleep_mode): nothing wakes\n"
    return f"""\
costs:
  kind: roofline # composed (measured kernels) is closer where there are tables: docs/costs.md
  device: {device.name} # {device.source}
  actor_model: {model} # shape from its public config.json
  reward_model: {_reward_model(wanted, shape, model)}
  rollout: {_engine(wanted, shape)}
{awake if shape.stays else ""}"""


def _reward_model(wanted: Wanted, shape: Shape, model: str) -> str:
    if not shape.critic:
        return (
            "{kind: verifier, fixed_s: 0.05, per_token_s: 1.0e-6}"
            " # assumed: rules check the answers; kind: model for a reward model"
        )
    # A reward model does not span nodes.
    return (
        f"{{kind: model, model: {model}, tensor_parallel: {min(shape.degree, wanted.node)}}}"
        " # assumed: as large as the actor; kind: verifier for rules"
    )


def _engine(wanted: Wanted, shape: Shape) -> str:
    degree, node = shape.degree, wanted.node
    # generate() runs on the trained weights: nothing of its own could leave.
    sleeps = ", sleep_mode: true" if shape.saving and not shape.stays and not wanted.static else ""
    if shape.stays:
        sleeps = ", gpu_memory_utilization: 0.3"
    dtype = ", dtype: fp8" if shape.eight_bits else ""
    why = ["in 16 bits the model would not fit"] if shape.eight_bits else []
    if degree > node:
        why.append(f"{degree // node} nodes an engine: it does not fit into one")
    if shape.stays:
        why.append("0.3 is TRL's default: training keeps its memory meanwhile")
    reasons = f" # {'; '.join(why)}" if why else ""
    ranks = _ranks(wanted, degree)
    return f"{{host: {wanted.engine}, tensor_parallel: {degree}{ranks}{sleeps}{dtype}}}{reasons}"


def _ranks(wanted: Wanted, degree: int) -> str:
    """What an engine over several nodes is divided into: experts among all GPUs, attention within a node, or,
    with latents, which tensor parallelism does not divide, whole on each."""
    shape, node = find_model(wanted.model), wanted.node
    if degree <= node or not shape.num_experts or shape.num_experts % degree:
        return ""
    attention = degree if shape.latent else degree // node
    return f", expert_parallel: {degree}, attention_data_parallel: {attention}"


def _policy(wanted: Wanted) -> str:
    if wanted.framework in _ASYNCHRONOUS:
        return f"""\
policy:
  name: async # generation runs ahead of training
  max_staleness: {_ASYNCHRONOUS[wanted.framework]}
"""
    return """\
policy:
  name: sequential # generate, score, train; what oppo tune compares with
"""
