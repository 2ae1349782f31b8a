"""How long a comparison with draws of the machine takes: 100 draws × 5 seeds × 5 policies × 100 steps.

    python experiments/bench_draws.py                                  # h200-single, two processes
    python experiments/bench_draws.py -o experiments/results/draws.json

Each command runs in a process of its own, as a user types it, in an empty folder; the compiled path is made
before. Printed: seconds of the command without draws and with them, of processor time too, and what it says.
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


def timed(scenario: str, folder: Path, *options: str) -> dict[str, Any]:
    """Seconds of ``oppo compare``, and its result. Raises RuntimeError if it failed."""
    command = [sys.executable, "-m", "oppo_sim.cli.main", "compare", scenario, "--json", *options]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(seconds, 2), "cpu_seconds": round(used, 2), "result": json.loads(done.stdout)}


@click.command()
@click.option("--scenario", default="h200-single", show_default=True)
@click.option("--draws", default=100, show_default=True)
@click.option("--seeds", default=5, show_default=True)
@click.option("--steps", default=100, show_default=True)
@click.option("--policies", default="sequential,rollout-overlap,intra,inter,oppo", show_default=True)
@click.option("--jobs", default=2, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSON file to write.")
def main(
    scenario: str, draws: int, seeds: int, steps: int, policies: str, jobs: int, output: Path | None
) -> None:
    """Print the seconds."""
    options = ("--policies", policies, "--seeds", str(seeds), "--steps", str(steps), "--jobs", str(jobs))
    os.environ["OPPO_ENGINE"] = "compiled"
    load = os.getloadavg()  # on busy cores the seconds say little, and processor time more than it should
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        timed(scenario, folder, "--steps", "20", "--seeds", "1", "--draws", "0", "-o", "warm")
        for name, count in (("without", 0), ("default", None), ("with", draws)):
            asked = () if count is None else ("--draws", str(count))
            found[name] = timed(scenario, folder, *options, *asked, "-o", name)
    record = found["with"]["result"]
    if record.get("machine", {}).get("draws") != draws:
        raise click.ClickException(f"{scenario} has no {draws} draws: nothing was measured")
    runs = draws * seeds * len(record["comparison"])
    rows = {
        policy: {key: row[key] for key in row if key.startswith("speedup") and "token" not in key}
        | {key: row[key] for key in ("p_best", "machine_widest", "machine_widest_share")}
        for policy, row in record["comparison"].items()
    }
    result = {
        "scenario": scenario,
        "draws": draws,
        "seeds": seeds,
        "steps": steps,
        "runs_on_draws": runs,
        "jobs": jobs,
        "load_average_before": [round(each, 1) for each in load],
        **{
            f"{name}_{unit}": found[name][unit]
            for name in ("without", "default", "with")
            for unit in ("seconds", "cpu_seconds")
        },
        "ms_of_cpu_a_run": round(
            1000 * (found["with"]["cpu_seconds"] - found["without"]["cpu_seconds"]) / runs, 2
        ),
        "comparison": rows,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if output is not None:
        output.write_text(text + "\n")


if __name__ == "__main__":
    main()
