"""The ``cluster:`` section of a scenario: how many GPUs there are, and how they are split between generation,
scoring and training."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import Field

from oppo_sim.costs.strict import Count, Positive, Strict
from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import show_value

AUTO: Final = "auto"
SPLIT_FIELD: Final = "cluster.split"
SPLIT_NAMES: Final = (SPLIT_FIELD, "split")
"""The field and its short name."""
_SPLIT = re.compile(r"rollout:(\d+)xTP(\d+) scoring:(\d+|rollout|training|cpu) training:(\d+|rollout)")
_ORDER: Final = ("rollout", "scoring", "training")
_SYNC_ON_SHARED: Final = ("reshard", "shared")
_SYNC_APART: Final = "online_refit"
"""Kinds of ``training.weight_sync`` that need the trained weights on the devices of the engines, and what
sends them to others."""
SYNTAX: Final = (
    "rollout:4xTP2 scoring:2 training:6 is 4 replicas of 2 GPUs, 2 GPUs that score and 6 that train;"
    " scoring:rollout, scoring:training and training:rollout share those GPUs, scoring:cpu needs none"
)


class ClusterConfig(Strict):
    """The GPUs of a job and the links between its nodes."""

    num_gpus: Count | None = Field(
        None, description="GPUs of the whole job, paid for if idle; null: as many as its parts need"
    )
    num_gpus_per_node: Count | None = Field(None, description="null: all GPUs are in one node")
    node_link_bytes_per_s: Positive = Field(
        5e10,
        description=(
            "bytes a second per GPU and direction between nodes, before achievable shares; 5e10 is the"
            " 400 Gb/s of DGX H100 and H200"
        ),
    )
    split: str | None = Field(None, description=f"who has which GPUs, over the fields that say so: {SYNTAX}")


class Split(NamedTuple):
    """GPUs by what they do."""

    replicas: int
    tensor_parallel: int
    scoring: int | str
    """GPUs of their own, or whose they share: ``rollout``, ``training``; ``cpu``: none."""
    training: int | str
    """GPUs of their own, or ``rollout``."""

    @property
    def rollout_gpus(self) -> int:
        return self.replicas * self.tensor_parallel

    @property
    def num_gpus(self) -> int:
        """All that it needs."""
        return self.rollout_gpus + sum(
            part for part in (self.scoring, self.training) if isinstance(part, int)
        )

    def __str__(self) -> str:
        rollout = f"{self.replicas}xTP{self.tensor_parallel}"
        return f"rollout:{rollout} scoring:{self.scoring} training:{self.training}"

    @classmethod
    def parse(cls, text: str) -> "Split":
        """The split that a text says, its three parts in any order. Raises OppoError."""
        match = _SPLIT.fullmatch(" ".join(sorted(text.split(), key=_place)))
        if match is None or not int(match[1]) or not int(match[2]):
            raise OppoError(f"cluster.split is {show_value(text)} but must be such as {SYNTAX}")
        scoring, training = (int(part) if part.isdigit() else part for part in match.groups()[2:])
        if scoring == 0 or training == 0:
            raise OppoError(f"cluster.split is {show_value(text)}, which gives a part no GPU: {SYNTAX}")
        return cls(int(match[1]), int(match[2]), scoring, training)


def _place(part: str) -> int:
    """Of a part of a split in the order that it is written in here."""
    name = part.partition(":")[0]
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


Plain = Mapping[str, Any]


def with_split(data: Plain) -> dict[str, Any]:
    """Scenario data with the fields that its ``cluster.split`` expands to; the same where it has none. Raises
    OppoError for a split that it cannot have."""
    section = data.get("cluster")
    text = section.get("split") if isinstance(section, dict) else None
    if not isinstance(text, str):
        return dict(data)
    split = Split.parse(text)
    costs = data.get("costs")
    shaped = isinstance(costs, dict) and costs.get("kind") in ("roofline", "composed")
    if split.tensor_parallel > 1 and not shaped:
        raise OppoError(
            f"cluster.split: TP{split.tensor_parallel} needs costs of kind roofline or composed, which know"
            " tensor parallelism: take TP1"
        )
    reward = costs.get("reward_model") if isinstance(costs, dict) else None
    verifies = isinstance(reward, dict) and reward.get("kind") == "verifier"
    if shaped and verifies != (split.scoring == "cpu"):
        wrong = "a verifier scores: write scoring:cpu" if verifies else "a reward model scores: give it GPUs"
        raise OppoError(f"cluster.split is {show_value(text)}, but {wrong}")
    degree = int(reward.get("tensor_parallel", 1)) if isinstance(reward, dict) and not verifies else 1
    own = "separate" if isinstance(split.scoring, int) or split.scoring == "cpu" else split.scoring
    placement = {"scoring": own, "training": "separate" if isinstance(split.training, int) else "rollout"}
    changed: dict[str, dict[str, Any]] = {
        "rollout": {"num_replicas": split.replicas},
        "training": {"num_gpus": split.training if isinstance(split.training, int) else None},
        "placement": placement,
    }
    if isinstance(split.training, int) and _sync_kind(data) in _SYNC_ON_SHARED:
        changed["training"] |= {"weight_sync": {"kind": _SYNC_APART}}
    if split.scoring != "cpu":
        changed["scoring"] = {"num_workers": _workers(split, text, degree)}
    merged = dict(data)
    for name, fields in changed.items():
        before = data.get(name)
        merged[name] = {**(before if isinstance(before, dict) else {}), **fields}
    if shaped and isinstance(costs, dict):
        before = costs.get("rollout")
        engine = {**(before if isinstance(before, dict) else {}), "tensor_parallel": split.tensor_parallel}
        merged["costs"] = {**costs, "rollout": engine}
    return merged


def sync_sentence(before: Plain, after: Plain) -> list[str]:
    """What to know where a split changed how new weights reach the engines."""
    old, new = _sync_kind(before), _sync_kind(after)
    if old == new:
        return []
    return [f"training.weight_sync: {old} needs training on the rollout devices, {new} is read"]


def _sync_kind(data: Plain) -> Any:
    training = data.get("training")
    sync = training.get("weight_sync") if isinstance(training, Mapping) else None
    return sync.get("kind") if isinstance(sync, Mapping) else None


def overruled(given: Plain, before: Plain, after: Plain) -> str | None:
    """The first field of ``given``, as a dotted name, that the split changed from ``before`` to ``after``."""
    for name, value in given.items():
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if not (isinstance(value, Mapping) and isinstance(old, Mapping) and isinstance(new, Mapping)):
            return name
        if (inner := overruled(value, old, new)) is not None:
            return f"{name}.{inner}"
    return None


def _workers(split: Split, text: str, degree: int) -> int:
    """Scoring workers of ``degree`` GPUs each."""
    if isinstance(split.scoring, int):
        gpus = split.scoring
    else:
        gpus = split.training if split.scoring == "training" and isinstance(split.training, int) else 0
        gpus = gpus or split.rollout_gpus
    if gpus % degree:
        raise OppoError(
            f"cluster.split is {show_value(text)}, but a scoring worker has {degree} GPUs"
            f" (costs.reward_model.tensor_parallel), which do not divide {gpus}"
        )
    # One at most on each place that it can share: a replica, or a training device.
    workers = gpus // degree
    return min(workers, split.replicas) if split.scoring == "rollout" else workers
