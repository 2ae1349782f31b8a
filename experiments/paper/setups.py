"""What is published of each set-up of OPPO: machine, batch, models, and numbers of the baseline. No result of
OPPO is read here."""

import csv
from dataclasses import dataclass
from typing import Final

from study import FOLDER

BASELINE: Final = FOLDER / "data" / "baseline.csv"
GPU_USE: Final = "gpu_use"
"""In the data: a number whose definition is not published."""
UNRELATED: Final = "unrelated"
"""GPU use is something that the simulator does not have: any share is then as likely."""
_NOTHING: Final = "share/gen=0..1"


@dataclass(frozen=True)
class Setup:
    """One set-up; lengths and longest responses are prior beliefs, not published."""

    name: str
    actor: str
    reward: str | None
    """Reward model; None: rules."""
    device: str
    nodes: int
    mean_tokens: tuple[float, float]
    """Of responses: median and standard deviation of the logarithm."""
    prompt_tokens: tuple[float, float]
    longest: tuple[int, ...]
    """``max_response_length``, equally likely."""


_CODE: Final = (2048, 4096, 8192)
SETUPS: Final = {
    one.name: one
    for one in (
        Setup("se-7b", "qwen2.5-7b", "qwen2.5-7b", "H200", 1, (700, 0.6), (250, 0.5), (4096, 8192)),
        Setup("se-3b", "qwen2.5-3b", "qwen2.5-7b", "H200", 1, (700, 0.6), (250, 0.5), (4096, 8192)),
        Setup("gsm8k-7b", "qwen2.5-7b", None, "H200", 1, (350, 0.4), (100, 0.3), (1024, 2048, 4096)),
        Setup("opencoder-3b", "qwen2.5-3b", "qwen2.5-7b", "H200", 1, (450, 0.6), (200, 0.5), _CODE),
        Setup("nodes-7b", "qwen2.5-7b", "qwen2.5-7b", "A100-80", 2, (700, 0.6), (250, 0.5), (4096, 8192)),
    )
}  # fmt: skip


def known_of(setup: str, gpu_use: str) -> list[str]:
    """Numbers of the baseline, as ``oppo fit --observe`` takes them.

    ``gpu_use``: what the published GPU use is taken to be, a quantity of ``--observe``.
    """
    with BASELINE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["setup"] == setup]
    told = [row["observe"] for row in rows]
    if gpu_use == UNRELATED:
        return [text for text in told if not text.startswith(GPU_USE)] or [_NOTHING]
    return [text.replace(f"{GPU_USE}=", f"{gpu_use}=") for text in told]


def tells_gpu_use(setup: str) -> bool:
    """A GPU use is published."""
    return any(text.startswith("utilization") for text in known_of(setup, "utilization/inference"))
