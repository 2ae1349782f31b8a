"""Replicas, one prefill or one decode iteration at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .config import Demand, linear
from .work import Rollout

if TYPE_CHECKING:
    from .machine import Machine


class Replica(Protocol):
    """What the phases know of a replica."""

    index: int
    busy: bool
    iterations: int
    changed: bool
    at_barrier: bool
    members: list[Rollout]

    def add(self, rollout: Rollout) -> None: ...
    def unfinished(self) -> list[Rollout]: ...
    def has_work(self) -> bool: ...
    def begin_phase(self) -> None: ...
    def start_next(self) -> None: ...
    def note_kept_kv(self) -> None: ...
    def forget_kv(self) -> None: ...


def count_prefill(machine: Machine, rollout: Rollout) -> None:
    """Count the rollout's real context, and fix its first cut threshold."""
    machine.counters.prefilled += rollout.fresh
    if rollout.ever_prefilled:
        machine.counters.recomputed += rollout.context - rollout.fresh - rollout.held - rollout.found
    else:
        machine.counters.prefilled -= rollout.found
    machine.counters.shared += rollout.found
    rollout.fresh = 0
    if not rollout.ever_prefilled:
        rollout.threshold = machine.chunk_size
    rollout.ever_prefilled = True


def give_token(machine: Machine, rollout: Rollout, end: float) -> None:
    """One more response token, perhaps the last."""
    rollout.generated += 1
    rollout.versions.append(machine.version)
    rollout.decoded_in_step = True
    machine.counters.decoded += 1
    if rollout.generated == rollout.response_length:
        rollout.finish_time = end
        rollout.in_kv = False
    machine.made_a_token(rollout)
    if rollout.answered < len(rollout.calls) and rollout.generated == rollout.calls[rollout.answered][0]:
        call_tool(machine, rollout)


def call_tool(machine: Machine, rollout: Rollout) -> None:
    """It leaves the batch; the answer comes later, or at once."""
    rollout.in_kv = False
    rollout.at_tool = True
    rollout.held = rollout.context if machine.config.keep_kv_on_tool_call else 0
    _, seconds, tokens = rollout.calls[rollout.answered]
    attempt = rollout.attempt

    def answer(end: float) -> None:
        if rollout.attempt == attempt:
            rollout.at_tool = False
            rollout.answered += 1
            rollout.tool_tokens += tokens
            rollout.fresh += tokens

    if machine.world.in_this_instant(seconds):
        answer(machine.world.now)
    else:
        machine.world.start(seconds, (), (0.0, 0.0), answer)


class ContinuousReplica:
    """Continuous batching: before every iteration growth check, joins, their prefill."""

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine = machine
        self.index = index
        self.busy = False
        self.iterations = 0
        self.at_barrier = False
        self.members: list[Rollout] = []
        self.changed = True
        """Since the last iteration, who runs: then the demand of decoding is taken anew."""
        self.decode_demand = (0.0, 0.0)
        self.loss = 0.0

    def add(self, rollout: Rollout) -> None:
        rollout.replica = self.index
        self.members.append(rollout)
        self.members.sort(key=lambda member: member.id)

    def unfinished(self) -> list[Rollout]:
        return [member for member in self.members if not member.finished]

    def has_work(self) -> bool:
        return any(not member.at_tool for member in self.unfinished())

    def begin_phase(self) -> None:
        self.iterations = 0
        self.at_barrier = False
        self.changed = True

    def start_next(self) -> None:
        """Begin a prefill or an iteration, if there is one to begin."""
        self._preempt_what_cannot_grow()
        joining = self._join()
        if joining:
            self._prefill(joining)
        elif self._running():
            self._iterate()

    def note_kept_kv(self) -> None:
        self._note_kv(next_token=False)

    def forget_kv(self) -> None:
        for member in self.members:
            member.in_kv = False
            member.held = 0

    def _note_kv(self, next_token: bool) -> None:
        extra = 1 if next_token else 0
        counters = self.machine.counters
        counters.kv_peak_tokens = max(
            counters.kv_peak_tokens, sum(member.context + extra for member in self._running())
        )
        occupied = sum(self.machine.blocks(member.context + extra) for member in self._running())
        counters.kv_peak_block_tokens = max(counters.kv_peak_block_tokens, occupied)

    def _running(self) -> list[Rollout]:
        return [member for member in self.members if member.in_kv]

    def _fits(self, rollouts: list[Rollout]) -> bool:
        config = self.machine.config
        if config.kv_capacity_tokens is None:
            return True
        capacity = config.kv_capacity_tokens // config.kv_block_tokens * config.kv_block_tokens
        return self._memory({rollout: rollout.context + 1 for rollout in rollouts}) <= capacity

    def _memory(self, tokens: dict[Rollout, int]) -> int:
        """Tokens in blocks that rollouts take with so many each; a common prompt is there once."""
        taken = sum(self.machine.blocks(count) for count in tokens.values())
        prompts: dict[int, list[int]] = {}
        for rollout in tokens:
            prompts.setdefault(rollout.id // self.machine.config.group_size, []).append(rollout.common)
        return taken - sum(sum(common) - max(common) for common in prompts.values())

    def _prompt_is_here(self, rollout: Rollout) -> bool:
        size = self.machine.config.group_size
        return any(
            other.id // size == rollout.id // size and other.common and (other.in_kv or other.held)
            for other in self.members
            if other is not rollout
        )

    def _preempt_what_cannot_grow(self) -> None:
        self._give_up_held()
        while not self._fits(self._running()):
            self._running()[-1].in_kv = False
            self.changed = True
            self.machine.counters.preemptions += 1

    def _join(self) -> list[Rollout]:
        joining: list[Rollout] = []
        most = self.machine.config.max_num_seqs
        for rollout in self.unfinished():
            if rollout.in_kv or rollout.at_tool:
                continue
            if not self._fits([*self._running(), rollout]) or (
                most is not None and len(self._running()) >= most
            ):
                break
            here = rollout.common > 0 and rollout.held == 0 and self._prompt_is_here(rollout)
            rollout.found = rollout.common if here else 0
            rollout.in_kv = True
            joining.append(rollout)
            self.changed = True
        self._give_up_held()
        return joining

    def _give_up_held(self) -> None:
        """What is held of others makes room for those in the batch, the highest id first."""
        config = self.machine.config
        if config.kv_capacity_tokens is None:
            return
        capacity = config.kv_capacity_tokens // config.kv_block_tokens * config.kv_block_tokens
        holding = [member for member in self.members if member.held and not member.in_kv]
        running = {rollout: rollout.context + 1 for rollout in self._running()}
        while holding and self._memory(running | {member: member.held for member in holding}) > capacity:
            holding.pop().held = 0

    def _prefill(self, joining: list[Rollout]) -> None:
        config = self.machine.config
        for rollout in joining:
            count_prefill(self.machine, rollout)
        self._note_kv(next_token=False)
        had = {rollout: rollout.held or rollout.found for rollout in joining}
        tokens = sum(rollout.context - past for rollout, past in had.items())
        pairs = sum((rollout.context**2 - past**2) / 2 for rollout, past in had.items())
        for rollout in joining:
            rollout.held = 0
        if not tokens:
            self.start_next()
            return
        seconds = config.factors.get("prefill", 1.0) * linear(config.prefill, tokens, pairs)
        self._occupy(seconds, config.demand("prefill"))

    def _iterate(self) -> None:
        config = self.machine.config
        running = self._running()
        self.iterations += 1
        self._note_kv(next_token=True)
        device, host = config.iteration(len(running), sum(rollout.context for rollout in running))
        if self.changed:
            self.decode_demand = config.demand("decode", device, host)
            self.loss = config.turn_s / (device + host)
            self.changed = False
        self._occupy(device + host, self.decode_demand, running, self.loss)

    def _occupy(
        self, seconds: float, demand: Demand, running: list[Rollout] | None = None, loss: float = 0.0
    ) -> None:
        def done(end: float) -> None:
            self.busy = False
            for rollout in running or []:
                give_token(self.machine, rollout, end)
                self.changed = self.changed or not rollout.in_kv

        self.busy = True
        self.machine.counters.kernel_gen += max(demand) * seconds
        config = self.machine.config
        devices, (slowed_by, _, _) = config.devices_of_replica(self.index), config.slowed_by
        self.machine.world.start(seconds, devices, demand, done, loss, slowed_by)


class StaticReplica:
    """A plain generate(): one padded batch a phase."""

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine = machine
        self.index = index
        self.busy = False
        self.iterations = 0
        self.at_barrier = False
        self.members: list[Rollout] = []
        self.rows: list[Rollout] = []
        self.width = 0
        self.changed = True
        self.decode_demand = (0.0, 0.0)
        self.loss = 0.0

    def add(self, rollout: Rollout) -> None:
        rollout.replica = self.index
        self.members.append(rollout)
        self.members.sort(key=lambda member: member.id)

    def unfinished(self) -> list[Rollout]:
        return [member for member in self.members if not member.finished]

    def has_work(self) -> bool:
        return any(not member.at_tool for member in self.unfinished())

    def begin_phase(self) -> None:
        self.iterations = 0
        self.at_barrier = False
        self.rows = []

    def start_next(self) -> None:
        """Form and prefill the batch, or begin its next iteration."""
        if not self.unfinished():
            return
        if self.rows:
            self._iterate()
        else:
            self._form()

    def note_kept_kv(self) -> None:
        """Nothing is kept: every batch is prefilled anew."""

    def forget_kv(self) -> None:
        self.rows = []

    def _note_kv(self, each: int) -> None:
        counters = self.machine.counters
        counters.kv_peak_tokens = max(counters.kv_peak_tokens, len(self.rows) * each)
        counters.kv_peak_block_tokens = max(
            counters.kv_peak_block_tokens, len(self.rows) * self.machine.blocks(each)
        )

    def _form(self) -> None:
        self.changed = True
        self.rows = self.unfinished()
        self.width = max(row.context for row in self.rows)
        for row in self.rows:
            count_prefill(self.machine, row)
            self.machine.counters.padding += self.width - row.context
        self._note_kv(self.width)
        rows = len(self.rows)
        config = self.machine.config
        seconds = linear(config.prefill, rows * self.width, rows * self.width**2 / 2)
        seconds *= config.factors.get("prefill", 1.0)
        self._occupy(seconds, config.demand("prefill"), self._prefilled)

    def _prefilled(self, end: float) -> None:
        self.busy = False

    def _iterate(self) -> None:
        self.iterations += 1
        self._note_kv(self.width + 1)
        rows = len(self.rows)
        device, host = self.machine.config.iteration(rows, rows * self.width)
        if self.changed:
            self.decode_demand = self.machine.config.demand("decode", device, host)
            self.loss = self.machine.config.turn_s / (device + host)
            self.changed = False
        self._occupy(device + host, self.decode_demand, self._iterated, self.loss)

    def _iterated(self, end: float) -> None:
        self.busy = False
        self.width += 1
        for row in self.rows:
            if row.finished:
                self.machine.counters.padding += 1
            else:
                give_token(self.machine, row, end)
                self.changed = self.changed or row.finished

    def _occupy(
        self, seconds: float, demand: Demand, done: Callable[[float], None], loss: float = 0.0
    ) -> None:
        self.busy = True
        self.machine.counters.kernel_gen += max(demand) * seconds
        config = self.machine.config
        devices, (slowed_by, _, _) = config.devices_of_replica(self.index), config.slowed_by
        self.machine.world.start(seconds, devices, demand, done, loss, slowed_by)
