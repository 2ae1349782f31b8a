"""Frameworks that take a file or overrides of one: NeMo RL, AReaL, ROLL, prime-rl. And vLLM, the engine."""

from math import ceil

from oppo_sim.tune.frameworks.devices import areal_devices, nemo_devices, prime_devices, roll_devices
from oppo_sim.tune.frameworks.facts import (
    KV_ANEW,
    NO_CARRY,
    Block,
    Line,
    Recommended,
    batch_of,
    group_of,
    lacking,
    max_num_seqs,
    no_max_num_seqs,
    none,
)
from oppo_sim.tune.frameworks.forms import hydra, toml, yaml

_REFUSED = "prerequisite: asynchronous PPO refuses it"


def nemo_lines(it: Recommended) -> list[Line]:
    """Of its PPO, or of its GRPO where there is no critic."""
    kind = _nemo_kind(it)
    ahead = f"{kind}.async_{kind}"
    prompts = Line(f"{kind}.num_prompts_per_step", it.prompts, "B in prompts", "rollout_batch_size")
    found = [prompts, group_of(it, f"{kind}.num_generations_per_prompt")]
    length = it.scenario.max_response_length
    found.append(Line("policy.generation.max_new_tokens", length, "tokens", "max_response_length"))
    found += max_num_seqs(it, "++policy.generation.vllm_kwargs.max_num_seqs")
    if it.synchronous_carry:
        found.append(none(NO_CARRY))
    if not it.beside:
        found.append(Line(f"{ahead}.enabled", False, "generate, then train"))
        return [*found, *nemo_devices(it), *lacking(it, scores="batch")]
    age = 1 if it.max_staleness is None else max(1, it.max_staleness)
    field = "policy.max_staleness" if it.max_staleness == age else None
    clear = it.scenario.rollout.clear_kv_cache_on_weight_sync
    found += [
        Line(f"{ahead}.enabled", True, "generates during training"),
        Line(f"{ahead}.max_trajectory_age_steps", age, "bound on staleness, at least 1", field),
        Line(f"{ahead}.in_flight_weight_updates", it.carries, "an update interrupts rollouts"),
    ]
    if it.carries:
        knob, what = f"{ahead}.recompute_kv_cache_after_weight_updates", "KV of interrupted ones anew"
        found.append(Line(knob, clear, what, "rollout.clear_kv_cache_on_weight_sync"))
    found += [
        Line("policy.generation.vllm_cfg.async_engine", True, "prerequisite"),
        *nemo_devices(it),
        Line("loss_fn.use_importance_sampling_correction", True, "prerequisite"),
    ]
    if kind == "ppo":
        found += [
            Line("loss_fn.force_on_policy_ratio", False, _REFUSED),
            Line("ppo.max_num_epochs", -1, "prerequisite: ppo.max_num_steps bounds the run"),
        ]
    found += [
        Line(f"{kind}.use_dynamic_sampling", False, _REFUSED),
        Line(f"{kind}.reward_shaping.enabled", False, _REFUSED),
        Line(f"{kind}.reward_scaling.enabled", False, _REFUSED),
    ]
    return [*found, *lacking(it, scores="rollout")]


def nemo_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    command = f"uv run examples/run_{_nemo_kind(it)}.py"
    return [Block("after your own overrides", hydra(command, found))]


def _nemo_kind(it: Recommended) -> str:
    return "grpo" if it.scenario.training.critic == "none" else "ppo"


def areal_lines(it: Recommended) -> list[Line]:
    found = [
        batch_of(it, "train_dataset.batch_size"),
        batch_of(it, "rollout.consumer_batch_size"),
        group_of(it, "gconfig.n_samples"),
        Line("gconfig.max_new_tokens", it.scenario.max_response_length, "tokens", "max_response_length"),
    ]
    engine = "vllm.max_num_seqs"
    found += max_num_seqs(it, engine)
    if it.synchronous_carry:
        found.append(none(NO_CARRY))
    if it.schedule == "one-step-off":
        found.append(
            none("no knob for this here: whole batches one ahead; a bound of 1 admits single prompts")
        )
    ahead = it.max_staleness if it.max_staleness is not None else int(it.beside)
    field = "policy.max_staleness" if it.max_staleness is not None else None
    found.append(Line("rollout.max_head_offpolicyness", ahead, "bound on admission; 0: synchronous", field))
    if ahead:
        most = (ahead + 1) * it.prompts
        what = "prerequisite: the default, consumer_batch_size, would bind before the bound on admission"
        found.append(Line("rollout.max_concurrent_rollouts", most, what))
    if it.schedule == "async":
        if it.waits:
            found.append(none("no knob for this here: a trainer that waits for what must not become staler"))
        if not it.carries:
            found.append(none("an update always interrupts rollouts"))
        elif not it.scenario.rollout.clear_kv_cache_on_weight_sync:
            found.append(none(KV_ANEW))
    return [*found, *areal_devices(it), *lacking(it, scores="rollout")]


def areal_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    command = "python3 YOUR_TRAINING_SCRIPT.py --config YOUR_CONFIG.yaml"
    return [Block("overrides of your configuration", hydra(command, found))]


def roll_lines(it: Recommended) -> list[Line]:
    found = [batch_of(it, "rollout_batch_size"), group_of(it, "num_return_sequences_in_group")]
    length = it.scenario.max_response_length
    found.append(Line("response_length", length, "tokens", "max_response_length"))
    if it.synchronous_carry:
        what = "is_use_additional_prompts drops what has not finished"
        found.append(none(f"{NO_CARRY}; {what}, unless async_generation_ratio is 1 or more"))
    if it.beside:
        ahead = 1 if it.max_staleness is None else it.max_staleness
        if ahead:
            field = None if it.max_staleness is None else "policy.max_staleness"
            found.append(Line("generate_opt_level", 1, "prerequisite; the default"))
            found.append(Line("async_generation_ratio", ahead, "batches ahead", field))
        else:
            found.append(none("async_generation_ratio is 1 or more: a bound of 0 is synchronous training"))
        if it.waits:
            found.append(none("too old ones are dropped; nothing waits for them"))
    else:
        found.append(Line("async_generation_ratio", 0, "synchronous"))
    found += no_max_num_seqs(it, "actor_infer.strategy_args.strategy_config")
    return [*found, *roll_devices(it), *lacking(it, scores="rollout")]


def roll_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    return [Block("in the YAML file of an RLVR pipeline", yaml(found))]


def prime_lines(it: Recommended) -> list[Line]:
    """Always asynchronous, and without a critic; KV is kept over an update."""
    found = [
        Line("orchestrator.batch_size", it.batch, "B", "rollout_batch_size" if it.group == 1 else None),
        group_of(it, "orchestrator.group_size"),
        Line("orchestrator.train.sampling.max_completion_tokens", it.scenario.max_response_length, "tokens"),
        none("no critic: its training stages are not the ones simulated here"),
    ]
    if it.synchronous_carry or not it.beside:
        found.append(none("no knob for this here: synchronous training; it generates while it trains"))
    if it.max_staleness is not None:
        what = "bound on staleness; too old ones are dropped"
        if it.waits:
            what += ", waited for here"
        found.append(
            Line("orchestrator.max_off_policy_steps", it.max_staleness, what, "policy.max_staleness")
        )
        in_flight = (it.max_staleness + 1) * it.batch
        what = "the bound on admission, in rollouts; the default is 1024"
        found += [
            Line(f"orchestrator.concurrency.{name}_inflight", in_flight, what)
            for name in ("initial", "min", "max")
        ]
        if it.scenario.rollout.clear_kv_cache_on_weight_sync:
            found.append(none("KV is always kept over an update; simulated here: computed anew"))
        if not it.carries:
            found.append(none("an update always interrupts rollouts"))
    found += no_max_num_seqs(it, "inference.vllm")
    return [*found, *prime_devices(it), *lacking(it, scores="rollout")]


def prime_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    return [Block("in the TOML file of `uv run rl`", toml(found))]


def vllm_lines(it: Recommended) -> list[Line]:
    """The engine by itself."""
    replicas = it.scenario.rollout.num_replicas
    found = list(max_num_seqs(it, "max_num_seqs"))
    if not found and it.overcommit is not None:
        fewest = ceil((it.batch + it.overcommit) / replicas)
        what = f"at least: B + Δ over {replicas} replica(s) ran together in the simulation"
        found.append(Line("max_num_seqs", fewest, what))
    if it.granularity == "chunk" and it.chunk_size is not None:
        pieces = "of SamplingParams, with output_kind DELTA: pieces of this many tokens to the reward model"
        prefix = (
            "on a pooling reward model that gets the growing prefix; whole blocks are kept, so take a"
            " multiple of the block size"
        )
        found.append(Line("stream_interval", it.chunk_size, pieces, "policy.chunk_size"))
        found.append(Line("enable_prefix_caching", True, prefix))
    if it.carries:
        clear = it.scenario.rollout.clear_kv_cache_on_weight_sync
        what = "around the update; " + ("KV is computed anew" if clear else "KV is kept, stale")
        first = "with a lower priority= number for carried requests, so that they run first"
        found.append(Line("pause_generation(mode='keep', clear_cache=…)", clear, what))
        found.append(Line("scheduling_policy", "priority", first))
    return found or [none("nothing beyond its defaults: the policy needs no knob of the engine")]


def vllm_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    return []
