"""The configurations of the validation, and which half of them is held out: fixed before anything is
calibrated."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from subjects import ACTORS, MAX_PROMPT, REWARDS, Cell, Pair

from oppo_sim.errors import OppoError
from oppo_sim.scenario.yaml_text import parse_yaml

FILE: Final = Path(__file__).with_name("part2_configurations.yaml")
FORMAT: Final = "oppo-gpu-configurations/1"
SALT: Final = "oppo-gpu/1"


@dataclass(frozen=True)
class Configuration:
    """One row of the table: what runs, and whether the model may be adjusted to it."""

    group: str
    label: str
    pair: Pair
    cell: Cell
    policy: dict[str, Any]
    steps: int
    warmup_steps: int
    held_out: bool

    @property
    def name(self) -> str:
        """``group/label``."""
        return f"{self.group}/{self.label}"


def load_configurations(device: str, rehearse: bool, path: Path = FILE) -> list[Configuration]:
    """Those of the file, in its order; in a rehearsal the tiny ones. Raises OppoError for a file that is not
    of this format."""
    content = _read(path)
    part = content["rehearsal"] if rehearse else content
    found = []
    for group in part["groups"]:
        if group["actor"] not in ACTORS or group["reward"] not in REWARDS:
            raise OppoError(
                f"{path}: group {group['name']} names a model that is not among"
                f" {', '.join({*ACTORS, *REWARDS})}"
            )
        pair = Pair(group["actor"], group["reward"], group.get("engine", "torch"), device, rehearse)
        cell = Cell(
            group["rollout_batch_size"],
            group["max_response_length"],
            group["trace"],
            group.get("max_scoring_tokens", Cell.max_scoring_tokens),
            group.get("max_prompt_length", MAX_PROMPT),
            group.get("kv_capacity_tokens"),
        )
        for one in group["configurations"]:
            policy = {key: value for key, value in one.items() if key not in ("label", "held_out")}
            found.append(
                Configuration(
                    group["name"],
                    one["label"],
                    pair,
                    cell,
                    policy,
                    part["steps"],
                    part["warmup_steps"],
                    bool(one["held_out"]),
                )
            )
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise OppoError(f"{path}: configuration {min(twice)} is named twice")
    return found


def repeats_of(rehearse: bool, path: Path = FILE) -> int:
    """Real runs of each configuration."""
    content = _read(path)
    return int((content["rehearsal"] if rehearse else content)["repeats"])


def cell_of_pair(configurations: Sequence[Configuration]) -> Cell:
    """For a pair that no group runs: the middle group's."""
    cells = list(dict.fromkeys(one.group for one in configurations))
    middle = cells[len(cells) // 2]
    return next(one.cell for one in configurations if one.group == middle)


def held_out_by_hash(names: Sequence[str]) -> set[str]:
    """The half of ``names`` (rounded down) whose SHA-256 of the salt and the name comes first: nobody chose
    it."""
    return set(
        sorted(names, key=lambda name: hashlib.sha256(f"{SALT} {name}".encode()).hexdigest())[
            : len(names) // 2
        ]
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
        return dict(content)
    except (OSError, ValueError, KeyError, TypeError, OppoError) as error:
        raise OppoError(f"{path} is no list of configurations ({error})") from None
