"""verl, V1 trainers. Facts from its ``trainer/ppo/v1`` (0.9.1): the pool holds B and the warm-up batches, a
fraction of a batch is rounded down to whole ``gen_batch_size``; a trajectory of staleness s spans s + 1
versions, and ``wait`` samples nothing while one in flight has reached the threshold."""

from math import ceil, floor, gcd

from oppo_sim.tune.frameworks.devices import ENGINE, GENERATION, TRAINING, no_knob, on_nodes, ranks_of_engine
from oppo_sim.tune.frameworks.facts import (
    KV_ANEW,
    Block,
    Line,
    Recommended,
    group_of,
    lacking,
    max_num_seqs,
    none,
)
from oppo_sim.tune.frameworks.forms import hydra

V1 = "trainer.use_v1"
MODE = "trainer.v1.trainer_mode"
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"
STRATEGY = "trainer.v1.sampler.max_off_policy_strategy"
ROLLOUT = "actor_rollout_ref.rollout"
POOL = "reward.reward_model.enable_resource_pool"


def lines(it: Recommended) -> list[Line]:
    """The overrides."""
    found = [
        Line("data.train_batch_size", it.prompts, "B in prompts", "rollout_batch_size"),
        group_of(it, f"{ROLLOUT}.n"),
        Line("data.max_response_length", it.scenario.max_response_length, "tokens", "max_response_length"),
        *max_num_seqs(it, f"{ROLLOUT}.max_num_seqs"),
    ]
    if it.schedule == "one-step-off":
        return [*found, *_one_step_off(it), *lacking(it, scores="batch")]
    if it.schedule == "async":
        found += _separate(it)
    else:
        what = "prerequisite: the trainers that can generate ahead; true by default"
        found.append(Line(V1, True, what))
        found += _ahead(it) if it.carries else [Line(MODE, "sync", "generate, then train")]
        found += no_knob(it)
    if it.carries and not it.scenario.rollout.clear_kv_cache_on_weight_sync:
        found.append(none(KV_ANEW))
    return [*found, *_scoring(it), *lacking(it, scores="rollout", deferrals=True)]


def blocks(it: Recommended, found: list[Line]) -> list[Block]:
    """The command."""
    one_off = it.schedule == "one-step-off"
    module = "verl.experimental.one_step_off_policy.main_ppo" if one_off else "verl.trainer.main_ppo"
    return [Block("after your own overrides", hydra(f"python3 -m {module}", found))]


def warmup_batches(extra: int, prompts: int) -> tuple[float, int]:
    """(``num_warmup_batches``, ``gen_batch_size``) that keep ``extra`` prompts ahead of batches of so many.

    The shortest decimal that the trainer's ⌊value · prompts / gen_batch_size⌋ makes exactly that many, with
    these chunks and with single prompts.
    """
    chunk = gcd(extra, prompts)
    for digits in range(13):
        first = ceil(extra / prompts * 10**digits - 1e-9)
        for value in (first / 10**digits, (first + 1) / 10**digits):  # a product may fall short of its whole
            if floor(value * prompts / chunk) == extra // chunk and floor(value * prompts) == extra:
                return (int(value) if value == int(value) else value), chunk
    raise AssertionError((extra, prompts))  # pragma: no cover - twelve digits suffice


def _ahead(it: Recommended) -> list[Line]:
    """Synchronous training with more prompts in flight than a batch."""
    what = "unfinished responses are kept and resubmitted after the update"
    found = [Line(MODE, "colocate_async", what)]
    if it.overcommit is not None:
        value, chunk = warmup_batches(it.extra_prompts, it.prompts)
        knob, what = (
            "trainer.v1.colocate_async.num_warmup_batches",
            f"Δ of {it.overcommit} rollouts, in batches",
        )
        if chunk != it.prompts:
            found.append(
                Line("data.gen_batch_size", chunk, "prerequisite: Δ is rounded down to whole ones of these")
            )
        found.append(Line(knob, value, what, "policy.overcommit"))
        if chunk != it.prompts and it.scenario.dynamic_sampling.enable:
            found.append(
                none(
                    "filter_groups generates batches of data.gen_batch_size, too: keep the run's own, and Δ"
                    " is rounded down to whole ones of that"
                )
            )
    if it.max_deferrals is None:
        found.append(Line(THRESHOLD, None, "nothing is dropped or waited for; the default is 8"))
        return found
    what = "versions that a response may span: one more than the deferrals"
    return [*found, Line(THRESHOLD, it.max_deferrals + 1, what), Line(STRATEGY, "wait", "as here")]


def _separate(it: Recommended) -> list[Line]:
    """Generation on devices of its own, during training."""
    assert it.max_staleness is not None
    mini = it.scenario.training.num_mini_batches
    found = [
        Line(V1, True, "prerequisite; true by default"),
        Line(MODE, "separate_async", "generation on its own devices, during training"),
        *_devices(it, ROLLOUT),
        Line(f"{ROLLOUT}.checkpoint_engine.backend", "nccl", "prerequisite: naive is refused"),
        Line("trainer.v1.separate_async.num_warmup_batches", it.max_staleness, "batches ahead: the bound"),
        Line(
            "trainer.v1.separate_async.parameter_sync_step", mini, "mini-batches of an update of the engines"
        ),
    ]
    knob = "actor_rollout_ref.actor.ppo_mini_batch_size"
    if it.prompts % mini == 0:
        found.append(
            Line(knob, it.prompts // mini, "prerequisite: times parameter_sync_step it is B in prompts")
        )
    else:
        found.append(
            none(f"B of {it.prompts} prompts cannot be cut into {mini} equal mini-batches, as it needs")
        )
    if it.waits:
        what = "versions that a response may span: one more than the bound on staleness"
        found += [
            Line(THRESHOLD, it.max_staleness + 1, what, "policy.max_staleness"),
            Line(STRATEGY, "wait", "nothing is dropped"),
        ]
    else:
        found.append(Line(THRESHOLD, None, "only what is ahead is bounded, as here; the default is 8"))
    if not it.carries:
        why = "updates that wait for rollouts: recipe fully_async, async_training.partial_rollout=False"
        found.append(none(f"an update always interrupts rollouts; {why}"))
    return found


def _one_step_off(it: Recommended) -> list[Line]:
    """The recipe that generates one batch ahead, on devices of its own."""
    return _devices(it, "rollout")


def _devices(it: Recommended, section: str) -> list[Line]:
    split = it.scenario.split
    knobs = f"{section}.nnodes", f"{section}.n_gpus_per_node"
    found = on_nodes(it, split.rollout_gpus, knobs, GENERATION, "generation")
    if it.training_gpus is not None:
        # Otherwise the pool of training stays as large as all of them were.
        pool = "trainer.nnodes", "trainer.n_gpus_per_node"
        found += on_nodes(it, it.training_gpus, pool, TRAINING, "training")
    ranks, experts = ranks_of_engine(it)
    degree, of = split.tensor_parallel // ranks, ENGINE if ranks == 1 else "GPUs of one rank of attention"
    found.append(Line(f"{ROLLOUT}.tensor_model_parallel_size", degree, of))
    if ranks > 1:
        found.append(Line(f"{ROLLOUT}.data_parallel_size", ranks, "ranks of attention of an engine"))
    if experts > 1:
        found.append(Line(f"{ROLLOUT}.expert_parallel_size", experts, "ranks of experts of an engine"))
    return found


def _scoring(it: Recommended) -> list[Line]:
    """A response is scored when it finishes only where the reward model has devices of its own."""
    scoring = it.scenario.split.scoring
    if scoring == "cpu":  # a verifier
        return []
    if it.granularity == "batch" and it.schedule != "async":
        if not isinstance(scoring, int):
            return []
        why = "a reward model on devices of its own scores each response when it finishes; simulated here"
        return [none(f"{why}: the whole batch after generation")]
    if not isinstance(scoring, int):
        if it.schedule == "async":
            return [none("separate_async refuses a reward model without devices of its own: place it apart")]
        return [none("a reward model on devices that generate or train scores when generation has ended")]
    knobs = "reward.reward_model.nnodes", "reward.reward_model.n_gpus_per_node"
    found = on_nodes(it, scoring, knobs, "devices of scoring", "scoring")
    if found[0].knob is None:
        return found
    what = "the reward model has devices of its own, and scores each response when it finishes"
    return [Line(POOL, True, f"prerequisite: {what}"), *found]
