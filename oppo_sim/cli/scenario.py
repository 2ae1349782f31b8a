"""``oppo scenario``: list, write, show and check scenario files."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import say_notes
from oppo_sim.errors import OppoError
from oppo_sim.report.terminal import told
from oppo_sim.text_lines import say

if TYPE_CHECKING:
    from oppo_sim.scenario.fresh_sections import Wanted


@click.group()
def scenario() -> None:
    """List, write, show and check scenario files."""


@scenario.command("list")
@options.JSON
def list_command(as_json: bool) -> None:
    """List the shipped scenarios."""
    from oppo_sim.scenario.load import load_scenario, shipped_scenarios

    names = shipped_scenarios()
    described = {name: " ".join(load_scenario(name).description.split()) for name in names}
    if as_json:
        listed = [{"name": name, "description": text} for name, text in described.items()]
        click.echo(json.dumps(listed, indent=1, ensure_ascii=False))
        return
    width = max(map(len, names))
    for name, text in described.items():
        click.echo(told(name, [f"{text.split('. ')[0].rstrip('.')}."], width))


@scenario.command("init", short_help="Write a commented scenario file to start from.")
@click.argument("name", required=False)
@click.option("--model", help="A model to train: a preset, or a path to a config.json.")
@click.option("--gpus", type=click.IntRange(1, 100_000), help="How many GPUs the job has.")
@click.option("--device", help="Which GPUs: oppo scenario devices.  [default: H100]")
@click.option("--engine", help="Generates: vllm, vllm-async, vllm-eager, sglang, trtllm, generate.")
@click.option("--framework", help="Trains: TRL, verl, OpenRLHF, slime, NeMo RL, AReaL, ROLL, prime-rl.")
@click.option("--no-critic", is_flag=True, default=None, help="GRPO and others: none, and rules as reward.")
@click.option("--lora-rank", type=click.IntRange(1, 4096), help="Adapters alone are trained, of this rank.")
@options.output("File to write; '-' writes to stdout. Default: NAME.yaml.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@options.JSON
def init_command(
    name: str | None, output: Path | None, force: bool, as_json: bool, **wanted: "str | int | None"
) -> None:
    """Write a commented scenario file to start from: a copy of the shipped scenario NAME; one for --model on
    --gpus, with where its numbers come from; or a minimal one. On a terminal, what is left out is asked."""
    from oppo_sim.files import new_file
    from oppo_sim.scenario.template import scenario_text

    given = any(value is not None for value in wanted.values())
    if given and name is not None:
        raise click.UsageError(
            "a copy of NAME takes no --model, --gpus, --device, --engine, --framework, --no-critic or"
            " --lora-rank"
        )
    if given or (name is None and sys.stdin.isatty() and sys.stdout.isatty()):
        printed = output is None or str(output) == "-"
        text = _fresh("scenario.yaml" if printed else str(output), **wanted)
    else:
        text = scenario_text(name)
    if output is not None and str(output) == "-":
        if as_json:
            raise click.UsageError("-o - prints the file itself: leave out --json")
        click.echo(text, nl=False)
        return
    target = output or Path(f"{name or 'scenario'}.yaml")
    with new_file(target, overwrite=force) as partial:
        partial.write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"file": str(target)}))
        return
    say(f"wrote {target}; check it with: oppo scenario validate {target}")


def _fresh(file: str, **given: "str | int | None") -> str:
    """A file for what is wanted. Where that does not fit and the GPUs were asked for, they are asked for
    again. Raises OppoError otherwise."""
    from oppo_sim.scenario.fresh import fresh_text

    wanted = _wanted(**given)
    while True:
        try:
            return fresh_text(wanted, file)
        except OppoError as error:
            if given["gpus"] is not None or not _on_terminal():
                raise
            say(str(error))
        wanted = replace(wanted, gpus=_gpus())


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _gpus() -> int:
    return int(click.prompt("GPUs", default=8, type=click.IntRange(1, 100_000)))


def _wanted(**given: "str | int | None") -> "Wanted":
    """What is given, the rest by default, or asked for on a terminal, until each answer can be taken. Raises
    UsageError where model or GPUs are missing and nobody can be asked."""
    from oppo_sim.costs.devices import find_device
    from oppo_sim.costs.models import find_model
    from oppo_sim.scenario.fresh import DEFAULT_ENGINE, check_engine
    from oppo_sim.scenario.fresh_sections import ENGINES, Wanted
    from oppo_sim.tune.frameworks.catalog import framework

    asks = _on_terminal()
    missing = [f"--{name}" for name in ("model", "gpus") if given[name] is None]
    if missing and not asks:
        raise click.UsageError(
            f"Missing option {' and '.join(missing)}, which is asked for on a terminal only"
        )

    def ask(name: str, text: str, default: str, check: "Callable[[str], object]") -> str:
        value = given[name]
        while value is None and asks:
            answer = click.prompt(text, default=default)
            try:
                check(answer)
            except OppoError as error:
                say(str(error))
            else:
                return str(answer)
        told = default if value is None else str(value)
        check(told)
        return told

    def trainer(text: str) -> str | None:
        return None if text == "none" else framework(text).name

    checks: Mapping[str, Callable[[str], object]] = {
        "model": find_model, "device": find_device, "framework": trainer, "engine": check_engine
    }  # fmt: skip
    for name, check in checks.items():  # what is given, before anything is asked
        if given[name] is not None:
            check(str(given[name]))
    model = ask("model", "Model (oppo scenario models, or a config.json)", "qwen2.5-7b", find_model)
    gpus = given["gpus"] if given["gpus"] is not None else _gpus()
    device = ask("device", "Which GPUs (oppo scenario devices)", "H100", find_device)
    trains = trainer(ask("framework", "Framework that trains (verl, slime, TRL, …; none)", "none", trainer))
    default = DEFAULT_ENGINE.get(trains or "", "vllm")
    engine = ask("engine", f"Engine ({', '.join(ENGINES)})", default, check_engine)
    rank = int(given["lora_rank"] or 0)
    return Wanted(model, int(gpus), device, engine, trains, bool(given["no_critic"]), rank)


@scenario.command("devices", short_help="List the devices that costs.device knows.")
@options.JSON
def devices_command(as_json: bool) -> None:
    """List the devices that costs.device knows, with the datasheet of each."""
    from oppo_sim.costs.devices import DEVICES

    if as_json:
        click.echo(json.dumps([one.model_dump() for one in DEVICES.values()], indent=1, ensure_ascii=False))
        return
    width = max(map(len, DEVICES))
    for name, one in DEVICES.items():
        rates = (
            f"{one.hbm_bytes / 2**30:>6.1f} GiB {one.hbm_bytes_per_s / 1e12:>5.2f} TB/s"
            f" {one.bf16_flops / 1e12:>5.0f} TFLOP/s bf16 {one.link_bytes_per_s / 1e9:>4.0f} GB/s link"
        )
        click.echo(f"{name:<{width}} {rates}")
    say("\nPeaks; datasheets: --json. Another one's rates go inline under costs.device (docs/costs.md).")


@scenario.command("models", short_help="List the models that are known by name.")
@options.JSON
def models_command(as_json: bool) -> None:
    """List the models whose shapes are known by name, from their public config.json."""
    from oppo_sim.costs.models import MODELS

    if as_json:
        shapes = [
            {"name": name, "parameters": one.parameters, **one.model_dump()} for name, one in MODELS.items()
        ]
        click.echo(json.dumps(shapes, indent=1))
        return
    width = max(map(len, MODELS))
    for name, one in MODELS.items():
        experts = f", {one.num_experts} experts, {one.num_experts_per_tok} a token" if one.num_experts else ""
        kv = one.kv_bytes_per_token(2) / 2**10
        state = one.state_bytes_per_rollout(2) / 2**20
        kept = f" and {state:.0f} MiB a rollout" if state else ""
        say(
            f"{name:<{width}} {one.parameters / 1e9:>7.2f} B params {one.num_hidden_layers:>3} layers"
            f" {kv:>4.0f} KiB KV a token{kept}{experts}"
        )
    say("\nAny other: a path to its config.json, or its shape inline (docs/costs.md).")


@scenario.command("policies", short_help="List policies, their settings, and who runs them.")
@options.JSON
def policies_command(as_json: bool) -> None:
    """List the policies that policy.name and --policy know: what each does, its settings with their defaults,
    and the frameworks that run it as it is simulated."""
    from oppo_sim.policies.listing import listed_policies
    from oppo_sim.tune.frameworks.catalog import frameworks_of

    found = listed_policies()
    if as_json:
        records = [{**one.record(), "frameworks": frameworks_of(one.name)} for one in found]
        click.echo(json.dumps(records, indent=1, ensure_ascii=False))
        return
    from oppo_sim.report.labels import option_text

    def short(value: object) -> str:
        control = value.get("control") if isinstance(value, dict) else None
        return f"{{control: {control}}}" if control else option_text(value)

    width = max(len(one.name) for one in found)
    for one in found:
        settings = ", ".join(f"{each.name} {short(each.default)}" for each in one.settings)
        runs = ", ".join(frameworks_of(one.name))
        lines = [one.summary or one.source, settings and f"settings: {settings}", runs and f"runs in: {runs}"]
        click.echo(told(one.name, filter(None, lines), width))
    last = (
        "Settings, with their defaults, go under policy: in a scenario, or --set policy.NAME=VALUE; what each"
        " means: --json. Runs in: frameworks that do it as it is simulated (oppo tune --framework). Your own:"
        " path/to/file.py:ClassName (docs/policies.md)."
    )
    say(f"\n{last}")


@scenario.command("show", short_help="Show a scenario with every default written out.")
@click.argument("name_or_path", required=False)
@options.overrides
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
@click.option("--schema", is_flag=True, help="The JSON schema of scenario files instead of a scenario.")
def show_command(name_or_path: str | None, overrides: tuple[str, ...], as_json: bool, schema: bool) -> None:
    """Show a scenario with its defaults written out and other frameworks' names translated."""
    from oppo_sim.scenario.json_schema import json_schema
    from oppo_sim.scenario.load import load_scenario

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
        say_notes(loaded.translations)
        click.echo(json.dumps(loaded.to_plain(), indent=2, ensure_ascii=False))
        return
    click.echo(f"# {loaded.source}, content hash {loaded.content_hash[:16]}")
    for sentence in loaded.translations:
        click.echo(f"# {sentence}")
    click.echo(loaded.to_yaml(), nl=False)


@scenario.command("validate", short_help="Check that a scenario can run.")
@click.argument("path")
@options.overrides
@options.JSON
def validate_command(path: str, overrides: tuple[str, ...], as_json: bool) -> None:
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
    say_notes(warnings)
    count = 1 + len(loaded.policies)
    if as_json:
        policies = [loaded.policy.name, *loaded.policies]
        record = {"scenario": loaded.name, "source": loaded.source, "valid": True, "steps": loaded.steps}
        click.echo(json.dumps({**record, "policies": policies, "notes": warnings}, indent=1))
        return
    say(
        f"{loaded.source}: valid ({loaded.name}, {loaded.steps} steps, {count}"
        f" {'policy' if count == 1 else 'policies'})"
    )
