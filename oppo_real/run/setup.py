"""From a scenario with a ``real:`` section to a run that can start. Whatever cannot run is refused here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oppo_real.config import RealConfig, check_engines, real_config
from oppo_real.placement.cores import check_cores
from oppo_real.placement.engines import require_ray
from oppo_real.task.arithmetic import LONGEST_PROMPT
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Policy
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.schema import Scenario


@dataclass(frozen=True)
class RealSetup:
    """A scenario, built as for the simulator, and how it is run for real."""

    base: Setup
    config: RealConfig
    policy_name: str
    seed: int
    """Of weights, prompts and sampling."""

    @property
    def checkpoint_every(self) -> int | None:
        """Steps from one checkpoint to the next; None: none is written, as under policies that never pause
        between steps."""
        return self.config.checkpoint_every if self.base.policy_factory().schedule == "synchronous" else None

    @property
    def longest(self) -> int:
        """Prompt and response together, tokens."""
        return self.base.scenario.max_prompt_length + self.base.scenario.max_response_length


def build_real_setup(
    scenario: Scenario,
    *,
    policy: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    own_prompts: bool = False,
) -> RealSetup:
    """Check a scenario for a real run. ``own_prompts``: the caller brings them, in place of the task's.

    Raises OppoError for whatever cannot run, before anything is built.
    """
    config = real_config(scenario)
    base = build_setup(scenario, policy=policy, policy_settings=settings, steps=steps, seed=seed)
    chosen = base.policy_factory()
    check_engines(config)
    _check_cores(config)
    _check_rollout(config, base)
    _check_replay(config, base)
    _check_policy(config, chosen)
    _check_ray(config)
    if scenario.training.stream_ref and config.scorer != "torch":
        raise OppoError(
            "training.stream_ref needs the torch scorer, which runs the reference model too: set real.scorer"
            " to torch"
        )
    setup = RealSetup(base, config, chosen.name, base.seed if config.seed is None else config.seed)
    _check_models(config, setup.longest)
    if not own_prompts:
        _check_task_prompts(config, scenario)
    _check_mini_batches(config, scenario)
    return setup


def _check_cores(config: RealConfig) -> None:
    cores = config.placement.cores
    for where, lists in (("driver", [cores.driver]), ("rollout", cores.rollout), ("scoring", cores.scoring)):
        for listed in lists or ():
            if listed is not None:
                check_cores(listed, f"real.placement.cores.{where}")


def _check_rollout(config: RealConfig, base: Setup) -> None:
    if base.machine.batching == "static":
        raise OppoError("rollout.batching static is simulated only: set it to continuous for a real run")
    if not (base.machine.shares_prefixes and base.batch.group_size > 1):
        return
    if config.engine == "torch":
        raise OppoError(
            "rollout.enable_prefix_caching needs the vllm engine, since the torch engine prefills the"
            " prompt of every sample: set real.engine to vllm, or it to false"
        )
    if base.machine.clear_kv_cache_on_tool_call and base.replay.waits is not None:
        raise OppoError(
            "vLLM's prefix cache keeps the KV of a rollout that calls a tool: set"
            " rollout.clear_kv_cache_on_tool_call or rollout.enable_prefix_caching to false"
        )


def _check_replay(config: RealConfig, base: Setup) -> None:
    """What only a replayed trace can give, and what one with turns cannot."""
    if base.sample_rewards is not None and config.mode != "replay":
        raise OppoError(
            "dynamic_sampling judges groups by the rewards of a trace: set real.mode to replay, or"
            " dynamic_sampling.enable to false"
        )
    if base.gen_batch_size is not None:
        raise OppoError(
            "real runs replace a dropped group at once: set dynamic_sampling.gen_batch_size to null"
        )
    if base.replay.waits is not None and config.mode == "replay" and config.trains:
        raise OppoError(
            "real.ppo cannot train the rollouts of a trace with turns, whose tools' tokens are no response:"
            " set real.ppo.enabled to false"
        )


def _check_policy(config: RealConfig, policy: Policy) -> None:
    if policy.oracle and config.mode != "replay":
        raise OppoError(
            f"policy '{policy.name}' is an oracle: it needs lengths known beforehand, so set real.mode to"
            " replay"
        )
    if policy.schedule != "synchronous" and config.placement.kind == "inline" and not config.lock_step:
        raise OppoError(
            f"the {policy.schedule} policy generates during training, which needs engines in processes of"
            " their own: set real.placement.kind to processes or ray (or real.lock_step to true)"
        )


def _check_ray(config: RealConfig) -> None:
    if config.placement.kind != "ray":
        return
    require_ray()
    shared = config.placement.cluster.shared_folder
    if shared is not None and not Path(shared).is_dir():
        raise OppoError(
            f"real.placement.cluster.shared_folder: there is no folder {shared}; make it, on a disk that"
            " all machines see"
        )


def _check_models(config: RealConfig, longest: int) -> None:
    """Raises OppoError for models that cannot run together; from their configurations."""
    if config.models.actor is None and config.models.reward is None:
        return
    from oppo_real.engines.models import vocabulary_and_positions
    from oppo_real.run.models import require_context, tiny_vocabulary

    found: dict[str, int] = {}
    for name in ("actor", "reward", "reference"):
        if (source := getattr(config.models, name)) is None:
            continue
        try:
            found[name], positions = vocabulary_and_positions(source)
        except OppoError as error:
            raise OppoError(f"real.models.{name}: {error}") from None
        if name == "actor":
            require_context(longest, positions)
    known = found.pop("actor", tiny_vocabulary())
    if config.models.reward is None and config.mode == "train":
        found["reward"] = tiny_vocabulary()
    for name, tokens in found.items():
        if tokens < known:
            given = getattr(config.models, name) is not None
            left_out = "" if given else " (left out: a tiny one, fitted to the task)"
            raise OppoError(
                f"real.models.{name}{left_out} knows {tokens} tokens and the actor {known}: give"
                f" real.models.{name} a model with the actor's vocabulary"
            )


def _check_task_prompts(config: RealConfig, scenario: Scenario) -> None:
    if config.mode == "train" and scenario.max_prompt_length < LONGEST_PROMPT:
        # The torch engine would take longer prompts, vLLM gives up at the first, minutes later.
        raise OppoError(
            f"real.mode train: prompts of the arithmetic task have up to {LONGEST_PROMPT} tokens, and"
            f" max_prompt_length is {scenario.max_prompt_length}: set it to {LONGEST_PROMPT} or more"
        )


def _check_mini_batches(config: RealConfig, scenario: Scenario) -> None:
    if not config.trains:
        return
    wanted = config.ppo_config(scenario.training).num_mini_batches
    if wanted > scenario.rollout_batch_size:
        raise OppoError(
            f"a batch of {scenario.rollout_batch_size} rollouts cannot fill num_mini_batches {wanted}:"
            " lower it, or raise rollout_batch_size"
        )
