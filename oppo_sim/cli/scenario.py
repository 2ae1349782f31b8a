"""``oppo scenario``: list, write, show and check scenario files."""

import json
import sys
from pathlib import Path

import click

from oppo_sim.cli import options


@click.group()
def scenario() -> None:
    """List, write, show and check scenario files."""


@scenario.command("list")
def list_command() -> None:
    """List the shipped scenarios."""
    from oppo_sim.scenario.load import load_scenario, shipped_scenarios

    names = shipped_scenarios()
    width = max(map(len, names))
    for name in names:
        first_sentence = " ".join(load_scenario(name).description.split()).split(". ")[0].rstrip(".")
        click.echo(f"{name:<{width}}  {first_sentence}.")


@scenario.command("init", short_help="Write a commented scenario file to start from.")
@click.argument("name", required=False)
@options.output("File to write; '-' writes to stdout. Default: NAME.yaml.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def init_command(name: str | None, output: Path | None, force: bool) -> None:
    """Write a commented scenario file to start from: a copy of the shipped scenario NAME, or a minimal
    one."""
    from oppo_sim.files import new_file
    from oppo_sim.scenario.template import scenario_text

    text = scenario_text(name)
    if output is not None and str(output) == "-":
        click.echo(text, nl=False)
        return
    target = output or Path(f"{name or 'scenario'}.yaml")
    with new_file(target, overwrite=force) as partial:
        partial.write_text(text, encoding="utf-8")
    click.echo(f"wrote {target}; check it with: oppo scenario validate {target}")


@scenario.command("show", short_help="Show a scenario with every default written out.")
@click.argument("name_or_path", required=False)
@options.overrides
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
@click.option("--schema", is_flag=True, help="The JSON schema of scenario files instead of a scenario.")
def show_command(name_or_path: str | None, overrides: tuple[str, ...], as_json: bool, schema: bool) -> None:
    """Show a scenario with its defaults written out and other frameworks' names translated."""
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.scenario.schema import json_schema

    if schema:
        if name_or_path is not None or overrides:
            raise click.UsageError(
                "--schema is the same for every scenario: leave out NAME_OR_PATH and --set"
            )
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return
    if name_or_path is None:
        raise click.UsageError("Missing argument 'NAME_OR_PATH', or --schema")
    loaded = load_scenario(name_or_path, overrides)
    if as_json:
        _say_translations(loaded.translations)
        click.echo(json.dumps(loaded.to_plain(), indent=2, ensure_ascii=False))
        return
    click.echo(f"# {loaded.source}, content hash {loaded.content_hash[:16]}")
    for sentence in loaded.translations:
        click.echo(f"# {sentence}")
    click.echo(loaded.to_yaml(), nl=False)


@scenario.command("validate", short_help="Check that a scenario can run.")
@click.argument("path")
@options.overrides
def validate_command(path: str, overrides: tuple[str, ...]) -> None:
    """Check that a scenario can run: its fields, its trace, its cost model, memory, and every policy that it
    names.

    A policy given as file.py:ClassName is imported, that is, its file is run.
    """
    from oppo_sim.scenario.build import build_setup
    from oppo_sim.scenario.load import load_scenario

    loaded = load_scenario(path, overrides)
    warnings = list(loaded.translations)
    for policy in (loaded.policy.name, *loaded.policies):
        warnings += [text for text in build_setup(loaded, policy=policy).warnings if text not in warnings]
    _say_translations(warnings)
    count = 1 + len(loaded.policies)
    click.echo(
        f"{loaded.source}: valid ({loaded.name}, {loaded.steps} steps, {count}"
        f" {'policy' if count == 1 else 'policies'})"
    )


def _say_translations(sentences: list[str] | tuple[str, ...]) -> None:
    for sentence in sentences:
        print(f"note: {sentence}", file=sys.stderr)
