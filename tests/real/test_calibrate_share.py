"""``oppo calibrate --share``: a profile without its owner's names, and its way into the package."""

import json
from pathlib import Path

import pytest

from oppo_real.calibrate.contention import Meeting, Round, contention_of
from oppo_real.calibrate.point import Point
from oppo_real.calibrate.profile import samples_text
from oppo_real.calibrate.share import shared_name, with_parameters, without_names, write_shared
from oppo_real.config import ModelsConfig
from oppo_real.engines.models import parameter_count
from oppo_sim.cli.main import run
from oppo_sim.costs.profile import Profile, load_profile
from oppo_sim.costs.shipped_profiles import load_shipped, shipped_profiles
from oppo_sim.errors import OppoError
from tests.real.tiny import CONFIG

MEASURED = Path("experiments/validate_cpu/results/profile.json")
SAMPLES = '{"kind":"decode","rows":[[5,1]],"visit":0,"seconds":[0.5]}\n'
SECRETS = ("acme", "alice", "secret", "/data")


def private_profile() -> Profile:
    """A measured one, as a run of private models leaves it."""
    found = load_profile(MEASURED)
    engine = json.loads(json.dumps(found.measured.engine))
    engine["subject"]["models"]["actor"] = "/data/alice/secret-sft"
    engine["subject"]["models"]["reward"] = {
        "_name_or_path": "acme/secret-rm",
        "hidden_size": 768,
        "model_type": "acme",
        "label2id": {"acme_toxic": 0},
        "id2label": {"0": "acme_toxic"},
        "acme_scale": 2,
    }
    engine["subject"]["actor_args"] = {
        "download_dir": "/data/alice",
        "enable_prefix_caching": True,
        "kv_cache_dtype": "fp8",
        "hf_token": "hf_secret",
        "data_parallel_address": "alice17",
        "worker_extension_cls": "acme.Worker",
        "hf_overrides": {"acme_scale": 3},
        "allowed_origins": ["alice"],
    }
    engine["actor"] |= {
        "model": "acme/secret",
        "architecture": "AcmeForCausalLM",
        "served_model_name": "secret",
        "engine": "vllm",
    }
    measured = found.measured.model_copy(update={"engine": engine, "raw_samples": "alice.samples.jsonl"})
    hardware = measured.model_copy(update={"hardware": "1 of 8 NVIDIA H200, 140 GiB, CUDA 12.8"})
    return found.model_copy(update={"name": "acme-secret-run", "measured": hardware})


def test_what_was_measured_together_is_shared_too(tmp_path: Path) -> None:
    decode, score = Point("decode", ((8, 1),)), Point("score", ((0, 8),))
    met = contention_of(Meeting(("decode", "score"), (decode, score)), [Round((0.01, 0.1), (0.015, 0.12))])
    shared = write_shared(private_profile(), samples_text((), [met]), tmp_path)
    (row,) = map(json.loads, shared.samples.read_text().splitlines())
    assert (row["kind"], row["points"]) == ("contention", [decode.key, score.key])


def test_a_shared_profile_keeps_figures_and_settings_and_no_name(tmp_path: Path) -> None:
    given = private_profile()
    shared = write_shared(given, SAMPLES, tmp_path)
    assert shared.name == shared_name(given) == "nvidia-h200/6.69m+25.6m/vllm"
    text = shared.profile.read_text() + shared.samples.read_text() + str(shared.profile.relative_to(tmp_path))
    assert not [secret for secret in SECRETS if secret in text.lower()]
    kept = load_profile(shared.profile)
    assert kept.model_copy(update={"name": given.name, "measured": given.measured}) == given
    assert kept.measured.hardware == given.measured.hardware
    assert kept.measured.software == given.measured.software
    engine = json.loads(json.dumps(kept.measured.engine))
    assert engine["subject"]["actor_args"] == {"enable_prefix_caching": True, "kv_cache_dtype": "fp8"}
    assert engine["subject"]["models"]["reward"] == {"hidden_size": 768}
    assert engine["actor"]["parameters"] == 6690688
    assert engine["actor"]["attention_path"] == "plain"


def test_models_of_an_engine_that_does_not_tell_their_size_are_counted() -> None:
    """vLLM's configuration has no number of parameters; without one all models would share a name."""
    given = private_profile()
    engine = json.loads(json.dumps(given.measured.engine))
    for name in ("actor", "scorer"):
        del engine[name]["parameters"]
    bare = given.model_copy(update={"measured": given.measured.model_copy(update={"engine": engine})})
    assert shared_name(bare) == "nvidia-h200/model+model/vllm"
    models = ModelsConfig(actor=dict(CONFIG), reward=dict(CONFIG))
    counted = [parameter_count(kind, CONFIG) for kind in ("causal_lm", "score")]
    told = with_parameters(bare, models).measured.engine
    assert [told[name]["parameters"] for name in ("actor", "scorer")] == counted  # type: ignore[index]
    assert with_parameters(given, models) == given


def test_samples_with_texts_are_not_shared(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="is no figure"):
        write_shared(private_profile(), '{"kind":"decode","rows":["What is 2 + 2?"]}\n', tmp_path)
    assert not list(tmp_path.rglob("*.json*"))


def test_a_profile_that_does_not_say_what_was_measured_is_not_shared() -> None:
    found = load_profile(MEASURED)
    bare = found.model_copy(update={"measured": found.measured.model_copy(update={"engine": {}})})
    with pytest.raises(OppoError, match="does not say which engines"):
        without_names(bare, SAMPLES)


def test_a_shared_profile_is_registered_listed_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = write_shared(private_profile(), SAMPLES, tmp_path / "shared")
    package = tmp_path / "measured"
    assert run(["costs", "register", str(shared.profile), "--to", str(package)]) == 0
    assert shipped_profiles(package) == [shared.name]
    assert load_shipped(shared.name, package) == load_profile(shared.profile)
    assert (package / "nvidia-h200/6.69m+25.6m/vllm.samples.jsonl").read_text() == SAMPLES
    capsys.readouterr()
    assert run(["costs", "profiles", str(shared.profile), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["hardware"] == "1 of 8 NVIDIA H200, 140 GiB, CUDA 12.8"
    assert row["software"] == {"torch": "2.13.0+cpu"}
    shared.samples.write_text(SAMPLES + SAMPLES)
    assert run(["costs", "register", str(shared.profile), "--to", str(package)]) == 2
    assert "is not the samples of" in capsys.readouterr().err


def test_the_list_names_what_comes_with_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["costs", "profiles"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in shipped_profiles() or ["oppo calibrate"])
