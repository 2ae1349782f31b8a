"""What a cut costs, fitted: seconds a round, a piece at the scorer, a piece on its way."""

from collections.abc import Sequence
from typing import Final

from oppo_real.calibrate.fit import Fit, Measured, fit_table

_LEAST_SHARE: Final = 0.05
"""Of a scoring batch's seconds, that its forward takes at least."""


class Cuts:
    """The fits, and what a profile says of them: seconds a round, a piece at the scorer, a piece on its way;
    None where nothing was measured."""

    def __init__(
        self, rounds: Sequence[Measured], pieces: Sequence[Measured], sent: Sequence[Measured], seed: int
    ) -> None:
        measured = {
            "round": (rounds, "per_round"),
            "piece": (pieces, "per_piece"),
            "send": (sent, "per_piece"),
        }
        self.fits: dict[str, Fit] = {
            name: fit_table(name, data, ("fixed", term), seed)
            for name, (data, term) in measured.items()
            if len({one.point.key for one in data}) > 1
        }

    def seconds(self, name: str) -> float | None:
        """A round, a piece or a piece sent."""
        fit = self.fits.get(name)
        return None if fit is None else fit.coefficients[-1].value

    def without_pieces(self, data: Sequence[Measured]) -> list[Measured]:
        """Scoring batches less what their pieces cost, since a run adds that for each of its own."""
        piece_s = self.seconds("piece") or 0.0

        def less(seconds: float, count: int) -> float:
            return max(seconds - count * piece_s, _LEAST_SHARE * seconds)

        return [
            Measured(one.point, tuple(less(seconds, one.point.n) for seconds in one.repeats)) for one in data
        ]
