"""Seconds of an engine's measured kernels: the ``oppo-kernels/1`` file format, and where tables lie.

A forward is composed of its parts: rows (matrix products, experts, element-wise kernels) and collectives by
the tokens that are computed, the output head by its rows, attention by batch and context. All are seconds of
the whole model on one of the tensor-parallel devices.
"""

import gzip
import hashlib
import json
import zlib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from oppo_sim.costs.kernels.devices import KernelEngine
from oppo_sim.costs.model_shape import INDEX_FIELDS, LATENT_FIELDS, LINEAR_FIELDS, SLIDING_FIELDS, ModelShape
from oppo_sim.costs.profile import Grid, SecondsOrZero
from oppo_sim.costs.strict import Count, Strict, first_problem
from oppo_sim.errors import OppoError
from oppo_sim.files import new_file, reading
from oppo_sim.unpacking import gunzipped

FORMAT: Final = "oppo-kernels/1"
SHIPPED_FOLDER: Final = Path(__file__).parent / "tables"

KernelDtype = Literal["bf16", "fp8_static", "fp8_dynamic", "fp8_block"]
"""Of matrix products; fp8 by where its scales come from."""
_MEND: Final = "make it again with oppo costs table"
_IRRELEVANT: Final = {"tie_word_embeddings": False, "qkv_bias": False, "qk_norm": False}
"""What a shape says and no table depends on."""
_LATER: Final = ("linear_kind", "num_attention_layers", "num_mlp_layers", "moe_latent_size")
"""Fields that tables are older than: they are named without them where a shape does not have them."""
Matrix = Annotated[tuple[SecondsOrZero, ...], Field(strict=False, min_length=2)]


class KernelQuery(Strict):
    """What a table is of."""

    system: str
    engine: KernelEngine
    version: str
    tensor_parallel: Count
    expert_parallel: Count = 1
    attention_data_parallel: Count = 1
    """Where it is more than 1, tokens and rollouts of the table are of one rank."""
    dtype: KernelDtype
    kv_cache_dtype: Literal["bf16", "fp8"]
    shape: ModelShape

    @property
    def other_products(self) -> bool:
        """Whether matrix products are those with scales of a token: vLLM's with scales of a block were
        measured with what are most likely the launches (59 to 791 µs where SGLang's take 10), which CUDA
        graphs hide. Latent attention was measured whole."""
        return self.engine == "vllm" and self.dtype == "fp8_block" and not self.shape.latent

    @property
    def name(self) -> str:
        """Of its file: the same for the same content."""
        said = self.shape.model_dump(mode="json", exclude=_unused(self.shape))
        digest = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=6).hexdigest()
        dtype = self.dtype.replace("_", "-") + ("-dynamic" if self.other_products else "")
        dtype += "" if self.kv_cache_dtype == "bf16" else "-kvfp8"
        engine = f"{self.system}-{self.engine}-{self.version}-tp{self.tensor_parallel}"
        engine += f"ep{self.expert_parallel}" if self.expert_parallel > 1 else ""
        engine += f"dp{self.attention_data_parallel}" if self.attention_data_parallel > 1 else ""
        return f"{engine}-{dtype}-{digest}.json.gz"


class KernelOrigin(Strict):
    """Where the seconds of a table come from."""

    package: str
    package_version: str
    licence: str
    made: str
    """Date, ISO 8601."""
    kernels: dict[str, str]
    """By kernel: "silicon" where it was measured, else how it was derived."""


class RowsTable(Strict):
    """By the tokens of a forward: rows, collectives, and the output head where it runs for as many."""

    tokens: Grid
    seconds: SecondsOrZero
    collectives: SecondsOrZero
    head: SecondsOrZero


class DecodeAttention(Strict):
    """One new token of each rollout: seconds[n_running][kv_per_rollout]."""

    n_running: Grid
    kv_per_rollout: Grid
    seconds: Matrix


class PrefillAttention(Strict):
    """New tokens: seconds[tokens][mean_context], mean_context = query-key pairs / tokens."""

    tokens: Grid
    mean_context: Grid
    seconds: Matrix


class KernelTable(Strict):
    """The measured kernels of one model on one device."""

    format: Literal["oppo-kernels/1"]
    of: KernelQuery
    origin: KernelOrigin
    rows: RowsTable
    decode_attention: DecodeAttention
    prefill_attention: PrefillAttention


def _unused(shape: ModelShape) -> set[str]:
    """Fields that a shape does not have: tables are named without them."""
    latent = set() if shape.latent else set(LATENT_FIELDS)
    linear = set() if shape.num_linear_layers else {*LINEAR_FIELDS, "num_linear_layers", "attn_output_gate"}
    sliding = set() if shape.num_sliding_layers else set(SLIDING_FIELDS)
    index = set() if shape.index_topk else set(INDEX_FIELDS)
    later = {name for name in _LATER if getattr(shape, name) == ModelShape.model_fields[name].default}
    return latent | linear | sliding | index | later


def kernel_shape(shape: ModelShape) -> ModelShape:
    """The shape as far as kernels depend on it, so that models of one shape share a table."""
    head = None if shape.latent else shape.head_size
    resolved = {"num_key_value_heads": shape.kv_heads, "head_dim": head}
    return shape.model_copy(update=_IRRELEVANT | resolved)


def save_table(table: KernelTable, folder: Path) -> Path:
    """Write a table, the same bytes for the same table; returns its path. Raises OppoError."""
    text = json.dumps(table.model_dump(mode="json"), separators=(",", ":"), sort_keys=True)
    path = folder / table.of.name
    with new_file(path, overwrite=True) as partial:
        partial.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def load_table(path: Path) -> KernelTable:
    """Read a table. Raises OppoError for a file that is missing, damaged, or not of this format."""
    with reading(path, _MEND):
        try:
            content = json.loads(gunzipped(path))
        except (EOFError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
            raise ValueError(str(error)) from None
    try:
        return KernelTable.model_validate(content)
    except ValidationError as error:
        raise OppoError(f"kernel table {path}: {first_problem(error)}; {_MEND}") from None
