"""GPUs of generation and of training, in the words of each framework: told where they are not the same ones.

What shares its GPUs with training needs no knob: that is how each framework runs by itself.
"""

from collections.abc import Callable
from functools import wraps
from typing import Final

from oppo_sim.tune.frameworks.facts import Line, Recommended, none

GENERATION: Final = "prerequisite: devices of generation"
TRAINING: Final = "prerequisite: devices of training"
ENGINE: Final = "GPUs of one engine"


def _apart(words: Callable[[Recommended, int], list[Line]]) -> Callable[[Recommended], list[Line]]:
    """``words`` where training has so many GPUs of its own; nothing where it has those of generation."""

    @wraps(words)
    def told(it: Recommended) -> list[Line]:
        return [] if it.training_gpus is None else [*words(it, it.training_gpus), *_other_ranks(it)]

    return told


def ranks_of_engine(it: Recommended) -> tuple[int, int]:
    """Into how many ranks an engine divides attention and experts."""
    engine = getattr(it.scenario.costs, "rollout", None)
    return getattr(engine, "attention_data_parallel", 1), getattr(engine, "expert_parallel", 1)


def _other_ranks(it: Recommended) -> list[Line]:
    """That the ranks inside an engine are yours to tell."""
    attention, experts = ranks_of_engine(it)
    degree = it.scenario.split.tensor_parallel
    found = []
    if attention > 1:
        found.append(
            none(
                f"{attention} ranks of attention in an engine of {_gpus(degree)}: of one rank it is"
                f" {degree // attention}, which vLLM takes for the tensor parallel size"
            )
        )
    if experts > 1:
        found.append(none(f"{experts} ranks of experts in an engine: tell it the engine's own setting"))
    return found


@_apart
def no_knob(it: Recommended, _training: int) -> list[Line]:
    """For a framework that cannot be told."""
    gpus = it.scenario.split.rollout_gpus
    return [none(f"no knob for this here: place generation on {_gpus(gpus)}, apart from training")]


def on_nodes(it: Recommended, gpus: int, knobs: tuple[str, str], what: str, of: str) -> list[Line]:
    """``knobs`` (nodes, GPUs of a node) for so many GPUs; a sentence where they fill no whole nodes."""
    shape = it.nodes_of(gpus)
    if shape is None:
        return [_no_whole_nodes(gpus, of)]
    return [Line(knob, value, what) for knob, value in zip(knobs, shape, strict=True)]


def _no_whole_nodes(gpus: int, of: str) -> Line:
    return none(f"{gpus} GPUs of {of} do not fill whole nodes, which it counts")


@_apart
def openrlhf_devices(it: Recommended, training: int) -> list[Line]:
    """``colocate_all`` puts all models but the engines on the GPUs of the actor."""
    split = it.scenario.split
    found = [
        Line("--vllm.num_engines", split.replicas, "prerequisite: engines of generation"),
        Line("--vllm.tensor_parallel_size", split.tensor_parallel, ENGINE),
    ]
    if not it.beside:
        what = "--actor.num_gpus_per_node, --critic.num_gpus_per_node and --ref.num_gpus_per_node"
        why = "without --train.async_enable, --train.colocate_all puts generation on the GPUs of training"
        return [*found, none(f"{why}: leave it out, and place training on {_gpus(training)} with {what}")]
    found.append(
        Line("--train.colocate_all", True, "actor, critic, reference and reward model share the others")
    )
    if it.nodes_of(training) is None:
        return [*found, _no_whole_nodes(training, "training")]
    for model in ("actor", "critic", "ref", "reward"):
        knobs = f"--{model}.num_nodes", f"--{model}.num_gpus_per_node"
        found += on_nodes(it, training, knobs, TRAINING, "training")
    if split.scoring == "rollout":
        found.append(none("the reward model is on the GPUs of training there; here: on those of generation"))
    elif isinstance(split.scoring, int):
        here = f"here: on {_gpus(split.scoring)} of its own"
        found.append(none(f"the reward model is on the GPUs of training there; {here}"))
    return found


@_apart
def slime_devices(it: Recommended, training: int) -> list[Line]:
    """The critic has the GPUs of the actor."""
    split = it.scenario.split
    knobs = "--actor-num-nodes", "--actor-num-gpus-per-node"
    return [
        Line("--rollout-num-gpus", split.rollout_gpus, GENERATION),
        Line("--rollout-num-gpus-per-engine", split.tensor_parallel, ENGINE),
        *on_nodes(it, training, knobs, f"{TRAINING}, critic included", "training"),
    ]


@_apart
def nemo_devices(it: Recommended, _training: int) -> list[Line]:
    """``num_nodes`` only where it is more than one: of a part of a node it must stay unset."""
    section = "policy.generation.colocated"
    knobs = f"{section}.resources.num_nodes", f"{section}.resources.gpus_per_node"
    found = on_nodes(it, it.scenario.split.rollout_gpus, knobs, GENERATION, "generation")
    return [
        Line(f"{section}.enabled", False, "prerequisite: devices of its own"),
        *(line for line in found if (line.knob, line.value) != (knobs[0], 1)),
        Line("policy.generation.vllm_cfg.tensor_parallel_size", it.scenario.split.tensor_parallel, ENGINE),
    ]


@_apart
def areal_devices(it: Recommended, training: int) -> list[Line]:
    """A backend says its GPUs: ``d`` replicas of ``t``. A critic has GPUs of its own unless it is told."""
    split = it.scenario.split
    engine = f"vllm:d{split.replicas}t{split.tensor_parallel}"
    trainer = f"{TRAINING}; or megatron, archon, as yours is"
    found = [
        Line("rollout.backend", engine, f"{GENERATION}: {split.replicas} engines"),
        Line("actor.backend", f"fsdp:d{training}", trainer),
    ]
    if it.scenario.training.critic == "separate":
        where = "prerequisite: the critic is on the devices of the actor"
        found += [
            Line("critic.backend", f"fsdp:d{training}", trainer),
            Line("critic.scheduling_strategy.type", "colocation", where),
            Line("critic.scheduling_strategy.target", "actor", where),
        ]
    return found


@_apart
def roll_devices(it: Recommended, training: int) -> list[Line]:
    """Lists of devices, numbered over all nodes: training first."""
    split = it.scenario.split
    trained = f"list(range(0,{training}))"
    generating = f"list(range({training},{training + split.rollout_gpus}))"
    critic = ("critic",) if it.scenario.training.critic == "separate" else ()
    return [
        Line("actor_infer.device_mapping", generating, GENERATION),
        Line("actor_infer.num_gpus_per_worker", split.tensor_parallel, ENGINE),
        *(
            Line(f"{model}.device_mapping", trained, TRAINING)
            for model in ("actor_train", *critic, "reference")
        ),
    ]


@_apart
def prime_devices(it: Recommended, training: int) -> list[Line]:
    """Of one node; of more, by whole nodes."""
    split = it.scenario.split
    found = [Line("inference.vllm.tensor_parallel_size", split.tensor_parallel, ENGINE)]
    per_node = it.scenario.cluster.num_gpus_per_node
    if per_node is None or training + split.rollout_gpus <= per_node:
        return [
            Line("deployment.num_infer_gpus", split.rollout_gpus, GENERATION),
            Line("deployment.num_train_gpus", training, TRAINING),
            *found,
        ]
    for gpus, of in ((split.rollout_gpus, "generation"), (training, "training")):
        if gpus % per_node:
            return [*found, _no_whole_nodes(gpus, of)]
    nodes = split.rollout_gpus // per_node
    return [
        Line("deployment.type", "multi_node", "prerequisite: it counts whole nodes"),
        Line("deployment.num_infer_nodes", nodes, GENERATION),
        Line("deployment.num_train_nodes", training // per_node, TRAINING),
        *found,
    ]


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
