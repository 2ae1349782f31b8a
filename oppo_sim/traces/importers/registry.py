"""All importers, by name."""

from difflib import get_close_matches
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.areal import AREAL
from oppo_sim.traces.importers.azure import AZURE
from oppo_sim.traces.importers.burstgpt import BURSTGPT
from oppo_sim.traces.importers.generic import GENERIC
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.mooncake import MOONCAKE
from oppo_sim.traces.importers.nemo_rl import NEMO_RL
from oppo_sim.traces.importers.open_instruct import OPEN_INSTRUCT
from oppo_sim.traces.importers.openrlhf import OPENRLHF
from oppo_sim.traces.importers.pipelinerl import PIPELINERL
from oppo_sim.traces.importers.prime_rl import PRIME_RL
from oppo_sim.traces.importers.roll import ROLL
from oppo_sim.traces.importers.skyrl import SKYRL
from oppo_sim.traces.importers.slime import SLIME
from oppo_sim.traces.importers.trl import TRL
from oppo_sim.traces.importers.verl import VERL

AUTO: Final = "auto"
IMPORTERS: Final = (
    VERL, SLIME, AREAL, NEMO_RL, TRL, OPEN_INSTRUCT, ROLL, PRIME_RL, PIPELINERL, SKYRL, OPENRLHF, AZURE,
    BURSTGPT, MOONCAKE, GENERIC,
)  # fmt: skip
ALIASES: Final = {
    "april": "slime",
    "nemo": "nemo_rl",
    "jsonl": "generic",
    "parquet": "generic",
    "csv": "generic",
}


def find_importer(name: str) -> Importer:
    """The importer of that name; ``-`` counts as ``_``. Raises OppoError, with close names."""
    wanted = name.strip().lower().replace("-", "_")
    wanted = ALIASES.get(wanted, wanted)
    names = [each.name for each in IMPORTERS]
    if wanted in names:
        return IMPORTERS[names.index(wanted)]
    close = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}, and {AUTO}"
    raise OppoError(f"there is no importer '{name}': {hint}")
