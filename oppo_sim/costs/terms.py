"""What is unknown about seconds: factors on what a cost model answers and seconds that it leaves out, and
draws of them."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from oppo_sim.costs.strict import NonNegative, Positive, Strict
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, whole_file


class CostTerms(Strict):
    """Applied to the answers of any cost model: factors (1: as answered) and seconds added (0: none)."""

    decode: Positive = 1.0
    """Factor on the device's seconds of a decode iteration."""
    host: Positive = 1.0
    """Factor on the host's seconds of a decode iteration that the cost model holds: an iteration's, a
    rollout's, launches."""
    prefill: Positive = 1.0
    """Factor on the actor's prefills."""
    score: Positive = 1.0
    """Factor on the forwards of a scoring worker."""
    training: Positive = 1.0
    """Factor on every training stage and on ``update_weights``; that of a stage multiplies it."""
    old_log_prob: Positive = 1.0
    ref: Positive = 1.0
    values: Positive = 1.0
    adv: Positive = 1.0
    update_critic: Positive = 1.0
    update_actor: Positive = 1.0
    update_weights: Positive = 1.0

    iteration_s: NonNegative = 0.0
    """Seconds a decode iteration, of the host."""
    rollout_iteration_s: NonNegative = 0.0
    """Seconds a running rollout and decode iteration, of the host."""
    score_batch_s: NonNegative = 0.0
    """Seconds a scoring batch, of the host."""
    round_fixed_s: NonNegative = 0.0
    """Seconds a round of generation (``stop_check: chunk``), of the host: the loop stops, synchronises,
    decodes text and starts again. Inside ``timing_s/gen``."""
    piece_fixed_s: NonNegative = 0.0
    """Seconds a piece at its scoring worker, of the host."""
    piece_send_s: NonNegative = 0.0
    """Seconds a piece on its way from replica to scorer; decoding goes on."""
    gen_phase_s: NonNegative = 0.0
    """Seconds a generation phase, before its first iteration: waking the engine, resharding, loading weights.
    Inside ``timing_s/gen``."""
    reward_phase_s: NonNegative = 0.0
    """Seconds a generation phase, at each scoring worker, before the first batch that it begins since: waking
    the reward model."""
    first_step_s: NonNegative = 0.0
    """Seconds that the generation of the first step takes longer."""
    old_log_prob_s: NonNegative = 0.0
    """Seconds of the stage where it runs; likewise those below."""
    ref_s: NonNegative = 0.0
    values_s: NonNegative = 0.0
    adv_s: NonNegative = 0.0
    update_critic_s: NonNegative = 0.0
    update_actor_s: NonNegative = 0.0
    update_weights_s: NonNegative = 0.0
    other_s: NonNegative = 0.0
    """Seconds a step outside every stage, after ``update_weights``: data, logging, checkpoints."""

    def then(self, other: Self) -> Self:
        """Both, one after the other: factors multiply, seconds add."""
        both = {
            name: value + getattr(other, name) if name in SECONDS else value * getattr(other, name)
            for name, value in self
        }
        stated = self.model_fields_set | other.model_fields_set
        return type(self)(**{name: value for name, value in both.items() if name in stated})

    def stated(self) -> dict[str, float]:
        """The terms that were given, by name: one that is given as its default is not believed to be
        anything else."""
        return {name: value for name, value in self if name in self.model_fields_set}

    def changed(self) -> dict[str, float]:
        """The terms that are not at their default, by name."""
        return {name: value for name, value in self if value != type(self).model_fields[name].default}

    def __str__(self) -> str:
        """Such as ``decode × 1.10, gen_phase_s + 4 s``; ``as given`` without any."""
        parts = [
            f"{name} + {value:.3g} s" if name in SECONDS else f"{name} × {value:.2f}"
            for name, value in self.changed().items()
        ]
        return ", ".join(parts) or "as given"


SECONDS: Final = tuple(name for name in CostTerms.model_fields if name.endswith("_s"))
"""Terms that are seconds added."""
FACTORS: Final = tuple(name for name in CostTerms.model_fields if name not in SECONDS)
"""Terms that are factors."""
NO_TERMS: Final = CostTerms()
"""What a cost model answers, as it answers it."""


def read_draws(path: Path, point: CostTerms = NO_TERMS) -> tuple[CostTerms, ...]:
    """Draws of a CSV file: a header of terms' names, one row a draw; terms without a column are those of
    ``point``.

    Raises OppoError for a file that cannot be read or has no draw, a name that is no term, a row of another
    length than the header, and a value that is no number, a factor <= 0 or seconds < 0.
    """
    with file_errors(path):
        content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise OppoError(f"{path} is no text: give a CSV file of draws") from None
    try:
        rows = [(line, row) for line, row in enumerate(csv.reader(io.StringIO(text)), start=1) if any(row)]
    except csv.Error as error:
        raise OppoError(f"{path} is no CSV file of draws ({error}): write it again") from None
    if len(rows) < 2:
        raise OppoError(f"{path} holds no draws: give a header of terms' names and one row a draw")
    names = [name.strip() for name in rows[0][1]]
    for name in names:
        if name not in CostTerms.model_fields:
            known = ", ".join(CostTerms.model_fields)
            raise OppoError(f"{path}: '{name}' is no term: name the columns with some of {known}")
        if names.count(name) > 1:
            raise OppoError(f"{path}: the column {name} is there twice: leave one of them out")
    return tuple(_draw(path, line, names, row, point) for line, row in rows[1:])


def write_draws(path: Path, draws: Sequence[CostTerms]) -> None:
    """The file that ``read_draws`` reads, every digit kept: a column for each term that some draw changes.

    Raises OppoError without draws, and when the disk refuses.
    """
    if not draws:
        raise OppoError(f"there are no draws to write to {path}: give at least one")
    changed = {name for draw in draws for name in draw.changed()}
    columns = [name for name in CostTerms.model_fields if name in changed] or list(CostTerms.model_fields)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([repr(getattr(draw, name)) for name in columns] for draw in draws)
    with whole_file(path) as file:
        file.write(text.getvalue().encode())


def _draw(path: Path, line: int, names: list[str], row: list[str], point: CostTerms) -> CostTerms:
    if len(row) != len(names):
        raise OppoError(
            f"{path}, line {line}: {len(row)} values under {len(names)} columns: give one value a column"
        )
    values = {}
    for name, text in zip(names, row, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        allowed = value >= 0 if name in SECONDS else value > 0
        if not (allowed and math.isfinite(value)):
            wanted = "seconds of 0 or more" if name in SECONDS else "a factor above 0"
            raise OppoError(f"{path}, line {line}: {name} is '{text.strip()}': give {wanted}")
        values[name] = value
    return point.model_copy(update=values)
