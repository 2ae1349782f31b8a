"""What manifests call the folders that commands write."""

from typing import Final

SIMULATED: Final = "simulated"
MEASURED: Final = "measured"
COMPARISON: Final = "simulated comparison"
SWEEP: Final = "simulated sweep"
TUNING: Final = "simulated tuning"
FIT: Final = "fit"
VALIDATION: Final = "validation"
