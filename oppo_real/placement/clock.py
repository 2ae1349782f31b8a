"""Alarms, by which rollouts hear of their tools' answers, and the clock of a lock-step run."""

from collections.abc import Iterable, Sequence

from oppo_real.placement.events import Answered, Job
from oppo_sim.instants import instant_tolerance


class Alarms:
    """Moments at which rollouts are to be told of. Seconds since the run began (lock-step: iterations)."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def set(self, rollout_id: int, at: float) -> None:
        """Tell of a rollout at ``at``."""
        self._at[rollout_id] = at

    def cancel(self, rollout_id: int) -> None:
        """Do not; one that has no alarm is no error."""
        self._at.pop(rollout_id, None)

    def next(self) -> float | None:
        """The earliest."""
        return min(self._at.values(), default=None)

    def due(self, now: float) -> list[Answered]:
        """Those up to ``now``, by (moment, id); they are over."""
        until = now + instant_tolerance(now)
        over = sorted((at, rollout_id) for rollout_id, at in self._at.items() if at <= until)
        for _, rollout_id in over:
            del self._at[rollout_id]
        return [Answered(rollout_id, at) for at, rollout_id in over]


class LockStep:
    """Counts decode iterations: each takes 1, whatever runs. Replicas that begin together stay together; one
    that had nothing to do begins when somebody joins it."""

    def __init__(self, elapsed: float) -> None:
        """``elapsed``: what the clock shows at first."""
        self.now = elapsed
        self._began: dict[int, float] = {}
        """When the iteration in progress began, of replicas that decode."""
        self._stopping: set[int] = set()
        self._later: dict[int, list[Job]] = {}

    def generate(self, replicas: Iterable[int]) -> None:
        """They decode from now on."""
        self._began = dict.fromkeys(replicas, self.now)
        self._stopping = set()

    def join(self, replica: int, jobs: Sequence[Job]) -> bool:
        """True: the replica may have the jobs now. Else they are kept until its iteration has ended."""
        if self.in_iteration(replica):
            self._later.setdefault(replica, []).extend(jobs)
            return False
        self._began.setdefault(replica, self.now)
        return True

    def in_iteration(self, replica: int) -> bool:
        """It is between the begin and the end of one."""
        began = self._began.get(replica)
        return began is not None and self.now - began > instant_tolerance(self.now)

    def stop(self) -> list[int]:
        """Replicas that rest at once; the others when their iterations have ended."""
        resting = [replica for replica in sorted(self._began) if not self.in_iteration(replica)]
        self._stopping = set(self._began).difference(resting)
        return resting

    def rest(self, replica: int) -> None:
        """It decodes no more."""
        self._began.pop(replica, None)
        self._stopping.discard(replica)

    def advance(self, other: Iterable[float | None]) -> bool:
        """Go to the next instant: the end of an iteration, or one of ``other``. False: there is none."""
        ends = [began + 1 for began in self._began.values()] + [at for at in other if at is not None]
        if not ends:
            return False
        self.now = max(self.now, min(ends))
        return True

    def is_now(self, at: float) -> bool:
        """``at`` is this instant, or before it."""
        return at - self.now <= instant_tolerance(self.now)

    def ending(self) -> list[tuple[int, float, bool]]:
        """(replica, begin of its iteration, whether it is to rest) where an iteration ends now; there the
        next one begins."""
        ended = [(replica, began) for replica, began in sorted(self._began.items()) if self.is_now(began + 1)]
        for replica, _ in ended:
            self._began[replica] = self.now
        return [(replica, began, replica in self._stopping) for replica, began in ended]

    def joining(self, replica: int) -> list[Job]:
        """Jobs that were kept until the end of its iteration."""
        return self._later.pop(replica, [])
