"""Splits of a scenario's GPUs: the one that it has, and all that are possible."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from oppo_sim.costs.roofline_config import ShapedCosts
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts, build_trace
from oppo_sim.scenario.cluster import SPLIT_FIELD, Split
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario

DEGREES: Final = (1, 2, 4, 8)
"""Of tensor parallelism, as far as a node goes; and the scenario's own, if it goes further."""


@dataclass(frozen=True)
class Splits:
    """All splits of a number of GPUs."""

    num_gpus: int
    possible: tuple[str, ...]
    """As ``cluster.split`` takes them."""
    left_out: Mapping[str, int]
    """Why others cannot be, and how many each."""
    sync: str = ""
    """What the scenario's weight sync is read as where training is apart."""

    @property
    def sentence(self) -> str:
        """What was looked at."""
        count = len(self.possible)
        text = f"{count:,} {'split' if count == 1 else 'splits'} of {self.num_gpus} GPUs"
        text += f", with training apart {self.sync}" if self.sync else ""
        if not self.left_out:
            return text
        reasons = "; ".join(f"{count} × {why}" for why, count in self.left_out.items())
        return f"{text}; {sum(self.left_out.values()):,} others were left out: {reasons}"


def possible_splits(scenario: Scenario) -> Splits:
    """Every split of ``cluster.num_gpus`` (of as many as the scenario uses) that fits device memory.

    Sizes of a part of its own are whole numbers up to 8 GPUs in all, beyond that powers of two and eighths of
    the total. Raises OppoError where costs do not know tensor parallelism and memory, and where nothing fits.
    """
    if not isinstance(scenario.costs, ShapedCosts):
        raise OppoError(
            f"{SPLIT_FIELD}=auto needs costs of kind roofline or composed, which know what fits a GPU: give"
            " the splits"
        )
    total = scenario.cluster.num_gpus or scenario.split.num_gpus
    # Whatever the split, rollouts are the same.
    replay = build_trace(scenario)
    plain, found, left_out, sync = scenario.to_plain(), [], Counter[str](), ""
    for split in _candidates(scenario, total):
        try:
            changed = scenario_from_plain(
                plain, [f"{SPLIT_FIELD}={split}"], where=str(split), base_dir=scenario.base_dir
            )
            build_parts(changed, replay)
        except OppoError as error:
            left_out[_reason(str(error))] += 1
        else:
            found.append(str(split))
            if changed.training.weight_sync.kind != scenario.training.weight_sync.kind:
                kinds = changed.training.weight_sync.kind, scenario.training.weight_sync.kind
                sync = "weight_sync {} in place of {}".format(*kinds)
    splits = Splits(total, tuple(found), dict(left_out.most_common()), sync)
    if not found:
        raise OppoError(f"no split of {total} GPUs can run: {splits.sentence}")
    return splits


def _candidates(scenario: Scenario, total: int) -> Iterator[Split]:
    costs = scenario.costs
    assert isinstance(costs, ShapedCosts)
    verifies = costs.reward_model.kind == "verifier"
    degree = costs.reward_model.tensor_parallel if costs.reward_model.kind == "model" else 1
    sizes = _sizes(total)
    own = [n for n in sizes if n % degree == 0]
    most = min(total, scenario.cluster.num_gpus_per_node or 8)
    degrees = [each for each in DEGREES if each <= most]
    if scenario.split.tensor_parallel > most:
        degrees.append(scenario.split.tensor_parallel)
    trained: list[int | str] = ["rollout", *sizes]
    for training in trained:
        # On GPUs that both generate and train it is the same whose they are called.
        shared = ["rollout"] if training == "rollout" else ["rollout", "training"]
        scored: list[int | str] = ["cpu"] if verifies else [*shared, *own]
        for scoring in scored:
            left = total - sum(part for part in (training, scoring) if isinstance(part, int))
            for degree_of in degrees:
                if left > 0 and left % degree_of == 0:
                    yield Split(left // degree_of, degree_of, scoring, training)


def _sizes(total: int) -> list[int]:
    if total <= 8:
        return list(range(1, total))
    doubled = {2**k for k in range(total.bit_length()) if 2**k < total}
    return sorted(doubled | {total * eighths // 8 for eighths in range(1, 8)})


def _reason(sentence: str) -> str:
    """The part of a refusal that others share: without amounts and cures."""
    said = sentence.split(": ", 1)[1] if sentence.startswith("rollout:") else sentence
    if "does not fit" in said:
        place = said.removeprefix("costs: ").split(" does not fit")[0].split(" (")[0]
        return f"{place} does not fit device memory"
    if found := re.search(r"num_gpus \d+ is not a multiple of ([^;]+)", said):
        return f"the GPUs that train are no multiple of {found[1]}"
    if found := re.search(r"a scoring worker has (\d+) GPUs", said):
        return f"costs.reward_model.tensor_parallel {found[1]} does not divide the GPUs that score"
    said = re.sub(r"divide \d+ GPUs", "divide the GPUs that train", said)
    said = re.sub(r"the \d+ GPUs of a replica", "the GPUs of a replica", said)
    return said.split(";")[0].split(": ", 1)[-1].rstrip(".")
