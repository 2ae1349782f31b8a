"""SkyRL's training batches, pickled as its class pickles itself."""

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated

MODULE = "skyrl.backends.training_batch"


def tensor(values: Any, kind: str = "int64") -> dict[str, Any]:
    array = np.array(values, dtype=kind)
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}


def state(**more: Any) -> dict[str, Any]:
    fields = {
        "sequences": tensor(np.ones((3, 8))),
        "attention_mask": tensor([[0, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0]]),
        "response_mask": tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
        "loss_mask": tensor([[1, 0, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0]]),
        "rewards": tensor([[0, 0, 1, 0], [0, 0, 0, 0.5], [0, 0, 0, 0]], "float32"),
        "kl": {"format": "torch", "data": b"PK"},
        "values": None,
    }  # fmt: skip
    return {
        "batch_dict": {**fields, **more},
        "batch_size": 3,
        "device": None,
        "metadata": {"uids": ["a", "a", "pad0"], "pad_size": 1},
    }


@pytest.fixture
def batch_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """A module of the class's name that exists while the batch is written, and no longer when it is read."""

    class TrainingInputBatch(dict[str, Any]):
        """Pickles as the framework's own."""

    def rebuild(kind: type, held: dict[str, Any]) -> None:
        raise AssertionError("read by running it")

    TrainingInputBatch.__module__, TrainingInputBatch.__qualname__ = MODULE, "TrainingInputBatch"
    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = (
        MODULE,
        "_rebuild_tensor_batch",
        "_rebuild_tensor_batch",
    )
    module = ModuleType(MODULE)
    vars(module).update(TrainingInputBatch=TrainingInputBatch, _rebuild_tensor_batch=rebuild)
    for name in ("skyrl", "skyrl.backends", MODULE):
        monkeypatch.setitem(sys.modules, name, module if name == MODULE else ModuleType(name))
    return TrainingInputBatch


def write(
    folder: Path, kind: type, held: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, older: bool = False
) -> Path:
    rebuild = vars(sys.modules[MODULE])["_rebuild_tensor_batch"]
    if older:
        kind.__getstate__ = lambda _self: held  # type: ignore[attr-defined]
    else:
        kind.__reduce__ = lambda self: (rebuild, (type(self), held))  # type: ignore[method-assign, assignment]
    path = folder / "global_step_6_training_input.pkl"
    path.write_bytes(pickle.dumps(kind()))
    for name in ("skyrl", "skyrl.backends", MODULE):
        monkeypatch.delitem(sys.modules, name)
    return path


@pytest.mark.parametrize("older", [False, True])
def test_masks_are_summed(
    older: bool, tmp_path: Path, batch_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, batch_class, state(), monkeypatch, older=older)
    frame, provenance = import_log("auto", tmp_path, max_response_length=4)
    assert provenance["framework"] == "skyrl"
    assert column(frame, "response_length") == [3, 4]
    assert column(frame, "prompt_length") == [2, 4]
    assert column(frame, "step") == [6, 6]
    assert column(frame, "prompt_id") == ["a", "a"]
    assert column(frame, "reward") == [1.0, 0.5]
    assert column(frame, "finish_reason") == ["stop", "length"]
    assert provenance["rows_left_out"] == {"row that only fills the batch up": 1}
    assert MODULE not in sys.modules
    simulated(frame, provenance, tmp_path)
    assert import_log("skyrl", path)[0]["response_length"].tolist() == [3, 4]


def test_batches_without_masks_are_refused(
    tmp_path: Path, batch_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, batch_class, state(response_mask=None, loss_mask=None), monkeypatch)
    assert "no response_mask and no loss_mask" in refused("skyrl", path)
    path.write_bytes(path.read_bytes()[:-40])
    assert "no pickle that can be read" in refused("skyrl", path)
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "holds no training batch" in refused("skyrl", path)
    path.write_bytes(b"")
    assert "no pickle that can be read" in refused("skyrl", path)


def test_a_field_of_another_kind_is_refused(
    tmp_path: Path, batch_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"format": "numpy", "data": b"\0" * 24, "shape": (3, 1), "dtype": "object"}
    assert "numbers of type object" in refused(
        "skyrl", write(tmp_path, batch_class, state(response_mask=odd), monkeypatch)
    )


def test_the_loss_mask_does_where_there_is_no_other(
    tmp_path: Path, batch_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, provenance = import_log(
        "skyrl", write(tmp_path, batch_class, state(response_mask=None), monkeypatch)
    )
    assert column(frame, "response_length") == [2, 3]
    assert any("loss_mask" in note for note in provenance["notes"])


def test_turns_come_from_the_loss_mask(
    tmp_path: Path, batch_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, batch_class, state(), monkeypatch)
    frame, provenance = import_log("skyrl", path, tool_seconds=2.0)
    assert column(frame, "response_length") == [2, 3]
    assert column(frame, "prompt_length") == [2, 4]
    assert [list(each) for each in frame["turn_response_lengths"]] == [[1, 1], [2, 1]]
    assert [list(each) for each in frame["tool_tokens"]] == [[1], [1]]
    assert [list(each) for each in frame["tool_seconds"]] == [[2.0], [2.0]]
    simulated(frame, provenance, tmp_path)
