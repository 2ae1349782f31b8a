"""Options and parts that commands share."""

from collections.abc import Callable
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

import click

from oppo_sim.cli.main import EXIT_INTERRUPTED
from oppo_sim.errors import OppoError
from oppo_sim.run_files import MANIFEST

PATH = click.Path(path_type=Path)


def output(text: str) -> Callable[[Any], Any]:
    """``-o`` with its help."""
    return click.option("-o", "--output", type=PATH, help=text)


_TRACE = "oppo.trace"


def _take_trace(ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]) -> None:
    """Fields that ``--trace`` stands for; ``--set`` may follow them up."""
    if len(value) > 1:
        raise OppoError(f"--trace is given {len(value)} times ({', '.join(map(str, value))}): keep one")
    if value:
        from oppo_sim.scenario.overrides import own_trace

        ctx.meta[_TRACE] = own_trace(value[0])


def _after_trace(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return (*ctx.meta.get(_TRACE, ()), *value)


def overrides(command: Any) -> Any:
    """``--set`` and ``--trace``, together the command's ``overrides``."""
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="FIELD=VALUE",
        callback=_after_trace,
        help="Override a field, such as policy.overcommit=8; may be repeated.",
    )(command)
    return click.option(
        "--trace",
        type=PATH,
        metavar="FILE",
        multiple=True,
        expose_value=False,
        is_eager=True,
        callback=_take_trace,
        help="Your own lengths instead of the scenario's: a trace (oppo trace show FILE), a run's folder, or"
        " a shipped trace's name.",
    )(command)


STEPS = click.option("--steps", type=click.IntRange(1), help="Training steps instead of the scenario's.")
SEED = click.option("--seed", type=click.IntRange(0), help="Seed instead of the scenario's.")
OUTPUT = output("Run folder to write. Default: runs/SCENARIO-…; never overwritten.")
NUMBERED = output(
    "Run folder to write, never overwritten. Default: runs/SCENARIO-…, with -2, -3, … where that holds a"
    " finished run."
)
FORCE = click.option("--force", is_flag=True, help="Replace a run folder that this tool wrote.")
FIGURES = click.option("--figures/--no-figures", default=True, help="Draw PNG figures.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on standard output instead of a table."
)
EXECUTOR = click.option(
    "--executor",
    type=click.Choice(["serial", "processes", "ray"]),
    default="processes",
    help="Where to simulate. Results do not depend on it.",
)
JOBS = click.option("--jobs", type=click.IntRange(1, 10_000), help="Processes. Default: one a core.")
RAY_ADDRESS = click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="Of a running Ray cluster. Default: RAY_ADDRESS, else a local one.",
)


class Number(click.FloatRange):
    """A number in a range; no infinite one, nor what is none (nan)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def practical(default: float | None = 0.0) -> Callable[[Any], Any]:
    """``--practical``; None, where a file may say it: 0 unless it does."""
    return click.option(
        "--practical",
        type=Number(0, 1, max_open=True),
        metavar="SHARE",
        default=default,
        help="Differences from the best up to this share (0.01: 1 %) do not matter: marked ≈."
        + ("  [default: 0]" if default is None else ""),
    )


DEFAULT_DRAWS = 40
"""As ``runs.machine.DEFAULT_DRAWS``, which is not loaded for help."""


def draws(default: int | None, text: str) -> Callable[[Any], Any]:
    """``--draws`` with its help."""
    return click.option("--draws", type=click.IntRange(0, 10_000), default=default, help=text)


class StepRange(click.ParamType[tuple[int, int]]):
    """``FIRST:LAST``, two step numbers."""

    name = "FIRST:LAST"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, colon, last = str(value).partition(":")
        if not (colon and first.isdigit() and last.isdigit() and int(first) <= int(last)):
            self.fail(f"'{value}' is not a range of steps: give FIRST:LAST, such as 20:22", param, ctx)
        return int(first), int(last)


POLICY = click.option(
    "--policy",
    help="Policy instead of the scenario's: a name (oppo scenario policies), or path/to/file.py:ClassName."
    " oppo:chunk_size=256 has a setting of its own.",
)
TIMELINE = click.option(
    "--timeline", type=StepRange(), help="Steps on the timeline. Default: the three after the warm-up."
)


def names(text: str) -> tuple[str, ...]:
    """Of a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def policies(text: str) -> tuple[str, ...]:
    """Of ``--policies``. Raises OppoError where it names none."""
    if not (found := names(text)):
        raise OppoError(
            f"--policies '{text}' names no policy: give names such as sequential,oppo, or leave it out"
        )
    return found


def interrupted(kept: str) -> int:
    """Say what an interrupted command ``kept``, and that it can go on; the exit code."""
    from oppo_sim.text_lines import in_lines, text_width

    said = f"oppo: interrupted: {kept}, the same command goes on from there"
    click.echo(in_lines(said, text_width(errors=True)), err=True)
    return EXIT_INTERRUPTED


def safe_name(text: str) -> str:
    """``text`` as part of a folder name, at most 60 characters of it."""
    return (
        "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text[-60:]).strip("-.")
        or "run"
    )


def folder_to_write(
    output: Path | None, default: str, force: bool, goes_on: Callable[[Path], bool] = lambda _: False
) -> Path:
    """``output``; without it ``runs/DEFAULT``, or with a number behind it where that holds a finished run,
    which stays. ``force`` replaces it. Of the numbers the first whose folder is free, or of an unfinished run
    that ``goes_on``: ``force`` would not replace that one."""
    if output is not None:
        return output
    from oppo_sim.cli.progress import say_notes

    first = Path("runs") / default
    if force or not (first / MANIFEST).is_file():
        return first
    numbered = (first.with_name(f"{default}-{number}") for number in count(2))
    found = next(folder for folder in numbered if _is_free(folder) or goes_on(folder))
    say_notes(
        [f"{first} holds a finished run, which stays: this one goes to {found} (--force replaces {first})"]
    )
    return found


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
