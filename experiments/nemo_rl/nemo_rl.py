"""What one-step-off gains over on policy, predicted from recipes, against NeMo RL's published steps.

    python experiments/nemo_rl/nemo_rl.py predict   # predicted.csv; reads no asynchronous seconds
    python experiments/nemo_rl/nemo_rl.py score     # scored.csv, figure.png
    python experiments/nemo_rl/nemo_rl.py predict latent_rows.csv    # latent_predicted.csv; score likewise

A row of rows.csv is a configuration of NVIDIA's table: release, GPUs, model, parallelism, mean length and the
seconds of a step, mean of five. ``max_staleness`` 0 is on policy: all GPUs generate, then all train. Others
are asynchronous: ``generating`` of the GPUs generate while the rest train. Two ways: *unfitted*, from the
recipe and priors alone; *observed*, with the costs that give the seconds of the row on policy
(``oppo fit --observe``). Ranges of gains hold what costs told for the split of the row on policy miss on
another (``oppo_sim.runs.placement``).
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import CostTerms
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.fit.call import observe
from oppo_sim.fit.log.rebuilt_lengths import LengthFigures, rebuilt_lengths
from oppo_sim.runs.placement import placement_factor
from oppo_sim.runs.ranges import machine_interval
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

FOLDER = Path(__file__).parent
DRAWS = 25
PROMPT = 120
"""Tokens, assumed: the table tells the mean of prompt and response together."""
NO_KERNELS = ("Qwen3-235B-A22B", "DeepSeek-V3")
"""Measured on no device that is shipped: their costs are of the roofline."""
ORGANISATION = {"Llama-3.1-8B-Instruct": "meta-llama", "DeepSeek-V3": "deepseek-ai"}
SAMPLES = {"DeepSeek-V3": 16}
"""Of a prompt, where not 32."""
RESHARD = {"kind": "reshard", "sleep_level": 1}
SETTING = ["release", "device", "model"]
SET_BY = ("v0.4", "v0.5")
"""Releases whose gains set ``PLACEMENT_SIGMA``; the others judge it."""


def rows(name: str = "rows.csv") -> pd.DataFrame:
    """Configurations, as in the table, with what their recipes say."""
    table = pd.read_csv(FOLDER / name)
    table.insert(0, "row", range(1, len(table) + 1))
    return table


def pairs(table: pd.DataFrame) -> list[tuple[int, int]]:
    """(asynchronous row, the row on policy that it is held against): of one release, device and model; the
    one of as many GPUs where there are two."""
    found, on_policy = [], table[table["max_staleness"] == 0]
    for each in table[table["max_staleness"] > 0].itertuples():
        setting = pd.Series(each._asdict())[SETTING]
        same = on_policy[(on_policy[SETTING] == setting).all(axis=1)]
        as_many = same[same["gpus"] == each.gpus]
        found.append((each.row, int((as_many if len(as_many) else same)["row"].iloc[0])))
    return found


def steps_of(row: Any) -> tuple[int, int]:
    """(Steps simulated, those of the start that are not counted): an asynchronous run first fills up."""
    fills = 2 * row.max_staleness + 1 if row.max_staleness else 0
    return fills + 6, fills


def scenario_of(row: Any, lengths: Path) -> Scenario:
    """The recipe of a row. Packed sequences, an optimizer (where GPUs are shared) and a reference that wait
    in host memory, vLLM with CUDA graphs; 8 GPUs a node with InfiniBand, or 72 with NVLink. Trajectories that
    are one step old at most, with weights exchanged in flight, are ``async`` with ``max_staleness`` 1."""
    longest, apart = row.max_total_length, row.max_staleness > 0
    steps, fills = steps_of(row)
    model = f"{ORGANISATION.get(row.model, 'Qwen')}/{row.model}"
    return scenario_from_plain({
        "format": "oppo-scenario/1",
        "name": f"nemo-rl-{row.row}",
        "steps": steps,
        "warmup_steps": fills,
        "rollout_batch_size": row.rollout_batch_size,
        "group_size": SAMPLES.get(row.model, 32),
        "max_prompt_length": PROMPT,
        "max_response_length": longest - PROMPT,
        "rollout": {
            "num_replicas": row.generating // row.rollout_tp,
            "kv_capacity_tokens": "auto",
            "max_num_seqs": 1024,
        },
        "trace": {"path": str(lengths), "sampling": "by_step"},
        "placement": {"training": "separate"} if apart else {},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": row.rollout_batch_size // row.train_batch_size,
            "micro_batch_tokens": longest,
            "log_prob_micro_batch_tokens": row.log_prob_rollouts * longest,
            "ref_micro_batch_tokens": row.log_prob_rollouts * longest,
            "num_gpus": row.gpus - row.generating if apart else row.gpus,
            "critic": "none",
            "tensor_parallel": row.tp,
            "sequence_parallel": row.cp,
            "expert_parallel": row.ep,
            "expert_tensor_parallel": 1 if row.ep > 1 else None,
            "pipeline_parallel": row.pp,
            "sharding": "optimizer",
            "gradient_checkpointing": row.gradient_checkpointing,
            "ref_param_offload": True,
            **({} if apart else {"optimizer_offload": True, "weight_sync": RESHARD}),
        },
        "cluster": {"num_gpus_per_node": 8} if row.device == "H100" else {},
        "costs": {
            "kind": "roofline" if row.model in NO_KERNELS else "composed",
            "device": row.device,
            "actor_model": model,
            "reward_model": {"kind": "verifier"},
            "rollout": {
                "tensor_parallel": row.rollout_tp,
                "host": "vllm-async" if apart or row.model in NO_KERNELS else "vllm",
                "gpu_memory_utilization": row.gpu_memory_utilization,
                "sleep_mode": not apart,
            },
            "training": {"old_log_prob_entropy": False},
        },
        "policy": {"name": "async", "max_staleness": row.max_staleness} if apart else "sequential",
    })  # fmt: skip


def trace_of(row: Any, path: Path) -> Path:
    """Lengths of its steps, rebuilt from the mean; some rollout of each step is taken to reach the limit."""
    limit = row.max_total_length - PROMPT
    figures = LengthFigures(row.rollout_batch_size, row.mean_total_length - PROMPT, max=limit, cut=limit)
    drawn = rebuilt_lengths(figures, steps_of(row)[0] + row.max_staleness, np.random.default_rng(0))
    frame = pd.concat(
        pd.DataFrame({"source": row.model, "step": step, "prompt_length": PROMPT, "response_length": lengths})
        for step, lengths in enumerate(drawn)
    )
    frame.to_parquet(path, index=False)
    return path


def predicted_step_s(scenario: Scenario, terms: CostTerms | None = None) -> float:
    """Mean seconds of the steps that count."""
    if terms is not None:
        costs = scenario.costs.model_copy(update={"terms": terms, "draws": EXACT})
        scenario = scenario.model_copy(update={"costs": costs})
    return simulate(scenario, keep_rollouts=False).step_s


def predictions(table: pd.DataFrame) -> pd.DataFrame:
    """A line a row, way and draw (−1: the point): seconds a step. Of the measured seconds those on policy are
    read, for *observed*."""
    against = dict(pairs(table))
    told = {row.row: row for row in table.itertuples()}
    families = {
        base: [row for row in told if against.get(row, row) == base] for base in told if base not in against
    }
    made = [_predicted(told[base], [told[row] for row in family]) for base, family in families.items()]
    frame = pd.DataFrame([line for lines in made for line in lines], columns=["row", "way", "draw", "step_s"])
    return frame.sort_values("row", kind="stable").reset_index(drop=True)


def _predicted(base: Any, family: Sequence[Any]) -> list[tuple[int, str, int, float]]:
    """Of a row on policy and those that are held against it."""
    made = []
    with tempfile.TemporaryDirectory() as name:
        scenarios = {
            row.row: scenario_of(row, trace_of(row, Path(name) / f"{row.row}.parquet")) for row in family
        }
        known = observe(scenarios[base.row], {TIMING_STEP: float(base.step_s)}, draws=DRAWS, figures=False)
        for number, scenario in scenarios.items():
            drawn = machine_draws(scenario.costs, cost_context(scenario), DRAWS, 0)
            for way, point, draws in (("unfitted", None, drawn), ("observed", known.point, known.draws)):
                for draw, terms in enumerate((point, *draws), start=-1):
                    made.append((number, way, draw, predicted_step_s(scenario, terms)))
    return made


def placements(table: pd.DataFrame, draws: int = DRAWS) -> dict[int, list[float]]:
    """Row → its factor on all seconds, draw by draw; 1 on the split of the row that it is held against."""
    against, told = dict(pairs(table)), {row.row: row for row in table.itertuples()}
    splits = {number: scenario_of(row, FOLDER / "lengths.parquet").split for number, row in told.items()}
    return {
        number: [
            placement_factor(split, splits[against.get(number, number)], draw, 0) for draw in range(draws)
        ]
        for number, split in splits.items()
    }


def placement_sigma(predicted: pd.DataFrame, table: pd.DataFrame) -> dict[str, float]:
    """Way → what sets ``PLACEMENT_SIGMA``: root mean square of log(predicted / measured) of the gains of
    ``SET_BY``, less the variance that the draws explain."""
    told = table.set_index("row")
    found = {}
    for way, lines in predicted.groupby("way", sort=False):
        steps = np.log(lines.pivot(index="draw", columns="row", values="step_s"))
        unexplained = []
        for row, base in pairs(table):
            if told["release"][row] in SET_BY:
                gains = steps[base] - steps[row]
                error = gains[-1] - np.log(told["step_s"][base] / told["step_s"][row])
                unexplained.append(error**2 - gains[gains.index >= 0].var())
        found[str(way)] = float(np.sqrt(max(0.0, np.mean(unexplained))))
    return found


def scored(predicted: pd.DataFrame, table: pd.DataFrame, *, placed: bool = True) -> pd.DataFrame:
    """A line a way and asynchronous row: seconds a step, and the speed-up over its row on policy. ``placed``:
    its range holds the other split of the GPUs."""
    measured, factors = table.set_index("row")["step_s"], placements(table)
    made = []
    for way, lines in predicted.groupby("way", sort=False):
        steps = lines.pivot(index="draw", columns="row", values="step_s")
        for row, base in pairs(table):
            ratios = steps[base] / steps[row]
            drawn = ratios[ratios.index >= 0].to_numpy() / (factors[row] if placed else 1.0)
            low, high = machine_interval(drawn.tolist())
            made.append({
                "way": way, "row": row, "against": base,
                "predicted_s": steps[row][-1], "measured_s": measured[row],
                "predicted": ratios[-1], "low": low, "high": high, "measured": measured[base] / measured[row],
            })  # fmt: skip
    return pd.DataFrame(made)


def rows_on_policy(predicted: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """A line a row on policy, unfitted: seconds a step, with the range of the priors."""
    steps = predicted[predicted["way"] == "unfitted"].pivot(index="draw", columns="row", values="step_s")
    kept = table[table["max_staleness"] == 0]
    ends = [machine_interval(steps[row][steps.index >= 0].tolist()) for row in kept["row"]]
    return pd.DataFrame({
        "row": kept["row"].to_numpy(),
        "predicted_s": [steps[row][-1] for row in kept["row"]],
        "low_s": [low for low, _ in ends],
        "high_s": [high for _, high in ends],
        "measured_s": kept["step_s"].to_numpy(),
    })  # fmt: skip


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Errors of the speed-ups of each way; ``sign``: on the same side of 1 as measured."""
    found = {}
    for way, lines in table.groupby("way", sort=False):
        errors = (lines["predicted"] / lines["measured"] - 1.0).abs()
        inside = (lines["low"] <= lines["measured"]) & (lines["measured"] <= lines["high"])
        found[way] = {
            "speedups": len(lines),
            "median": errors.median(),
            "worst": errors.max(),
            "inside": int(inside.sum()),
            "sign": int(((lines["predicted"] > 1.0) == (lines["measured"] > 1.0)).sum()),
            "tau": float(kendalltau(lines["predicted"], lines["measured"]).statistic),
            "step_median": (lines["predicted_s"] / lines["measured_s"] - 1.0).abs().median(),
        }
    return found


def inside(found: pd.DataFrame, table: pd.DataFrame) -> dict[str, dict[str, tuple[int, int]]]:
    """Way → gains within their ranges and all of them, of those that set ``PLACEMENT_SIGMA`` and those that
    judge it."""
    sets = found["row"].map(table.set_index("row")["release"]).isin(SET_BY)
    within = (found["low"] <= found["measured"]) & (found["measured"] <= found["high"])
    return {
        str(way): {
            name: (int(within[lines.index][part[lines.index]].sum()), int(part[lines.index].sum()))
            for name, part in (("set", sets), ("judge", ~sets))
        }
        for way, lines in found.groupby("way", sort=False)
    }


def name_of(row: Any) -> str:
    """Release, model and GPUs, as the page names a row."""
    return f"{row.model.removesuffix('-Instruct')}, {row.gpus} × {row.device}, {row.release}"


def page_table(table: pd.DataFrame, of: pd.DataFrame) -> str:
    """Of README.md: a line an asynchronous row, both ways. ``of``: the rows."""
    told = {row.row: row for row in of.itertuples()}
    lines = [
        "| row | against | staleness | measured | unfitted (95 %) | error | observed (95 %) | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ways = {way: part.set_index("row") for way, part in table.groupby("way")}
    for number, each in ways["unfitted"].iterrows():
        row, base = told[number], told[each["against"]]
        cells = [name_of(row), f"{base.gpus} GPUs", str(row.max_staleness), f"{each['measured']:.2f}"]
        for way in ("unfitted", "observed"):
            line = ways[way].loc[number]
            error = f"{100 * (line['predicted'] / line['measured'] - 1):+.0f} %".replace("-", "−")
            cells += [f"{line['predicted']:.2f} ({line['low']:.2f} to {line['high']:.2f})", error]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page_table_on_policy(table: pd.DataFrame, of: pd.DataFrame) -> str:
    """Of README.md: seconds of the rows on policy, unfitted. ``of``: the rows."""
    told = {row.row: row for row in of.itertuples()}
    lines = ["| row | measured s | predicted s (95 %) | error |", "|---|---|---|---|"]
    for each in table.itertuples():
        error = f"{100 * (each.predicted_s / each.measured_s - 1):+.0f} %".replace("-", "−")
        spread = f"{each.predicted_s:.0f} ({each.low_s:.0f} to {each.high_s:.0f})"
        lines.append(f"| {name_of(told[each.row])} | {each.measured_s:.3g} | {spread} | {error} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "score"))
    parser.add_argument("rows", nargs="?", default="rows.csv", help="file of configurations in this folder")
    asked = parser.parse_args(arguments)
    table, of = rows(asked.rows), asked.rows.removesuffix("rows.csv")
    if asked.what == "predict":
        predictions(table).to_csv(FOLDER / f"{of}predicted.csv", index=False, float_format="%.6g")
        return
    predicted = pd.read_csv(FOLDER / f"{of}predicted.csv")
    found, on_policy = scored(predicted, table), rows_on_policy(predicted, table)
    found.to_csv(FOLDER / f"{of}scored.csv", index=False, float_format="%.5g")
    on_policy.to_csv(FOLDER / f"{of}on_policy.csv", index=False, float_format="%.5g")
    if not of:
        draw_figure(found)
    print(page_table(found, table))
    print(page_table_on_policy(on_policy, table))
    print(json.dumps(summary(found), indent=1))
    if not of:
        print("placement sigma:", placement_sigma(predicted, table))
        for placed in (False, True):
            print(f"inside, placed {placed}:", inside(scored(predicted, table, placed=placed), table))


def draw_figure(table: pd.DataFrame) -> None:
    """figure.png: speed-ups of the asynchronous rows, predicted with intervals, beside what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    told = rows().set_index("row")
    drawn, axis = plt.subplots(figsize=(9, 4.6))
    for shift, (way, lines) in zip((-0.12, 0.12), table.groupby("way", sort=False), strict=True):
        places = np.arange(len(lines)) + shift
        spread = [lines["predicted"] - lines["low"], lines["high"] - lines["predicted"]]
        axis.errorbar(
            places, lines["predicted"], yerr=np.maximum(spread, 0.0), fmt="o", capsize=3, label=f"{way}, 95 %"
        )
    axis.plot(np.arange(len(lines)), lines["measured"], "kx", ms=8, label="measured")
    axis.axhline(1.0, color="0.7", lw=0.8)
    named = []
    for row, base in zip(lines["row"], lines["against"], strict=True):
        each, gpus = told.loc[row], told["gpus"][base]
        model = each["model"].removesuffix("-Instruct")
        named.append(f"{model}\n{each['device']} {each['release']}, {gpus} → {each['gpus']} GPUs")
    axis.set_xticks(np.arange(len(lines)), named, rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("speed-up over on policy")
    axis.set_ylim(0)
    axis.legend()
    drawn.tight_layout()
    drawn.savefig(FOLDER / "figure.png", dpi=90, metadata={"Software": None})
    plt.close(drawn)


if __name__ == "__main__":
    main()
