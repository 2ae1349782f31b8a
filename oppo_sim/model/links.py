"""What pieces cross on their way to the scorer: each replica sends what it cut at one instant as one message
(docs/model.md C22)."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from simpy.events import Event

from oppo_sim.model.clock import Clock
from oppo_sim.model.formulas import send_seconds
from oppo_sim.model.rollout import Rollout
from oppo_sim.schedule.scoring import Piece

_ROLLOUT_ID = attrgetter("rollout.rollout_id")


class Links:
    """One link a replica, on which a piece takes seconds of its own and seconds a token."""

    def __init__(
        self,
        clock: Clock,
        num_replicas: int,
        piece_send_s: float,
        send_s_per_token: float,
        deliver: Callable[[Piece[Rollout]], None],
    ) -> None:
        """``deliver`` is called with a piece when it has arrived."""
        self._clock = clock
        self._piece_s, self._token_s = piece_send_s, send_s_per_token
        self._deliver = deliver
        self._free = [0.0] * num_replicas
        """When each has sent all that it has taken."""
        self._cut: list[Piece[Rollout]] = []
        self._under_way: list[Piece[Rollout]] = []

    def take(self, piece: Piece[Rollout]) -> None:
        """A piece was cut at the current instant."""
        self._cut.append(piece)

    def send(self, now: float) -> None:
        """End of an instant: what was cut in it leaves, and arrives when the last of it does."""
        cut = self._cut
        if not cut:
            return
        cut.sort(key=_ROLLOUT_ID)
        free = self._free
        for piece in cut:
            link = piece.rollout.replica
            free[link] = max(free[link], now) + send_seconds(piece.new, self._piece_s, self._token_s)
        for piece in cut:
            self._under_way.append(piece)
            self._clock.call_at(free[piece.rollout.replica], partial(self._arrived, piece))
        cut.clear()

    def forget(self, rollout: Rollout) -> None:
        """A dropped rollout's pieces come to nothing; those behind them are no earlier."""
        for pieces in (self._cut, self._under_way):
            pieces[:] = [piece for piece in pieces if piece.rollout is not rollout]

    def move(self, rollout: Rollout, left: int) -> None:
        """A rollout goes on at another replica: no piece of it overtakes those sent before."""
        if rollout.handed:
            self._free[rollout.replica] = max(self._free[rollout.replica], self._free[left])

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        self._free = [seconds - passed for seconds in self._free]

    def _arrived(self, piece: Piece[Rollout], event: Event) -> None:
        if piece in self._under_way:
            self._under_way.remove(piece)
            self._deliver(piece)
