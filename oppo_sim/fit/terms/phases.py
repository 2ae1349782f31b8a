"""One phase of generation and of scoring as the sequential policy runs them: what the slowest replica
decodes and prefills, what the scoring workers take.

Rollouts are dealt out in turn. A run in rounds (``stop_check: chunk``) waits after each for its slowest
replica; where an engine keeps no KV between rounds, each begins with a prefill of what runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oppo_sim.costs.interface import Costs
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.decoding import Decoding
from oppo_sim.fit.terms.running import Ints, Stretches, cut_at, in_slots, padded_batch, slots_of_kv
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.refill import ShippedPolicy
from oppo_sim.policies.registry import BASELINE, make_policy
from oppo_sim.scenario.build import policy_settings_of
from oppo_sim.scenario.schema import Scenario


class Phase(NamedTuple):
    """Of the replica that ends last."""

    stretches: Stretches
    prefill_s: float
    rounds: int
    """0: one call of the engine, as every framework makes it."""


def one_after_other(phases: Sequence[Phase]) -> Phase:
    """Several calls of the engine as one phase."""
    if len(phases) == 1:
        return phases[0]
    return Phase(
        _joined([phase.stretches for phase in phases]),
        sum(phase.prefill_s for phase in phases),
        sum(phase.rounds for phase in phases),
    )


def _joined(parts: Sequence[Stretches]) -> Stretches:
    return Stretches(*(np.concatenate(each) for each in zip(*parts, strict=True)))


class Scoring(NamedTuple):
    """Of one worker, all rollouts at the end of generation."""

    seconds: float
    batches: int
    pieces: int


def round_size_of(log: StepLog, scenario: Scenario) -> int | None:
    """Iterations of a round; None: the phase is one call. A framework's log is of one call a step; a run of
    ours has the rounds of its scenario's baseline (its first, where they are controlled)."""
    if log.framework != "oppo":
        return None
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    policy = make_policy(BASELINE, batch, policy_settings_of(scenario, BASELINE), scenario.base_dir)
    if policy.stop_check != "chunk":
        return None
    assert isinstance(policy, ShippedPolicy)
    return policy.chunk_size


def slowest_phase(
    responses: Ints,
    prompts: Ints,
    machine: MachineSetup,
    costs: Costs,
    engine: Decoding,
    round_size: int | None = None,
) -> Phase:
    """Decode stretches and prefill seconds of a phase. In rounds they are those of each round's slowest
    replica, one after the other."""
    replicas = min(machine.num_replicas, len(responses))
    each = [
        _rounds(responses[replica::replicas], prompts[replica::replicas], machine, costs, round_size)
        for replica in range(replicas)
    ]
    count = max(map(len, each))
    chosen = []
    for number in range(count):
        here = [rounds[number] for rounds in each if number < len(rounds)]
        if len(here) > 1:
            decoding = engine.seconds([stretches for stretches, _ in here])
            here = [here[int(np.argmax(decoding + np.array([prefill for _, prefill in here])))]]
        chosen.append(here[0])
    return Phase(
        _joined([each for each, _ in chosen]),
        sum(prefill for _, prefill in chosen),
        0 if round_size is None else count,
    )


def _rounds(
    responses: Ints, prompts: Ints, machine: MachineSetup, costs: Costs, size: int | None
) -> list[tuple[Stretches, float]]:
    """Stretches and prefill seconds of each round of a replica; one where the phase is not cut."""
    anew = size is not None and not machine.keeps_kv_between_rounds
    if machine.batching == "static":
        return _static_rounds(responses, prompts, costs, size, anew)
    slots = machine.max_num_seqs or len(responses)
    if machine.kv_capacity_tokens is not None:
        slots = min(slots, slots_of_kv(prompts, responses, machine.kv_capacity_tokens) or slots)
    phase, starts = in_slots(prompts, responses, slots)
    rounds = [phase] if size is None else cut_at(phase, size)
    seconds = [0.0] * len(rounds)
    begins = set(range(0, int(phase.total_iterations), size)) if size is not None and anew else set()
    for at in sorted(begins | set(starts.tolist())):
        joins = starts == at
        if at in begins:
            joins |= (starts < at) & (at < starts + responses)
        seconds[at // size if size else 0] += _prefill(costs, prompts[joins] + at - starts[joins])
    return list(zip(rounds, seconds, strict=True))


def _static_rounds(
    responses: Ints, prompts: Ints, costs: Costs, size: int | None, anew: bool
) -> list[tuple[Stretches, float]]:
    """A padded batch; formed ``anew`` for each round of what has not finished."""
    longest = int(responses.max())
    if size is None or not anew:
        batch = padded_batch(prompts, responses)
        first = _padded_prefill(costs, prompts)
        cuts = [batch] if size is None else cut_at(batch, size)
        return [(stretches, 0.0 if number else first) for number, stretches in enumerate(cuts)]
    found = []
    for begun in range(0, longest, size):
        contexts = prompts[responses > begun] + begun
        batch = padded_batch(contexts, np.full(len(contexts), min(size, longest - begun)))
        found.append((batch, _padded_prefill(costs, contexts)))
    return found


def _prefill(costs: Costs, contexts: Ints) -> float:
    tokens = float(contexts.sum())
    return costs.actor.prefill_time(tokens, float((contexts**2).sum()) / 2.0) if tokens else 0.0


def _padded_prefill(costs: Costs, contexts: Ints) -> float:
    rows, width = len(contexts), float(contexts.max())
    return costs.actor.prefill_time(rows * width, rows * width * width / 2.0) if width else 0.0


def scoring_of(sizes: Sequence[int], machine: MachineSetup, costs: Costs) -> list[Scoring]:
    """``sizes``: tokens of every rollout; each goes to the worker with the fewest tokens."""
    most, workers = machine.max_scoring_tokens, machine.num_workers
    queues: list[list[int]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for size in sizes:
        worker = loads.index(min(loads))
        queues[worker].append(size)
        loads[worker] += size
    found = []
    for queue in queues:
        seconds, batches, tokens, pairs = 0.0, 0, 0, 0.0
        for size in (*queue, most + 1):
            if tokens and tokens + size > most:
                seconds += costs.scorer.prefill_time(float(tokens), pairs)
                batches, tokens, pairs = batches + 1, 0, 0.0
            tokens, pairs = tokens + size, pairs + size * size / 2.0
        found.append(Scoring(seconds, batches, len(queue)))
    return found
