"""Part 0: is the attention that will be timed on this device equal to plain attention in float32? Writes
``attention.json``.

    python experiments/gpu/part0_attention.py [--rehearse]

Random ragged batches with every head shape of the models, in float32 and bfloat16, several seeds: engines
(``verify_attention``) and trainer (outputs and gradients). The other parts refuse to run where this has not
passed on the same device with the same versions.
"""

from collections.abc import Sequence
from typing import Any, Final

from subjects import ACTORS, REWARDS, Pair
from workplace import ATTENTION, ATTENTION_FORMAT, run_main, workplace_given, write_json

from oppo_sim.errors import OppoError

SEEDS: Final = 4
DTYPES: Final = ("float32", "bfloat16")
LENGTHS: Final = ((1, 2, 17, 64, 130, 257), (700, 3, 3, 511, 1, 96), (33,), (1, 1, 1, 1024))
"""Of whole sequences in one trained batch."""
TOLERANCE: Final = {"float32": 2e-5, "bfloat16": 3e-2}
"""Of the trainer's outputs, relative to the largest; those of the engines are ``verify_attention``'s own,
absolute."""
GRADIENT_FACTOR: Final = 4.0
"""Gradients sum over many queries: so much more than the tolerance of an output is allowed, relative to the
largest gradient."""


def check_engine(device: str, dtype: str, heads: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """One case of the engines' attention, as JSON."""
    import torch

    from oppo_real.engines.attention_check import verify_attention

    case: dict[str, Any] = {"part": "engines", "dtype": dtype, "heads": heads, "seed": seed}
    try:
        found = verify_attention(device, getattr(torch, dtype), *heads, seed=seed)
    except OppoError as error:
        return {**case, "passed": False, "path": None, "why": str(error)}
    errors, why = dict(found.max_abs_error), dict(found.failures)
    return {
        **case,
        "passed": True,
        "path": found.path,
        "tolerance": found.tolerance,
        "max_abs_error": errors,
        "not_used": why,
    }


def check_trainer(device: str, dtype: str, heads: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """One case of the trainer's attention, on the path that it takes by itself, beside the plain path in
    float32 on the same inputs."""
    import torch

    from oppo_real.engines.attention_check import training_path
    from oppo_real.engines.packed_attention import PackedBatch
    from oppo_real.engines.packed_kernels import plain_attention
    from oppo_real.engines.packed_plan import make_plan, whole_spans

    count, shared, width = heads
    lengths = LENGTHS[seed % len(LENGTHS)]
    precision, place = getattr(torch, dtype), torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    lanes = (count, shared, shared, count)
    *inputs, toward = [
        torch.randn(sum(lengths), lane, width, generator=generator).to(device=place, dtype=precision)
        for lane in lanes
    ]
    batch = PackedBatch(whole_spans(lengths))
    results: list[list[torch.Tensor]] = []
    for kind in (precision, torch.float32):
        query, key, value = [
            tensor.to(kind).requires_grad_() for tensor in (one.detach().clone() for one in inputs)
        ]
        if kind is torch.float32 and results:
            plan = make_plan(whole_spans(lengths), 2 * key[0].numel() * 4, kind, place)
            out = plain_attention(query, key, value, plan, width**-0.5)
        else:
            out = batch.attend(0, query, key, value, width**-0.5)
        gradients = torch.autograd.grad(out, (query, key, value), toward.to(kind))
        results.append([out.detach().float(), *(one.float() for one in gradients)])
    names = ("output", "query_gradient", "key_gradient", "value_gradient")
    errors = {
        name: float((fast - plain).abs().max()) / max(1.0, float(plain.abs().max()))
        for name, fast, plain in zip(names, *results, strict=True)
    }
    allowed = {name: TOLERANCE[dtype] * (1.0 if name == "output" else GRADIENT_FACTOR) for name in names}
    return {
        "part": "trainer",
        "dtype": dtype,
        "heads": heads,
        "seed": seed,
        "lengths": lengths,
        "path": training_path(inputs[0].device, precision, *heads),
        "passed": all(errors[name] <= allowed[name] for name in names),  # NaN fails
        "relative_error": errors,
        "allowed": allowed,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError where a case failed, after writing the file."""
    place = workplace_given("Verify the attention paths on a device.", arguments)
    names = dict.fromkeys((*ACTORS, *REWARDS))
    shapes = [
        Pair(ACTORS[0], REWARDS[0], "torch", place.device, place.rehearse).shape(name) for name in names
    ]
    heads = list(
        dict.fromkeys((shape.num_attention_heads, shape.kv_heads, shape.head_size) for shape in shapes)
    )
    cases = [
        check(place.device, dtype, shape, seed)
        for check in (check_engine, check_trainer)
        for dtype in DTYPES
        for shape in heads
        for seed in range(1 if place.rehearse else SEEDS)
    ]
    failed = [case for case in cases if not case["passed"]]
    content: dict[str, Any] = {
        "format": ATTENTION_FORMAT,
        "passed": not failed,
        "device": place.device,
        "hardware": place.hardware,
        "versions": place.versions,
        "rehearsal": place.rehearse,
        "paths": {f"{case['part']} {case['dtype']}": case["path"] for case in cases},
        "cases": cases,
    }
    write_json(place.folder / ATTENTION, content)
    for what, path in content["paths"].items():
        print(f"{what}: {path}")
    print(
        f"{len(cases) - len(failed)} of {len(cases)} cases agree on {place.hardware}; wrote"
        f" {place.folder / ATTENTION}"
    )
    if failed:
        first, where = failed[0], place.folder / ATTENTION
        raise OppoError(
            f"{first['part']} attention in {first['dtype']} with heads {first['heads']} differs: see {where}"
        )


if __name__ == "__main__":
    run_main(main)
