"""What is found in the vLLM that is installed."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oppo_real.placement.engines import ScorerSpec, build_scorer
from oppo_sim.errors import OppoError

from .drive import QUIET
from .test_vllm_absent import said

pytestmark = [pytest.mark.filterwarnings(one) for one in QUIET]


def test_the_installed_vllm_has_what_the_engines_need() -> None:
    import torch
    import vllm

    from oppo_real.engines.vllm_probe import probe_vllm

    features = probe_vllm()
    assert (features.vllm_version, features.torch_version) == (vllm.__version__, torch.__version__)
    assert features.device_type in ("cpu", "cuda")
    assert {
        "model",
        "async_scheduling",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
    } <= features.engine_args
    assert {"task", "use_activation"} <= features.pooling_params
    assert features.reload_weights_iterator
    assert features.reset_running_requests
    assert features.request_state
    assert features.pause_scheduling
    assert features.cache_salt


def test_nothing_of_vllms_own_comes_to_the_terminal_when_it_is_imported() -> None:
    code = "from oppo_real.engines.vllm_probe import require_vllm; require_vllm()"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_companion_for_another_torch_is_named_with_the_real_vllm(tmp_path: Path) -> None:
    # What pip leaves behind when it brings the CUDA build of torchvision to a CPU torch.
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")\n'
    )
    (tmp_path / "torchvision-9.9.dist-info").mkdir()
    (tmp_path / "torchvision-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 9.9\n"
    )
    sentence = said("", path=tmp_path)
    assert (
        "because torchvision was built for another torch (operator torchvision::nms does not exist)"
        in sentence
    )


def test_probing_sees_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    from oppo_real.engines.vllm_probe import probe_vllm

    monkeypatch.setattr(vllm.LLMEngine, "reset_prefix_cache", lambda self: True)
    features = probe_vllm()
    assert not features.reset_running_requests
    with pytest.raises(OppoError, match="has no reset of running requests, which this engine needs"):
        features.need(reset_of_running_requests=features.reset_running_requests)


def test_arguments_are_known_without_loading_vllm_and_a_wrong_one_is_refused_before() -> None:
    code = (
        "import sys\n"
        "from oppo_real.config import check_engines, parse_real_config\n"
        "from oppo_real.engines.vllm_arguments import installed_arguments\n"
        "known = installed_arguments()\n"
        "check_engines(parse_real_config({'engine': 'vllm', 'actor_args': {'block_size': 32}}))\n"
        "try:\n"
        "    check_engines(parse_real_config({'engine': 'vllm', 'actor_args': {'block_sise': 32}}))\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "assert 'vllm' not in sys.modules and 'torch' not in sys.modules\n"
        "import dataclasses\n"
        "from oppo_real.engines.vllm_probe import require_vllm\n"
        "assert known == {field.name for field in dataclasses.fields(require_vllm().EngineArgs)}, known\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "real.actor_args: the vllm engine has no argument 'block_sise' here; did you mean 'block_size'?\n"
    )


def test_kv_that_does_not_fit_names_the_field_of_the_scenario(actor_folder: Path) -> None:
    code = (
        "from oppo_real.engines.interface import Sampling\n"
        "from oppo_real.engines.vllm_actor import VllmActor\n"
        "from oppo_sim.errors import OppoError\n"
        "try:\n"
        f"    VllmActor({str(actor_folder)!r}, Sampling(), dtype='float32', kv_capacity_tokens=10**11)\n"
        "except OppoError as error:\n"
        "    print('SAID', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300
    )
    assert "SAID vLLM did not start" in done.stdout, done.stderr
    assert "a replica's KV is rollout.kv_capacity_tokens" in done.stdout


@pytest.mark.parametrize(
    ("here", "told"),
    [
        ("cpu", "real.devices names cuda:1, and the vLLM here runs on cpu: name cpu"),
        ("", "vLLM finds no device that it can use, and real.devices names cuda:1"),
        ("tpu", "runs on tpu: use the torch engine"),
    ],
)
def test_a_vllm_for_other_devices_is_refused(here: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = importlib.import_module("vllm.platforms")
    monkeypatch.setattr(platforms, "current_platform", SimpleNamespace(device_type=here))
    with pytest.raises(OppoError, match=told):
        build_scorer(ScorerSpec("vllm", "folder", device="cuda:1"))
