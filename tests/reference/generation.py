"""The generation phase, polled at every instant."""

from collections.abc import Callable

from .machine import Machine
from .pool import Pool
from .work import Group, members_of


class Generation:
    """From the admission of a step to the stop of the last replica. ``poll`` makes the stop check and begins
    iterations."""

    def __init__(
        self,
        machine: Machine,
        pool: Pool,
        may_end: Callable[[], bool],
        first: bool = False,
        groups: list[Group] | None = None,
    ) -> None:
        """``first``: of the run; ``groups``: those generated, kept up to date where some are replaced."""
        self.machine = machine
        self.pool = pool
        self.may_end = may_end
        self.groups = groups
        self.gone: list[Group] = []
        """Since the last replacement"""
        self.start = machine.world.now
        self.end: float | None = None
        self.stopping = False
        for replica in machine.replicas:
            replica.begin_phase()
        self.asleep = False
        self.at_barrier = False
        self.round_paid = False
        self._forget_kv()
        if self.may_end():
            self.end = self.start
            return
        for worker in machine.scorer.workers:
            worker.asleep = True
        added = machine.config.added
        self._sleep(added.get("gen_phase", 0.0) + (added.get("first_step", 0.0) if first else 0.0))

    def _sleep(self, seconds: float) -> None:
        def awake(end: float) -> None:
            self.asleep = False

        if seconds > 0:
            self.asleep = True
            self.machine.world.start(seconds, (), (0.0, 0.0), awake)

    def _forget_kv(self) -> None:
        """A round of an engine whose KV ends with each call."""
        if self.machine.config.in_rounds and not self.machine.config.keeps_kv:
            for replica in self.machine.replicas:
                replica.forget_kv()

    def poll(self) -> None:
        if self.end is not None or self.asleep:
            return
        if self.machine.config.in_rounds:
            self._poll_rounds()
        else:
            self._poll_tokens()

    def _filter(self) -> None:
        gone = self.pool.filter()
        self.gone += gone
        if self.groups is not None:
            self.groups[:] = [group for group in self.groups if group not in gone]

    def _replace(self) -> None:
        new = self.pool.replace(self.gone)
        self.gone = []
        if new and self.machine.config.gen_batch_size is not None:
            for replica in self.machine.replicas:
                replica.begin_phase()
            self._forget_kv()
            for worker in self.machine.scorer.workers:
                worker.asleep = True
            self._sleep(self.machine.config.added.get("gen_phase", 0.0))
        if self.groups is not None:
            self.groups.extend(new)

    def _poll_tokens(self) -> None:
        self._filter()
        if not (self.stopping or self._enough()):
            self._replace()
            if self.asleep:
                return
        self.stopping = self.stopping or self._enough()
        if not self.stopping:
            for replica in self.machine.replicas:
                if not replica.busy:
                    replica.start_next()
        elif not any(replica.busy for replica in self.machine.replicas):
            self.end = self.machine.world.now

    def _poll_rounds(self) -> None:
        size = self.machine.round_size()
        replicas = self.machine.replicas
        for replica in replicas:
            if not replica.busy and (replica.iterations == size or not replica.has_work()):
                replica.at_barrier = True
        if all(replica.at_barrier for replica in replicas):
            if not self.at_barrier:
                self.at_barrier = True
                self._filter()
                self.machine.at_barrier(members_of(self.pool.in_flight))
                self._pay(self.machine.config.added.get("round_fixed", 0.0))
            if not self.round_paid:
                return
            if self._enough():
                self.end = self.machine.world.now
                return
            self._replace()
            if not any(replica.has_work() for replica in replicas):
                return
            self.at_barrier = False
            for replica in replicas:
                replica.iterations = 0
                replica.changed = True
                replica.at_barrier = False
            if self.asleep:
                return
            self._forget_kv()
        for replica in replicas:
            if not replica.busy and not replica.at_barrier:
                replica.start_next()
                replica.at_barrier = not replica.busy

    def _enough(self) -> bool:
        """Nothing is missing: of a batch of its own, as many as there were, too."""
        return self.may_end() and not (self.groups is not None and self.gone)

    def _pay(self, seconds: float) -> None:
        """The host's seconds of a round."""

        def paid(end: float) -> None:
            self.round_paid = True

        self.round_paid = seconds <= 0
        if seconds > 0:
            self.machine.world.start(seconds, (), (0.0, 0.0), paid)
