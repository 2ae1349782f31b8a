"""The ``oppo`` command: finds the subcommand, and says every error in one sentence."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple, NoReturn, TextIO

import click

from oppo_sim.cli.progress import with_quiet
from oppo_sim.errors import OppoError, outside_gathered, outside_sentence, show_warning
from oppo_sim.given_command import given_command

LONGEST_WORD = 300
"""Of an error: longer paths are rare."""
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_TERMINATED = 143  # 128 + SIGTERM
EXIT_BROKEN_PIPE = 1  # as click gives


class Subcommand(NamedTuple):
    """Where a subcommand lives (imported when it is used), and its line in ``oppo --help``."""

    module: str
    summary: str
    attribute: str = "command"


SUBCOMMANDS = {
    "simulate": Subcommand("oppo_sim.cli.simulate", "Run one policy on a scenario and report every step."),
    "compare": Subcommand("oppo_sim.cli.compare", "Run several policies on the same rollouts, side by side."),
    "sweep": Subcommand("oppo_sim.cli.sweep", "Simulate many configurations of a scenario and rank them."),
    "tune": Subcommand("oppo_sim.cli.tune", "Find the best policy and knobs under constraints."),
    "fit": Subcommand("oppo_sim.cli.fit", "Fit the costs of a scenario to your training logs."),
    "report": Subcommand("oppo_sim.cli.report", "Make a one-file HTML report of run folders."),
    "doctor": Subcommand("oppo_real.cli.doctor", "Look at this machine before real runs."),
    "run": Subcommand("oppo_real.cli.run", "Make one real run of a scenario on real engines."),
    "calibrate": Subcommand("oppo_real.cli.calibrate", "Measure real engines and write a cost profile."),
    "validate": Subcommand(
        "oppo_real.cli.validate", "Run policies for real and compare with their predictions."
    ),
    "scenario": Subcommand(
        "oppo_sim.cli.scenario", "List, write, show and check scenario files.", "scenario"
    ),
    "costs": Subcommand("oppo_sim.cli.costs", "Make tables of measured kernels.", "costs"),
    "trace": Subcommand(
        "oppo_sim.cli.trace", "List, show, import, fit, make and convert length traces.", "trace"
    ),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        subcommand = SUBCOMMANDS.get(cmd_name)
        if subcommand is None:
            return None
        return with_quiet(getattr(import_module(subcommand.module), subcommand.attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            close = _in_groups(args[0]) or [
                f"'{name}'" for name in get_close_matches(args[0], (*SUBCOMMANDS, "--help"), n=1)
            ]
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(SUBCOMMANDS)}"
            ctx.fail(f"No such command '{args[0]}': {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, subcommand.summary) for name, subcommand in SUBCOMMANDS.items()])


def _in_groups(name: str) -> list[str]:
    """Groups that have a command of this name: ``oppo list`` is asked for, too."""
    groups = {
        group: getattr(import_module(subcommand.module), subcommand.attribute)
        for group, subcommand in SUBCOMMANDS.items()
        if subcommand.attribute == group
    }
    return [f"'oppo {group} {name}'" for group, commands in groups.items() if name in commands.commands]


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"oppo {version('oppo-toolkit')}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def oppo() -> None:
    """Choose chunk size, overcommit and scheduling policy of PPO-based RLHF from a response-length trace.

    \b
    Start:
      oppo scenario init -o mine.yaml            asks for your model and GPUs
      oppo compare mine.yaml                     policies side by side on them
      oppo fit train.log --scenario mine.yaml    seconds of a run that you made
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors are one sentence on stderr."""
    try:
        # Standalone mode would print click's own errors over several lines, and hide a full disk behind a
        # traceback.
        words = list(sys.argv[1:] if arguments is None else arguments)
        _refuse_unreadable(words)
        with given_command(("oppo", *words)):
            result = oppo.main(words, prog_name="oppo", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except OppoError as error:
        return _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        return EXIT_ERROR
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _asked_path(words)
        return _fail(f"{_mended(error)} (see '{path} --help')")
    except click.ClickException as error:
        return _fail(error.format_message())
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for the end of what is typed
            return _fail(
                f"a file ends too early ({error.__cause__}): if Python's bytecode was cut off, as by a full"
                " disk, delete the environment's __pycache__ folders"
            )
        asked = isinstance(error, click.Abort) and error.__cause__ is None  # its line has not ended
        said = "oppo: interrupted: what was not finished is not kept"
        print(f"\n{said}" if asked else said, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _discard_if_broken(sys.stdout)
        named = f" {error.filename}" if error.filename is not None else ""
        return _fail(f"cannot read or write{named}: {error.strerror or error}")
    except RuntimeError as error:
        if (told := _of_a_gpu(error)) is None:
            raise
        return _fail(told)
    except MemoryError:
        return _fail("out of memory: use a smaller trace, fewer steps or fewer processes")


def _of_a_gpu(error: RuntimeError) -> str | None:
    """What CUDA refused, from outside the engines that say it themselves; None: something else went wrong."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    reason = " ".join(str(error).split("\n\n")[0].split()[:60])
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"a GPU has no room left ({reason}): give smaller models or batches, bfloat16, a"
            " rollout.kv_capacity_tokens, or other real.devices; oppo doctor SCENARIO says what is needed"
        )
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return f"a GPU failed ({reason}): see nvidia-smi and the kernel's log, then run it again"
    return None


def _asked_path(words: Sequence[str]) -> str:
    """The command that was meant, where click does not say."""
    known = list(words[:1]) if words[:1] and words[0] in SUBCOMMANDS else []
    group = SUBCOMMANDS[known[0]].attribute == known[0] if known else False
    if group and len(words) > 1 and not words[1].startswith("-"):
        known.append(words[1])
    return " ".join(["oppo", *known])


def _mended(error: click.UsageError) -> str:
    """What click says, and how to mend it where click does not know."""
    message = error.format_message().rstrip(".")
    message = message.replace("not a valid integer range", "no whole number")
    message = message.replace("not a valid float range", "no number")
    lacks = error.param.name if isinstance(error, click.MissingParameter) and error.param else None
    if lacks in ("scenario", "scenarios"):
        return f"{message}: a file, or a name that 'oppo scenario list' shows"
    sets = error.ctx and any("--set" in parameter.opts for parameter in error.ctx.command.params)
    if isinstance(error, click.NoSuchOption) and isinstance(error.ctx and error.ctx.command, click.Group):
        return f"No such option '{error.option_name}': options go behind the name of their command"
    if isinstance(error, click.NoSuchOption) and sets:
        close = get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.75)
        hint = f"did you mean '{close[0]}'?" if close else "fields of a scenario are set by --set FIELD=VALUE"
        return f"No such option '{error.option_name}': {hint}"
    return message


def _refuse_unreadable(words: Sequence[str]) -> None:
    """Results name files, and are UTF-8. Raises OppoError for a word that cannot be."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise OppoError(
                f"'{shown}' is no text in this locale: set LC_ALL=C.UTF-8, or rename a file whose name is not"
                " UTF-8"
            ) from None


def main() -> NoReturn:
    """Entry point of the ``oppo`` script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Δ must not end in a traceback.
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = show_warning
    terminated: list[int] = []

    def end(number: int, _frame: object) -> None:
        """As Ctrl-C: what is finished is kept, processes and semaphores are given back."""
        terminated.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    code = run()
    if gathered := outside_gathered():
        _say(f"oppo: warning: {outside_sentence(gathered)}")
    sys.exit(EXIT_TERMINATED if terminated and code == EXIT_INTERRUPTED else code)


def _fail(sentence: str) -> int:
    _say(f"oppo: error: {' '.join(map(_short, sentence.split()))}")
    return EXIT_ERROR


def _say(sentence: str) -> None:
    """On standard error; as wide as a terminal."""
    from oppo_sim.text_lines import in_lines, text_width

    try:
        print(in_lines(sentence, text_width(errors=True)), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _short(word: str) -> str:
    """A word as it is, or the ends of one that nobody can read: a file may hold it as a name."""
    return word if len(word) <= LONGEST_WORD else f"{word[:200]}…{word[-60:]}"


def _discard_if_broken(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Point a stream nowhere, so that the interpreter's last flush does not fail again."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main()
