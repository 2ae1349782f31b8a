"""What devices achieve, their collectives, and host presets: hand-computed, and beside published rows."""

from dataclasses import replace

import pytest

from oppo_sim.costs.achieved import Achievable, Collective, Nodes, achieved, all_reduce, all_reduce_over
from oppo_sim.costs.collectives import collectives_seconds
from oppo_sim.costs.devices import DEVICES
from oppo_sim.costs.hosts import HOST_SECONDS, HOSTS, HostOverheads, find_host
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.roofline_engine import RooflineEngine


def test_shares_are_the_devices_own_where_none_is_given() -> None:
    a100, mi300x = DEVICES["A100-80"], DEVICES["MI300X"]
    assert achieved(a100, Achievable()).memory == 0.75
    assert achieved(a100, Achievable(gemm=0.5)) == achieved(a100, Achievable())._replace(gemm=0.5)
    assert achieved(mi300x, Achievable()).memory == 0.85  # nothing measured: the general assumption
    for device in DEVICES.values():
        shares = achieved(device, Achievable())
        assert all(0.3 < share <= 1 for share in (shares.gemm, shares.attention, shares.memory))


def test_a_collective_is_latency_and_bytes_as_measured_by_degree() -> None:
    h100 = DEVICES["H100"]
    assert all_reduce(h100, Achievable(), 2) == Collective(pytest.approx(4.3e-6), pytest.approx(259e9))
    assert all_reduce(h100, Achievable(), 6) == all_reduce(h100, Achievable(), 8)
    assert all_reduce(h100, Achievable(), 16) == all_reduce(h100, Achievable(), 8)
    engine = RooflineEngine(MODELS["llama-3-8b"], h100, tensor_parallel=4)
    # 32 layers of two all-reduces of 100 rows of 4,096 values in 16 bits.
    expected = 64 * (4.9e-6 + 100 * 4096 * 2 / 179e9)
    assert collectives_seconds(engine.split, 100) == pytest.approx(expected)


def test_a_collective_is_a_ring_where_nothing_was_measured_or_a_link_is_given() -> None:
    mi300x = DEVICES["MI300X"]
    assert all_reduce(mi300x, Achievable(), 8) == (8e-6, pytest.approx(448e9 * 0.7 / 1.75))
    h100 = DEVICES["H100"]
    assert all_reduce(h100, Achievable(link=0.5), 4) == (8e-6, pytest.approx(450e9 * 0.5 / 1.5))
    assert all_reduce(h100, Achievable(collective_latency_s=1e-5), 2).latency_s == 1e-5
    assert all_reduce(h100, Achievable(), 4, link_bytes_per_s=25e9)[1] == pytest.approx(25e9 * 0.7 / 1.5)


def test_an_all_reduce_over_nodes_goes_inside_then_between_then_inside() -> None:
    h100, nodes = DEVICES["H100"], Nodes(8, 5e10)
    inside = all_reduce(h100, Achievable(), 8)
    assert all_reduce_over(h100, Achievable(), 8, nodes) == inside
    assert all_reduce_over(h100, Achievable(), 16, None) == inside
    for number in (2, 4):
        found = all_reduce_over(h100, Achievable(), 8 * number, nodes)
        assert found.latency_s == pytest.approx(6.1e-6 + 25e-6 * (number // 2))
        # An eighth of the bytes on each of eight links of 0.70 · 50 GB/s, 2·(n − 1)/n times.
        between = 2 * (number - 1) / number / 8 / (0.70 * 5e10)
        assert 1 / found.bytes_per_s == pytest.approx(1 / 194e9 + between)


def test_an_engine_over_nodes_waits_for_the_links_between_them() -> None:
    shape, h100, nodes = MODELS["deepseek-v3"], DEVICES["H100"], Nodes(8, 5e10)
    whole, apart = (
        replace(RooflineEngine(shape, h100, 16, "fp8"), **ranks)
        for ranks in ({}, {"expert_parallel": 16, "attention_data_parallel": 16})
    )
    # 61 layers of two all-reduces of 64 rows of 7,168 values; or 58 of tokens to experts and back, two of them.
    size = 64 * 7168 * 2
    over, inside = all_reduce_over(h100, Achievable(), 16, nodes), all_reduce(h100, Achievable(), 16)
    more_s, more_b = over.latency_s - inside.latency_s, 1 / over.bytes_per_s - 1 / inside.bytes_per_s
    waits = replace(whole, nodes=nodes).decode_time(64, 64000) - whole.decode_time(64, 64000)
    assert waits == pytest.approx(122 * (more_s + size * more_b))
    waits = replace(apart, nodes=nodes).decode_time(64, 64000) - apart.decode_time(64, 64000)
    assert waits == pytest.approx(58 * (2 * more_s + size * more_b))


@pytest.mark.parametrize("name", ["A100-80", "H100", "H200", "B200", "L40S", "RTX-PRO-6000"])
def test_pcie_devices_talk_slower_than_those_with_nvlink(name: str) -> None:
    seconds = [
        latency + 8e6 / rate
        for latency, rate in (all_reduce(DEVICES[each], Achievable(), 4) for each in (name, "A100-80"))
    ]
    assert (seconds[0] > 2 * seconds[1]) == (name in ("L40S", "RTX-PRO-6000"))


def test_ranks_wait_for_each_other_in_every_collective() -> None:
    host = HostOverheads(per_iteration_s=1e-3, rank_wait_s=1e-6)
    assert host.on(80, 1) == host
    assert host.on(80, 8).per_iteration_s == pytest.approx(1e-3 + 2 * 80 * 8 * 1e-6)
    assert host.on(80, 8).on(80, 8) == host.on(80, 8)  # counted once


def test_presets_differ_by_what_a_user_configures() -> None:
    engine = RooflineEngine(MODELS["qwen2.5-7b"], DEVICES["H200"], host=HOSTS["vllm"])
    seconds = {
        name: [replace(engine, host=host).decode_time(n, n * 1000) for n in (1, 256)]
        for name, host in HOSTS.items()
    }
    assert seconds["vllm-eager"][0] > 1.9 * seconds["vllm"][0]  # no graphs: launches bound a small batch
    assert seconds["vllm-async"][1] - seconds["vllm"][1] == pytest.approx(
        2.1e-3 / 1.8 - 4.5e-4 + 256 * (6.4e-5 / 1.8 - 3.5e-5)
    )
    # Engines that prepare the next iteration beside this one wait for the device alone.
    assert seconds["trtllm"][0] < seconds["sglang"][0] < seconds["vllm"][0] < seconds["generate"][0]


@pytest.mark.parametrize(
    ("device", "times"), [("A100-80", 1.8), ("A40", 1.8), ("H100-PCIe", 1), ("GB200", 1)]
)
def test_a_preset_is_that_of_the_machines_that_a_device_comes_in(device: str, times: float) -> None:
    for name in ("vllm", "vllm-eager", "vllm-async", "sglang"):
        host, preset = find_host(name, DEVICES[device]), HOSTS[name]
        for seconds in HOST_SECONDS:
            assert getattr(host, seconds) == pytest.approx(times * getattr(preset, seconds))
        assert host.captured_batch_sizes == preset.captured_batch_sizes
    assert find_host("generate", DEVICES[device]) is HOSTS["generate"]
    own = HostOverheads(launch_per_layer_s=1e-3)
    assert find_host(own, DEVICES[device]) is own


# Milliseconds a token of Llama 3.1 70B in fp8 with vLLM and CUDA graphs, input 1,024, output 8,192 (prefills of
# others hardly count), mean context 5,120: InferenceMAX rows in aiconfigurator's silicon_sample.csv.
SERVED = [
    ("H200", 1, 4, 22.05),
    ("H200", 1, 16, 27.29),
    ("H200", 2, 16, 17.18),
    ("H100", 2, 32, 27.69),
    ("H100", 4, 16, 14.09),
    ("H100", 8, 8, 9.81),
]


@pytest.mark.parametrize(("device", "degree", "batch", "ms"), SERVED)
def test_a_served_model_is_met_at_every_degree(device: str, degree: int, batch: int, ms: float) -> None:
    shape = MODELS["llama-3-70b"]
    host = HOSTS["vllm"].on(shape.num_hidden_layers, degree)
    engine = RooflineEngine(shape, DEVICES[device], degree, "fp8", host=host)
    assert 1e3 * engine.decode_time(batch, batch * 5120) == pytest.approx(ms, rel=0.08)
