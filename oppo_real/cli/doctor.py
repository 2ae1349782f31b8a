"""``oppo doctor``: what is on this node, whether a scenario fits it, what would be measured."""

import click

from oppo_sim.cli import options

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("PROBLEM", "red")}
_INDENT = 9
EXIT_PROBLEM = 1


@click.command(epilog="Example: oppo doctor my.yaml   # before oppo calibrate and oppo validate")
@click.argument("scenario", required=False)
@options.overrides
@options.JSON
def command(scenario: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Look at this machine before anything starts: cores, memory, GPUs, links, MPS, torch, vLLM; with
    SCENARIO also its engines, devices and memory, and what calibrate and validate would measure.

    Nothing is built or measured. Exits with 1 if there is a problem.
    """
    import json

    from oppo_real.doctor import node_checks, scenario_checks, with_gpus_of_torch
    from oppo_real.node import this_node
    from oppo_real.placement.engines import require_engine
    from oppo_sim.plain_json import plain
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.text_lines import in_lines, text_width

    loaded = None if scenario is None else load_scenario(scenario, overrides)
    node = with_gpus_of_torch(this_node())
    checks = list(node_checks(node))
    if loaded is not None:
        require_engine("torch")
        checks += scenario_checks(node, loaded)
    failed = any(check.state == "problem" for check in checks)
    if as_json:
        rows = [
            {"subject": one.subject, "state": one.state, "told": one.told, "mend": one.mend} for one in checks
        ]
        click.echo(json.dumps(plain({"node": node.to_plain(), "checks": rows}), indent=1))
        return EXIT_PROBLEM if failed else 0
    width = text_width()
    for check in checks:
        mark, colour = _MARKS[check.state]
        told = in_lines(f"{check.subject}: {check.told}", width and width - _INDENT).split("\n")
        mend = in_lines(check.mend, width and width - _INDENT - 2).split("\n") if check.mend else []
        click.echo(f"{click.style(f'{mark:8}', fg=colour)} {told[0]}")
        for line in (*told[1:], *mend):
            click.echo(f"{'':{_INDENT}}  {line.strip()}")
    return EXIT_PROBLEM if failed else 0
