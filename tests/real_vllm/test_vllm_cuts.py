"""What a cut costs, as a calibration times it, on vLLM engines that are told by messages: rounds of the actor, pieces
at the scorer."""

from pathlib import Path
from typing import Any

import pytest

from oppo_real.calibrate.bench import Bench
from oppo_real.calibrate.cut_fit import Cuts
from oppo_real.calibrate.fit import Measured
from oppo_real.calibrate.measure import Visit, visit_point
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.sizes import Sizes, bounded
from oppo_real.engines.interface import Sampling

from . import test_vllm_scorer
from .conftest import VOCAB
from .drive import QUIET
from .test_vllm_actor import start

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]

SIZES = Sizes(4, 4, 40, 100, (16, 64), 256)


def nothing(*given: Any) -> dict[str, Any]:
    return {}


def measured(kind: str, bench: Bench) -> tuple[list[tuple[Point, Visit]], list[Measured]]:
    visits = [
        (point, visit_point(bench, point, 0))
        for point in make_plan(bounded(SIZES, {}, bench.scorer.resolved_config())).points
        if point.kind == kind
    ]
    return visits, [Measured(point, visit.seconds) for point, visit in visits]


def test_rounds_and_pieces_are_timed(actor_folder: Path, scorer_folder: Path) -> None:
    actor = start(actor_folder, Sampling(temperature=0.0))
    scorer = test_vllm_scorer.start(scorer_folder)
    bench = Bench(actor, scorer, nothing, nothing, VOCAB, SIZES.max_length, lambda: None)
    try:
        before = actor.counts()
        rounds, round_s = measured("round", bench)
        made = actor.counts()
        # Each three times: two iterations to warm up, then the rounds' own, the same number in all.
        cells = [point.cell for point, _ in rounds if point.cell is not None]
        assert len(cells) == 3
        assert len({count * size for count, size in cells}) == 1
        assert made.decoded - before.decoded == sum(3 * 4 * (2 + count * size) for count, size in cells)
        scored = scorer.counts()
        pieces, piece_s = measured("piece", bench)
        new = scorer.counts()
        # What is timed is what the point says: nothing is prefilled twice.
        assert new.extra["evicted"] == scored.extra["evicted"]
        assert new.prefilled - scored.prefilled == sum(
            3 * (past + tokens) for point, _ in pieces for past, tokens in point.rows
        )
        assert [point.n for point, _ in pieces] == [1, 2, 4, 8]
        sent_s = [Measured(point, visit.host_seconds) for point, visit in pieces]
        for one in (*round_s, *piece_s, *sent_s):
            assert len(one.repeats) == 3
            assert min(one.repeats) > 0
        cuts = Cuts(round_s, piece_s, sent_s, 0)
        # Small models and few repeats: that there is a number, not which.
        for name in ("round", "piece", "send"):
            seconds = cuts.seconds(name)
            assert seconds is not None
            assert 0 <= seconds < 1
    finally:
        scorer.close()
        actor.close()
