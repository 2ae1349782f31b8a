"""Tables of measured kernels: what the package says, at its points and between them; files, devices, errors."""

from __future__ import annotations

import random
import runpy
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oppo_sim.cli.main import run
from oppo_sim.costs.devices import find_device
from oppo_sim.costs.hosts import HOSTS
from oppo_sim.costs.interpolate import bilinear, linear
from oppo_sim.costs.kernels import lookup, make
from oppo_sim.costs.kernels.devices import STAND_INS, SYSTEMS, KernelSource
from oppo_sim.costs.kernels.lookup import find_table, provide_table, query_of, table_for
from oppo_sim.costs.kernels.table import SHIPPED_FOLDER, KernelQuery, KernelTable, kernel_shape, load_table
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import MODELS, find_model
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.errors import OppoError

SMALL = MODELS["llama-3.2-1b"]


def query(shape: ModelShape = SMALL, degree: int = 1, **other: object) -> KernelQuery:
    plain = {
        "system": "h200_sxm",
        "engine": "vllm",
        "version": "0.24.0",
        "dtype": "bf16",
        "kv_cache_dtype": "bf16",
    }
    return KernelQuery(**{**plain, "tensor_parallel": degree, "shape": kernel_shape(shape), **other})  # type: ignore[arg-type]


def asked(of: KernelQuery) -> object:
    """The package's own estimator of the same engine."""
    with make._asking(of):
        return make._layers(of, *next(make._kinds(of.shape))).engine


@pytest.fixture(scope="module")
def table() -> KernelTable:
    return make.make_table(query())


def decode_s(table: KernelTable, n: int, kv: int) -> float:
    rows, attention = table.rows, table.decode_attention
    parts = sum(linear(rows.tokens, part, n) for part in (rows.seconds, rows.collectives, rows.head))
    return parts + bilinear(attention.n_running, attention.kv_per_rollout, attention.seconds, n, kv)


def prefill_s(table: KernelTable, rollouts: int, new: int, past: int) -> float:
    rows, attention, tokens = table.rows, table.prefill_attention, rollouts * new
    parts = sum(linear(rows.tokens, part, tokens) for part in (rows.seconds, rows.collectives))
    found = bilinear(attention.tokens, attention.mean_context, attention.seconds, tokens, past + new / 2)
    return parts + linear(rows.tokens, rows.head, rollouts) + found


@pytest.mark.parametrize("degree", [1, 4])
def test_a_table_says_what_the_package_says_at_its_points(degree: int) -> None:
    of = query(degree=degree)
    found, engine = make.make_table(of), asked(of)
    for n in (1, 8, 128, 1024):
        for kv in (63, 1023, 16383):
            said = engine.predict_decode_latency(n, kv, 2)  # type: ignore[attr-defined]
            assert decode_s(found, n, kv) == pytest.approx(1e-3 * said, rel=1e-4)
    for rollouts, new in ((1, 64), (4, 1024), (32, 256)):
        said = engine.predict_prefill_latency(rollouts, new, 0)  # type: ignore[attr-defined]
        assert prefill_s(found, rollouts, new, 0) == pytest.approx(1e-3 * said, rel=1e-4)
    assert all(found.rows.collectives) == (degree > 1)


def test_between_its_points_a_table_is_near_the_package(table: KernelTable) -> None:
    engine, rng = asked(query()), random.Random(0)
    decode, whole, chunks = [], [], []
    for _ in range(150):
        n, kv = round(2 ** rng.uniform(0, 10)), round(2 ** rng.uniform(6, 15))
        decode.append(decode_s(table, n, kv) / engine.predict_decode_latency(n, kv, 2) * 1e3 - 1)  # type: ignore[attr-defined]
        rollouts, new = round(2 ** rng.uniform(0, 5)), round(2 ** rng.uniform(6, 12))
        past = round(2 ** rng.uniform(5, 13))
        said = engine.predict_prefill_latency(rollouts, new, 0)  # type: ignore[attr-defined]
        whole.append(prefill_s(table, rollouts, new, 0) / said * 1e3 - 1)
        said = engine.predict_prefill_latency(rollouts, new + past, past)  # type: ignore[attr-defined]
        chunks.append(prefill_s(table, rollouts, new, past) / said * 1e3 - 1)
    for errors, worst in ((decode, 0.1), (whole, 0.05), (chunks, 0.15)):
        assert statistics.median(map(abs, errors)) < 0.02
        assert max(map(abs, errors)) < worst


@pytest.mark.parametrize(
    ("tokens", "context"), [(1, 4096.0), (300, 150.0), (4096, 4096.0), (8192, 64.0), (64, 32.0)]
)
def test_pieces_stand_for_as_many_tokens_and_pairs(tokens: float, context: float) -> None:
    count, new, past = make.pieces(tokens, context)
    assert count * new == pytest.approx(tokens)
    assert count * (new * past + new**2 / 2) == pytest.approx(tokens * context, abs=tokens / 2)


def test_layers_of_two_kinds_add_up() -> None:
    experts = MODELS["qwen3-30b-a3b"]
    mixed = experts.model_copy(update={"num_dense_layers": 8, "shared_expert_intermediate_size": 768})
    all_experts = experts.model_copy(update={"num_hidden_layers": 40})
    no_experts = {"num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": None}
    dense = experts.model_copy(update={**no_experts, "num_hidden_layers": 8})
    both, moe, plain = (make.make_table(query(shape)) for shape in (mixed, all_experts, dense))
    at = both.rows.tokens.index(64)
    attention = [each.decode_attention.seconds[5][5] for each in (both, moe, plain)]
    assert attention[0] == pytest.approx(attention[1] + attention[2], rel=1e-4)
    assert both.rows.head == moe.rows.head
    shared = both.rows.seconds[at] - moe.rows.seconds[at] - plain.rows.seconds[at]
    assert 0.0 < shared < 0.3 * both.rows.seconds[at]


def test_latent_attention_is_bound_by_the_latents_that_every_device_reads() -> None:
    shape = MODELS["deepseek-v3"]
    found = make.make_table(query(shape, 8, dtype="fp8_block"))
    attention = found.decode_attention
    row = attention.seconds[attention.n_running.index(256)]
    low, high = (attention.kv_per_rollout.index(kv) for kv in (8191, 65535))
    per_token = (row[high] - row[low]) / (256 * (65535 - 8191))
    at_peak = 61 * (512 + 64) * 2 / find_device("H200").hbm_bytes_per_s
    assert 1.0 < per_token / at_peak < 1.3
    # Three layers have a dense MLP as wide as nine experts; the package has them as layers of experts.
    experts = make.make_table(query(shape.model_copy(update={"num_dense_layers": 0}), 8, dtype="fp8_block"))
    assert found.decode_attention.seconds[5][5] == pytest.approx(
        experts.decode_attention.seconds[5][5], rel=1e-3
    )
    at = found.rows.tokens.index(256)
    assert 0.8 < found.rows.seconds[at] / experts.rows.seconds[at] < 1.0


def test_layers_with_a_window_attend_to_the_window(table: KernelTable) -> None:
    windows = SMALL.model_copy(update={"num_sliding_layers": 12, "sliding_window": 127})
    found = make.make_table(query(windows)).decode_attention
    place, short = found.kv_per_rollout.index(4095), found.kv_per_rollout.index(127)
    for row, full in zip(found.seconds, table.decode_attention.seconds, strict=True):
        assert row[: short + 1] == full[: short + 1]
        assert row[place] == pytest.approx(full[place] / 4 + full[short] * 3 / 4, rel=1e-4)


def test_linear_attention_is_bound_by_the_states_that_a_decode_step_reads_and_writes() -> None:
    shape = MODELS["qwen3.5-35b-a3b"]
    found = make.make_table(query(shape, system="h100_sxm"))
    attention = found.decode_attention
    short = attention.kv_per_rollout.index(31)
    few, many = (attention.seconds[attention.n_running.index(n)][short] for n in (128, 512))
    at_peak = 30 * 2 * 4 * 32 * 128 * 128 / find_device("H100").hbm_bytes_per_s
    assert 1.0 < (many - few) / (512 - 128) / at_peak < 1.5
    # The roofline, which has nothing of these kernels, beside them.
    roofline = RooflineEngine(shape, find_device("H100"), 1, "bf16", host=HOSTS["trtllm"])
    for n, kv in ((16, 1000), (64, 8000), (256, 1000)):
        assert roofline.decode_time(n, n * kv) == pytest.approx(decode_s(found, n, kv), rel=0.25)


def test_state_spaces_were_not_measured() -> None:
    with pytest.raises(
        OppoError, match="kernels of Mamba2's state spaces were not measured; take kind: roof"
    ):
        make.make_table(query(MODELS["nemotron-nano-9b-v2"]))


def test_sparse_attention_takes_less_of_long_rollouts() -> None:
    dense, sparse = (
        make.make_table(query(MODELS[name], 8, dtype="fp8_block")).decode_attention
        for name in ("deepseek-v3", "deepseek-v3.2")
    )
    row, long = dense.n_running.index(64), dense.kv_per_rollout.index(65535)
    assert sparse.seconds[row][long] < 0.6 * dense.seconds[row][long]
    shape, device = MODELS["deepseek-v3.2"], find_device("H200")
    slope = [
        engine.decode_time(64, 64 * 60_000.0) - engine.decode_time(64, 64 * 50_000.0)
        for engine in (RooflineEngine(one, device, 8, "fp8") for one in (shape, MODELS["deepseek-v3"]))
    ]
    assert slope[0] < 0.3 * slope[1]


def test_latent_attention_without_experts_was_not_measured() -> None:
    dense = {"num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": None}
    dense |= {"shared_expert_intermediate_size": 0, "num_dense_layers": 0}
    with pytest.raises(OppoError, match="in mixtures of experts alone; take kind: roofline"):
        make.make_table(query(MODELS["moonlight-16b-a3b"].model_copy(update=dense)))


def test_eight_bits_are_faster_where_weights_are_read() -> None:
    shape = MODELS["llama-3.1-8b"]
    wide, static, dynamic, narrow = (
        make.make_table(query(shape, dtype=dtype, kv_cache_dtype=cache))
        for dtype, cache in (
            ("bf16", "bf16"),
            ("fp8_static", "bf16"),
            ("fp8_dynamic", "bf16"),
            ("fp8_block", "fp8"),
        )
    )
    assert static.rows.seconds[0] < dynamic.rows.seconds[0] < 0.75 * wide.rows.seconds[0]
    assert static.decode_attention == wide.decode_attention
    assert narrow.decode_attention.seconds[-1][8] < 0.95 * wide.decode_attention.seconds[-1][8]


def test_where_scales_of_eight_bits_come_from_is_chosen_by_the_model_or_the_scenario() -> None:
    dense, experts = (engine("H200", MODELS[name], dtype="fp8") for name in ("qwen2.5-7b", "qwen3-30b-a3b"))
    assert query_of(dense, KernelSource()).dtype == "fp8_static"
    assert query_of(experts, KernelSource()).dtype == "fp8_block"
    assert query_of(dense, KernelSource(fp8_scales="dynamic")).dtype == "fp8_dynamic"
    assert query_of(engine("H200"), KernelSource(fp8_scales="dynamic")).dtype == "bf16"


def test_models_of_one_shape_share_a_table() -> None:
    assert query(MODELS["llama-3-8b"]).name == query(MODELS["llama-3.1-8b"]).name
    assert query(MODELS["llama-3.1-8b"]).name != query(MODELS["qwen3-8b"]).name
    assert query().name != query(degree=2).name


# ---- files -------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPPO_CACHE_DIR", str(tmp_path))
    find_table.cache_clear()
    return tmp_path


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find_table.cache_clear()
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)


def test_a_table_is_made_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, state = provide_table(query())
    assert state == "made"
    assert path.is_relative_to(cache)
    without_the_package(monkeypatch)
    assert provide_table(query()) == (path, "kept")
    assert find_table(query()) == load_table(path)


def test_a_damaged_table_is_made_again(cache: Path) -> None:
    path, _ = provide_table(query())
    content = path.read_bytes()
    for damage in (b"", b"{}", content[: len(content) // 2]):
        path.write_bytes(damage)
        with pytest.raises(OppoError, match=r"oppo costs table"):
            load_table(path)
        assert provide_table(query()) == (path, "made")
        assert path.read_bytes() == content


def test_without_the_package_one_sentence_says_how_to_get_a_table(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_the_package(monkeypatch)
    with pytest.raises(OppoError, match=r"pip install 'oppo-toolkit\[kernels\]'"):
        find_table(query())


# ---- devices and errors ------------------------------------------------------------------------------------


def engine(
    device: str, shape: ModelShape = MODELS["qwen2.5-7b"], degree: int = 1, dtype: str = "bf16"
) -> RooflineEngine:
    return RooflineEngine(shape, find_device(device), degree, dtype)  # type: ignore[arg-type]


def test_every_measured_device_and_stand_in_is_a_device() -> None:
    for name in (*SYSTEMS, *STAND_INS, *STAND_INS.values()):
        assert find_device(name).name == name
    assert set(STAND_INS.values()) <= set(SYSTEMS)


def test_a_stand_in_is_scaled_by_the_ratio_of_what_bounds_it() -> None:
    h100, h20 = (table_for(engine(name, degree=2), KernelSource()) for name in ("H100", "H20"))
    assert (h100.scaled_from, h20.scaled_from) == (None, "H100")
    ours, theirs = h20.table, h100.table
    # One token reads all weights: bandwidth. Many tokens: arithmetic, but for element-wise kernels. Cached keys and
    # values: bandwidth.
    assert ours.rows.seconds[0] / theirs.rows.seconds[0] == pytest.approx(3350 / 4000, rel=1e-6)
    peaks, shares = 989.5 / 148, (789.2 / 989.5) / (141.9 / 148)  # an H20 reaches more of its peak
    assert ours.rows.seconds[-1] / theirs.rows.seconds[-1] == pytest.approx(peaks * shares, rel=0.15)
    assert ours.decode_attention.seconds[3][9] / theirs.decode_attention.seconds[3][9] == pytest.approx(
        3350 / 4000
    )


def test_rates_given_inline_scale_too() -> None:
    known = engine("H100")
    half = replace(known, device=find_device("H100").times(0.5, "hbm_bytes_per_s", "bf16_flops"))
    slow, fast = (table_for(each, KernelSource()) for each in (half, known))
    assert slow.scaled_from == "H100"
    assert slow.table.rows.seconds == pytest.approx([2 * one for one in fast.table.rows.seconds])


@pytest.mark.parametrize(
    ("device", "dtype", "source", "sentence"),
    [
        ("MI300X", "bf16", KernelSource(), "kernels of device MI300X were not measured"),
        ("H200", "float32", KernelSource(), "kernels in float32 were not measured"),
        ("H200", "bf16", KernelSource(device="H20"), "kernels.device H20: its kernels were not measured"),
        ("H200", "bf16", KernelSource(version="0.1"), "no measured kernels for this model on h200_sxm"),
        (
            "A100-80",
            "fp8",
            KernelSource(),
            "device A100-80 has no fp8 arithmetic that is known; use dtype bf16",
        ),
    ],
)
def test_what_was_not_measured_is_said_in_one_sentence(
    device: str, dtype: str, source: KernelSource, sentence: str, cache: Path
) -> None:
    with pytest.raises(OppoError, match=sentence) as caught:
        table_for(engine(device, dtype=dtype), source)
    assert "\n" not in str(caught.value)


def test_a_device_without_kernels_takes_those_that_the_scenario_names() -> None:
    assert query_of(engine("MI300X"), KernelSource(device="H200")).system == "h200_sxm"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"gated_mlp": False}, "without a gated MLP"), ({"head_dim": 80}, "no measured kernels for this model")],
)
def test_a_shape_that_was_not_measured_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(OppoError, match=sentence):
        make.make_table(query(SMALL.model_copy(update=change), system="a100_sxm", version="0.14.0"))


def test_experts_that_do_not_divide_into_blocks_are_said_what_would_help(cache: Path) -> None:
    """768 columns of an expert on 4 devices are 192, no multiple of the block of 128; vLLM refuses it, too."""
    shape = find_model("Qwen/Qwen3-30B-A3B")
    blocks = RooflineEngine(shape, find_device("H200"), 4, "fp8", 2.0)
    with pytest.raises(
        OppoError, match=r"block_size.*take kernels.fp8_scales static or dynamic, expert_parallel"
    ):
        table_for(blocks, KernelSource())


def test_the_command_makes_tables(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["costs", "table", "--model", "llama-3.2-1b", "--device", "H100"]
    assert run([*model, "-o", str(tmp_path / "tables"), "--json"]) == 0
    assert '"origin": "made"' in capsys.readouterr().out
    (path,) = (tmp_path / "tables").iterdir()
    assert load_table(path).of.system == "h100_sxm"
    assert run(model) == run(model) == 0
    out = capsys.readouterr().out
    assert out.index("made") < out.index("kept")
    monkeypatch.setenv("COLUMNS", "60")
    assert run(model) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  {path.name}" in lines
    assert all(len(line.rstrip()) <= 60 for line in lines if path.name not in line and str(cache) not in line)
    monkeypatch.delenv("COLUMNS")
    assert run(["costs", "table"]) == run([*model, "h200-single"]) == 2
    assert run([*model[:3], "nobody"]) == 2
    monkeypatch.setattr(lookup, "SHIPPED_FOLDER", tmp_path / "tables")
    assert run(model) == 0
    assert "shipped" in capsys.readouterr().out


def test_shipped_tables_are_what_the_package_says() -> None:
    script = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "make_kernel_tables.py"))
    wanted = script["wanted"]()
    assert set(wanted) == {path.name for path in SHIPPED_FOLDER.glob("*.json.gz")}
    for name in random.Random(0).sample(sorted(wanted), 4):
        shipped, made = load_table(SHIPPED_FOLDER / name), make.make_table(wanted[name])
        undated = made.origin.model_copy(update={"made": shipped.origin.made})
        assert shipped == made.model_copy(update={"origin": undated})
