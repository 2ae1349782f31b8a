"""Models from configurations and checkpoints, and the check that packed attention computes what the model
computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from oppo_real.engines import models
from oppo_real.engines.models import build_causal_lm, build_reward_model, build_value_model
from oppo_real.engines.packed_model import Feed, PackedModel, prepare
from oppo_sim.errors import OppoError
from tests.real.tiny import CONFIG, single_thread, tiny_actor, tiny_reward

single_thread()

LLAMA = CONFIG | {"model_type": "llama"}


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_seed_fixes_the_weights_and_leaves_other_draws_alone() -> None:
    torch.manual_seed(7)
    before = torch.rand(1)
    torch.manual_seed(7)
    first = _weights(build_causal_lm(CONFIG, seed=1))
    assert torch.equal(before, torch.rand(1))
    again, other = _weights(build_causal_lm(CONFIG, seed=1)), _weights(build_causal_lm(CONFIG, seed=2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_config_file_and_mapping_give_the_same_model_and_a_checkpoint_its_weights(tmp_path: Path) -> None:
    original: Any = tiny_actor(seed=5)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps(CONFIG))
    expected = _weights(original)
    for source in (tmp_path / "config", str(tmp_path / "config" / "config.json")):
        assert all(
            torch.equal(tensor, expected[name])
            for name, tensor in _weights(build_causal_lm(source, seed=5)).items()
        )
    original.save_pretrained(tmp_path / "checkpoint")
    loaded = build_causal_lm(tmp_path / "checkpoint", seed=99)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in _weights(loaded).items())


def test_reward_and_value_models_have_one_score_and_come_from_checkpoints_too(tmp_path: Path) -> None:
    reward: Any = build_reward_model(CONFIG, seed=3)
    critic: Any = build_value_model(CONFIG, seed=3, dtype="bfloat16")
    assert reward.score.out_features == critic.score.out_features == 1
    assert next(critic.parameters()).dtype == torch.bfloat16
    reward.save_pretrained(tmp_path)
    assert torch.equal(
        build_reward_model(tmp_path, seed=99).state_dict()["score.weight"], reward.score.weight
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"hidden_size": 8}, "names no model_type"),
        (
            {"model_type": "qwen2", "num_attention_heads": 3, "num_key_value_heads": 2},
            "num_attention_heads 3, which is no multiple of num_key_value_heads 2",
        ),
        ({"model_type": "no-such-model"}, "transformers does not know"),
        (CONFIG | {"hiden_size": 8}, "'hiden_size'"),
        ("/no/such/folder", "There is no model at"),
        (
            CONFIG
            | {
                "num_hidden_layers": 100_000,
                "hidden_size": 65_536,
                "intermediate_size": 65_536,
                "vocab_size": 10,
            },
            "GiB",
        ),
    ],
)
def test_a_source_that_cannot_work_is_refused_in_one_sentence(
    source: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message == "GiB":
        # The same check without building 100,000 layers: a machine with little memory.
        source = CONFIG
        monkeypatch.setattr(models, "free_memory_bytes", lambda device: 1000)
    with pytest.raises(OppoError, match=message) as refused:
        build_causal_lm(source)
    assert "\n" not in str(refused.value)


def test_wrong_dtype_device_and_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="float3"):
        build_causal_lm(CONFIG, dtype="float3")
    with pytest.raises(OppoError, match="device"):
        build_causal_lm(CONFIG, device="abacus")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(OppoError, match="JSON object"):
        build_causal_lm(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OppoError, match="cannot be read as JSON"):
        build_causal_lm(tmp_path)


def test_free_memory_is_known_here() -> None:
    free = models.free_memory_bytes(torch.device("cpu"))
    assert free is not None and free > 1 << 20


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        CONFIG | {"tie_word_embeddings": True},
        CONFIG | {"model_type": "mistral", "sliding_window": None},
    ],
)
def test_other_architectures_compute_the_same_packed(config: dict[str, Any]) -> None:
    reference: Any = build_causal_lm(config, seed=4)
    packed = PackedModel(build_causal_lm(config, seed=4))
    first, second = (5, 6, 7, 8, 9, 10), (50, 3)
    packed.forward([Feed(1, first[:4]), Feed(2, second[:1])])
    logits = packed.next_logits([Feed(2, second[1:]), Feed(1, first[4:])])
    with torch.no_grad():
        for row, tokens in zip(logits, (second, first), strict=True):
            torch.testing.assert_close(
                row, reference(input_ids=torch.tensor([tokens])).logits[0, -1], atol=1e-4, rtol=1e-4
            )


def test_a_model_that_scales_its_logits_is_refused_and_left_as_it_was() -> None:
    model: Any = build_causal_lm(LLAMA | {"model_type": "granite", "logits_scaling": 8.0})
    before = model.config._attn_implementation
    with pytest.raises(OppoError, match="computes something else"):
        prepare(model)
    assert model.config._attn_implementation == before


def test_a_sequence_beyond_a_sliding_window_is_refused() -> None:
    packed = PackedModel(build_causal_lm(CONFIG | {"model_type": "mistral", "sliding_window": 8}))
    packed.forward([Feed(0, tuple(range(8)))])
    with pytest.raises(OppoError, match="sliding-window"):
        packed.forward([Feed(0, (8,))])


def test_a_packed_model_says_so_when_called_directly() -> None:
    model = tiny_actor()
    prepare(model)
    with pytest.raises(OppoError, match="packed batches only"):
        model(input_ids=torch.tensor([[1, 2, 3]]))


def test_new_weights_are_checked_before_any_is_copied() -> None:
    packed = PackedModel(tiny_actor(seed=0))
    before = _weights(packed.model)
    new = _weights(tiny_actor(seed=1))
    name = next(iter(new))
    for wrong, message in (
        ({key: value for key, value in new.items() if key != name}, "lack"),
        (new | {"extra": torch.zeros(1)}, "'extra'"),
        (new | {name: torch.zeros(3)}, "shape"),
    ):
        with pytest.raises(OppoError, match=message):
            packed.load(wrong)
        assert all(torch.equal(tensor, before[key]) for key, tensor in packed.model.state_dict().items())
    packed.load(new)
    assert all(torch.equal(tensor, new[key]) for key, tensor in packed.model.state_dict().items())


def test_tied_weights_may_come_under_either_name() -> None:
    source: Any = tiny_actor(seed=1, tie_word_embeddings=True)
    target: Any = tiny_actor(seed=0, tie_word_embeddings=True)
    packed = PackedModel(target)
    assert "lm_head.weight" not in dict(source.named_parameters())
    packed.load({name: parameter.detach() for name, parameter in source.named_parameters()})
    assert torch.equal(target.lm_head.weight, source.lm_head.weight)


def test_reward_model_of_two_labels_is_no_reward_model() -> None:
    from oppo_real.engines.torch_scorer import TorchScorer

    with pytest.raises(OppoError, match="no reward model"):
        TorchScorer(tiny_actor())
    assert TorchScorer(tiny_reward()).resolved_config()["model"] == "Qwen2ForSequenceClassification"
