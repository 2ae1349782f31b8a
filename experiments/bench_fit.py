"""How long `oppo fit` takes on a log of 200 steps, everything that the command does.

    python experiments/bench_fit.py
    python experiments/bench_fit.py -o experiments/results/fast/fit.json

Two logs: the first 200 steps of the public GPG run (5,120 rollouts a step, experiments/public_gpu), and a
simulated verl run of 200 steps of 512 rollouts. Each command runs in a process of its own, as a user types
it. Printed: seconds, and seconds of processor time of all its processes.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments" / "public_gpu")]
STEPS = 200


def public(folder: Path) -> tuple[Path, Path]:
    """Log and scenario of the GPG run."""
    from logs import write_log
    from steps import public_runs

    run = next(each for each in public_runs() if each.source == "gpg")
    scenario = folder / "gpg.yaml"
    trace = {"synth": {"distribution": "lognormal", "mean": 250.0, "p99": 1000.0}, "prompt_length": 100}
    scenario.write_text(yaml.safe_dump({**run.scenario, "trace": trace}), encoding="utf-8")
    return write_log(run.steps[:STEPS], folder / "gpg.jsonl"), scenario


def simulated(folder: Path) -> tuple[Path, Path]:
    """Log and scenario of a run of ours, as verl would print it."""
    from tests.fit_logs import TRUTH, fit_scenario, verl_log

    scenario = fit_scenario(steps=STEPS, rollout_batch_size=512)
    path = folder / "simulated.yaml"
    path.write_text(scenario.to_yaml(), encoding="utf-8")
    return verl_log(folder / "simulated.log", scenario, TRUTH, steps=STEPS, noise=0.02), path


def timed(log: Path, scenario: Path, folder: Path) -> dict[str, Any]:
    """Seconds of ``oppo fit``. Raises RuntimeError if it failed."""
    command = [
        sys.executable, "-m", "oppo_sim.cli.main", "fit", str(log), "--scenario", str(scenario),
        "-o", str(folder), "--json", "-q",
    ]  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record = json.loads(done.stdout)
    return {"seconds": round(seconds, 1), "cpu_seconds": round(used, 1), "steps": record["logs"][0]["steps"]}


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSON file to write.")
def main(output: Path | None) -> None:
    """Print the seconds."""
    result: dict[str, Any] = {"load_average_before": [round(each, 1) for each in os.getloadavg()]}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for name, made in (("public GPG run", public(folder)), ("simulated verl run", simulated(folder))):
            result[name] = timed(*made, folder / f"fit-{len(result)}")
    text = json.dumps(result, indent=1)
    print(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
