"""The machine: what it does with every operation, and what it tells the host."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.real.fake_cuda import kernels
from tests.real.fake_cuda.graphs import Recording
from tests.real.fake_cuda.order import HOST, Clock, CudaMisuse, Place, place_of, put, where
from tests.real.tiny import CONFIG

aten = torch.ops.aten
CPU = torch.device("cpu")
_FORGETS = {aten.equal.default, aten.nonzero.default, aten.masked_select.default, aten._unique2.default}
"""Wait for the device because the host needs a value or a size."""
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_LIKE = {
    getattr(aten, f"{what}_{how}").default for what in ("zeros", "ones", "empty", "full") for how in ("like",)
} | {getattr(aten, f"new_{what}").default for what in ("zeros", "ones", "empty", "full")}


_LIBRARIES = {aten.mm.default, aten.addmm.default, aten.bmm.default}
"""Belong to libraries that set themselves up on their first call on a stream, which a graph cannot hold."""


def _cuda_only() -> dict[Any, Callable[..., Any]]:
    import torch.nn.attention.varlen

    ops = torch.ops.torch_attn
    return {
        aten._flash_attention_forward.default: kernels.flash_forward,
        ops._varlen_attn.default: kernels.varlen_forward,
        ops._varlen_attn_backward.default: kernels.varlen_backward,
    }


class Machine:
    """``count`` GPUs with ``free`` bytes each; use it through ``cuda_machine``."""

    def __init__(self, count: int = 2, free: int = 1 << 37) -> None:
        self.count, self.free = count, free
        self.waits: Counter[str] = Counter()
        """Where the host waited for a device: "file.py:line" of this project → times."""
        self.operations = 0
        """On devices; captured and replayed ones are not counted."""
        self.host = Clock(HOST)
        self.clocks: list[Clock] = []
        self.device_number = 0
        self.current = [self.new_clock() for _ in range(count)]
        self.recording: tuple[Recording, Clock] | None = None
        self.inside = False
        """PyTorch's own fake tensors must not take this machine for a real one."""
        self.asked_to_cpu = False
        """By the program, in the copy that comes now."""
        self.working_on: torch.device | None = None
        """Where the tensors lie that the function in progress was given."""
        self.only_here = _cuda_only()
        self.set_up: set[tuple[Any, int]] = set()
        """Operations of libraries that ran on a stream outside of graphs."""
        self.pools: set[Any] = set()
        """Memory pools that graphs were captured into."""

    # ---- devices, streams and the host -------------------------------------------------------------------------

    def new_clock(self) -> Clock:
        """Of a new stream."""
        self.clocks.append(Clock(len(self.clocks)))
        return self.clocks[-1]

    def device(self, given: Any) -> torch.device:
        """With its number. Raises CudaMisuse for one that this machine does not have."""
        wanted = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
        if wanted.type != "cuda":
            return wanted
        number = self.device_number if wanted.index is None else wanted.index
        if not 0 <= number < self.count:
            raise CudaMisuse(f"there is no {wanted} on this machine of {self.count} GPUs")
        return torch.device("cuda", number)

    def wait(self, clock: Clock) -> None:
        """The host waits for a stream."""
        if self.recording is not None:
            raise CudaMisuse("the host waits for the device while a graph is captured")
        self.waits[_caller()] += 1
        self.host.learn(clock)

    # ---- operations --------------------------------------------------------------------------------------------

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the dispatcher would do with ``func``."""
        flat = _flat((*args, *kwargs.values()))
        tensors = [one for one in flat if isinstance(one, torch.Tensor)]
        marks = {place.device for one in tensors if (place := place_of(one)) is not None} - {CPU}
        target = kwargs.get("device")
        target = None if target is None else self.device(target)
        if not tensors and target == CPU and self.working_on is not None:
            # Made inside one of PyTorch's own functions, like a tensor that it believes to be on the CPU.
            target = self.working_on
            kwargs = {**kwargs, "device": target}
        to_cpu, self.asked_to_cpu = self.asked_to_cpu, False
        if marks and target == CPU and (func in _LIKE or (func is aten._to_copy.default and not to_cpu)):
            # PyTorch's own code hands on the options of a tensor, which it believes to be on the CPU.
            target = next(iter(marks))
            kwargs = {**kwargs, "device": target}
        if not marks and (target is None or target.type != "cuda"):
            if not getattr(func, "is_view", False):
                self.host.work(str(func), _places(tensors), ())
            return func(*args, **kwargs)
        if any(isinstance(one, torch.Generator) and one.device.type == "cpu" for one in flat):
            raise CudaMisuse(f"{func} on a GPU is given a generator of the CPU")
        if func is aten._local_scalar_dense.default:
            return self._told(args[0])
        self.operations += 1
        if func in (aten._to_copy.default, aten.copy_.default):
            return self._copy(func, args, kwargs, target)
        masked = func in _INDEXED and _by_mask(args[1])
        shown = None if masked else self._shown(func, args, kwargs)
        if shown is None and len({_signature(one)[3] for one in tensors if one.dim()}) > 1:
            raise CudaMisuse(f"{func} is given tensors of several devices")
        device = _device_of(shown) or target or next(iter(marks))
        if device.type != "cuda":
            raise CudaMisuse(f"{func} mixes {sorted(map(str, marks))} and gives {device}")
        out = self._compute(func, args, kwargs, device)
        self._compare(func, shown, out)
        return out

    def _told(self, tensor: torch.Tensor) -> Any:
        place = place_of(tensor)
        assert place is not None
        stream = self.current[place.device.index]
        stream.learn(self.host)
        stream.work("the host's read", [place], [])
        self.wait(stream)
        return aten._local_scalar_dense.default(tensor)

    def _shown(self, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
        """Results under PyTorch's fake tensors; None where their shape hangs on values."""
        key = (func, *kwargs, *(_signature(one) for one in _flat((*args, *kwargs.values()))))
        if key not in _SHOWN:
            _SHOWN[key] = self._under_fakes(func, args, kwargs)
        return _SHOWN[key]

    def _under_fakes(self, func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
        fake_args = tuple(_mapped(one, self._shadow) for one in args)
        fake_kwargs = {name: _mapped(one, self._shadow) for name, one in kwargs.items()}
        self.inside = True
        try:
            with _FAKES:
                out = func(*fake_args, **fake_kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return None
        except RuntimeError as error:
            if "not linked with support for cuda" in str(error):
                return None  # a few of PyTorch's own rules want a CUDA build; ``run`` looks at devices itself
            raise CudaMisuse(" ".join(str(error).split())) from error
        finally:
            self.inside = False
        return [one for one in _flat((out,)) if isinstance(one, torch.Tensor)]

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        key = _signature(tensor)
        if key not in _SHADOWS:
            self.inside = True
            with _FAKES:
                shape, stride, dtype, device = key
                _SHADOWS[key] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return _SHADOWS[key]

    def _compute(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """For real, on the CPU, as work of the device's current stream."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        run = self.only_here.get(func, func)
        if getattr(func, "is_view", False):
            return run(*args, **kwargs)
        reads, writes, written = _accesses(func, args, kwargs)
        stream = self.current[device.index]
        recording = self.recording
        if recording is not None:
            if stream is not recording[1]:
                raise CudaMisuse(f"{func} runs beside the stream that a graph is captured on")
            if func in _FORGETS or (func in _INDEXED and _by_mask(args[1])):
                raise CudaMisuse(f"{func} waits for the device while a graph is captured")
            if func in _LIBRARIES and (func, stream.number) not in self.set_up:
                raise CudaMisuse(f"{func} sets its library up while a graph is captured: run it there before")
            if not all(place.captured for place in writes):
                recording[0].add(run, args, kwargs, [], reads, writes)
                return _arguments(args, kwargs, written)
        else:
            if any(place.captured for place in writes):
                raise CudaMisuse(f"{func} writes into memory that was allocated while a graph was captured")
            if func in _LIBRARIES:
                self.set_up.add((func, stream.number))
            stream.learn(self.host)
            stream.work(str(func), reads, writes)
        out = run(*args, **kwargs)
        fresh = [
            one
            for one in _flat((out,))
            if isinstance(one, torch.Tensor) and place_of(one) is None and one.numel() >= 0
        ]
        for one in fresh:
            place = put(one, device, captured=recording is not None)
            place.written = (stream.number, stream.seen[stream.number])
        if recording is not None:
            recording[0].add(run, args, kwargs, fresh, reads, writes)
        if func in _FORGETS or (func in _INDEXED and _by_mask(args[1])):
            self.wait(stream)
        return out

    def _compare(self, func: Any, shown: list[torch.Tensor] | None, out: Any) -> None:
        made = [one for one in _flat((out,)) if isinstance(one, torch.Tensor)]
        if shown is None or len(shown) != len(made):  # in-place lists return nothing here
            return
        for fake, real in zip(shown, made, strict=True):
            if (fake.shape, fake.dtype) != (real.shape, real.dtype):
                raise CudaMisuse(
                    f"{func} gives {fake.dtype} {tuple(fake.shape)} on CUDA, {real.dtype} {real.shape} here"
                )

    def _copy(self, func: Any, args: Any, kwargs: Any, target: torch.device | None) -> Any:
        """Between memories, or within one."""
        to_copy = func is aten._to_copy.default
        source = args[0] if to_copy else args[1]
        place = place_of(source)
        here = CPU if place is None else place.device
        if to_copy:
            there = here if target is None else target
            waits = not kwargs.get("non_blocking")
        else:
            goal = place_of(args[0])
            there = CPU if goal is None else goal.device
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        if here == there:
            self._shown(func, args, {**kwargs, "device": there} if to_copy else kwargs)
            return self._compute(func, args, kwargs, there)
        if self.recording is not None:
            raise CudaMisuse(f"a copy from {here} to {there} while a graph is captured")
        shown = self._shown(func, args, kwargs)
        streams = [self.current[one.index] for one in (here, there) if one.type == "cuda"]
        for stream in streams:
            stream.learn(self.host)
        if len(streams) == 2:  # PyTorch has the two wait for one another
            streams[0].learn(streams[1])
        streams[0].work(str(func), _places([source]), [] if to_copy else _places([args[0]]))
        out = func(*args, **({**kwargs, "device": CPU} if to_copy else kwargs))
        goal = place_of(out) or put(out, there)
        goal.written = (streams[0].number, streams[0].seen[streams[0].number])
        if len(streams) == 2:
            streams[1].learn(streams[0])
        if waits and CPU in (here, there):
            self.wait(streams[0])
        self._compare(func, shown, out)
        return out


_FAKES = FakeTensorMode()
_SHADOWS: dict[Any, torch.Tensor] = {}
_SHOWN: dict[Any, list[torch.Tensor] | None] = {}
"""An operation and the signatures of what it is given → its results."""


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        place = place_of(value)
        return value.shape, value.stride(), value.dtype, CPU if place is None else place.device
    return (type(value), value)


def _flat(values: Any) -> list[Any]:
    """Operators take lists, not lists of lists."""
    found: list[Any] = []
    for one in values:
        if isinstance(one, list | tuple):
            found.extend(one)
        else:
            found.append(one)
    return found


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _places(tensors: list[torch.Tensor]) -> list[Place]:
    return [place for one in tensors if (place := place_of(one)) is not None]


def _accesses(func: Any, args: Any, kwargs: Any) -> tuple[list[Place], list[Place], list[Any]]:
    """Memory that an operation reads and writes, and the arguments that it writes."""
    reads: list[Place] = []
    writes: list[Place] = []
    written: list[Any] = []
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        tensors = [one for one in _flat((value,)) if isinstance(one, torch.Tensor)]
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes += _places(tensors)
            written.append(value)
        else:
            reads += _places(tensors)
    return reads, writes, written


def _arguments(args: Any, kwargs: Any, written: list[Any]) -> Any:
    return written[0] if len(written) == 1 else tuple(written)


def _by_mask(indices: Any) -> bool:
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _device_of(shown: list[torch.Tensor] | None) -> torch.device | None:
    return shown[0].device if shown else None


def _caller() -> str:
    """The line of this project that asked."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/oppo_real/" in name:
            return f"{name.rpartition('/oppo_real/')[2]}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


class _Operations(TorchDispatchMode):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._machine.run(func, args, kwargs or {})


class _Methods(TorchFunctionMode):
    """What Python asks of a tensor that never reaches the dispatcher, because its numbers lie on the CPU."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        tensor = torch.Tensor
        self._machine = machine
        self._answers: Mapping[Any, Callable[..., Any]] = {
            tensor.device.__get__: where,  # type: ignore[attr-defined]
            tensor.is_cuda.__get__: lambda one: where(one).type == "cuda",  # type: ignore[attr-defined]
            tensor.is_cpu.__get__: lambda one: where(one).type == "cpu",  # type: ignore[attr-defined]
            tensor.get_device: lambda one: -1 if where(one).index is None else where(one).index,
            tensor.to: self._to,
            tensor.cpu: lambda one, **options: self._to(one, "cpu", **options),
            tensor.cuda: lambda one, device=None, **options: self._to(one, device or "cuda", **options),
            tensor.tolist: self._tolist,
            tensor.numpy: self._numpy,
            tensor.backward: self._backward,
            tensor.__deepcopy__: self._deepcopy,
            torch.tensor: self._tensor,
            torch.nn.functional.scaled_dot_product_attention: self._attend,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        machine, kwargs = self._machine, kwargs or {}
        answer = self._answers.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        before, machine.working_on = machine.working_on, _given(args)
        try:
            return func(*args, **kwargs)
        finally:
            machine.working_on = before

    def _backward(
        self, tensor: torch.Tensor, gradient: Any = None, retain_graph: Any = None, **options: Any
    ) -> None:
        machine = self._machine
        before, machine.working_on = machine.working_on, where(tensor)
        try:
            with self:  # a checkpointed block runs again inside
                torch.autograd.backward(tensor, gradient, retain_graph)
        finally:
            machine.working_on = before

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copy = bool(kwargs.pop("copy", False))
        if args and isinstance(args[0], torch.Tensor):
            args = (where(args[0]), args[0].dtype, *args[1:])
        wanted, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        here = where(tensor)
        there = here if wanted is None else self._machine.device(wanted)
        if there == here and dtype in (None, tensor.dtype) and not copy:
            return tensor
        self._machine.asked_to_cpu = there == CPU
        return aten._to_copy.default(
            tensor, dtype=dtype, device=there, non_blocking=non_blocking, memory_format=memory_format
        )

    def _attend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self:  # what it asks of tensors is answered here too
            return kernels.dense_attention(*args, **kwargs)

    def _tolist(self, tensor: torch.Tensor) -> Any:
        return self._onto_host(tensor).tolist()

    def _numpy(self, tensor: torch.Tensor, **options: Any) -> Any:
        if where(tensor).type != "cpu":
            raise CudaMisuse("numpy cannot take a tensor of a GPU")
        return self._onto_host(tensor).numpy(**options)

    def _onto_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if where(tensor).type != "cpu":
            tensor = self._to(tensor, CPU)
        self._machine.host.work("the host's read", _places([tensor]), ())
        return tensor

    def _deepcopy(self, tensor: torch.Tensor, memo: Any) -> torch.Tensor:
        if id(tensor) not in memo:
            fresh = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            memo[id(tensor)] = torch.nn.Parameter(fresh) if isinstance(tensor, torch.nn.Parameter) else fresh
        return memo[id(tensor)]  # type: ignore[no-any-return]

    def _tensor(self, data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made = torch.tensor(data, **options)
        return made if device is None else self._to(made, device)


def _given(args: Any) -> torch.device | None:
    for one in args:
        first = one[0] if isinstance(one, list | tuple) and one else one
        if isinstance(first, torch.Tensor):
            found = where(first)
            if found.type == "cuda":
                return found
    return None


@cache
def _import_models() -> None:
    """What modules look up while they are imported must be what they find without this machine."""
    from oppo_real.engines.models import parameter_count

    parameter_count("causal_lm", CONFIG)
    parameter_count("score", CONFIG)


@contextmanager
def cuda_machine(count: int = 2, free: int = 1 << 37) -> Iterator[Machine]:
    """Inside, this process has ``count`` GPUs."""
    from transformers.utils import import_utils

    from oppo_real.engines import attention_check
    from tests.real.fake_cuda.runtime import replaced

    _import_models()
    machine = Machine(count, free)
    with ExitStack() as stack:
        stack.enter_context(replaced(machine))
        stack.enter_context(_Operations(machine))
        stack.enter_context(_Methods(machine))
        # What is remembered of a device must not outlive it.
        for remembered in (
            attention_check.cached_path,
            attention_check.training_path,
            import_utils.is_torch_cuda_available,
            import_utils.is_cuda_platform,
        ):
            forget = getattr(remembered, "cache_clear", None)  # None: a test has put another in its place
            if forget is not None:
                forget()
                stack.callback(forget)
        yield machine
