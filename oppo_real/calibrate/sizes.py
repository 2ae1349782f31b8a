"""How large the batches of a scenario get, and what its engines hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_sim.scenario.schema import Scenario


@dataclass(frozen=True)
class Sizes:
    """How large the batches of a scenario get. Rollouts and tokens."""

    max_running: int
    """Rollouts that a replica decodes together."""
    rollout_batch_size: int
    max_prompt_length: int
    max_response_length: int
    chunk_sizes: tuple[int, ...]
    """Of streamed scoring; the candidates where they are controlled."""
    max_scoring_tokens: int
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int = 16
    scoring_kv_tokens: int | None = None
    """Of a scorer, where it is a serving engine; beyond it every visit prefills what was evicted."""
    scoring_block_tokens: int = 16
    prefill_block_tokens: int = 1
    """Of a rollout that goes on a scorer prefills whole blocks of so many tokens (docs/model.md, C9b)."""
    stream_ref: bool = False
    training: bool = True
    """False: a run trains nothing, so neither updates nor their contention are measured."""
    trained_lengths: tuple[tuple[int, int], ...] = ()
    """Prompt and response of each rollout of a typical batch, so that training is measured on batches of that
    shape: attention of a long rollout costs more than that of short ones with as many tokens. Empty:
    of equal ones."""

    @property
    def max_length(self) -> int:
        """Prompt and response together."""
        return self.max_prompt_length + self.max_response_length


def sizes_of(scenario: "Scenario", policies: Sequence[tuple[str, Mapping[str, Any]]] | None = None) -> Sizes:
    """What a scenario asks for under any of ``policies`` (name and settings; by default its own).

    Raises OppoError for a policy that cannot be built.
    """
    from oppo_sim.policies.interface import Batch
    from oppo_sim.policies.registry import make_policy

    policies = policies or [(scenario.policy.name, scenario.policy.settings)]
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    admitted = [
        _first_admission(make_policy(name, batch, settings, scenario.base_dir)) for name, settings in policies
    ]
    in_flight = max(*admitted, scenario.rollout_batch_size)
    replicas = scenario.rollout.num_replicas
    running = -(-in_flight // replicas)
    if scenario.rollout.max_num_seqs is not None:
        running = min(running, scenario.rollout.max_num_seqs)
    capacity = scenario.rollout.kv_capacity_tokens
    return Sizes(
        max_running=running,
        rollout_batch_size=scenario.rollout_batch_size,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        chunk_sizes=_chunk_sizes([settings for _, settings in policies], scenario.max_response_length),
        max_scoring_tokens=scenario.scoring.max_scoring_tokens,
        kv_capacity_tokens=capacity if isinstance(capacity, int) else None,
        kv_block_tokens=scenario.rollout.kv_block_tokens,
        stream_ref=scenario.training.stream_ref,
        training=_trains(scenario),
        trained_lengths=typical_batch(scenario) if _trains(scenario) else (),
    )


def typical_batch(scenario: "Scenario") -> tuple[tuple[int, int], ...]:
    """Prompt and response (tokens) of B rollouts: the middle prompt of the scenario's trace, and responses at
    its B quantiles (i + ½)/B. Empty where the actor's own lengths are trained.

    Raises OppoError for a trace that cannot be replayed.
    """
    from oppo_sim.scenario.build import build_trace

    if (scenario.real or {}).get("mode") == "train":
        return ()
    replay = build_trace(scenario)
    responses, prompts = sorted(replay.response_lengths), sorted(replay.prompt_lengths)
    prompt = max(1, prompts[len(prompts) // 2])
    twice = 2 * scenario.rollout_batch_size
    return tuple((prompt, responses[place * len(responses) // twice]) for place in range(1, twice, 2))


def _trains(scenario: "Scenario") -> bool:
    """Unless the scenario says that PPO does not run."""
    ppo = (scenario.real or {}).get("ppo")
    return not (isinstance(ppo, Mapping) and ppo.get("enabled") is False)


def bounded(sizes: Sizes, resolved: Mapping[str, Any], scorer: Mapping[str, Any]) -> Sizes:
    """Sizes within what an actor and a scorer have, where their resolved configurations say so: KV tokens and
    rollouts."""
    scoring = scorer.get("kv_capacity_tokens")
    capacity, rollouts = resolved.get("kv_capacity_tokens"), resolved.get("max_num_seqs")
    known = [tokens for tokens in (sizes.kv_capacity_tokens, capacity) if isinstance(tokens, int)]
    return replace(
        sizes,
        kv_capacity_tokens=min(known, default=None),
        kv_block_tokens=int(resolved.get("kv_block_tokens") or sizes.kv_block_tokens),
        scoring_kv_tokens=scoring if isinstance(scoring, int) else None,
        scoring_block_tokens=int(scorer.get("kv_block_tokens") or sizes.scoring_block_tokens),
        prefill_block_tokens=int(scorer.get("prefill_block_tokens") or 1),
        max_running=min(sizes.max_running, rollouts) if isinstance(rollouts, int) else sizes.max_running,
    )


def _first_admission(policy: Any) -> int:
    """Rollouts in flight in the first step, and B/8 more, the default bound of a controlled overcommit."""
    from oppo_sim.policies.interface import OraclePoolView, PoolView

    view = OraclePoolView if policy.oracle else PoolView
    pool = view(0, 0, 0, 0, 1, lambda finished: ())
    if isinstance(pool, OraclePoolView):
        pool.response_lengths = {}
    batch: int = policy.batch.rollout_batch_size
    if policy.schedule == "async":
        return batch * (int(policy.max_staleness) + 1)
    return max(int(policy.plan(pool).admit), batch + -(-batch // 8))


def _chunk_sizes(policies: Sequence[Mapping[str, Any]], longest: int) -> tuple[int, ...]:
    """Chunk sizes or candidates in the policies' settings; else those that the controller tries."""
    found: list[Any] = []
    for settings in policies:
        setting = settings.get("chunk_size")
        if isinstance(setting, int):
            found.append(setting)
        elif isinstance(setting, Mapping) and setting.get("candidates"):
            found += setting["candidates"]
    return tuple(sorted({min(int(size), longest) for size in found or (128, 256, 512)}))
