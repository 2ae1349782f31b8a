"""What the engines would give vLLM on GPUs is taken by the installed version's own classes; each other version is
asked by experiments/vllm_configs.py."""

from __future__ import annotations

import json

from experiments.vllm_configs import WRONG, in_a_process


def test_the_installed_version_configures_four_gpus_as_asked() -> None:
    done = in_a_process("cuda")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    assert made == {"EngineArgs": 15, "SamplingParams": 6, "PoolingParams": 1, "refused": len(WRONG)}
