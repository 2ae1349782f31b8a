"""What a user waits for at the first `oppo compare` after an installation, and at the second one.

    python experiments/first_compare.py                    # paper-stackexchange-7b, as a user types it
    python experiments/first_compare.py --scenario h200-single --jobs 2

Each command runs in a process of its own, in an empty folder. The compiler's cache begins empty. Printed:
seconds of the comparison on SimPy alone, of the first one (nothing compiled), of the second one (compiled),
of importing the modules of libraries that the second one loads, and of its simulation (the same comparison
from Python, tables only, in a process that has made it before). The ratios are what counts.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import click

# The modules of libraries that a command has loaded when it is done, in that order.
LOADED = """
import json, sys
from oppo_sim.cli.main import run
code = run(sys.argv[1:])
ours = {"oppo_sim", "oppo_real", "__main__", *sys.stdlib_module_names}
libraries = [name for name in sys.modules if name.partition(".")[0] not in ours]
print("LIBRARIES " + json.dumps(libraries), file=sys.stderr)
raise SystemExit(code)
"""
IMPORTS = """
import importlib, json, sys
for name in json.load(sys.stdin):
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
from oppo_sim.comparison.folder import default_policies
from oppo_sim.scenario.load import load_scenario
scenario = load_scenario(sys.argv[1])
policies = list(default_policies(scenario))
for attempt in range(2):
    began = perf_counter()
    oppo_sim.compare(scenario, policies)
    seconds = perf_counter() - began
print("SECONDS " + str(seconds), file=sys.stderr)
"""


def timed(
    arguments: list[str], folder: Path, cache: Path, given: str = "", **environment: str
) -> tuple[float, str]:
    """Seconds of a process that reads ``given``, and what it wrote to standard error. Raises RuntimeError if
    it failed."""
    variables = {**os.environ, "OPPO_CACHE_DIR": str(cache), "MPLBACKEND": "Agg", **environment}
    began = perf_counter()
    done = subprocess.run(
        arguments, input=given, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return perf_counter() - began, done.stderr


@dataclass(frozen=True)
class Waiting:
    """Times commands on a scenario, in one folder and with one cache of the compiler."""

    scenario: str
    jobs: int
    folder: Path
    cache: Path

    def compare(self, name: str, *options: str, **environment: str) -> tuple[float, str]:
        """Seconds of a comparison into a folder of that name, and its standard error."""
        command = ["compare", self.scenario, "--jobs", str(self.jobs), "-o", name, *options]
        return timed([sys.executable, "-c", LOADED, *command], self.folder, self.cache, **environment)

    def first(self) -> dict[str, float]:
        """On SimPy alone, and with nothing compiled."""
        # Bytecode and fonts, which an installation makes once.
        self.compare("warm-files", "--seeds", "1", "--steps", "20", "--draws", "0", OPPO_ENGINE="simpy")
        alone, _ = self.compare("alone", OPPO_ENGINE="simpy")
        first, _ = self.compare("first")
        while not any(self.cache.rglob("ready*")):
            sleep(1)  # the compiler may still be at work beside
        return {"simpy_alone_s": alone, "first_s": first, "first_to_simpy": first / alone}

    def second(self, name: str) -> dict[str, float]:
        """Of a comparison that is compiled, of its imports and of its simulation."""
        second, notes = self.compare(name)
        found = next(line for line in notes.splitlines() if line.startswith("LIBRARIES "))
        libraries = found.removeprefix("LIBRARIES ")
        imports, _ = timed([sys.executable, "-c", IMPORTS], self.folder, self.cache, libraries)
        simulate = [sys.executable, "-c", SIMULATION, self.scenario]
        _, notes = timed(simulate, self.folder, self.cache, OPPO_ENGINE="compiled")
        return {"second_s": second, "imports_s": imports, "simulation_s": float(notes.split("SECONDS ")[1])}


@click.command()
@click.option("--scenario", default="paper-stackexchange-7b", show_default=True)
@click.option("--jobs", type=int, default=1, show_default=True)
@click.option("--turns", type=int, default=5, show_default=True, help="Of the second one; medians count.")
@click.option("--compiled", type=Path, help="Only the second one, with this cache, in which all is compiled.")
def main(scenario: str, jobs: int, turns: int, compiled: Path | None) -> None:
    """Print the seconds and the ratios."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        cache = folder / "cache" if compiled is None else compiled.resolve()
        waiting = Waiting(scenario, jobs, folder, cache)
        result = waiting.first() if compiled is None else {}
        seconds = [waiting.second(f"second-{turn}") for turn in range(turns)]
    result |= {name: median(turn[name] for turn in seconds) for name in seconds[0]}
    second, imports, simulation = (result[name] for name in seconds[0])
    result["second_to_imports_and_simulation"] = second / (imports + simulation)
    result["second_less_simulation_to_imports"] = (second - simulation) / imports
    rounded = {name: round(value, 2) for name, value in result.items()}
    turns_s = [{name: round(value, 2) for name, value in turn.items()} for turn in seconds]
    print(json.dumps({"scenario": scenario, **rounded, "turns": turns_s}, indent=1))


if __name__ == "__main__":
    main()
