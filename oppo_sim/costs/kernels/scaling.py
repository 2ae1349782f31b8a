"""Measured kernels of one device as those of another: by the ratio of the rooflines of the same operators.

Where a kernel is bound by memory that is the ratio of bandwidths, where by arithmetic that of rates, and for
collectives that of links. Small kernels, whose time is neither, are scaled all the same: an assumption.
"""

from collections.abc import Callable
from dataclasses import replace

from oppo_sim.costs.collectives import collectives_seconds
from oppo_sim.costs.devices import Device
from oppo_sim.costs.kernels.table import DecodeAttention, KernelTable, PrefillAttention, RowsTable
from oppo_sim.costs.operators import decode_attention, head_groups, layer_groups, prefill_attention, total
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.costs.split import Split


def same_rates(device: Device, measured: Device) -> bool:
    """Nothing that kernels depend on differs."""
    rates = ("hbm_bytes_per_s", "bf16_flops", "fp8_flops", "link_bytes_per_s")
    return all(getattr(device, name) == getattr(measured, name) for name in rates)


def scaled_table(table: KernelTable, engine: RooflineEngine, measured: Device) -> KernelTable:
    """A table of the ``measured`` device's kernels as those of the engine's device."""
    asked, known = engine.split, replace(engine, device=measured).split
    rows, decode, prefill = table.rows, table.decode_attention, table.prefill_attention

    def ratio(of: Callable[[Split], float]) -> float:
        below = of(known)
        return of(asked) / below if below else 1.0

    def by_rows(seconds: tuple[float, ...], of: Callable[[Split, float], float]) -> tuple[float, ...]:
        return tuple(
            one * ratio(lambda split: of(split, tokens))  # noqa: B023 (called at once)
            for one, tokens in zip(seconds, rows.tokens, strict=True)
        )

    def prefill_ratio(tokens: float, context: float) -> float:
        return ratio(lambda split: prefill_attention(split, tokens, tokens * context).seconds)

    per_kv = ratio(lambda split: decode_attention(split, 1.0, 1.0).seconds)
    return table.model_copy(
        update={
            "rows": RowsTable(
                tokens=rows.tokens,
                seconds=by_rows(rows.seconds, lambda split, tokens: total(layer_groups(split, tokens))[0]),
                collectives=by_rows(rows.collectives, collectives_seconds),
                head=by_rows(rows.head, lambda split, tokens: total(head_groups(split, tokens, False))[0]),
            ),
            "decode_attention": DecodeAttention(
                n_running=decode.n_running,
                kv_per_rollout=decode.kv_per_rollout,
                seconds=tuple(tuple(one * per_kv for one in row) for row in decode.seconds),
            ),
            "prefill_attention": PrefillAttention(
                tokens=prefill.tokens,
                mean_context=prefill.mean_context,
                seconds=tuple(
                    tuple(
                        one * prefill_ratio(tokens, context)
                        for one, context in zip(row, prefill.mean_context, strict=True)
                    )
                    for row, tokens in zip(prefill.seconds, prefill.tokens, strict=True)
                ),
            ),
        }
    )
