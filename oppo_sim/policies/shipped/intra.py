"""``intra``: overlap within a step."""

from typing import ClassVar

from pydantic import Field

from oppo_sim.policies.chunk_control import CHUNK_HELP, ChunkSetting
from oppo_sim.policies.interface import ScoreGranularity
from oppo_sim.policies.refill import Refill
from oppo_sim.policies.shipped.sequential import SequentialSettings


class IntraSettings(SequentialSettings):
    chunk_size: ChunkSetting = Field(256, description=CHUNK_HELP)
    score_granularity: ClassVar[ScoreGranularity] = "chunk"


class Intra(Refill):
    """Stream chunks of unfinished responses to the scorer."""

    name = "intra"
    summary = "stream chunks to the scorer while decoding"
    carries = False
    recomputes = False
    Settings = IntraSettings
    inherited = ("chunk_size", "stop_check")
