"""OpenRLHF: metrics only (its table of generated samples does not tell prompt from response)."""

from typing import Final

from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.options import MetricNames

IMPORTER: Final = Importer(
    name="openrlhf",
    what="metrics: console, wandb, TensorBoard",
    lengths="fitted to the metrics",
    example=(
        "oppo trace import --from openrlhf history.csv --rows-per-step 128 --max-response-length 2048 -o"
        " openrlhf.parquet"
    ),
    metrics=MetricNames(
        mean=("rollout/response_length_mean", "response_length"),
        clip_ratio=("rollout/truncated_rate", "truncated", "response_clip_ratio"),
        reward_mean=("rollout/reward_mean", "reward"),
    ),
    notes=(
        (
            "a mean and a share of cut responses a step are all there is; where none was cut, --like gives"
            " the shape"
        ),
    ),
)
