"""All that is asked of a device beyond its tensors: what there is, copies and waits, captured graphs.

While engines run, the host waits for a GPU only in ``to_host`` and ``synchronize``; a copy to the GPU never
waits. Nothing else names ``torch.cuda``; tests put a machine without a GPU in its place
(tests/real/fake_cuda).
"""

import os
import re
from collections.abc import Callable
from typing import Any, Final

import torch

from oppo_real.node import VISIBLE, Gpu
from oppo_sim.errors import OppoError

_HELD_CYCLES: Final = 120_000_000
"""Of a GPU that is held until an engine has queued all that it is to do: some 0.06 s."""
_BEFORE_WAITING: Final[list[Callable[[], None]]] = []
"""Called where the host is about to wait for what an engine made."""


def gpus() -> int:
    """GPUs that this process can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpus_in_use() -> list[int]:
    """Numbers of the GPUs with random states of their own; none before this process first used one."""
    return list(range(torch.cuda.device_count())) if gpus() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def device_name(device: torch.device) -> str:
    """The GPU's name; "cpu" for the host."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def usable_device(name: str | torch.device) -> torch.device:
    """The device, if this process can use it. Raises OppoError, with the reason, where not."""
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise OppoError(f"device {name!r} is not understood: {str(error).splitlines()[0]}") from None
    if place.type == "cuda" and (count := gpus()) <= (place.index or 0):
        raise OppoError(f"device {str(place)!r} was asked for but {_lacking(count)}")
    return place


def _lacking(count: int) -> str:
    """Why there are no more than ``count``."""
    shown = os.environ.get(VISIBLE)
    under = "" if shown is None else f" under {VISIBLE}={shown!r}"
    if count:
        return f"this machine has {count} usable CUDA device(s){under}; use one of them."
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"there is no usable CUDA device, since torch {torch.__version__} is a build for the CPU; use"
            " cpu, or install a CUDA build (pytorch.org/get-started)."
        )
    if shown is not None:
        return f"this machine has no usable CUDA device{under}; name GPUs that are there, or unset it."
    return (
        "this machine has no usable CUDA device; use cpu, or see whether nvidia-smi lists one here (a"
        " container is given GPUs with --gpus all) and its driver is new enough for CUDA"
        f" {torch.version.cuda}."
    )


def free_gpu_bytes(device: torch.device) -> int:
    """Bytes that nobody uses. Raises OppoError for a GPU that takes no other process."""
    try:
        return int(torch.cuda.mem_get_info(device)[0])
    except RuntimeError as error:  # torch.AcceleratorError, in later versions
        reason = str(error).strip().splitlines()[0]
        mend = "name another (real.devices), or end the processes that nvidia-smi lists on it"
        if "busy or unavailable" in reason:
            mend = (
                "another process has it alone (compute mode Exclusive_Process), or it takes none: nvidia-smi"
                " -c DEFAULT (as administrator), or name another"
            )
        raise OppoError(f"{device} cannot be used ({reason}): {mend}") from None


def gpu_text(device: torch.device) -> str:
    """How many there are, and the name, memory and CUDA version of this one."""
    shown = torch.cuda.get_device_properties(device)
    memory = f"{shown.total_memory / 2**30:.0f} GiB"
    return f"1 of {torch.cuda.device_count()} {shown.name}, {memory}, CUDA {torch.version.cuda}"


def listed_gpus() -> tuple[Gpu, ...]:
    """Those that this process can use, in its order, as far as torch knows them."""
    found = []
    for number in range(gpus()):
        shown = torch.cuda.get_device_properties(number)
        try:
            free: int | None = free_gpu_bytes(torch.device("cuda", number))
        except OppoError:
            free = None
        found.append(Gpu(number, shown.name, int(shown.total_memory), free, "", "", ""))
    return tuple(found)


def gpu_without_kernels() -> str | None:
    """The name and kind of the first GPU that this torch has no kernels for; None: it has for all."""
    built = (re.match(r"(sm|compute)_(\d+)", kind) for kind in torch.cuda.get_arch_list())
    own = [(kind[1], int(kind[2])) for kind in built if kind is not None]
    for number in range(gpus()):
        major, minor = torch.cuda.get_device_capability(number)
        here = 10 * major + minor
        fits = (
            one <= here and (kind == "compute" or one // 10 == major) for kind, one in own
        )  # binaries run within their generation, PTX on all later ones
        if own and not any(fits):
            return f"{torch.cuda.get_device_name(number)} (sm_{here})"
    return None


def give_back_memory() -> None:
    """Memory that closed engines held, to whoever asks next; collect garbage first."""
    if gpus():
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait for all work queued on the device; a CPU has none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, without waiting for what is queued there. ``values`` may be changed at once (CUDA takes
    what is not pinned into a buffer of its own before the call returns)."""
    return values.to(device, non_blocking=True)


def to_host(values: torch.Tensor) -> torch.Tensor:
    """In the host's memory, after waiting for the work that makes them."""
    for told in _BEFORE_WAITING:
        told()
    return values.cpu()


def busy_seconds(device: torch.device, work: Callable[[], object]) -> float | None:
    """Seconds that a GPU computes for what an engine does in ``work``, without those in which it would wait
    for launches: it is held until they are queued. To the last ``to_host``; None where there was none.
    """
    marks: list[torch.cuda.Event] = []

    def mark() -> None:
        marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        marks[-1].record(torch.cuda.current_stream(device))

    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]
        mark()
        _BEFORE_WAITING.append(mark)
        try:
            work()
        finally:
            _BEFORE_WAITING.remove(mark)
        torch.cuda.synchronize(device)
    return float(marks[0].elapsed_time(marks[-1])) / 1000.0 if len(marks) > 1 else None


class CudaCapture:
    """Captures CUDA graphs on one device; they share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """(What replays it, the tensor its result will be in.)"""
        # Without the device and the stream, PyTorch would capture on the GPU that is current, which may be
        # another one: the graph would be empty, and its result that of the first run for ever.
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                # Libraries set themselves up on their first calls, which must not be captured.
                for _ in range(2):
                    compute()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                out = compute()
            self._pool = graph.pool()

        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay, out
