"""How far a long command is: a bar on a terminal, elsewhere (a log, a batch job) a line a minute."""

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event, Thread, current_thread, main_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import click

from oppo_sim.errors import hide_warning, show_warning

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task, TaskID

    from oppo_sim.progress import OnProgress
    from oppo_sim.progress import Progress as Told

LINE_SECONDS = 60.0
LINE_WIDTH = 80
"""Columns of such a line, of which many logs show no more."""
_SHORT_BAR = 10
_QUIET = "oppo.quiet"


class Bar(Protocol):
    """What a command tells."""

    def update(
        self,
        task: "TaskID",
        /,
        *,
        completed: float | None = None,
        total: float | None = None,
        advance: float | None = None,
        description: str | None = None,
    ) -> Any:
        """Those that are given replace what was told before; ``advance`` adds to what is completed."""


class Lines:
    """Says every ``LINE_SECONDS`` how far a task is and how long the rest may take. A context manager."""

    def __init__(self, description: str, total: float, budget_s: float = inf) -> None:
        """``budget_s``: it takes no longer."""
        self._budget_s = budget_s
        self._description, self._total, self._done = description, total, 0.0
        self._begun = monotonic()
        self._first: tuple[float, float] | None = None
        """Seconds and what was done when the first of a count was told: found in a folder, or fast for other
        reasons."""
        self._under_way: tuple[float, float] | None = None
        """The same at the next, which holds what is done once: compiling, starting processes."""
        self._over = Event()
        self._thread = Thread(target=self._tell, daemon=True)

    def update(
        self,
        _task: "TaskID",
        /,
        *,
        completed: float | None = None,
        total: float | None = None,
        advance: float | None = None,
        description: str | None = None,
    ) -> None:
        """As ``Bar.update``."""
        if advance is not None:
            completed = self._done + advance
        self._description = description or self._description
        if completed is not None:
            other = total is not None and total != self._total and completed - self._done > 1
            if self._first is None or completed < self._done or other:  # another count begins
                self._first, self._under_way = (monotonic() - self._begun, completed), None
            elif self._under_way is None and completed > self._done:
                self._under_way = (monotonic() - self._begun, completed)
            self._done = completed
        self._total = self._total if total is None else total

    def line(self, seconds: float) -> str:
        """What is said ``seconds`` after the beginning."""
        text = f": {self._done:,.0f} of {self._total:,.0f}, {span(seconds)} so far"
        since, done = self._first or (0.0, 0.0)
        if self._under_way is not None and self._done > self._under_way[1]:
            since, done = self._under_way
        if done < self._done < self._total:
            left = (seconds - since) * (self._total - self._done) / (self._done - done)
            text += f", about {span(max(0.0, min(left, self._budget_s - seconds)))} left"
        room = LINE_WIDTH - len("oppo: ") - len(text)
        return f"oppo: {fitting(self._description, room)}{text}"

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        while not self._over.wait(LINE_SECONDS):
            click.echo(self.line(monotonic() - self._begun), err=True)


def fitting(description: str, room: int) -> str:
    """What is being done, in ``room`` columns: the name in front of it, which the user gave, leaves first."""
    if len(description) > room:
        description = description.partition(": ")[2] or description
    return description if len(description) <= room else f"{description[: room - 1]}…"


def span(seconds: float) -> str:
    """A duration of a command for people: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def is_quiet() -> bool:
    """The command was given ``--quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def say_notes(sentences: Iterable[str]) -> None:
    """What a user should know, on standard error; nothing where the command is to be quiet."""
    from oppo_sim.text_lines import in_lines, text_width

    for sentence in () if is_quiet() else sentences:
        click.echo(in_lines(f"note: {sentence}", text_width(errors=True)), err=True)


def _hush(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_QUIET] = value
    if value and warnings.showwarning is show_warning:  # not what a caller in Python has set
        warnings.showwarning = hide_warning


QUIET = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_hush,
    help="No progress, notes or warnings on standard error; errors are still said.",
)


def with_quiet(command: click.Command) -> click.Command:
    """A command, or all below a group, with ``--quiet``."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_quiet(each)
    elif not any("--quiet" in parameter.opts for parameter in command.params):
        QUIET(command)
    return command


@contextmanager
def progress_bar(
    description: str, total: int, quiet: bool, budget_s: float = inf
) -> "Iterator[tuple[Bar, TaskID]]":
    """Progress with the time left, on standard error; none where ``quiet`` or the command was told to be.
    ``budget_s``: it takes no longer."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

    console, silent = Console(stderr=True), quiet or is_quiet()
    if not silent and not console.is_terminal:
        with Lines(description, total, budget_s) as lines:
            yield lines, TaskID(0)
        return
    columns = (_doing_column(console.width), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        yield progress, progress.add_task(description, total=total)


def _doing_column(width: int) -> "ProgressColumn":
    """What is being done, as much as a line of ``width`` holds beside a short bar, the count and the time."""
    from rich.progress import ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class Doing(ProgressColumn):
        def render(self, task: "Task") -> Text:
            count = 2 * len(f"{task.total or 0:.0f}") + len("/")
            room = max(_SHORT_BAR, width - count - len("0:00:00") - _SHORT_BAR - len("   "))
            return Text(fitting(task.description, room))  # a scenario's name may hold brackets: no markup

    return Doing(table_column=Column(no_wrap=True))


@contextmanager
def told_progress(name: str, doing: str, quiet: bool, total: int = 1) -> "Iterator[OnProgress]":
    """What ``compare``, ``sweep``, ``tune`` and ``fit`` tell, with the best so far.

    Telling raises KeyboardInterrupt where Ctrl-C or SIGTERM was answered and a library swallowed it.
    """
    with progress_bar(f"{name}: {doing}", total, quiet) as (bar, task), _interrupts_noted() as interrupted:

        def show(at: "Told") -> None:
            if interrupted():
                raise KeyboardInterrupt
            rate = f", {at.simulated_steps / at.seconds:,.0f} steps/s" if at.seconds > 0.2 else ""
            best = f", best so far: {at.best}" if at.best else ""
            description = f"{name}: {at.doing}{rate}{best}"[:110]
            bar.update(task, completed=at.done, total=at.total, description=description)

        yield show


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C or SIGTERM came. Each is answered as it was before, too: the
    KeyboardInterrupt of that may be lost, as pandas and pydantic lose what is raised inside of some calls.

    Does nothing outside of the main thread, and for a signal that is ignored.
    """
    came = False
    before: dict[signal.Signals, Callable[[int, Any], Any]] = {}

    def note(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        before[signal.Signals(number)](number, frame)

    if current_thread() is main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            answer = signal.getsignal(number)
            if callable(answer):
                before[number] = answer
                signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        for number, answer in before.items():
            if signal.getsignal(number) is note:  # a SIGTERM that came has its default again
                signal.signal(number, answer)
