"""What the terminal shows of a finished run or comparison."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from oppo_sim import columns as c
from oppo_sim.cli.main import EXIT_INTERRUPTED
from oppo_sim.cli.progress import say_notes
from oppo_sim.cli.tables import (
    attribution_table,
    comparison_table,
    price_table,
    ranges_table,
    run_summary_table,
    shares_table,
    to_reward_table,
)
from oppo_sim.costs.evidence import evidence_text
from oppo_sim.plain_json import plain
from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.labels import other_lengths, policy_names
from oppo_sim.report.ranges import (
    drawn_words,
    ends_text,
    few_seeds_in,
    has_intervals,
    has_ranges,
    machine_sentence,
    over_words,
    own_sentence,
    published_sentence,
    replayed_sentence,
    widest_sentence,
)
from oppo_sim.report.run_text import run_lines
from oppo_sim.report.terminal import table_console
from oppo_sim.rewards import learning_of
from oppo_sim.runs.distributions import compared_shares
from oppo_sim.runs.statistics import TO_REWARD
from oppo_sim.text_lines import in_lines, say, text_width

if TYPE_CHECKING:
    import pandas as pd

    from oppo_sim.comparison.result import Comparison
    from oppo_sim.simulation_folder import StoredRun


def show_run(run: "StoredRun", as_json: bool, *, resumes: bool = False) -> int:
    """The summary of a run, simulated or real, on standard output; the exit code."""
    from oppo_sim.report.labels import clock_unit
    from oppo_sim.simulation_folder import run_record

    simulated, unit = str(run.manifest["kind"]).startswith("simulated"), clock_unit(run.manifest)
    if as_json:
        click.echo(run_record(run))
        if simulated:
            show_warnings(run.manifest)
    else:
        kept = run.steps.iloc[run.warmup_steps :]
        seconds = "decode iterations" if unit else f"{'simulated' if simulated else 'measured'} seconds"
        steps = f"{len(kept)} step{'' if len(kept) == 1 else 's'}"
        title = (
            f"{run.manifest['scenario']}, policy {run.policy}, {steps} after {run.warmup_steps} of"
            f" warm-up ({seconds})"
        )
        ends = run.manifest.get("machine", {}).get("intervals", {})
        table_console().print(run_summary_table(kept, title, unit, ends))
        counted = "num_gpus" in run.manifest and not unit
        for line in run_lines(kept, int(run.manifest["num_gpus"]) if counted else None, ends):
            say(line)
        if simulated:
            if sentence := machine_sentence(run.manifest):
                say(sentence)
            show_provenance(run.manifest)
        done = f" (interrupted after {len(run.steps)} steps)" if run.interrupted else ""
        say(f"wrote {run.folder}{done}")
    if not run.interrupted:
        return 0
    go_on = "; --resume goes on from the last checkpoint, with the same command" if resumes else ""
    told = (
        f"oppo: interrupted after {len(run.steps)} of {run.manifest['steps']} steps: {run.folder} is complete"
        f" up to there{go_on}"
    )
    click.echo(in_lines(told, text_width(errors=True)), err=True)
    return EXIT_INTERRUPTED


def show_comparison(
    comparison: "Comparison", title: str, folder: Path, manifest: Mapping[str, Any], as_json: bool
) -> None:
    """The comparison and its attribution, on standard output."""
    from oppo_sim.comparison.folder import comparison_record

    if as_json:
        click.echo(json.dumps(plain({"folder": str(folder), **comparison_record(comparison)}), indent=1))
        show_warnings(manifest)
        return

    console = table_console()
    kept = _baselines_once(comparison.table)
    names = policy_names(kept.index)
    table = kept.rename(index=names)
    if has_ranges(table):
        console.print(ranges_table(table, title))
        say("95 % of rollouts and machine, and of the rollouts alone; best: in so many draws and seeds\n")
    else:
        console.print(comparison_table(table, title))
        if has_intervals(table):
            say("95 % of the rollouts alone: without draws the machine is taken as given\n")
    console.print(
        price_table(table, "staleness: mean / max; length bias: against sequential; GPU-h/1k: 1,000 steps")
    )
    interval = " [95 %]" if has_intervals(table) else ""
    console.print(to_reward_table(table, f"to the target reward{interval}"))
    for name, shares in compared_shares(comparison.cells).items():
        if shares.shape[1] > 1:
            # The others train on policy, or defer nothing.
            spread = shares[shares.iloc[:, 0] < 1 - 1e-9].rename(index=names)
            console.print(shares_table(spread, name, "all others: 0" if len(spread) < len(shares) else ""))
    if comparison.attribution.notna().any(axis=None):
        console.print(attribution_table(comparison.attribution.rename(index=names), "where the time went"))
    for sentence in _own_baselines(comparison, names):
        say(sentence)
    say(_best_sentence(comparison, names))
    if sentence := own_sentence(manifest):
        say(sentence)
    if other := other_lengths(float(comparison.table[c.LENGTH_BIAS_PAIRED][comparison.best])):
        say(f"{names.get(comparison.best, comparison.best)}: {other}")
    say(manifest["to_reward"]["sentence"])
    show_machine(manifest, table)
    if sentence := published_sentence(manifest):
        say(sentence)
    show_provenance(manifest)
    say(f"wrote {folder}")


def _baselines_once(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without baselines that equal a shorter-named one, such as plain ``sequential``, in every number."""
    baselines = sorted((name for name in table.index if name.partition(" (")[0] == BASELINE), key=len)
    values = table.select_dtypes("number")
    again = [
        name
        for at, name in enumerate(baselines)
        if any(values.loc[name].equals(values.loc[other]) for other in baselines[:at])
    ]
    return table.drop(index=again)


def _own_baselines(comparison: "Comparison", names: Mapping[str, str]) -> list[str]:
    """Which policies are compared with a sequential of their own, where its row is shown."""
    with_it: dict[str, list[str]] = {}
    for policy, base in (comparison.plan.baselines if comparison.plan is not None else {}).items():
        if base != BASELINE and base in names and policy != base:
            with_it.setdefault(names[base], []).append(names[policy])
    return [
        f"{base}: stops as {' and '.join(policies)} do{'es' if len(policies) == 1 else ''}, whose speed-up is"
        " against it"
        for base, policies in with_it.items()
    ]


def _best_sentence(comparison: "Comparison", names: Mapping[str, str]) -> str:
    """Which policy is the best, and which (≈) cannot be told apart from it. ``names``: of those that are
    shown."""
    best, plan = names.get(comparison.best, comparison.best), comparison.plan
    alike = [names[policy] for policy in comparison.alike if policy in names]
    effects = 0 if plan is None else len(learning_of(plan.scenario.rewards, plan.steps).effect.draws)
    over = over_words("the seeds", drawn_words(comparison.ranges is not None, comparison.objective, effects))
    slower = "slower"
    if comparison.objective == TO_REWARD:
        best, slower = f"{best}, to the target reward", "later there"
    elif comparison.best != BASELINE:
        best = f"{best}, {_gain(comparison.table, comparison.best)}"
    if len(names) == 1:
        return f"best: {best}; no other policy was compared with it (--policies)"
    if plan is not None and len(plan.seeds) < 2 and comparison.ranges is None and not alike:
        return f"best: {best}; with one seed nothing can be said about which differences are real"
    if not alike:
        return f"best: {best}; every other policy is significantly {slower} over {over}"
    near = "" if plan is None or not plan.practical else f", or within {100 * plan.practical:g} % of it"
    found = f"best: {best}; ≈ {', '.join(alike)}: not told apart from it over {over}{near}"
    if plan is None:
        return found
    few = few_seeds_in(comparison.table, comparison.best, comparison.alike, len(plan.seeds), plan.practical)
    return f"{found}; {few}" if few else found


def _gain(table: "pd.DataFrame", policy: str) -> str:
    """Its speed-up, again: the table may have left the screen."""
    names = (
        (c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH) if has_ranges(table) else (c.SPEEDUP_LOW, c.SPEEDUP_HIGH)
    )
    gain = float(table[c.SPEEDUP][policy])
    low, high = (float(table[name][policy]) if has_intervals(table) else np.nan for name in names)
    return f"{gain:.2f}× {ends_text(low, high, gain)}".rstrip()


def show_machine(manifest: Mapping[str, Any], table: "pd.DataFrame") -> None:
    """What the intervals of the machine rest on, and which unknown widens them most."""
    widest = widest_sentence(table) if has_ranges(table) else ""
    replayed = replayed_sentence(manifest["trace"].get("sampling"), len(manifest["seeds"]))
    for sentence in filter(None, (replayed, machine_sentence(manifest), widest)):
        say(sentence)


def show_provenance(manifest: Mapping[str, Any]) -> None:
    """One line that says how well the seconds of each stage are known, and the warnings."""
    costs = manifest["costs"]
    known = evidence_text(costs.get("evidence", {})) or "costs of unknown origin"
    trace = manifest["trace"]
    named = trace.get("name") or trace.get("path") or f"synthetic, {trace['synth']['distribution']}"
    say(f"costs: {costs.get('kind')} ({known}); trace: {named}")
    show_warnings(manifest)


def show_warnings(manifest: Mapping[str, Any]) -> None:
    """What is likely not meant, on standard error."""
    say_notes(manifest["warnings"])
