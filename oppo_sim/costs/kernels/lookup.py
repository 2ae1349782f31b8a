"""The table of an engine's measured kernels: shipped, kept from before, or made."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from oppo_sim.cache import cache_root
from oppo_sim.costs.kernels.devices import SYSTEMS, KernelSource, measured_device, newest_version
from oppo_sim.costs.kernels.make import make_table
from oppo_sim.costs.kernels.scaling import same_rates, scaled_table
from oppo_sim.costs.kernels.table import (
    SHIPPED_FOLDER,
    KernelDtype,
    KernelQuery,
    KernelTable,
    kernel_shape,
    load_table,
    save_table,
)
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors

_FOLDER: Final = "kernel_tables"


class FoundTable(NamedTuple):
    """An engine's table. ``scaled_from``: the measured device where that is another one."""

    table: KernelTable
    scaled_from: str | None


def query_of(engine: RooflineEngine, source: KernelSource) -> KernelQuery:
    """What to look up for an engine. Raises OppoError for a device or a dtype without measured kernels."""
    if engine.dtype not in ("bf16", "fp16", "fp8"):
        raise OppoError(
            f"costs: kernels in {engine.dtype} were not measured: use dtype bf16, or take kind: roofline"
        )
    engine.device.flops(engine.dtype)  # else the package says that its files lack a rate
    system = SYSTEMS[measured_device(engine.device, source).name]
    return KernelQuery(
        system=system,
        engine=source.engine,
        version=source.version or newest_version(source.engine, system),
        tensor_parallel=engine.tensor_parallel,
        expert_parallel=engine.expert_parallel,
        attention_data_parallel=engine.attention_data_parallel,
        dtype=_dtype(engine, source),
        kv_cache_dtype="fp8" if engine.kv_bytes == 1.0 else "bf16",
        shape=kernel_shape(engine.shape),
    )


def _dtype(engine: RooflineEngine, source: KernelSource) -> KernelDtype:
    if engine.dtype != "fp8":
        return "bf16"
    if source.fp8_scales == "auto":
        return "fp8_block" if engine.shape.num_experts else "fp8_static"
    found: dict[str, KernelDtype] = {"static": "fp8_static", "dynamic": "fp8_dynamic", "block": "fp8_block"}
    return found[source.fp8_scales]


def table_for(engine: RooflineEngine, source: KernelSource) -> FoundTable:
    """Scaled where the engine's device is not the measured one, or not at its rates. Raises OppoError."""
    measured = measured_device(engine.device, source)
    table = find_table(query_of(engine, source))
    if same_rates(engine.device, measured):
        return FoundTable(table, None)
    return FoundTable(scaled_table(table, engine, measured), measured.name)


@lru_cache(maxsize=64)
def find_table(query: KernelQuery) -> KernelTable:
    """Raises OppoError where it is neither shipped nor kept and cannot be made, and for a shipped one that is
    damaged."""
    return load_table(provide_table(query)[0])


def provide_table(
    query: KernelQuery, folder: Path | None = None, again: bool = False
) -> tuple[Path, Literal["shipped", "kept", "made"]]:
    """The file of a table and where it came from; made where there is none, or ``again``, into ``folder``
    (None: the user's cache). Raises OppoError as ``find_table``."""
    own = cache_root() / _FOLDER if folder is None else folder
    shipped, kept = SHIPPED_FOLDER / query.name, own / query.name
    if folder is None and not again and shipped.is_file():
        return shipped, "shipped"
    if not again and kept.is_file():
        with suppress(OppoError):  # of an older format, or damaged: made again
            load_table(kept)
            return kept, "kept"
    table = make_table(query)
    with write_errors(own):
        own.mkdir(parents=True, exist_ok=True)
    return save_table(table, own), "made"
