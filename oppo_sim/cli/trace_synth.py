"""``oppo trace synth``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli.trace_common import (
    AS_JSON,
    FORCE,
    OUTPUT,
    as_plain,
    in_short,
    note,
    print_json,
    refuse_output,
)
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from oppo_sim.traces.config import SynthConfig
    from oppo_sim.traces.stats import TraceStats


@click.command("synth")
@click.option(
    "--distribution",
    type=click.Choice(["lognormal", "weibull", "mixture"]),
    help="Of the lengths before the cut [lognormal].",
)
@click.option("--mean", type=float, help="Target: mean length, tokens.")
@click.option("--p50", type=float, help="Target: median length, tokens.")
@click.option("--p99", type=float, help="Target: 99 % of the responses are not longer, tokens.")
@click.option("--clip-ratio", type=float, help="Target: share of responses cut at --max-response-length.")
@click.option(
    "--tail-weight", type=float, help="Share of the longer component of a mixture with three targets."
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter instead of targets, e.g. mu=6.2; repeatable.",
)
@click.option("--like", metavar="NAME_OR_PATH", help="Fit this trace and take the best distribution.")
@click.option("--max-response-length", type=int, help="Cut responses here, tokens.")
@click.option("--rows", type=int, help="Rollouts [10000].")
@click.option("--steps", type=int, help="Spread the rows over this many steps.")
@click.option(
    "--drift",
    type=click.Choice(["linear", "exponential", "table"]),
    help="How lengths change over the steps.",
)
@click.option(
    "--last-factor", type=float, help="Lengths of the last step relative to the first (linear, exponential)."
)
@click.option("--drift-table", help="Shipped per-step table to follow (table).")
@click.option("--drift-source", help="Run of that table.")
@click.option("--samples-per-prompt", type=int, help="Consecutive rows that share a prompt [1].")
@click.option("--prompt-correlation", type=float, help="How alike the samples of a prompt are, 0 to 1 [0].")
@click.option("--prompt-mean", type=float, help="Mean prompt length, tokens.")
@click.option("--prompt-p99", type=float, help="99 % of the prompts are not longer, tokens.")
@click.option("--tool-calls", type=float, help="Mean calls of tools a rollout: it waits for each answer.")
@click.option("--max-tool-calls", type=int, help="Calls of a rollout at most [8].")
@click.option("--tool-seconds", type=float, help="Mean seconds of a call.")
@click.option("--tool-seconds-p99", type=float, help="99 % of the calls are not longer [exponential].")
@click.option("--tool-timeout-s", type=float, help="A call ends after so many seconds.")
@click.option("--tool-tokens", type=float, help="Mean tokens of an answer [64].")
@click.option("--tool-tokens-p99", type=float, help="99 % of the answers are not longer, tokens.")
@click.option("--seed", type=int, help="Seed of the draws [0].")
@OUTPUT
@FORCE
@AS_JSON
def synth_command(
    like: str | None,
    params: tuple[str, ...],
    drift: str | None,
    last_factor: float | None,
    drift_table: str | None,
    drift_source: str | None,
    output: Path,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Make a synthetic trace from targets or another trace.

    Two of --mean, --p50, --p99 and --clip-ratio determine a lognormal or a Weibull, three or four a mixture.
    They describe the lengths after the cut, in the first step.

    \b
    Examples:
      oppo trace synth --mean 1200 --p99 7000 --rows 20000 -o lengths.parquet
      oppo trace synth --mean 900 --clip-ratio 0.05 \\
        --max-response-length 4096 -o cut.csv.gz
      oppo trace synth --p50 400 --p99 3000 --steps 200 --drift linear \\
        --last-factor 3 -o drift.parquet
      oppo trace synth --like serving_servegen_r1 --rows 1000000 -o big.parquet
      oppo trace synth --mean 1200 --p99 7000 --tool-calls 3 --tool-seconds 2 \\
        -o agents.parquet
    """
    from oppo_sim.traces.distributions import parameters_of
    from oppo_sim.traces.schema import content_hash
    from oppo_sim.traces.stats import trace_stats
    from oppo_sim.traces.storage import save_trace
    from oppo_sim.traces.synth import synthesise
    from oppo_sim.traces.targets import solve

    refuse_output(output, force)
    given = _with_tools({name: value for name, value in settings.items() if value is not None})
    if params:
        given["parameters"] = dict(_parameter(text) for text in params)
    if like is not None:
        given = {**_fitted(like, given), **given}
    drifting = {"kind": drift, "last_factor": last_factor, "table": drift_table, "source": drift_source}
    if any(value is not None for value in drifting.values()):
        if drift is None:
            raise click.UsageError(
                "--last-factor, --drift-table and --drift-source need --drift, the kind of drift"
            )
        given["drift"] = {name: value for name, value in drifting.items() if value is not None}
    config = _synth_config(given)
    frame = synthesise(config)
    save_trace(frame, output, overwrite=force)
    stats, distribution = trace_stats(frame), solve(config)
    if as_json:
        print_json(
            {
                "file": output.name,
                "content_sha256": content_hash(frame),
                "distribution": config.distribution,
                "parameters": parameters_of(distribution),
                "stats": as_plain(stats),
            }
        )
        return
    parameters = ", ".join(f"{key} {value:.4g}" for key, value in parameters_of(distribution).items())
    click.echo(f"wrote {output}: {in_short(stats)} ({config.distribution}, {parameters})")


_TOOLS = {
    "tool_calls": "mean_calls",
    "max_tool_calls": "max_calls",
    "tool_seconds": "mean_s",
    "tool_seconds_p99": "p99_s",
    "tool_timeout_s": "timeout_s",
    "tool_tokens": "mean_tokens",
    "tool_tokens_p99": "p99_tokens",
}


def _with_tools(given: dict[str, Any]) -> dict[str, Any]:
    tools = {field: given.pop(option) for option, field in _TOOLS.items() if option in given}
    if tools and not {"mean_calls", "mean_s"} <= set(tools):
        raise click.UsageError("calls of tools need --tool-calls and --tool-seconds: give both")
    return {**given, "tools": tools} if tools else given


def _synth_config(given: dict[str, Any]) -> "SynthConfig":
    from pydantic import ValidationError

    from oppo_sim.scenario.problems import problems_of
    from oppo_sim.traces.config import SynthConfig

    try:
        return SynthConfig.model_validate(given)
    except ValidationError as error:
        problem = problems_of(error, given, SynthConfig.model_json_schema())[0]
        raise OppoError(f"synthetic trace: {problem.sentence}") from None


def _fitted(like: str, given: dict[str, Any]) -> dict[str, Any]:
    from oppo_sim.traces.fit import fit_trace
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.stats import trace_stats

    clash = {"mean", "p50", "p99", "clip_ratio", "tail_weight", "parameters"} & set(given)
    if clash:
        raise click.UsageError(
            "--like takes the distribution from a trace: leave out the targets and --param"
        )
    frame = open_trace(like).frame
    result = fit_trace(frame)
    wanted = given.get("distribution", result.best.distribution)
    fit = next(each for each in result.fits if each.distribution == wanted)
    for warning in result.warnings:
        note(warning)
    if lost := _not_taken(trace_stats(frame), given):
        note(f"of {like} the lengths of responses are taken alone: {lost}")
    return {
        "distribution": fit.distribution,
        "parameters": fit.parameters,
        # A fitted tail goes on beyond what was seen: where the trace had a cut, keep it.
        **({"max_response_length": result.longest} if result.cut_rows else {}),
    }


def _not_taken(stats: "TraceStats", given: dict[str, Any]) -> str:
    """What a trace has and one like it has not, with the options that say it; empty where there is none."""
    lost = []
    if stats.turns_mean is not None and "tools" not in given:
        calls = stats.turns_mean - 1
        seconds, tokens = (stats.tool_seconds_mean or 0.0) / calls, (stats.tool_tokens_mean or 0.0) / calls
        options = f"--tool-calls {calls:.3g} --tool-seconds {seconds:.3g}"
        lost.append(f"its tools are {options}" + (f" --tool-tokens {tokens:.3g}" if tokens >= 1 else ""))
    if stats.prompt_known > 0.5 and "prompt_mean" not in given:
        lost.append(f"its prompts --prompt-mean {stats.prompt_mean:.4g}")
    return ", ".join(lost)


def _parameter(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        pass
    raise click.UsageError(
        f"--param '{text}' is not NAME=VALUE{' with a number' if sign else ''}, such as mu=6.2"
    )
