"""Which policy is best where: length tail × scoring's share × training's share of a sequential step × slots.

    nice python experiments/paper/policy_map.py          # what is in results/ is kept
    nice python experiments/paper/policy_map.py --page   # figures and page alone

The machine is a linear one (``MACHINE``) whose scoring and training take the shares of a sequential step
that a cell says; every policy runs with several settings on the same rollouts. Writes map_runs.csv.gz and
map.csv in results/, figures and map.md.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import matplotlib as mpl
import numpy as np
import pandas as pd
from answers import table
from asking import Case
from study import FOLDER, RESULTS
from timing import timed

from oppo_sim import columns as c
from oppo_sim.fast.choose import run_columns
from oppo_sim.scenario.build import build_parts, build_setup, build_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.replay import Replay

mpl.use("Agg")
import matplotlib.pyplot as plt

FILE: Final = RESULTS / "map_runs.csv.gz"
GAINS: Final = RESULTS / "map.csv"
"""What the figures and the notebook read."""
PART: Final = "map"
"""Among the parts of ``run.py``."""
AXES: Final = ("tail", "scoring", "training", "slots")
TAILS: Final = (1.5, 2.5, 4.0, 6.0)
"""p99 over mean of responses."""
SCORING: Final = (0.02, 0.1, 0.25, 0.5)
TRAINING: Final = (0.05, 0.2, 0.4)
"""Shares of a sequential step; the rest generates."""
SLOTS: Final = (0.25, 0.5, 2.0)
"""Rollouts that all replicas together decode at once, over B; 2: whoever is admitted."""
BANDS: Final = {"none older than one update": 1, "any age": 10**6}
B: Final = 128
_GPUS: Final = 8
"""Each a replica that also trains, and one more scores."""
_MEAN, _PROMPT, _LONGEST = 1000, 200, 12_000
_STEPS, _WARMUP = 40, 12
SEEDS: Final = (1, 2)
MACHINE: Final[Mapping[str, Any]] = {
    "kind": "linear",
    "decode": {"fixed": 0.012, "per_rollout": 2.0e-5, "per_kv_token": 2.0e-8},
    "prefill": {"fixed": 0.01, "per_token": 1.0e-5},
}
"""Decode that is bound by reading weights, as of a 7B model."""


class Cell(NamedTuple):
    """A place on the map."""

    tail: float
    scoring: float
    training: float
    slots: float


def cells() -> Iterator[Cell]:
    """All, lengths outermost."""
    for tail in TAILS:
        for slots in SLOTS:
            for scoring in SCORING:
                for training in TRAINING:
                    yield Cell(tail, scoring, training, slots)


def cases() -> dict[str, Case]:
    """The first word is the policy; what follows tells its settings apart."""
    found = {
        "sequential": Case("sequential"),
        "rollout-overlap": Case("rollout-overlap"),
        "intra": Case("intra", {"chunk_size": 256}),
        "one-step-off": Case("one-step-off", {"score_granularity": "rollout"}),
        "async": Case("async", {"max_staleness": 1}),
        "async 2": Case("async", {"max_staleness": 2}),
    }
    for over in (1.1, 1.25, 1.5):
        settings = {"over_issue": over, "score_granularity": "chunk"}
        found[f"tail-batching {over}"] = Case("tail-batching", settings)
    for most in (None, 1):
        for share in (0.0625, 0.125, 0.25, 0.5, 1.0):
            settings = {"overcommit": share, "chunk_size": 256, "max_deferrals": most}
            found[f"oppo {share} {most}"] = Case("oppo", settings)
        found[f"april {most}"] = Case("april", {"max_deferrals": most})
        for budget in (1000, 3000):
            settings = {"token_budget": budget, "max_deferrals": most}
            found[f"partial-rollout {budget} {most}"] = Case("partial-rollout", settings)
    return found


_APART: Final = ("one-step-off", "async")
_GENERATING: Final = (2, 4, 6)
"""GPUs that generate where training has its own; the others train, in proportion slower."""


def scenario_of(cell: Cell, gen_s: float, generating: int | None) -> Scenario:
    """``gen_s``: seconds in which a sequential step of the cell generates; ``generating``: GPUs, the rest
    trains; None: all do both."""
    step_s = gen_s / (1.0 - cell.scoring - cell.training)
    tokens = B * (_MEAN + _PROMPT)
    slower = 1.0 if generating is None else _GPUS / (_GPUS - generating)
    replicas = generating or _GPUS
    slots = None if cell.slots > 1 else max(1, round(B * cell.slots / replicas))
    return Scenario.model_validate(
        {
            "name": "map",
            "steps": _STEPS,
            "rollout_batch_size": B,
            "max_prompt_length": 4 * _PROMPT,
            "max_response_length": _LONGEST,
            "trace": {"synth": _synth(cell.tail)},
            "rollout": {"num_replicas": replicas, "max_num_seqs": slots},
            "placement": {"training": "rollout" if generating is None else "separate"},
            "costs": {
                **MACHINE,
                "score": {"fixed": 0.002, "per_token": cell.scoring * step_s / tokens},
                "stages": {"update_actor": {"per_token": slower * cell.training * step_s / tokens}},
            },
        }
    )


def _synth(tail: float) -> dict[str, Any]:
    return {
        "mean": float(_MEAN),
        "p99": tail * _MEAN,
        "max_response_length": _LONGEST,
        "rows": 20_000,
        "prompt_mean": float(_PROMPT),
        "prompt_p99": 3.0 * _PROMPT,
    }


def make() -> pd.DataFrame:
    """One row a cell, run and seed; what is there is kept."""
    rows: list[dict[str, Any]] = pd.read_csv(FILE).to_dict("records") if FILE.exists() else []
    done = {tuple(row[name] for name in AXES) for row in rows}
    replays: dict[float, Replay] = {}
    for number, cell in enumerate(cells(), start=1):
        if cell in done:
            continue
        if cell.tail not in replays:
            replays[cell.tail] = build_trace(scenario_of(cell, 1.0, None))
        rows += _of_cell(cell, replays[cell.tail])
        if number % 12 == 0:
            pd.DataFrame(rows).to_csv(FILE, index=False, float_format="%.4g")
            print(f"{time.strftime('%H:%M:%S')} map: cell {number}", flush=True)
    pd.DataFrame(rows).to_csv(FILE, index=False, float_format="%.4g")
    return pd.read_csv(FILE)


def _of_cell(cell: Cell, replay: Replay) -> list[dict[str, Any]]:
    bare = scenario_of(cell._replace(scoring=0.0, training=0.0), 1.0, None)
    gen_s = float(np.mean([_run(bare, Case("sequential"), replay, seed)[0] for seed in SEEDS]))
    rows = []
    for name, case in cases().items():
        splits = _GENERATING if case.policy in _APART else (None,)
        for generating in splits:
            scenario = scenario_of(cell, gen_s, generating)
            found = [_run(scenario, case, replay, seed) for seed in SEEDS]
            run = name if generating is None else f"{name} on {generating}"
            rows += [
                {**cell._asdict(), "run": run, "seed": seed, "step_s": step, "stalest": stalest, "bias": bias}
                for seed, (step, stalest, bias) in zip(SEEDS, found, strict=True)
            ]
    return rows


def _run(scenario: Scenario, case: Case, replay: Replay, seed: int) -> tuple[float, int, float]:
    """Seconds a step, the oldest rollout trained, and the length bias."""
    setup = build_setup(
        scenario,
        policy=case.policy,
        policy_settings=dict(case.settings),
        seed=seed,
        parts=build_parts(scenario, replay),
    )
    frame = run_columns(setup).frame().iloc[_WARMUP:]
    bias = frame[c.LENGTH_MEAN].mean() / frame[c.TRACE_LENGTH_MEAN].mean() - 1
    return float(frame[c.TIMING_STEP].mean()), int(frame[c.STALENESS_MAX].max()), float(bias)


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a cell, band and policy: its fastest setting none of whose rollouts is older than the band
    allows, and how much faster than sequential it is (mean, least and most of the seeds)."""
    cell = list(AXES)
    baseline = rows[rows["run"] == "sequential"].set_index([*cell, "seed"])["step_s"]
    rows = rows.join(baseline.rename("step_s_sequential"), on=[*cell, "seed"])
    rows["faster"] = rows["step_s_sequential"] / rows["step_s"]
    runs = rows.groupby([*cell, "run"], as_index=False).agg(
        faster=("faster", "mean"), low=("faster", "min"), high=("faster", "max"), stalest=("stalest", "max")
    )
    runs.insert(len(cell), "policy", [run.split()[0] for run in runs["run"]])
    parts = []
    for label, most in BANDS.items():
        # Settings that do the same are ordered by name: processors order equal numbers differently.
        part = runs[runs["stalest"] <= most].sort_values(["faster", "run"], ascending=[False, True])
        parts.append(part.drop_duplicates([*cell, "policy"]).assign(band=label))
    order = ["band", *cell, "faster", "run"]
    return pd.concat(parts).sort_values(order, ascending=[True] * 5 + [False, True])


def best_of(told: pd.DataFrame, band: str) -> pd.DataFrame:
    """One row a cell: the fastest policy of a band, with the next one."""
    here = told[told["band"] == band].sort_values(["faster", "policy"], ascending=[False, True])
    cell = list(AXES)
    first = here.drop_duplicates(cell).set_index(cell)
    second = here[here.duplicated(cell)].drop_duplicates(cell).set_index(cell)
    return first.join(second[["policy", "faster"]].add_suffix("_next")).sort_index().reset_index()


SHORT: Final = {
    "sequential": "seq", "rollout-overlap": "roll", "intra": "intra", "oppo": "oppo", "april": "april",
    "partial-rollout": "part", "tail-batching": "tail", "one-step-off": "1-off", "async": "async",
}  # fmt: skip


def map_figure(best: pd.DataFrame, title: str) -> "plt.Figure":
    """A panel a tail (rows) and slots (columns); scoring across, training up; colour: times faster."""
    figure, panels = plt.subplots(len(TAILS), len(SLOTS), figsize=(9, 9.5), sharex=True, sharey=True)
    most = float(best["faster"].max())
    for row, tail in enumerate(TAILS):
        for column, slots in enumerate(SLOTS):
            axes = panels[row, column]
            here = best[(best["tail"] == tail) & (best["slots"] == slots)].set_index(["training", "scoring"])
            grid = here["faster"].unstack().to_numpy()
            shown = axes.imshow(grid, origin="lower", vmin=1, vmax=most, cmap="viridis", aspect="auto")
            for (up, across), value in np.ndenumerate(grid):
                policy = here["policy"].unstack().to_numpy()[up, across]
                colour = "black" if value > 0.6 * most else "white"
                text = f"{SHORT[policy]}\n{value:.2f}"
                axes.text(across, up, text, ha="center", va="center", fontsize=7, color=colour)
            held = "all" if slots > 1 else f"{slots:g} × B"
            axes.set_title(f"p99 {tail:g} × mean, slots: {held}", fontsize=8)
            axes.set_xticks(range(len(SCORING)), [f"{share:.0%}" for share in SCORING], fontsize=7)
            axes.set_yticks(range(len(TRAINING)), [f"{share:.0%}" for share in TRAINING], fontsize=7)
    figure.supxlabel("scoring, share of a sequential step", fontsize=9)
    figure.supylabel("training, share of a sequential step", fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.colorbar(shown, ax=panels, fraction=0.03, label="times faster than sequential")
    return figure


def page(rows: pd.DataFrame) -> str:
    """Draws both maps; gives the table of policies."""
    told = gains(rows)
    told.to_csv(GAINS, index=False, float_format="%.4g")
    told = pd.read_csv(GAINS)  # ties are then the notebook's
    lines: dict[str, list[str]] = {}
    for place, label in enumerate(BANDS):
        best = best_of(told, label)
        figure = map_figure(best, f"best policy, rollouts: {label}")
        figure.savefig(RESULTS / f"map_{'free' if place else 'one'}.png", dpi=100, bbox_inches="tight")
        plt.close(figure)
        ahead = best["faster"] / best["faster_next"]
        for policy, part in best.groupby("policy"):
            cell = (
                f"{len(part)} of {len(best)}; {part['faster'].median():.2f}"
                f" [{part['faster'].min():.2f}, {part['faster'].max():.2f}]; {ahead[part.index].median():.2f}"
            )
            lines.setdefault(str(policy), ["–"] * len(BANDS))[place] = cell
    return table(["best policy", *BANDS], ([name, *cells_told] for name, cells_told in lines.items()))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="of what is there")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    answer(said.page)


def answer(page_alone: bool = False) -> None:
    """Run what is missing, then write figures and page."""
    with timed(PART, not FILE.exists()):
        rows = pd.read_csv(FILE) if page_alone else make()
    text = (FOLDER / "map.text.md").read_text("utf-8")
    (FOLDER / "map.md").write_text(text.replace("{table}", page(rows)), "utf-8")


if __name__ == "__main__":
    main()
