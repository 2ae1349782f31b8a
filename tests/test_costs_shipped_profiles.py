"""Measured profiles by name, and profiles without training."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from oppo_sim.costs import shipped_profiles as module
from oppo_sim.costs.interface import BatchShape
from oppo_sim.costs.profile_config import ProfileCostConfig
from oppo_sim.costs.shipped_profiles import load_shipped, register_profile, shipped_profiles
from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import scenario_from_plain
from tests.test_costs_profile import content, context

NAME = "h200/qwen2.5-7b+1.5b/torch"
ROOFLINE = {
    "kind": "roofline",
    "device": "H200",
    "actor_model": "qwen2.5-1.5b",
    "reward_model": {"kind": "model", "model": "qwen2.5-1.5b"},
}


def profile_file(folder: Path, **changes: object) -> Path:
    path = folder / "measured.json"
    path.write_text(json.dumps({**content(), **changes}))
    return path


def test_a_registered_profile_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped"
    register_profile(profile_file(tmp_path), NAME, shipped)
    register_profile(profile_file(tmp_path), "h200/other/vllm", shipped)
    assert shipped_profiles(shipped) == ["h200/other/vllm", NAME]
    monkeypatch.setattr(module, "SHIPPED_FOLDER", shipped)
    costs = ProfileCostConfig(kind="profile", name=NAME).build(context())
    assert costs.provenance["path"] == f"shipped: {NAME}"
    assert costs.actor.decode_time(8, 8 * 1024) == pytest.approx(0.005 + 8 * 2e-5 + 8 * 1024 * 4e-9)
    with pytest.raises(OppoError, match=r"did you mean h200/qwen2.5-7b\+1.5b/torch"):
        ProfileCostConfig(kind="profile", name="h200/qwen2.5-7b+1.5b/tosch").build(context())


def test_an_edited_profile_is_refused_and_registering_again_replaces_it(tmp_path: Path) -> None:
    target = register_profile(profile_file(tmp_path), NAME, tmp_path / "shipped")
    target.write_text(target.read_text().replace("computed", "improved"))
    with pytest.raises(OppoError, match="SHA-256"):
        load_shipped(NAME, tmp_path / "shipped")
    register_profile(profile_file(tmp_path, name="anew"), NAME, tmp_path / "shipped")
    assert load_shipped(NAME, tmp_path / "shipped").name == "anew"


def test_what_is_no_profile_or_no_name_is_not_registered(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="small letters"):
        register_profile(profile_file(tmp_path), "../out", tmp_path)
    with pytest.raises(OppoError, match="oppo-profile/1"):
        register_profile(profile_file(tmp_path, format="other"), NAME, tmp_path)
    assert not (tmp_path / "index.json").exists()


def test_the_shipped_index_is_whole_and_holds_no_rehearsal() -> None:
    assert not [name for name in shipped_profiles() if "NVIDIA" not in load_shipped(name).measured.hardware]


def test_an_empty_index_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps({"format": "oppo-profile-index/1", "profiles": {}}))
    with pytest.raises(OppoError, match="none is shipped yet: measure one with oppo calibrate"):
        load_shipped(NAME, tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(OppoError, match="index of measured profiles"):
        shipped_profiles(tmp_path)


def test_a_scenario_names_one_source() -> None:
    with pytest.raises(ValidationError, match="either a path or a name"):
        ProfileCostConfig(kind="profile")
    sizes = {"rollout_batch_size": 8, "max_prompt_length": 64, "max_response_length": 256}
    plain = {
        "format": "oppo-scenario/1",
        **sizes,
        "trace": {"name": "math_gsm8k_gpt3", "prompt_length": 64},
        "policy": "oppo",
    }
    with pytest.raises(OppoError, match="either a path or a name"):
        scenario_from_plain({**plain, "costs": {"kind": "profile", "path": "a.json", "name": NAME}})
    assert scenario_from_plain({**plain, "costs": {"kind": "profile", "name": NAME}}).costs.name == NAME  # type: ignore[union-attr]


def test_a_profile_without_training_is_refused_unless_a_roofline_stands_in(tmp_path: Path) -> None:
    path = profile_file(tmp_path, training={"tokens": []})
    with pytest.raises(OppoError, match=r"training was not measured .* costs.roofline_training"):
        ProfileCostConfig(kind="profile", path=str(path)).build(context())
    mixed = ProfileCostConfig.model_validate(
        {"kind": "profile", "path": str(path), "roofline_training": ROOFLINE}
    )
    batch = BatchShape((100,) * 16, (900,) * 16)
    costs = mixed.build(context())
    alone = mixed.roofline_training.build(context())  # type: ignore[union-attr]
    assert costs.training.stage_times(batch) == alone.training.stage_times(batch)
    assert costs.actor.decode_time(8, 8 * 1024) != alone.actor.decode_time(8, 8 * 1024)
    assert costs.provenance["training"]["measured"] is False  # type: ignore[index]


def test_a_training_table_has_the_update_or_nothing(tmp_path: Path) -> None:
    path = profile_file(tmp_path, training={"tokens": [1, 2], "ref": [1, 2]})
    with pytest.raises(OppoError, match="update_actor is missing"):
        ProfileCostConfig(kind="profile", path=str(path)).build(context())
