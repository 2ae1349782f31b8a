"""A scenario written into another folder: its paths start there."""

import os
from pathlib import Path
from typing import Any

from oppo_sim.costs.section import EXACT
from oppo_sim.costs.shipped_draws import PREFIX

_MODELS = ("actor_model", "ref_model", "critic_model")


def relocated(plain: dict[str, Any], base_dir: Path | None, folder: Path) -> dict[str, Any]:
    """The plain scenario with paths that start in ``base_dir`` made to start in ``folder``."""
    base = base_dir or Path()

    def moved(text: str) -> str:
        return text if Path(text).is_absolute() else Path(os.path.relpath(base / text, folder)).as_posix()

    def if_there(text: Any) -> Any:
        return moved(text) if isinstance(text, str) and (base / text).exists() else text

    def policy(name: str) -> str:
        path, colon, class_name = name.rpartition(":")
        return f"{moved(path)}:{class_name}" if colon and path.endswith(".py") else name

    result = dict(plain)
    if plain["trace"].get("path") is not None:
        result["trace"] = {**plain["trace"], "path": moved(plain["trace"]["path"])}
    costs = dict(plain["costs"])
    if costs.get("path") is not None:
        costs["path"] = moved(costs["path"])
    draws = costs.get("draws")
    if draws not in (None, EXACT) and not draws.startswith(PREFIX):
        costs["draws"] = moved(draws)
    for name in _MODELS:
        if name in costs:
            costs[name] = if_there(costs[name])
    reward = costs.get("reward_model")
    if isinstance(reward, dict) and "model" in reward:
        costs["reward_model"] = {**reward, "model": if_there(reward["model"])}
    result["costs"] = costs
    result["policy"] = {**plain["policy"], "name": policy(plain["policy"]["name"])}
    result["policies"] = {policy(name): settings for name, settings in plain["policies"].items()}
    if isinstance(plain.get("real"), dict):
        result["real"] = _each_text(plain["real"], if_there)
    return result


def _each_text(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) and ("/" in value or value.endswith(".json")) else value
