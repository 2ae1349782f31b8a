"""Commands on real engines."""

from oppo_real.quiet import quiet_torch

quiet_torch()
