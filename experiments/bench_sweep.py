"""Time and memory of sweeps with the compiled engine, started as a user starts them.

    python experiments/bench_sweep.py [--jobs 2]      # prints a table, a JSON line last

Both on the benchmark configuration of ``bench_simulator.py`` (B = 112, 7 replicas, lengths lognormal with
mean 700 cut at 4,096): a grid of 24 chunk sizes × 16 overcommits, 200 steps, 5 seeds; and 100 points × 100
steps. Each is one ``oppo sweep`` in a process of its own, start included; CPU seconds of all its processes
stand beside the clock's, for machines that do other things too. What numba compiles is cached before
(``--cold`` empties the cache for the small one). Memory is the most that the main process and any worker
held; the grid is run once more with 1 seed, and the difference is what 4 further seeds add.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

SCENARIO = [
    "rollout.batching=continuous",
    "max_response_length=4096",
    "max_prompt_length=1024",
    (
        "trace={synth: {distribution: lognormal, mean: 700.0, p50: 470.0, max_response_length: 4096, rows:"
        " 20000, prompt_mean: 200.0}}"
    ),
    "policy={name: oppo, chunk_size: 256, overcommit: 8}",
    "warmup_steps=0",
]
GRID = ["policy.chunk_size=64:1536:+64", "policy.overcommit=0:30:+2"]
SMALL = ["policy.chunk_size=64:640:+64", "policy.overcommit=0:18:+2"]

# The sweep in a process of its own, which says how much memory it and its workers took.
PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from oppo_sim.cli.main import run
code = run(sys.argv[1:])
me, workers, cpu = os.getpid(), [0.0], sum(os.times()[:4])
for folder in Path("/proc").glob("[0-9]*"):  # the workers still wait for more
    try:
        lines = (folder / "status").read_text().splitlines()
        status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
    except OSError:
        continue
    if status.get("PPid") == str(me):
        workers.append(int(status["VmHWM"].split()[0]) / 1024)
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        cpu += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
main = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"code": code, "main_mib": main, "worker_mib": max(workers), "cpu_s": cpu}), file=sys.stderr)
"""


def sweep(
    grid: list[str],
    steps: int,
    seeds: int,
    jobs: int,
    folder: Path,
    environment: dict[str, str] | None = None,
) -> dict[str, float]:
    """Seconds, MiB and engine counts of one sweep."""
    arguments = [
        "sweep",
        "paper-stackexchange-7b",
        "--steps",
        str(steps),
        "--seeds",
        str(seeds),
        "--jobs",
        str(jobs),
    ]
    arguments += [part for text in SCENARIO for part in ("--set", text)] + [
        part for text in grid for part in ("--grid", text)
    ]
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--no-figures", "--json", "-o", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=None if environment is None else os.environ | environment,
    )
    seconds = perf_counter() - began
    usage = json.loads(done.stderr.splitlines()[-1]) if done.stderr else {"code": done.returncode}
    if usage["code"]:
        raise SystemExit(done.stderr)
    record = json.loads(done.stdout)
    runs = sum(record["engines"].values())
    return {
        "seconds": seconds,
        "cpu_s": usage["cpu_s"],
        "points": record["points"],
        "runs": runs,
        "steps": runs * steps,
        "steps_per_s": runs * steps / seconds,
        "compiled_runs": record["engines"].get("compiled", 0),
        "main_mib": usage["main_mib"],
        "worker_mib": usage["worker_mib"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--cold", action="store_true", help="also run the small sweep with an empty cache of compiled code"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        sweep(SMALL[:1], 10, 1, 1, root / "warm")  # fills the cache of compiled code
        small = sweep(SMALL, 100, 1, options.jobs, root / "small")
        five = sweep(GRID, 200, 5, options.jobs, root / "grid")
        one = sweep(GRID, 200, 1, options.jobs, root / "one")
        found = {"small": small, "grid": five, "grid_one_seed": one}
        if options.cold:
            found["small_cold"] = sweep(
                SMALL, 100, 1, options.jobs, root / "cold", {"NUMBA_CACHE_DIR": str(root / "cache")}
            )
    said = {"small": "100 points × 100 steps", "grid": "24 × 16, 200 steps, 5 seeds",
    "grid_one_seed": "the same, 1 seed",
            "small_cold": "100 points, cold"}  # fmt: skip
    for name, result in found.items():
        print(
            f"{said[name]:<28} {result['seconds']:6.1f} s ({result['cpu_s']:.1f} s of CPU),"
            f" {result['steps_per_s']:8,.0f} steps/s, {result['compiled_runs']:5.0f} of {result['runs']:.0f}"
            f" runs compiled, main {result['main_mib']:.0f} MiB, worker {result['worker_mib']:.0f} MiB"
        )
    added = {name: five[f"{name}_mib"] - one[f"{name}_mib"] for name in ("main", "worker")}
    print(
        f"memory added by four times the runs: main {added['main']:.0f} MiB, worker {added['worker']:.0f} MiB"
    )
    print(
        json.dumps(
            {"jobs": options.jobs, "cores": os.cpu_count(), **found, "page_bytes": resource.getpagesize()}
        )
    )


if __name__ == "__main__":
    main()
