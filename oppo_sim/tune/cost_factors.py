"""A scenario's costs with everything of one kind slower by a factor, as plain data: the same cost model,
other coefficients."""

import json
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from oppo_sim.costs.build_profile import configured_profile
from oppo_sim.costs.config import LinearCostConfig, RooflineCostConfig, Verifier
from oppo_sim.costs.devices import Device, find_device
from oppo_sim.costs.profile import Profile, profile_text
from oppo_sim.costs.roofline_engine import find_host
from oppo_sim.draws import draw_normal, stream_key
from oppo_sim.files import whole_file
from oppo_sim.scenario.schema import Scenario

Plain = dict[str, Any]


class Factors(NamedTuple):
    """What the seconds of an activity are multiplied by."""

    decode: float = 1.0
    prefill: float = 1.0
    """Of the actor."""
    score: float = 1.0
    training: float = 1.0
    """All training stages and the weight sync."""

    def said(self) -> str:
        """``decode × 1.08, prefill × 0.93, …``."""
        return ", ".join(f"{name} × {value:.2f}" for name, value in self._asdict().items())


def drawn_factors(seed: int, number: int, sigma: float) -> Factors:
    """The ``number``-th draw: each factor exp(sigma · N(0, 1)), independent of the others."""
    return Factors(
        *(exp(sigma * draw_normal(stream_key(seed, f"tune/cost/{name}"), number)) for name in Factors._fields)
    )


def scaled_costs(scenario: Scenario, factors: Factors, profile_path: Path) -> Plain:
    """Sections of the scenario that say the scaled costs. A profile is written to ``profile_path``.

    ``linear`` and ``profile``: every second of an activity times its factor. ``roofline``: rates of the
    devices divided, overheads of the host multiplied: decode's factor is on memory traffic and the host,
    prefill's on arithmetic, so that a decode that is bound by arithmetic follows prefill's factor.
    """
    config = scenario.costs
    if isinstance(config, LinearCostConfig):
        return {"costs": _linear(config.model_dump(mode="json"), factors)}
    if isinstance(config, RooflineCostConfig):
        training = scenario.training.model_dump(mode="json")
        return {
            "costs": _roofline(config, factors),
            "training": {**training, "weight_sync": _sync(training["weight_sync"], factors.training)},
        }
    profile = configured_profile(config, scenario.base_dir)
    with whole_file(profile_path) as file:
        file.write(profile_text(scaled_profile(profile, factors)).encode())
    stand_in = (
        {}
        if config.roofline_training is None
        else {"roofline_training": _roofline(config.roofline_training, factors)}
    )
    return {"costs": {"kind": "profile", "path": str(profile_path.resolve()), **stand_in}}


def scaled_profile(profile: Profile, factors: Factors) -> Profile:
    """The profile with its tables multiplied. Its name says so, for every manifest."""
    plain = json.loads(profile_text(profile))
    for row in plain["decode"]["rows"]:
        row["seconds"] = _times(row["seconds"], factors.decode)
    for table, factor in (
        ("prefill", factors.prefill),
        ("score", factors.score),
        ("score_ref", factors.score),
    ):
        if plain[table] is not None:
            plain[table]["seconds"] = [_times(row, factor) for row in plain[table]["seconds"]]
    plain["training"] = {
        name: value if name == "tokens" or value is None else _times(value, factors.training)
        for name, value in plain["training"].items()
    }
    plain["update_weights"] *= factors.training
    host = plain["host"]
    for name, factor in (
        ("decode_per_iteration", factors.decode),
        ("decode_per_rollout", factors.decode),
        ("prefill", factors.prefill),
    ):
        host[name] *= factor
    host["score"] *= factors.score
    plain["name"] = f"{plain['name']} ({factors.said()})"
    return Profile.model_validate(plain)


# ---- inside ------------------------------------------------------------------------------------------------


def _times(values: list[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def _all_times(values: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in values.items()}


def _linear(plain: Plain, factors: Factors) -> Plain:
    stages = plain["stages"]
    return {
        **plain,
        "decode": _all_times(plain["decode"], factors.decode),
        "prefill": _all_times(plain["prefill"], factors.prefill),
        "score": _all_times(plain["score"], factors.score),
        "score_ref": None if plain["score_ref"] is None else _all_times(plain["score_ref"], factors.score),
        "stages": {
            name: (
                value * factors.training if name == "update_weights" else _all_times(value, factors.training)
            )
            for name, value in stages.items()
        },
    }


def _roofline(config: RooflineCostConfig, factors: Factors) -> Plain:
    plain: Plain = config.model_dump(mode="json")

    def device(ref: str | Device | None) -> Device:
        return find_device(config.device if ref is None else ref)

    rollout, reward, training = plain["rollout"], plain["reward_model"], plain["training"]
    rollout["device"] = _slower(
        device(config.rollout.device), memory=factors.decode, arithmetic=factors.prefill
    )
    rollout["host"] = _slower_host(find_host(config.rollout.host).model_dump(mode="json"), factors.decode)
    rollout["achievable"]["layer_latency_s"] *= factors.decode
    reward["device"] = _slower(
        device(config.reward_model.device), memory=factors.score, arithmetic=factors.score
    )
    reward["host"] = _slower_host(find_host(config.reward_model.host).model_dump(mode="json"), factors.score)
    reward["achievable"]["layer_latency_s"] *= factors.score
    if isinstance(config.reward_model, Verifier):
        reward["fixed_s"] *= factors.score
        reward["per_token_s"] *= factors.score
    training["device"] = _slower(
        device(config.training.device),
        memory=factors.training,
        arithmetic=factors.training,
        link=factors.training,
    )
    if training["link_bytes_per_s"] is not None:
        training["link_bytes_per_s"] /= factors.training
    training["achievable"]["layer_latency_s"] *= factors.training
    for name in ("micro_batch_overhead_s", "adv_fixed_s", "adv_per_token_s"):
        training[name] *= factors.training
    return plain


def _slower(device: Device, *, memory: float, arithmetic: float, link: float = 1.0) -> Plain:
    plain: Plain = device.model_dump(mode="json")
    plain["hbm_bytes_per_s"] /= memory
    plain["bf16_flops"] /= arithmetic
    if plain["fp8_flops"] is not None:
        plain["fp8_flops"] /= arithmetic
    plain["link_bytes_per_s"] /= link
    plain["host_link_bytes_per_s"] /= link
    return plain


def _slower_host(host: Plain, factor: float) -> Plain:
    return {
        name: value * factor if name.endswith(("_s", "_per_layer_s")) else value
        for name, value in host.items()
    }


def _sync(sync: Plain, factor: float) -> Plain:
    def slower(name: str, value: Any) -> Any:
        if isinstance(value, int | float):
            return value * factor if name.endswith("_s") and not name.endswith("per_s") else value / factor
        return value

    return {name: slower(name, value) for name, value in sync.items()}
