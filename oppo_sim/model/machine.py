"""Replicas, scoring workers and training devices on one clock, and the order of decisions at an instant."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from simpy.events import Event

from oppo_sim.costs.interface import NO_CUTS, Costs
from oppo_sim.model.clock import Clock
from oppo_sim.model.counterfactual import Counterfactual
from oppo_sim.model.device import Device, Host, Runner
from oppo_sim.model.layout import device_layout
from oppo_sim.model.links import Links
from oppo_sim.model.replica import DECODE, IDLE, PREFILL, Replica
from oppo_sim.model.replica_rules import ReplicaRules
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.scorer import Scorer
from oppo_sim.model.scorer_cache import PrefixCache
from oppo_sim.model.setup import MachineSetup
from oppo_sim.model.tally import Tally, Work
from oppo_sim.results.spans import Marker, Span
from oppo_sim.schedule.plant import BusyReading
from oppo_sim.schedule.scheduler import Scheduler

WAKE = "wake"
"""Span of a replica before the first iteration of a phase."""
BARRIER = "barrier"
"""Span of a replica after a round, before the next one or the end of the phase."""


class Machine:
    """Everything that takes simulated time."""

    def __init__(
        self,
        setup: MachineSetup,
        costs: Costs,
        scheduler: Scheduler[Rollout],
        *,
        stream: bool,
        counterfactual: Counterfactual,
        timeline: bool,
    ) -> None:
        self.clock = Clock(self.settle)
        self._scheduler = scheduler
        self._every_instant = scheduler.every_instant
        self.generating = False
        self.stopping = False
        self._ready: list[Replica] = []
        self._answered: list[Replica] = []
        """Rollouts of these have got in line in this instant: their tools answered, or they are new."""
        self._calls: dict[int, Event] = {}
        """Answers to come, by rollout."""
        self._postponed_round: int | None = None
        """A round that begins when a tool answers: until then nobody has anything to decode."""
        self._leaves: Callable[[], None] | None = None
        """What leaving the barrier is, once its seconds have passed."""
        self.tally = Tally()
        self.spans: list[Span] = []
        self.markers: list[Marker] = []
        self._timeline = timeline

        self.layout = device_layout(setup, contention=not counterfactual.no_contention)
        self._devices = [
            Host() if number in self.layout.hosts else Device(shared, setup.interference, setup.time_slices)
            for number, shared in enumerate(self.layout.shared)
        ]
        self.rollout_devices = self._on(self.layout.rollout)
        self.scoring_devices = self._on(self.layout.scoring)
        self.training_devices = self._on(self.layout.training)
        self._hosts = self._on(self.layout.hosts)
        groups = (*self.rollout_devices, *self.scoring_devices, *self.training_devices, *self._hosts)
        self._shared = [device for device in dict.fromkeys(groups) if device.shared]

        decoding, scoring, self._training_slowed_by = setup.slowed_by
        actor = costs.actor.without_padding() if counterfactual.free_padding else costs.actor
        rules = _replica_rules(setup, counterfactual, stream)
        self.replicas = [
            Replica(
                index,
                self._runner_on(index, device, decoding),
                actor,
                rules,
                scheduler.finished,
                self._offer,
                self._call_tool,
                self._ready,
            )
            for index, device in enumerate(self.rollout_devices)
        ]
        cuts = NO_CUTS if counterfactual.free_cuts else costs.cuts
        send_s_per_token = 0.0 if counterfactual.free_cuts else setup.send_s_per_token
        self._round_fixed_s = cuts.round_fixed_s
        links = partial(Links, self.clock, setup.num_replicas, cuts.piece_send_s, send_s_per_token)
        self.scorer = Scorer(
            [self._runner_on(index, device, scoring) for index, device in enumerate(self.scoring_devices)],
            costs.scorer,
            setup.max_scoring_tokens,
            setup.scorer_kv_capacity_tokens,
            setup.scorer_block_tokens,
            _prefix_cache(setup),
            cuts.piece_fixed_s,
            costs.phases.reward_phase_s,
            links if cuts.piece_send_s > 0.0 or send_s_per_token > 0.0 else None,
            scheduler.scored,
        )
        if not timeline:
            for replica in self.replicas:
                replica.on_piece = self.scorer.offer
        self._runners = [*(replica.runner for replica in self.replicas), *self.scorer.runners]

    def _on(self, numbers: Sequence[int]) -> list[Device]:
        return [self._devices[number] for number in numbers]

    def _runner_on(
        self, index: int, device: Device, slowed_by: float
    ) -> Callable[[Callable[[float], None]], Runner]:
        """Of replica or worker ``index``."""
        devices = [device, *self._on(self.layout.host_of(index))]
        return lambda on_end: Runner(self.clock, devices, on_end, slowed_by)

    def training_runner(self, on_end: Callable[[float], None]) -> Runner:
        """Runs the training stages."""
        devices = [*self.training_devices, *self._hosts]
        return self._kept(Runner(self.clock, devices, on_end, self._training_slowed_by))

    def sync_runner(self, on_end: Callable[[float], None]) -> Runner:
        """Runs ``update_weights``, on training and rollout devices."""
        devices = [*self._on(self.layout.sync), *self._hosts]
        return self._kept(Runner(self.clock, devices, on_end, self._training_slowed_by))

    def _kept(self, runner: Runner) -> Runner:
        self._runners.append(runner)
        return runner

    def _offer(self, rollout: Rollout, new: int, past: int, last: bool) -> None:
        self.scorer.offer(rollout, new, past, last)
        if self._timeline:
            self.markers.append(
                Marker("chunk", "rollout", rollout.replica, self.clock.elapsed, self.scorer.step)
            )

    def begin_row(self, step: int, record_timeline: bool) -> float:
        """Start counting for a new row, time too: seconds are counted from now on. Returns what passed since
        the last."""
        passed = self.clock.rebase()
        for device in (*self.rollout_devices, *self.scoring_devices, *self.training_devices):
            device.begin_row()
        for runner in self._runners:
            runner.rebase(passed)
        self.scorer.rebase(passed)
        origin = self.scorer.origin = self.clock.origin
        tally = self.tally = Tally()
        self.scorer.tally = tally
        self.scorer.work_of = [Work() for _ in self.scorer.workers]
        self.scorer.step = step
        spans = self.spans if record_timeline else None
        self.scorer.spans = spans
        self._timeline = record_timeline
        for replica in self.replicas:
            replica.tally = tally
            replica.step = step
            replica.origin = origin
            replica.at -= passed
            replica.meter.work = Work()
            replica.spans = spans
        return passed

    def read_busy(self) -> BusyReading:
        """The meters now."""
        now = self.clock.now

        def busy(devices: Sequence[Device]) -> tuple[float, ...]:
            return tuple([device.busy_until(now) for device in devices])

        return BusyReading(
            now, busy(self.rollout_devices), busy(self.scoring_devices), busy(self.training_devices)
        )

    def mark(self, name: str, at: float, step: int) -> None:
        """A moment on the timeline, ``at`` seconds from the begin of the row."""
        if self._timeline:
            self.markers.append(Marker(name, "training", 0, self.clock.origin + at, step))

    def generate(self, chunk_size: int, round_size: int | None, after_s: float = 0.0) -> None:
        """Start (or resume) generation, ``after_s`` seconds from now; until then replicas do nothing."""
        began = self.clock.elapsed

        def start(event: Event | None = None) -> None:
            self.generating = True
            self.stopping = False
            for replica in self.replicas:
                replica.batch.chunk_size = chunk_size
                replica.begin_phase(self.clock.now, round_size)
                if event is not None and replica.spans is not None:
                    ended = self.clock.elapsed
                    replica.spans.append(Span("rollout", replica.index, WAKE, began, ended, replica.step, {}))

        if after_s > 0.0:
            self.clock.call_at(self.clock.now + after_s, start)
        else:
            start()

    def next_round(self, round_size: int) -> None:
        """From the barrier on, another round; or from when a tool has answered, where all wait for one."""
        barrier = max(replica.at for replica in self.replicas)
        for replica in self.replicas:
            replica.begin_round(barrier, round_size)
            replica.next_activity()
        if self.stopped():
            self._postponed_round = round_size

    def leave_barrier(self, then: Callable[[], None]) -> None:
        """All replicas are idle: ``then`` comes when the seconds of a round have passed."""
        if self._round_fixed_s <= 0.0:
            then()
            return
        barrier = max(replica.at for replica in self.replicas)

        def over(event: Event) -> None:
            now = self.clock.now
            for replica in self.replicas:
                replica.at = now
                if replica.spans is not None:
                    began, ended = self.clock.origin + barrier, self.clock.elapsed
                    replica.spans.append(
                        Span("rollout", replica.index, BARRIER, began, ended, replica.step, {})
                    )
            self._leaves = then

        self.clock.call_at(barrier + self._round_fixed_s, over)

    def end_round(self) -> Iterator[Rollout]:
        """Rollouts that may have made tokens in the round, ``generated`` current."""
        for replica in self.replicas:
            replica.batch.sync_generated()
            finished, replica.made_in_round = replica.made_in_round, []
            yield from dict.fromkeys((*finished, *replica.batch.rollouts))

    def join(self, rollouts: Sequence[Rollout]) -> None:
        """More rollouts, while generation goes on."""
        for rollout in rollouts:
            replica = self.replicas[rollout.replica]
            replica.batch.enqueue(rollout)
            if replica.round_left is None:  # else it is at the barrier
                replica.wake(self.clock.now)
                self._answered.append(replica)

    def _call_tool(self, rollout: Rollout, at: float) -> None:
        wait = rollout.call_tool()

        def answered(event: Event) -> None:
            del self._calls[rollout.rollout_id]
            rollout.take_answer()
            if rollout.queued:
                self._tool_answered(rollout)

        self._calls[rollout.rollout_id] = self.clock.call_at(at + wait.seconds, answered)

    def _tool_answered(self, rollout: Rollout) -> None:
        replica = self.replicas[rollout.replica]
        replica.batch.tool_answered(rollout)
        if not self.generating or self.stopping:
            return
        now = self.clock.now
        if self._postponed_round is not None:
            size, self._postponed_round = self._postponed_round, None
            for each in self.replicas:
                each.begin_phase(now, size)
        elif replica.round_left is None or replica.state != IDLE:  # else it is at the barrier
            replica.wake(now)
            self._answered.append(replica)

    def forget(self, rollout: Rollout) -> None:
        """A rollout is dropped: its tool answers nobody."""
        if rollout.queued:
            self.replicas[rollout.replica].batch.remove(rollout)
        call = self._calls.pop(rollout.rollout_id, None)
        if call is not None:
            self.clock.cancel(call)
        self.scorer.forget(rollout)

    def stop(self, now: float) -> None:
        """Complete iterations and prefills in progress; start no others."""
        self.stopping = True
        for replica in self.replicas:
            replica.stop(now)

    def stopped(self) -> bool:
        """True when no replica is decoding or prefilling."""
        return not any(replica.state in (DECODE, PREFILL) for replica in self.replicas)

    def rest(self) -> float:
        """Generation is over; returns when the last replica stopped (seconds) and brings ``generated`` up to
        date."""
        self.generating = False
        self.stopping = False
        self._postponed_round = None
        self._ready.clear()
        for replica in self.replicas:
            replica.state = IDLE
            replica.batch.sync_generated()
        return max(replica.at for replica in self.replicas)

    def settle(self, now: float) -> None:
        """The decisions of one instant, in their order."""
        scheduler = self._scheduler
        if self._an_iteration_ends_first(now):
            return
        if self.generating:
            scheduler.stop_check()
            if self._an_iteration_ends_first(now):
                return
            if self.stopping and any(replica.stops_at(now) for replica in self.replicas):
                # An end that the stop brought forward to this instant comes before what follows from it.
                self._rerate(now)
                return
            if self._leaves is not None:
                leaves, self._leaves = self._leaves, None
                leaves()
            if self._ready and not self.stopping and self.generating:
                self._start_ready(now)
        self.scorer.work(now)
        if self._every_instant and not self.clock.event_in_instant():
            scheduler.instant_over()
        if self._shared:
            self._rerate(now)

    def _an_iteration_ends_first(self, now: float) -> bool:
        """An iteration was cut short for those that got in line, and ends in this very instant: that comes
        before what they lead to."""
        if not self._answered:
            return False
        answered, self._answered = self._answered, []
        if self.generating and any(replica.stops_at(now) for replica in answered):
            self._rerate(now)
            return True
        return False

    def _start_ready(self, now: float) -> None:
        ready = self._ready
        if len(ready) > 1:
            ready.sort(key=lambda replica: replica.index)
        idle = False
        for replica in ready:
            replica.next_activity()
            if replica.state == IDLE:
                idle = True
        ready.clear()
        if idle and self.stopped():
            # Outside rounds whoever waits for a tool goes on in this phase.
            rounds = self.replicas[0].round_left is not None
            if rounds or not any(replica.batch.away for replica in self.replicas):
                self._scheduler.all_idle()
                if ready and self.generating:  # another generation batch has begun
                    self._start_ready(now)

    def _rerate(self, now: float) -> None:
        runners = {id(runner): runner for device in self._shared if device.dirty for runner in device.active}
        for device in self._shared:
            device.dirty = False
        for runner in runners.values():
            runner.rerate(now)


def _replica_rules(setup: MachineSetup, counterfactual: Counterfactual, stream: bool) -> ReplicaRules:
    return ReplicaRules(
        static=setup.batching == "static",
        kv_blocks=setup.kv_blocks,
        kv_block_tokens=setup.kv_block_tokens,
        max_num_seqs=setup.max_num_seqs,
        keeps_kv=setup.keeps_kv_between_rounds,
        stream=stream,
        keep_kv_on_tool_call=not setup.clear_kv_cache_on_tool_call,
        turn_s=setup.turn_s,
        free_recompute=counterfactual.free_recompute,
        free_padding=counterfactual.free_padding,
    )


def _prefix_cache(setup: MachineSetup) -> Callable[[], PrefixCache] | None:
    """Makes the cache of one scoring worker; None: prefixes are never lost."""
    blocks = setup.scorer_cache_blocks
    if blocks is None:
        return None
    return partial(PrefixCache, blocks, setup.scorer_block_tokens, setup.scorer_iteration_tokens)
