"""The same sample's engines that divide experts among ranks, or attention by rollouts.

    python experiments/served/expert_ranks.py predict   # predicted_experts.csv.gz; reads no measured seconds
    python experiments/served/expert_ranks.py score     # scored_experts.csv, by engine, and tables by model

``rows_experts.csv.gz`` has the distinct rows in fp8 of ``silicon_sample.csv`` with ``moe_ep_size`` or
``attention_dp_size`` above 1 whose model has a shape here. What InferenceMAX calls tp, ep and DP attention is
in the rows' names; the sample's own columns are products of them (tp 8 and ep 8 became 64 GPUs of tp).
"""

import argparse
import hashlib
from collections.abc import Sequence
from typing import Final

import pandas as pd
from served_experts import FOLDER, UNIT, errors, markdown, percent, predictions, signed

ENGINE: Final = [*UNIT, "ep", "dp"]


def rows() -> pd.DataFrame:
    """With ``half``: engines halved by a hash of their names."""
    found = pd.read_csv(FOLDER / "rows_experts.csv.gz")
    names = found[ENGINE].astype(str).agg("/".join, axis=1)
    digits = names.map(lambda name: hashlib.sha256(name.encode()).digest()[0] % 2)
    return found.assign(half=digits.map({0: "first", 1: "second"}), attention=found["dp"].map(_attention))


def _attention(ranks: int) -> str:
    return "TP" if ranks == 1 else "DP"


def page_table(predicted: pd.DataFrame, measured: pd.DataFrame, by: Sequence[str]) -> str:
    """Of README.md."""
    lines = [
        [
            *(str(getattr(one, name)) for name in by),
            str(one.predicted),
            percent(one.median),
            percent(one.p90),
            signed(one.bias),
        ]
        for one in errors(predicted, measured, by).itertuples()
    ]
    return markdown([*by, "n", "median", "p90", "bias"], lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "score"))
    path = FOLDER / "predicted_experts.csv.gz"
    if parser.parse_args(arguments).what == "predict":
        asked = rows().drop(columns="tpot_ms")
        predictions(asked, ENGINE).to_csv(path, index=False, float_format="%.5g")
        return
    predicted = pd.read_csv(path)
    by_engine = errors(predicted, rows(), ["kind", *ENGINE, "half"])
    by_engine.to_csv(FOLDER / "scored_experts.csv", index=False, float_format="%.4g")
    for by in (["model", "attention", "kind"], ["half", "attention", "kind"]):
        print(page_table(predicted, rows(), by))


if __name__ == "__main__":
    main()
