"""A sweep made up in closed form: a U over the chunk size, a falling curve over the overcommit, two
placements, some impossible points."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from oppo_sim.report.points import Points

CHUNKS = (32, 64, 128, 256, 512, 1024, 2048)
OVERCOMMITS = (0, 4, 8, 16, 24, 32)
PLACEMENTS = ("separate", "rollout")
FAILURE = "rollout.kv_capacity_tokens 40 holds no rollout: raise it"


def seconds(placement: str, chunk: int, overcommit: int) -> float:
    slow = 1.0 if placement == "separate" else 2.0
    return (
        100.0 + slow * (2000.0 / chunk + chunk / 100.0) + 25.0 * math.exp(-overcommit / 8) + 0.2 * overcommit
    )


def table(
    chunks: tuple[int, ...] = CHUNKS,
    overcommits: tuple[int, ...] = OVERCOMMITS,
    placements: tuple[str, ...] = PLACEMENTS,
) -> pd.DataFrame:
    rows = []
    for placement in placements:
        for chunk in chunks:
            for overcommit in overcommits:
                took = seconds(placement, chunk, overcommit)
                failed = chunk == 32 and overcommit >= 24
                numbers = {
                    "step_s": took, "step_s_low": took - 1.5, "step_s_high": took + 1.5,
                    "speedup": 150 / took, "speedup_low": 148 / took, "speedup_high": 152 / took,
                    "staleness_mean": overcommit / 40, "staleness_max": 1.0 + overcommit // 12, "length_bias_paired": -0.0006 * overcommit,
                    "deferred": overcommit * 0.7,
                }  # fmt: skip
                rows.append(
                    {
                        "placement.scoring": placement,
                        "policy.chunk_size": chunk,
                        "policy.overcommit": overcommit,
                    }
                    | {name: math.nan if failed else value for name, value in numbers.items()}
                    | {"status": "failed" if failed else "ok", "error": FAILURE if failed else None}
                )
    return pd.DataFrame(rows)


def made_points(**given: tuple[int, ...] | tuple[str, ...]) -> Points:
    frame = table(**given)  # type: ignore[arg-type]
    best = int(frame["step_s"].idxmin())
    near = np.flatnonzero(frame["step_s"] < frame["step_s"].min() + 2.0)
    axes = tuple(
        axis
        for axis in ("placement.scoring", "policy.chunk_size", "policy.overcommit")
        if frame[axis].nunique() > 1
    )
    return Points(frame, axes, best, frozenset(near.tolist()))
