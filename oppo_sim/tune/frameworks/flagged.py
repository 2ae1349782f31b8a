"""Frameworks that take flags: TRL (PPO up to 1.12, GRPO), OpenRLHF, slime."""

from oppo_sim.tune.frameworks.devices import no_knob, openrlhf_devices, slime_devices
from oppo_sim.tune.frameworks.facts import (
    KV_ANEW,
    NO_CARRY,
    NO_PER_ROLLOUT,
    NO_STREAMING,
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
from oppo_sim.tune.frameworks.forms import flags
from oppo_sim.tune.frameworks.stored import stored_names

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


def trl_lines(it: Recommended) -> list[Line]:
    """Of its PPO, or of its GRPO where there is no critic."""
    return _grpo_lines(it) if _is_grpo(it) else _ppo_lines(it)


def _is_grpo(it: Recommended) -> bool:
    return it.scenario.training.critic == "none"


def _grpo_lines(it: Recommended) -> list[Line]:
    length = it.scenario.max_response_length
    found = [
        Line(
            "generation_batch_size",
            it.batch,
            "B: a multiple of per_device_train_batch_size times your processes; in place of"
            " steps_per_generation",
        ),
        Line("max_completion_length", length, "longest response, tokens", "max_response_length"),
    ]
    if it.group > 1:
        found.insert(1, Line("num_generations", it.group, "responses of a prompt", "group_size"))
    else:
        found.append(none("GRPO in TRL draws two or more responses of a prompt: group_size"))
    found += [*no_max_num_seqs(it), *_grpo_engines(it)]
    if it.beside:
        return [*found, none("GRPOTrainer does not generate while it trains; AsyncGRPOTrainer (1.16) does")]
    if it.carries:
        found.append(none("GRPO in TRL has no over-sampling and carries nothing over"))
    if it.granularity != "batch":
        found.append(none(f"GRPO in TRL {NO_STREAMING if it.granularity == 'chunk' else NO_PER_ROLLOUT}"))
    return found


def _grpo_engines(it: Recommended) -> list[Line]:
    """Where vLLM runs: beside training, or as a server."""
    split = it.scenario.split
    apart = it.training_gpus is not None
    if not apart and getattr(getattr(it.scenario.costs, "rollout", None), "host", "vllm") == "generate":
        return []
    found = [
        Line("use_vllm", True, "prerequisite: an engine generates"),
        Line("vllm_mode", "server" if apart else "colocate", "which GPUs it has"),
    ]
    if apart:
        server = f"--tensor-parallel-size {split.tensor_parallel} --data-parallel-size {split.replicas}"
        return [*found, none(f"the server, on GPUs of its own: trl vllm-serve --model MODEL {server}")]
    tensor = "costs.rollout.tensor_parallel"
    return [*found, Line("vllm_tensor_parallel_size", split.tensor_parallel, "GPUs of an engine", tensor)]


def _ppo_lines(it: Recommended) -> list[Line]:
    """TRL sets ``batch_size`` itself: per device × accumulation × processes."""
    found = [
        Line("per_device_train_batch_size", it.batch, "B, with one process: divide it by your processes"),
        Line("gradient_accumulation_steps", 1, "prerequisite: B is times this, too"),
        Line(
            "response_length",
            it.scenario.max_response_length,
            "longest response, tokens",
            "max_response_length",
        ),
    ]
    found += [*no_max_num_seqs(it), *no_knob(it)]
    if it.group > 1:
        found.append(none("PPO in TRL draws one response of a prompt: repeat prompts in the data set"))
    if it.beside:
        why = "PPO in TRL (up to 1.12) does not generate while it trains; AsyncGRPO (1.16) does, with GRPO"
        return [*found, none(why)]
    if it.carries:
        what = "it has no over-sampling and carries nothing over"
        found.append(none(f"PPO in TRL (up to 1.12) generates whole batches: {what}"))
    if it.granularity != "batch":
        found.append(none(f"PPO in TRL {NO_STREAMING if it.granularity == 'chunk' else NO_PER_ROLLOUT}"))
    return found


def trl_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    """Arguments of PPOConfig or GRPOConfig; where TRL alone cannot, this project's trainer."""
    kind = "GRPO" if _is_grpo(it) else "PPO"
    how = f"arguments of {kind}Config, which HfArgumentParser and TrlParser read"
    blocks = [Block(how, _as_flags(found))]
    other = it.carries or it.granularity != "batch" or it.over_issues
    follows = kind == "PPO" or it.granularity == "batch"  # its rewards are of whole batches
    if other and follows and not it.beside:
        code = (
            f"from oppo_real.trl_client import Oppo{kind}Trainer\n\n"
            f"trainer = Oppo{kind}Trainer(policy=({it.policy!r}, {dict(it.settings)!r}),"
            f" **of_your_{kind}Trainer)"
        )
        blocks.append(Block("this project's client for TRL's trainer does all of it (docs/ppo.md)", code))
    return blocks


def _as_flags(found: list[Line]) -> str:
    """Fields of a data class, as its parser takes them."""
    return flags("", [line._replace(knob=line.knob and f"--{line.knob}") for line in found], {})


def openrlhf_lines(it: Recommended) -> list[Line]:
    found = [batch_of(it, "--rollout.batch_size"), group_of(it, "--rollout.n_samples_per_prompt")]
    length = it.scenario.max_response_length
    found.append(Line("--rollout.max_new_tokens", length, "tokens", "max_response_length"))
    found += no_max_num_seqs(it)
    if it.synchronous_carry:
        found.append(none(f"{NO_CARRY}; --train.partial_rollout_enable needs generation during training"))
    if it.beside:
        found.append(Line("--train.async_enable", True, "prerequisite: generates during training"))
        found.append(Line("--vllm.enable_sleep", False, "prerequisite: asynchronous training refuses it"))
        ahead = 1 if it.max_staleness is None else it.max_staleness
        if ahead:
            what = (
                "batches waiting"
                if it.max_staleness is None
                else "batches waiting: near a bound on staleness"
            )
            found.append(Line("--train.async_queue_size", ahead, what))
        else:
            found.append(none("no queue of 0 batches: a bound of 0 is synchronous training"))
    if it.beside and it.carries:
        found.append(
            Line("--train.partial_rollout_enable", True, "unfinished responses go on after the update")
        )
    return [*found, *openrlhf_devices(it), *lacking(it, scores="batch")]


def openrlhf_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    command = "python3 -m openrlhf.cli.train_ppo_ray"
    text = flags(command, found, stored_names("OpenRLHF").options)
    return [Block("after your own flags", text)]


def slime_lines(it: Recommended) -> list[Line]:
    found = [batch_of(it, "--rollout-batch-size"), group_of(it, "--n-samples-per-prompt")]
    length = it.scenario.max_response_length
    found.append(Line("--rollout-max-response-len", length, "tokens"))
    found += max_num_seqs(it, "--sglang-server-concurrency")
    if it.synchronous_carry:
        if it.overcommit:
            meaning = ("B + Δ", "policy.overcommit") if it.group == 1 else ("B + Δ in prompts",)
            found.append(Line("--over-sampling-batch-size", it.prompts + it.extra_prompts, *meaning))
        what = "unfinished groups go back to the buffer; finished ones beyond B are dropped there, kept here"
        found.append(Line("--partial-rollout", True, what))
        if not it.scenario.rollout.clear_kv_cache_on_weight_sync:
            found.append(none(KV_ANEW))
    if it.beside:
        found.append(Line("--update-weights-interval", 1, "prerequisite: new weights for every batch"))
    if it.schedule == "async":
        found.append(Line("--rollout-function-path", FULLY_ASYNC, "prerequisite: generation never waits"))
        found.append(none("has no bound on staleness, only a number in flight: --sglang-server-concurrency"))
    return [*found, *slime_devices(it), *lacking(it, scores="rollout")]


def slime_blocks(it: Recommended, found: list[Line]) -> list[Block]:
    script = "train_async.py" if it.beside else "train.py"
    apart = it.beside or it.training_gpus is not None
    how = "after your own flags" + (", without --colocate" if apart else "")
    return [Block(how, flags(f"python3 {script}", found, stored_names("slime").options))]
