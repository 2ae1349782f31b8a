"""What a user waits for at the first `oppo compare` after an installation, and at the second one.

    python experiments/first_compare.py                    # paper-stackexchange-7b, as a user types it
    python experiments/first_compare.py --scenario h200-single --jobs 2

Each command runs in a process of its own, in an empty folder. The compiler's cache begins empty. Printed:
seconds of the comparison on SimPy alone, of the first one (nothing compiled), of the second one (compiled),
of importing the libraries that the second one loads, and of its simulation (the same comparison from Python,
tables only, in a process that has made it before). The two ratios are what counts.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

import click

# Top-level packages outside the standard library that a command has loaded when it is done.
LOADED = """
import json, sys
from oppo_sim.cli.main import run
code = run(sys.argv[1:])
tops = {name.partition(".")[0] for name in sys.modules}
libraries = sorted(tops - set(sys.stdlib_module_names) - {"oppo_sim", "oppo_real", "__main__"})
print("LIBRARIES " + json.dumps([name for name in libraries if not name.startswith("_")]), file=sys.stderr)
raise SystemExit(code)
"""
IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""

SIMULATION = """
import sys
from time import perf_counter
from pathlib import Path
import oppo_sim
from oppo_sim.comparison_folder import default_policies
from oppo_sim.scenario.load import load_scenario
scenario = load_scenario(sys.argv[1])
policies = list(default_policies(scenario))
for attempt in range(2):
    began = perf_counter()
    oppo_sim.compare(scenario, policies)
    seconds = perf_counter() - began
print("SECONDS " + str(seconds), file=sys.stderr)
"""


def timed(arguments: list[str], folder: Path, cache: Path, **environment: str) -> tuple[float, str]:
    """Seconds of a process, and what it wrote to standard error. Raises RuntimeError if it failed."""
    variables = {**os.environ, "OPPO_CACHE_DIR": str(cache), "MPLBACKEND": "Agg", **environment}
    began = perf_counter()
    done = subprocess.run(arguments, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return perf_counter() - began, done.stderr


@click.command()
@click.option("--scenario", default="paper-stackexchange-7b", show_default=True)
@click.option("--jobs", type=int, default=1, show_default=True)
def main(scenario: str, jobs: int) -> None:
    """Print the seconds and the two ratios."""
    with tempfile.TemporaryDirectory() as root:
        folder, cache = Path(root), Path(root) / "cache"

        def compare(name: str, *options: str, **environment: str) -> tuple[float, str]:
            command = ["compare", scenario, "--jobs", str(jobs), "-o", name, *options]
            return timed([sys.executable, "-c", LOADED, *command], folder, cache, **environment)

        # Bytecode and fonts, which an installation makes once.
        compare("warm-files", "--seeds", "1", "--steps", "20", "--draws", "0", OPPO_ENGINE="simpy")
        alone, _ = compare("alone", OPPO_ENGINE="simpy")
        first, _ = compare("first")
        while not any(cache.rglob("ready*")):
            sleep(1)  # the compiler may still be at work beside
        second, notes = compare("second")
        found = next(line for line in notes.splitlines() if line.startswith("LIBRARIES "))
        libraries = json.loads(found.removeprefix("LIBRARIES "))
        imports, _ = timed([sys.executable, "-c", IMPORTS, *libraries], folder, cache)
        _, notes = timed([sys.executable, "-c", SIMULATION, scenario], folder, cache, OPPO_ENGINE="compiled")
        simulation = float(notes.split("SECONDS ")[1])
    result = {
        "scenario": scenario,
        "simpy_alone_s": round(alone, 2),
        "first_s": round(first, 2),
        "first_to_simpy": round(first / alone, 2),
        "second_s": round(second, 2),
        "imports_s": round(imports, 2),
        "simulation_s": round(simulation, 2),
        "second_to_imports_and_simulation": round(second / (imports + simulation), 2),
        "second_less_simulation_to_imports": round((second - simulation) / imports, 2),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
