"""For which cost of a round the chunk curve turns where the paper's does (500 the best, 100 and 3,000
slower): step seconds by chunk size and by what a round costs.

    python experiments/cut_costs.py [--steps 60] [--seeds 3] [-o experiments/results/cuts]

Writes curve.csv, curve.png and prints the table of README.md. The scenario's other costs stay what they are.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fast.choose import run_columns
from oppo_sim.report.style import new_figure
from oppo_sim.scenario.build import build_parts, build_setup, policy_settings_of
from oppo_sim.scenario.load import load_scenario

SCENARIO = "paper-stackexchange-7b"
CHUNKS = (100, 200, 350, 500, 700, 1000, 2000, 3000)
ROUNDS_S = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
SHOWN_S = (0.0, 1.0, 3.0, 7.0)
KV = {True: "KV kept between rounds", False: "every round prefills what runs"}


def measure(steps: int, seeds: int) -> pd.DataFrame:
    """keeps_kv, round_fixed_s, chunk_size, step_s (mean over steps after the warm-up and over seeds)."""
    scenario = load_scenario(SCENARIO)
    settings = policy_settings_of(scenario, scenario.policy.name)
    parts = build_parts(scenario)
    rows = []
    for keeps in KV:
        for chunk in CHUNKS:
            chosen = {**settings, "chunk_size": chunk}
            setups = [
                build_setup(scenario, policy_settings=chosen, steps=steps, seed=seed, parts=parts)
                for seed in range(seeds)
            ]
            for seconds in ROUNDS_S:
                cuts = parts.costs.cuts._replace(round_fixed_s=seconds)
                costs = replace(parts.costs, cuts=cuts)
                machine = replace(parts.machine, keeps_kv_between_rounds=keeps)
                runs = [run_columns(replace(setup, costs=costs, machine=machine)) for setup in setups]
                means = [run.columns[TIMING_STEP][scenario.warmup_steps :].mean() for run in runs]
                rows.append((keeps, seconds, chunk, fmean(means)))
    return pd.DataFrame(rows, columns=["keeps_kv", "round_fixed_s", "chunk_size", "step_s"])


def best_chunks(curve: pd.DataFrame) -> pd.DataFrame:
    """The best chunk of each cost, and step seconds at 100, 500 and 3,000 over those of the best."""
    table = curve.pivot(index=["keeps_kv", "round_fixed_s"], columns="chunk_size", values="step_s")
    best = table.min(axis=1)
    found = pd.DataFrame({"best": table.idxmin(axis=1), "step_s": best})
    for chunk in (100, 500, 3000):
        found[str(chunk)] = table[chunk] / best
    return found.sort_index(ascending=[False, True])


def draw(curve: pd.DataFrame, path: Path) -> None:
    """One panel each for KV kept and not, one line a cost of a round, its best chunk marked."""
    figure, axes = new_figure([3.6], columns=len(KV))
    shown = curve[curve["round_fixed_s"].isin(SHOWN_S)]["step_s"]
    for axis, (keeps, title) in zip(axes, KV.items(), strict=True):
        for seconds in SHOWN_S:
            line = curve[(curve["keeps_kv"] == keeps) & (curve["round_fixed_s"] == seconds)]
            (drawn,) = axis.plot(line["chunk_size"], line["step_s"], label=f"{seconds:g} s a round")
            least = line.loc[line["step_s"].idxmin()]
            axis.plot(least["chunk_size"], least["step_s"], "o", color=drawn.get_color())
        axis.set_xscale("log")
        axis.set_xticks(CHUNKS, [str(chunk) for chunk in CHUNKS])
        axis.minorticks_off()
        axis.set_title(title)
        axis.set_xlabel("chunk size, tokens")
        axis.set_ylim(0.98 * shown.min(), 1.02 * shown.max())
    axes[0].set_ylabel("s a step")
    axes[-1].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=Path("experiments/results/cuts"))
    asked = parser.parse_args()
    curve = measure(asked.steps, asked.seeds)
    asked.output.mkdir(parents=True, exist_ok=True)
    curve.to_csv(asked.output / "curve.csv", index=False, float_format="%.6g")
    draw(curve, asked.output / "curve.png")
    print("| KV between rounds | s a round | best chunk | s a step | at 100 | at 500 | at 3,000 |")
    print("|---|---|---|---|---|---|---|")
    for (keeps, seconds), row in best_chunks(curve).iterrows():
        kept = "kept" if keeps else "prefilled anew"
        rest = " | ".join(f"× {row[str(chunk)]:.3f}" for chunk in (100, 500, 3000))
        print(f"| {kept} | {seconds:g} | {row['best']:.0f} | {row['step_s']:.1f} | {rest} |")


if __name__ == "__main__":
    main()
