"""Actor, scorer, models and weight exchange on a CUDA machine without a GPU (tests/real/fake_cuda): they do there
what they do on the CPU, and the host waits where it must and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oppo_real.engines import attention_check, models, packed_plan
from oppo_real.engines import device as devices
from oppo_real.engines.interface import Request, Sampling, ScorePiece
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.placement import shared_weights
from oppo_sim.errors import OppoError
from tests.real.fake_cuda.covered import covers
from tests.real.fake_cuda.exercises import SMALL, Made, actor, decoded, scored, scorer, through_an_update
from tests.real.fake_cuda.machine import cuda_machine
from tests.real.tiny import single_thread

single_thread()

SAMPLED = Sampling(temperature=0.8, top_p=0.9, stop_token_id=3, seed=5)


def approximately(found: Any) -> Any:
    return pytest.approx(found, rel=1e-4, abs=1e-4)


@covers("TorchActor.submit", "TorchActor.step", "models.build_causal_lm", "models.free_memory_bytes")
@pytest.mark.parametrize(
    ("sampling", "limits"),
    [
        (Sampling(temperature=0.0), {}),
        (SAMPLED, {"max_batched_tokens": 7}),
        (SAMPLED, {"kv_capacity_tokens": 24, "kv_block_tokens": 4}),
    ],
)
def test_a_gpu_decodes_what_the_cpu_decodes(sampling: Sampling, limits: dict[str, Any]) -> None:
    there = decoded(actor("cpu", sampling=sampling, **limits))
    with cuda_machine():
        here = decoded(actor("cuda:1", sampling=sampling, **limits))
    assert here.tokens == there.tokens
    for rollout_id, log_probs in there.log_probs.items():
        assert here.log_probs[rollout_id] == approximately(log_probs)


@covers(
    "TorchActor.load_weights",
    "TorchActor.abort",
    "TorchActor.running",
    "TorchActor.counts",
    "TorchActor.resolved_config",
    "TorchActor.close",
)
@pytest.mark.parametrize("keep_kv", [True, False])
def test_new_weights_from_the_hosts_memory_and_kv_kept_or_recomputed(keep_kv: bool) -> None:
    fresh = models.build_causal_lm(SMALL, 7).state_dict()
    on_cpu = actor("cpu", keep_kv_on_tool_call=True)
    there = through_an_update(on_cpu, fresh, keep_kv)
    with cuda_machine():
        engine = actor("cuda", keep_kv_on_tool_call=True)
        here = through_an_update(engine, fresh, keep_kv)
        assert engine.running() == () and engine.counts() == on_cpu.counts()
        config = engine.resolved_config()
        engine.close()
    assert here.tokens == there.tokens
    assert (config["device"], config["device_name"]) == ("cuda:0", "fake GPU 0")
    assert config["attention_path"] == "plain" and "plain" in config["cuda_graphs"]


@covers("device.busy_seconds")
def test_how_long_a_gpu_computes_is_counted_from_what_is_queued_to_the_hosts_wait() -> None:
    with cuda_machine():
        engine, there = actor("cuda:1"), torch.device("cuda", 1)
        engine.submit([Request(0, (1, 2, 3), 9)])
        for _ in range(2):  # joins; finds that there is nothing to capture
            engine.step()
        assert devices.busy_seconds(there, lambda: None) is None
        one = devices.busy_seconds(there, engine.step)
        two = devices.busy_seconds(there, lambda: [engine.step() for _ in range(2)])
        assert one is not None and two is not None
        assert 0.0 < 1.9 * one <= two
        assert not devices._BEFORE_WAITING


@covers("TorchActor.load_weights")
def test_the_host_waits_once_for_all_new_weights() -> None:
    fresh = models.build_causal_lm(SMALL, 7).state_dict()
    with cuda_machine() as machine:
        engine = actor("cuda")
        machine.waits.clear()
        engine.load_weights(fresh, 1, keep_kv=False)
        assert machine.waits == {"engines/device.py:synchronize": 1}


@covers("TorchActor.step", "TorchActor.resolved_config", "CudaCapture.__call__")
@pytest.mark.parametrize("where", ["cuda:0", "cuda:1"])
def test_captured_steps_decode_what_eager_ones_decode_on_either_gpu(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")
    with cuda_machine() as machine:
        eager, captured = (actor(where, "bfloat16") for _ in range(2))
        eager._packed._graphs = None
        expected = decoded(eager)
        made = decoded(captured)
        assert made.tokens == expected.tokens and made.log_probs == expected.log_probs
        config = captured.resolved_config()
        assert (config["attention_path"], config["cuda_graphs"]) == ("flash", "on")
        # What is captured: replays launch nothing by themselves.
        captured.submit([Request(7, (1, 2), 7)])
        captured.step()
        captured.step()
        before = machine.operations
        captured.step()
        eager.submit([Request(7, (1, 2), 7)])
        captured_operations, before = machine.operations - before, machine.operations
        eager.step()
        assert captured_operations < (machine.operations - before) / 2


def _same_as_eager(where: str, run: Callable[[TorchActor], Made], **limits: Any) -> None:
    """Tokens and log-probabilities of captured steps are those of eager ones."""
    eager, captured = (actor(where, "bfloat16", **limits) for _ in range(2))
    eager._packed._graphs = None
    expected, made = run(eager), run(captured)
    assert captured.resolved_config()["cuda_graphs"] == "on"
    assert made.tokens == expected.tokens and made.log_probs == expected.log_probs


@covers("TorchActor.reset", "TorchActor.step")
def test_captured_steps_are_replayed_by_an_engine_that_is_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")

    def run(engine: TorchActor) -> Made:
        first = decoded(engine)
        counts = engine.counts()
        engine.submit([Request(0, (1,) * 20, 9), Request(1, (2,) * 20, 9)])
        engine.step()
        engine.reset()
        assert engine.running() == ()
        again = decoded(engine)
        assert (again.tokens, again.log_probs) == (first.tokens, first.log_probs)
        assert engine.counts() == counts
        return again

    with cuda_machine() as machine:
        _same_as_eager("cuda:1", run)
        engine = actor("cuda", "bfloat16")
        engine.submit([Request(0, (1, 2), 9)])
        engine.step()
        machine.waits.clear()
        engine.reset()
        assert machine.waits == {}


@covers("TorchActor.load_weights", "TorchActor.step")
@pytest.mark.parametrize("keep_kv", [True, False])
def test_captured_steps_go_on_with_new_weights(keep_kv: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")
    fresh = models.build_causal_lm(SMALL, 7, "bfloat16").state_dict()

    def run(engine: TorchActor) -> Made:
        made = Made()
        engine.submit([Request(0, (1,) * 40, 9), Request(1, (2,) * 40, 9)])
        for _ in range(4):
            made.take(engine.step())
        engine.load_weights(fresh, 1, keep_kv)
        return made.finish(engine)

    with cuda_machine():
        _same_as_eager("cuda", run)


def test_a_captured_step_leaves_alone_what_others_gave_back_and_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a captured step has and nobody uses once belonged to rollout 3; rollout 4 has its memory now."""
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")

    def run(engine: TorchActor) -> Made:
        made = Made()
        short = [Request(number, (number,) * 33, 20, forced_length=3) for number in (2, 3)]
        engine.submit([Request(0, (7,) * 90, 20), Request(1, (1,) * 33, 20), *short])
        for _ in range(2):
            made.take(engine.step())
        theirs = engine._packed.store.start(3)
        made.take(engine.step())
        engine.submit([Request(4, tuple(range(50)) * 2, 12)])
        made.take(engine.step())
        begin = engine._packed.store.start(4)
        assert begin <= theirs + 34 < begin + 100
        return made.finish(engine)

    with cuda_machine():
        _same_as_eager("cuda", run)


def test_parts_of_an_iteration_replay_the_same_graph_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")

    def run(engine: TorchActor) -> Made:
        engine.submit([Request(number, (number + 1,) * 20, 5) for number in range(4)])
        return Made().finish(engine)

    with cuda_machine():
        _same_as_eager("cuda", run, max_batched_tokens=2)


def test_graphs_share_their_memory_and_outlive_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")
    with cuda_machine() as machine:
        for place in ("cuda:1", "cuda:0"):  # a captured step is of its own GPU, whichever came first
            engine = actor(place, "bfloat16")
            machine.pools.clear()
            first = decoded(engine)
            assert engine._packed._graphs is not None and len(engine._packed._graphs._captured) > 1
            assert len(machine.pools) == 1
            machine.waits.clear()
            assert decoded(engine).tokens == first.tokens
            assert engine.resolved_config()["cuda_graphs"] == "on"
            assert set(machine.waits) == {"engines/device.py:to_host"}, "captured again"


@covers("TorchActor.step", "device.to_host")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_host_waits_once_an_iteration(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "bfloat16":
        monkeypatch.setattr(attention_check, "cached_path", lambda *shape: "flash")
    with cuda_machine() as machine:
        engine = actor("cuda", dtype, sampling=SAMPLED)
        engine.submit([Request(number, (5,) * 40, 20, forced_length=20) for number in range(3)])
        for _ in range(2):
            engine.step()  # the first ones prefill, and capture
        machine.waits.clear()
        for _ in range(4):
            engine.step()
        assert machine.waits == {"engines/device.py:to_host": 4}
        assert devices.to_host(torch.ones(2, device="cuda")).tolist() == [1.0, 1.0]


@covers(
    "TorchScorer.append",
    "TorchScorer.release",
    "TorchScorer.reference_stream",
    "TorchScorer.expect",
    "TorchScorer.pop_reference_log_probs",
    "TorchScorer.counts",
    "TorchScorer.resolved_config",
    "TorchScorer.close",
    "models.build_reward_model",
)
@pytest.mark.parametrize("limits", [{}, {"max_batched_tokens": 4}])
def test_a_gpu_scores_what_the_cpu_scores_and_waits_once_a_batch(limits: dict[str, Any]) -> None:
    on_cpu = scorer("cpu", **limits)
    scores, reference = scored(on_cpu)
    with cuda_machine() as machine:
        engine = scorer("cuda", **limits)
        machine.waits.clear()
        here = scored(engine)
        # Also for the batch in which nothing ends: it counts as done when it is.
        assert sum(machine.waits.values()) == engine.counts().batches == 3
        assert engine.counts() == on_cpu.counts()
        assert engine.resolved_config()["device"] == "cuda:0"
        engine.close()
    assert here == (approximately(scores), approximately(reference))


@covers("TorchScorer.reset")
def test_a_scorer_that_is_as_new_scores_as_at_first() -> None:
    with cuda_machine() as machine:
        engine = scorer("cuda:1")
        first = scored(engine), engine.counts()
        engine.expect({0: 1, 1: 1})
        engine.append([ScorePiece(0, (5, 5, 5), False), ScorePiece(1, (1, 2, 3), True)])
        machine.waits.clear()
        engine.reset()
        assert machine.waits == {}
        assert (scored(engine), engine.counts()) == first


def test_sequences_too_long_to_be_gathered_are_attended_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = scored(scorer("cpu"))
    monkeypatch.setattr(packed_plan, "GATHER_BYTES", 0)
    with cuda_machine():
        scores, reference = scored(scorer("cuda:1"))
    assert (scores, reference) == (approximately(gathered[0]), approximately(gathered[1]))


@covers("TorchScorer.append", "device.synchronize")
def test_a_batch_without_scores_is_waited_for() -> None:
    with cuda_machine() as machine:
        engine = TorchScorer(models.build_reward_model(SMALL, 1, device="cuda"))
        machine.waits.clear()
        assert engine.append([ScorePiece(0, (1, 2, 3), False)]) == {}
        assert machine.waits == {"engines/device.py:synchronize": 1}
        devices.synchronize(torch.device("cuda", 0))
        devices.synchronize(torch.device("cpu"))
        assert machine.waits == {"engines/device.py:synchronize": 2}


@covers(
    "models.build_causal_lm",
    "models.build_value_model",
    "models.kv_numbers",
    "models.parameter_count",
    "models.vocabulary_and_positions",
    "device.gpus",
    "device.gpus_in_use",
    "device.device_name",
    "device.free_gpu_bytes",
    "device.gpu_text",
    "device.give_back_memory",
    "device.gpu_without_kernels",
    "device.listed_gpus",
    "device.to_device",
    "device.usable_device",
)
def test_models_are_built_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.gpus() == 0 and devices.gpus_in_use() == []
    needed = 4 * models.parameter_count("causal_lm", SMALL)
    with cuda_machine(count=3, free=needed):
        assert devices.gpus() == 3 and devices.gpus_in_use() == [0, 1, 2]
        assert devices.usable_device("cuda:1") == torch.device("cuda", 1)
        assert [(one.name, one.free_bytes) for one in devices.listed_gpus()][2] == ("fake GPU 2", needed)
        for built, told in ((["sm_86", "sm_90a"], None), (["sm_80", "compute_80"], None), ([], None)):
            monkeypatch.setattr(torch.cuda, "get_arch_list", lambda built=built: built)
            assert devices.gpu_without_kernels() is told
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_120"])
        assert devices.gpu_without_kernels() == "fake GPU 0 (sm_90)"
        known = SMALL["vocab_size"], SMALL["max_position_embeddings"]
        assert models.vocabulary_and_positions(SMALL) == known
        head = SMALL["hidden_size"] // SMALL["num_attention_heads"]
        keys = SMALL["num_hidden_layers"] * SMALL["num_key_value_heads"] * head
        assert models.kv_numbers(SMALL) == 2 * keys
        place = torch.device("cuda", 2)
        assert devices.device_name(place) == "fake GPU 2" and devices.free_gpu_bytes(place) == needed
        assert devices.gpu_text(place).startswith("1 of 3 fake GPU 2, ")
        devices.give_back_memory()
        assert devices.to_device(torch.ones(2), place).device == place
        critic = models.build_value_model(SMALL, device="cuda:2")
        assert {one.device for one in critic.parameters()} == {place}
        monkeypatch.setattr(models, "_DRAWN_IN_PLACE", 0)
        drawn = models.build_causal_lm(SMALL, device="cuda:1")
        assert {str(one.device) for one in drawn.parameters()} == {"cuda:1"}
        with pytest.raises(OppoError, match=r"'cuda:3' was asked for but this machine has 3 usable"):
            models.build_causal_lm(SMALL, device="cuda:3")
    with cuda_machine(free=needed - 1), pytest.raises(OppoError, match=r"cuda has .* free"):
        models.build_causal_lm(SMALL, device="cuda")


def test_a_gpu_that_another_process_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: Any) -> Any:
        raise RuntimeError(
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors ..."
        )

    with cuda_machine():
        monkeypatch.setattr(torch.cuda, "mem_get_info", refused)
        with pytest.raises(
            OppoError, match=r"cuda:1 cannot be used .*busy or unavailable\): .*nvidia-smi -c DEFAULT"
        ):
            models.build_causal_lm(SMALL, device="cuda:1")


@pytest.mark.parametrize(
    ("cuda", "shown", "told"),
    [
        (None, None, "is a build for the CPU"),
        ("12.8", "", "no usable CUDA device under CUDA_VISIBLE_DEVICES=''; name GPUs"),
        ("12.8", None, r"a container is given GPUs with --gpus all.* for CUDA 12\.8"),
    ],
)
def test_why_there_is_no_gpu(
    cuda: str | None, shown: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(OppoError, match=told):
        devices.usable_device("cuda:0")


@covers(
    "shared_weights.shared_weights",
    "shared_weights.layout_of",
    "SharedWeights.write",
    "SharedWeights.__call__",
    "TorchActor.load_weights",
)
def test_weights_go_from_one_gpu_through_shared_memory_to_the_other() -> None:
    with cuda_machine():
        policy = models.build_causal_lm(SMALL, 7, device="cuda:0")
        own = {name: one.detach() for name, one in policy.state_dict().items()}
        block = shared_weights.shared_weights(own)
        assert block.layout == shared_weights.layout_of(own)
        with torch.no_grad():
            for one in policy.parameters():
                one.mul_(0.5)
        block.write(own)
        replica = actor("cuda:1")
        replica.load_weights(block(None), 1, keep_kv=False)
        beside = actor("cuda:1")
        beside.load_weights(own, 1, keep_kv=False)  # from GPU to GPU, as one process does
        for name, one in own.items():
            for engine in (replica, beside):
                assert torch.equal(engine._packed.model.state_dict()[name].cpu(), one.cpu())
        assert decoded(replica).tokens == decoded(beside).tokens


@covers("attention_check.verify_attention", "attention_check.cached_path", "attention_check.training_path")
def test_the_kernels_are_called_as_they_demand_and_found_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer of the shapes: a rule is asked anew for each.
    monkeypatch.setattr(attention_check, "_BATCHES", (((1, 40), (33, 0), (1, 0), (5, 77)),))
    with cuda_machine():
        place = torch.device("cuda", 0)
        report = attention_check.verify_attention(place, torch.bfloat16, 4, 2, 16)
        assert report.path == "flash" and set(report.max_abs_error) == {"plain", "flash"}
        assert attention_check.cached_path(place, torch.bfloat16, 4, 2, 16) == "flash"
        assert attention_check.cached_path(place, torch.float32, 4, 2, 16) == "plain"
        assert attention_check.training_path(place, torch.bfloat16, 4, 2, 16) == "varlen"
