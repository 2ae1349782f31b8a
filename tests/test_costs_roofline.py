"""The roofline of an engine: hand-computed numbers, laws, and a published table as a sanity band."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.costs.devices import DEVICES, Device
from oppo_sim.costs.hosts import HOSTS, VLLM_BATCH_SIZES, HostOverheads
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.roofline_engine import RooflineEngine
from tests.perfect import perfect

TINY = ModelShape(
    num_hidden_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=32,
)
"""Attention matrices 8·(2·8 + 2·4) = 192 parameters, MLP 3·8·16 = 384, head 32·8 = 256; KV 2·1·4·2 = 16 bytes
a token."""
PERFECT = perfect(0.5)
NO_HOST = HostOverheads()


def device(flops: float, memory: float, link: float = 1.0) -> Device:
    return Device(
        name="toy",
        hbm_bytes=1e9,
        hbm_bytes_per_s=memory,
        bf16_flops=flops,
        fp8_flops=2 * flops,
        link_bytes_per_s=link,
        host_link_bytes_per_s=1.0,
        source="test",
    )


def tiny(flops: float, memory: float, **changes: object) -> RooflineEngine:
    engine = RooflineEngine(TINY, device(flops, memory, 16.0), achievable=PERFECT, host=NO_HOST)
    return replace(engine, **changes)  # type: ignore[arg-type]


def test_memory_bound_decode_by_hand() -> None:
    # One rollout with 10 tokens of KV, 100 bytes a second, arithmetic for free:
    # projections (192 parameters · 2 + activations (8 + 8 + 8 + 4 + 4 + 8 = 2·20) · 2 bytes) = 464 B; MLP 768
    # + (2·8 + 3·16)·2 = 896 B; element-wise (8·8 + 2·(8 + 4) + 3·16)·2 = 272 B; head (256 + 32)·2 = 576 B;
    # softmax 32·24 = 768 B; KV 16·(10 + 1) = 176 B.
    engine = tiny(1e12, 100.0)
    assert engine.decode_time(1, 10) == pytest.approx((464 + 896 + 272 + 576 + 768 + 176) / 100)
    assert engine.decode_demand(1, 10).memory == pytest.approx(1.0)
    work = engine.decode_work(1, 10)
    assert work is not None
    assert work.bytes == pytest.approx(464 + 896 + 272 + 576 + 768 + 176)
    # 2·(192 + 384 + 256) for the matrices, 4·8·11 for attention
    assert work.flops == pytest.approx(1664 + 352)


def test_arithmetic_bound_decode_by_hand() -> None:
    engine = tiny(1000.0, 1e15)
    assert engine.decode_time(3, 10) == pytest.approx((3 * 1664 + 32 * 13) / 1000)
    assert engine.decode_demand(3, 10).arithmetic == pytest.approx(1.0)


def test_prefill_by_hand() -> None:
    # 6 tokens, 18 pairs: layers 2·576·6 = 6,912, attention 32·18 = 576; head of one row 512, of all rows
    # 3,072, of none 0.
    for logits, head in (("last", 512), ("all", 3072), ("none", 0)):
        assert tiny(1000.0, 1e15, logits=logits).prefill_time(6, 18) == pytest.approx(
            (6912 + 576 + head) / 1000
        )
    work = tiny(1000.0, 1e15, logits="none").prefill_work(6, 18)
    assert work is not None
    assert work.flops == pytest.approx(7488)
    assert tiny(1000.0, 1e15).prefill_demand(6, 18).arithmetic == pytest.approx(1.0)


def test_fp8_halves_weights_and_doubles_arithmetic_of_the_layers() -> None:
    assert tiny(1000.0, 1e15, dtype="fp8", logits="none").prefill_time(6, 18) == pytest.approx(
        (6912 / 2 + 576) / 1000
    )
    # Layer weights (192 + 384) · 1 byte less than in bf16; head and activations stay in 16 bits.
    assert tiny(1e12, 100.0, dtype="fp8").decode_time(1, 10) == pytest.approx(
        tiny(1e12, 100.0).decode_time(1, 10) - 5.76
    )
    peak = tiny(1000.0, 50.0, dtype="fp8", tensor_parallel=2).peak
    assert peak is not None
    assert (peak.flops, peak.bytes) == (4000.0, 100.0)


def test_tensor_parallel_collectives_by_hand() -> None:
    # Two all-reduces of 3 rows · 8 · 2 bytes = 48 B over 16 B/s: 2·(0.5 + 2·1/2·48/16) = 7 s; arithmetic
    # halves.
    engine = tiny(1000.0, 1e15, tensor_parallel=2)
    assert engine.decode_time(3, 10) == pytest.approx((3 * 1664 + 32 * 13) / 2000 + 7)


def test_host_overheads_by_hand() -> None:
    host = HostOverheads(
        per_iteration_s=1.0, per_rollout_s=0.5, launch_per_layer_s=20.0, kv_traffic_factor=3.0
    )
    engine = tiny(1e12, 100.0, host=host)
    # The device needs 29.76 + 3·0.16·(kv + 1) seconds, launching 20: never the bound. Host 1.5.
    assert engine.decode_time(1, 10) == pytest.approx(29.76 + 0.48 * 11 + 1.5)
    slow = replace(engine, host=host.model_copy(update={"launch_per_layer_s": 40.0}))
    # Launching hides the device up to 29.76 + 0.48·(kv + 1) = 40, kv = 20.333…
    line = slow.decode_line(1, 10)
    assert line.fixed == pytest.approx(41.5)
    assert line.per_kv_token == 0.0
    assert line.kv_until == pytest.approx(61 / 3)
    assert slow.decode_line(1, line.kv_until) == line
    assert slow.decode_line(1, line.kv_until + 1e-6).per_kv_token == pytest.approx(0.48)
    assert slow.decode_time(1, 100) == pytest.approx(29.76 + 0.48 * 101 + 1.5)
    assert slow.prefill_time(1, 0.5) == pytest.approx(41.0)


def test_padding_rounds_the_batch_up_to_a_captured_size() -> None:
    assert VLLM_BATCH_SIZES[:6] == (1, 2, 4, 8, 16, 24)
    assert VLLM_BATCH_SIZES[-1] == 512
    engine = RooflineEngine(MODELS["qwen2.5-7b"], DEVICES["H200"])
    assert [engine.padded(n) for n in (1, 3, 9, 256, 257, 512, 513)] == [1, 4, 16, 256, 272, 512, 513]
    bare = engine.without_padding()
    assert bare.decode_time(250, 1e5) < engine.decode_time(250, 1e5)
    assert bare.decode_time(256, 1e5) == engine.decode_time(256, 1e5)
    assert bare.decode_time(600, 1e5) == engine.decode_time(600, 1e5)
    assert bare.decode_work(250, 0) != engine.decode_work(250, 0)


# NVIDIA's aiconfigurator tables, Qwen3-8B on one H200 with vLLM (0.24.0): input 512, output 600, so a mean
# context of 812; seconds of kernels alone.
PUBLISHED_TPOT = {1: 5.06e-3, 32: 6.32e-3, 128: 9.80e-3, 256: 14.95e-3}
PUBLISHED_PREFILL = {1: 12.6e-3, 128: 1.40}


def test_within_a_tenth_of_a_published_table() -> None:
    engine = RooflineEngine(MODELS["qwen3-8b"], DEVICES["H200"], host=NO_HOST)
    for n, seconds in PUBLISHED_TPOT.items():
        assert engine.decode_time(n, n * 812) == pytest.approx(seconds, rel=0.1)
    for n, seconds in PUBLISHED_PREFILL.items():
        assert engine.prefill_time(n * 512, n * 512**2 / 2) == pytest.approx(seconds, rel=0.1)


def test_a_smaller_model_of_the_size_class_is_below_the_published_table_but_near() -> None:
    # Qwen2.5-7B has 7 % fewer parameters and two fifths of the KV bytes a token.
    engine = RooflineEngine(MODELS["qwen2.5-7b"], DEVICES["H200"], host=NO_HOST)
    for n, seconds in PUBLISHED_TPOT.items():
        assert 0.6 * seconds < engine.decode_time(n, n * 812) < seconds


def test_a_generate_loop_is_several_times_slower_at_small_batches() -> None:
    engine = RooflineEngine(MODELS["qwen2.5-7b"], DEVICES["H200"])
    loop = replace(engine, host=HOSTS["generate"])
    assert loop.decode_time(1, 500) > 4 * engine.decode_time(1, 500)
    assert loop.decode_time(16, 16e3) > 3 * engine.decode_time(16, 16e3)


@pytest.mark.parametrize("n", [1, 64])
def test_tensor_parallelism_speeds_up_a_large_model(n: int) -> None:
    engine = RooflineEngine(MODELS["llama-3-70b"], DEVICES["H100"], tensor_parallel=2)
    times = [replace(engine, tensor_parallel=t).decode_time(n, n * 1000) for t in (2, 4, 8)]
    assert times[0] > times[1] > times[2]
    assert times[0] < 4 * times[2]  # collectives eat a part
    prefills = [replace(engine, tensor_parallel=t).prefill_time(8192, 8192 * 500) for t in (2, 4, 8)]
    assert prefills[0] > prefills[1] > prefills[2]


def test_a_state_space_takes_as_long_however_long_a_rollout_is() -> None:
    shape = MODELS["nemotron-nano-9b-v2"]
    engine = RooflineEngine(shape, device(1e30, 1e9), achievable=PERFECT, host=NO_HOST)
    few, more = (engine.decode_work(n, 0.0) for n in (256, 512))
    assert few is not None and more is not None
    # Of each rollout 27 states of 128 x 80 x 128 values in 32 bits, read and written.
    states = 27 * 2 * 4 * 128 * 80 * 128
    assert (more.bytes - few.bytes) / 256 == pytest.approx(states, rel=0.1)
    # Keys and values of four layers, of 56.
    longer = engine.decode_work(256, 1e6)
    assert longer is not None
    assert (longer.bytes - few.bytes) / 1e6 == pytest.approx(4 * 2 * 8 * 128 * 2, rel=0.2)
    # In chunks of 128: 2·c·v + 4·k·v of each head, 2·c·k of each of 8 groups.
    assert shape.linear.chunked_flops == 128 * (2 * 128 * 80 + 4 * 128 * 80) + 8 * 2 * 128 * 128
    assert shape.linear.step_flops == 5 * 128 * 80 * 128


def test_a_mixture_of_experts_reads_what_its_tokens_touch() -> None:
    engine = RooflineEngine(MODELS["qwen3-30b-a3b"], DEVICES["H200"], host=NO_HOST)
    one, many = engine.decode_work(1, 0), engine.decode_work(512, 0)
    assert one is not None
    assert many is not None
    assert one.bytes < 8e9  # 3.3e9 active parameters
    assert many.bytes > 58e9  # nearly all 30.5e9
    assert engine.decode_time(1, 0) < engine.decode_time(512, 0) / 3  # latencies are of both


shapes = st.sampled_from(list(MODELS.values()))
devices = st.sampled_from(list(DEVICES.values()))
hosts = st.sampled_from([*HOSTS.values(), NO_HOST])
engines = st.builds(
    RooflineEngine,
    shape=shapes,
    device=devices,
    tensor_parallel=st.sampled_from([1, 2]),
    kv_bytes=st.sampled_from([1.0, 2.0]),
    host=hosts,
    logits=st.sampled_from(["last", "all", "none"]),
)
batch_sizes = st.integers(1, 700)
kv = st.integers(0, 3_000_000)


@given(engines, batch_sizes, kv, st.integers(0, 500_000), st.integers(0, 300))
@settings(max_examples=50)
def test_decode_is_positive_and_monotone(
    engine: RooflineEngine, n: int, tokens: int, more: int, further: int
) -> None:
    seconds = engine.decode_time(n, tokens)
    assert seconds > 0
    assert engine.decode_time(n, tokens + more) >= seconds * (1 - 1e-12)
    assert engine.decode_time(n + further, tokens) >= seconds * (1 - 1e-12)
    assert engine.without_padding().decode_time(n, tokens) <= seconds


@given(engines, batch_sizes, kv, st.floats(0, 1))
@settings(max_examples=50)
def test_the_line_is_the_time_wherever_it_is_valid(
    engine: RooflineEngine, n: int, tokens: int, part: float
) -> None:
    line = engine.decode_line(n, tokens)
    assert line.kv_until >= tokens
    later = tokens + part * (min(line.kv_until, 1e7) - tokens)
    assert engine.decode_line(n, later) == line
    assert engine.decode_time(n, later) == line.fixed + line.per_kv_token * later


@given(engines, batch_sizes, kv, st.integers(1, 100_000), st.floats(1, 3))
@settings(max_examples=50)
def test_shares_and_work_are_consistent(
    engine: RooflineEngine, n: int, tokens: int, prefilled: int, ratio: float
) -> None:
    for demand in (engine.decode_demand(n, tokens), engine.prefill_demand(prefilled, prefilled * ratio)):
        assert 0 < demand.memory <= 1
        assert 0 < demand.arithmetic <= 1
    peak = engine.peak
    zero, here, twice = (engine.decode_work(n, x) for x in (0, tokens, 2 * tokens))
    assert peak is not None
    assert zero is not None
    assert here is not None
    assert twice is not None
    assert twice.bytes - here.bytes == pytest.approx(here.bytes - zero.bytes)
    assert twice.flops - here.flops == pytest.approx(here.flops - zero.flops)
    assert here.flops / engine.decode_time(n, tokens) <= peak.flops
    assert here.bytes / engine.decode_time(n, tokens) <= peak.bytes


@given(engines, st.integers(1, 100_000), st.integers(1, 50_000), st.floats(1, 1e9), st.floats(0, 1e8))
@settings(max_examples=50)
def test_prefill_is_positive_and_monotone(
    engine: RooflineEngine, tokens: int, more: int, pairs: float, further: float
) -> None:
    seconds = engine.prefill_time(tokens, pairs)
    assert seconds > 0
    assert engine.prefill_time(tokens + more, pairs) >= seconds
    assert engine.prefill_time(tokens, pairs + further) >= seconds
    together = engine.prefill_time(tokens + more, pairs + further)
    assert together <= (engine.prefill_time(tokens, pairs) + engine.prefill_time(more, further)) * (
        1 + 1e-12
    )  # cutting never saves


@given(
    engines,
    st.sampled_from(["bf16_flops", "hbm_bytes_per_s", "link_bytes_per_s"]),
    st.floats(1, 4),
    batch_sizes,
    kv,
)
@settings(max_examples=50)
def test_a_faster_device_is_never_slower(
    engine: RooflineEngine, rate: str, factor: float, n: int, tokens: int
) -> None:
    faster = replace(
        engine, device=engine.device.model_copy(update={rate: getattr(engine.device, rate) * factor})
    )
    assert faster.decode_time(n, tokens) <= engine.decode_time(n, tokens) * (1 + 1e-12)
    assert faster.prefill_time(n, tokens + 1) <= engine.prefill_time(n, tokens + 1) * (1 + 1e-12)


def test_an_engine_travels_between_processes() -> None:
    engine = RooflineEngine(MODELS["qwen2.5-7b"], DEVICES["H200"])
    engine.decode_time(8, 100)
    copy = pickle.loads(pickle.dumps(engine))
    assert copy == engine
    assert copy.decode_time(8, 100) == engine.decode_time(8, 100)
