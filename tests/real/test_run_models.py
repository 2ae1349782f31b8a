"""Models that a run writes for its engines."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oppo_real.config import parse_real_config
from oppo_real.run.models import prepare_models
from oppo_sim.errors import OppoError


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 20 kB: the log that pytest itself writes neither, so around one call alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_for_the_engines_model_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(
            OppoError, match=r"^cannot write the model .*actor \(.*: free space there, or .*TMPDIR"
        ),
        full_disk(),
    ):
        prepare_models(parse_real_config({"engine": "vllm"}), 0, 64, tmp_path, False)
