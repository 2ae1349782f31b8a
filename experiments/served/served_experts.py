"""Time per output token of served mixtures of experts, with latent and linear attention among them, against
NVIDIA's sample of served engines.

    python experiments/served/served_experts.py predict   # predicted.csv; reads no measured seconds
    python experiments/served/served_experts.py score     # table.md: errors of both kinds of costs

A row of rows.csv.gz is a served configuration: engine, model, GPU, tensor parallelism, concurrency, tokens in
and out, and the milliseconds of an output token. How a loop of clients becomes seconds of a token is that of
``experiments/public_gpu/served.py``; nothing is fitted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "public_gpu"))

import served  # noqa: E402
from overview import percent, signed  # noqa: E402
from overview import table as markdown  # noqa: E402

from oppo_sim.errors import OppoError  # noqa: E402

MODELS: Final[dict[str, Any]] = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "zhipuai/GLM-5": "glm-5",
    # Its public config.json.
    "MiniMaxAI/MiniMax-M2.5": {
        "num_hidden_layers": 62,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 200064,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
}
DEVICES: Final = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
KINDS: Final = ("composed", "roofline")
UNIT: Final = ["model", "system", "backend", "precision", "tp"]
"""What an engine is; rows of one differ by load."""


def rows() -> pd.DataFrame:
    """The sample's rows of these models: aggregated serving, weights in fp8 or bf16, experts and attention
    divided by tensor parallelism alone."""
    return pd.read_csv(FOLDER / "rows.csv.gz")


def predictions(table: pd.DataFrame, unit: Sequence[str] = tuple(UNIT)) -> pd.DataFrame:
    """A line a row and kind of costs: seconds of an output token, or why there is none. ``unit``: columns
    that tell engines apart, ``UNIT`` first."""
    made = []
    for one, part in table.groupby(list(unit), sort=False):
        model, system, backend, precision, degree, *ranks = one
        asked = part.assign(
            conc=part["concurrency"],
            prompt=part["share"] * part["isl"],
            response=part["share"] * part["osl"],
            cached=False,
        )
        for kind in KINDS:
            engine = served.Engine(
                kind,
                MODELS[model],
                DEVICES[system],
                int(degree),
                backend,
                precision,
                "auto",
                backend,
                *map(int, ranks),
            )
            try:
                seconds, why = served.token_seconds_of(served.engine_costs(engine), asked), ""
            except OppoError as error:
                seconds, why = [None] * len(part), str(error)
            lines = {"row": part.index, "kind": kind, "predicted_s": seconds, "why": why}
            made.append(pd.DataFrame(lines))
    return pd.concat(made).sort_values(["row", "kind"], kind="stable")


def errors(predicted: pd.DataFrame, table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A line for each value of ``by``: rows, how many are predicted, and their relative errors."""
    joined = predicted.merge(table, left_on="row", right_index=True)
    joined["error"] = joined["predicted_s"] / (joined["tpot_ms"] / 1000.0) - 1.0
    grouped = joined.groupby(list(by), sort=False)["error"]
    return pd.DataFrame({
        "n": grouped.size(),
        "predicted": grouped.count(),
        "median": grouped.apply(lambda found: found.abs().median()),
        "p90": grouped.apply(lambda found: found.abs().quantile(0.9)),
        "bias": grouped.median(),
    }).reset_index()  # fmt: skip


def page_table(predicted: pd.DataFrame, measured: pd.DataFrame) -> str:
    """Of README.md, by model."""
    lines = [
        [one.model, one.kind, str(one.predicted), percent(one.median), percent(one.p90), signed(one.bias)]
        for one in errors(predicted, measured, ["model", "kind"]).itertuples()
    ]
    return markdown(["model", "costs", "n", "median", "p90", "bias"], lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "score"))
    if parser.parse_args(arguments).what == "predict":
        predictions(rows()).to_csv(FOLDER / "predicted.csv.gz", index=False, float_format="%.5g")
        return
    predicted = pd.read_csv(FOLDER / "predicted.csv.gz")
    by_engine = errors(predicted, rows(), ["kind", *UNIT])
    by_engine.to_csv(FOLDER / "scored.csv", index=False, float_format="%.4g")
    print(page_table(predicted, rows()))


if __name__ == "__main__":
    main()
