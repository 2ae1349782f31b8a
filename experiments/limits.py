"""How long the largest inputs take, and how much memory: each row is a command of its own, one after another.

    python experiments/limits.py [--only WORD] [--work FOLDER] [--write]

Results go to ``experiments/results/limits.jsonl``; what is there is not measured again but by ``--again``.
``--write`` puts the table into docs/limits.md. Memory is the peak of the largest process of the command.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "limits.jsonl"
PAGE = ROOT / "docs" / "limits.md"
BEGIN, END = "<!-- limits: written by experiments/limits.py -->", "<!-- /limits -->"
MOST_PROCESSOR_SECONDS = 3600
MILLION = 1_000_000

SMALL = """format: oppo-scenario/1
name: small
rollout_batch_size: 16
max_response_length: 512
trace: {synth: {parameters: {mu: 4.5, sigma: 0.7}, rows: 2000}, prompt_length: 32}
rollout: {num_replicas: 2}
placement: {training: separate}
costs:
  kind: linear
  decode: {fixed: 0.01, per_rollout: 0.0001}
  prefill: {fixed: 0.01, per_token: 0.00001}
  score: {fixed: 0.05, per_token: 0.0001}
  stages: {update_actor: {fixed: 1.0}, update_weights: 0.5}
policy: {name: oppo, overcommit: 4, chunk_size: 64}
"""


@dataclass(frozen=True)
class Row:
    """A command and what it is given."""

    name: str
    command: Sequence[str]
    needs: Callable[[Path], None] = lambda _folder: None


def _small(folder: Path) -> None:
    (folder / "small.yaml").write_text(SMALL)


def _lengths(rows: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "response_length": np.clip(draw.lognormal(6.0, 1.0, rows), 1, 16_384).astype("int64"),
        "prompt_length": draw.integers(20, 2_000, rows),
    }


def _requests(folder: Path) -> None:
    rows, path = 10 * MILLION, folder / "burstgpt.csv"
    if not path.exists():
        lengths = _lengths(rows)
        table = pa.table(
            {
                "Timestamp": np.arange(rows), "Model": pa.array(["ChatGPT"] * rows),
                "Request tokens": lengths["prompt_length"], "Response tokens": lengths["response_length"],
                "Total tokens": lengths["prompt_length"] + lengths["response_length"],
                "Log Type": pa.array(["Conversation log"] * rows),
            }
        )  # fmt: skip
        pyarrow.csv.write_csv(table, path)


def _rollouts(folder: Path) -> None:
    path = folder / "rollouts.jsonl"
    if not path.exists():
        lengths = _lengths(MILLION)
        with path.open("w") as file:
            for at, (response, prompt) in enumerate(zip(*lengths.values(), strict=True)):
                row = f'"response_length": {response}, "prompt_length": {prompt}, "step": {at // 512}'
                file.write(f'{{{row}, "prompt_id": "p{at // 8}", "reward": 0.5}}\n')


def _trace(folder: Path) -> None:
    path = folder / "lengths.parquet"
    if not path.exists():
        rows = 10 * MILLION
        steps = {"step": np.arange(rows) // 512, "prompt_id": pa.array([f"p{at // 8}" for at in range(rows)])}
        pq.write_table(pa.table({**_lengths(rows), **steps}), path)
    _small(folder)


def _trace_csv(folder: Path) -> None:
    path = folder / "lengths.csv"
    if not path.exists():
        pyarrow.csv.write_csv(pa.table(_lengths(10 * MILLION)), path)


ROWS = (
    Row(
        "a sweep of 20,000 points, 2 steps of 16 rollouts each, one seed",
        (
            "sweep", "small.yaml", "--grid", "policy.chunk_size=4:400:+4", "--grid",
            "policy.overcommit=0:19:+1", "--grid", "rollout.num_replicas=1:10:+1", "--seeds", "1", "--steps",
            "2", "--jobs", "2", "-o", "out",
        ),
        _small,
    ),
    Row("its report", ("report", "out", "-o", "out.html"), _small),
    Row(
        "importing a serving trace of 10 million requests (CSV)",
        ("trace", "import", "--from", "burstgpt", "burstgpt.csv", "-o", "requests.parquet"),
        _requests,
    ),
    Row(
        "importing 1 million rollouts as JSON lines",
        ("trace", "import", "--from", "generic", "rollouts.jsonl", "-o", "rollouts.parquet"),
        _rollouts,
    ),
    Row("describing a trace of 10 million rows (Parquet)", ("trace", "show", "lengths.parquet"), _trace),
    Row("describing a trace of 10 million rows (CSV)", ("trace", "show", "lengths.csv"), _trace_csv),
    Row(
        "simulating 5 steps of a trace of 10 million rows",
        ("simulate", "small.yaml", "--trace", "lengths.parquet", "--steps", "5", "-o", "replayed"),
        _trace,
    ),
    Row(
        "simulating 10 steps of 8,192 rollouts on 512 replicas",
        (
            "simulate", "small.yaml", "--set", "rollout_batch_size=8192", "--set", "rollout.num_replicas=512",
            "--set", "policy.overcommit=2048", "--steps", "10", "-o", "wide",
        ),
        _small,
    ),
    Row(
        "simulating a million steps of 16 rollouts",
        ("simulate", "small.yaml", "--steps", "1000000", "-o", "long"),
        _small,
    ),
    Row(
        "simulating a million steps of 16 rollouts without figures and the table of rollouts",
        ("simulate", "small.yaml", "--steps", "1000000", "--no-figures", "--no-rollouts", "-o", "long-plain"),
        _small,
    ),
)  # fmt: skip


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """Run the command in ``folder``; seconds, megabytes, exit code and the last line it said."""
    row.needs(folder)
    if "-o" in row.command:
        out = folder / row.command[row.command.index("-o") + 1]
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
    said = folder / "said.txt"
    begun = time.monotonic()
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "oppo_sim.cli.main", *row.command], cwd=folder, stdout=file, stderr=file
        )
        # In processor seconds: a machine that does other work, too, takes longer.
        resource.prlimit(
            process.pid, resource.RLIMIT_CPU, (MOST_PROCESSOR_SECONDS, MOST_PROCESSOR_SECONDS + 60)
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = said.read_text(errors="replace").splitlines()
    return {
        "name": row.name, "command": " ".join(("oppo", *row.command)), "code": process.returncode,
        "seconds": round(time.monotonic() - begun, 1), "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": used.ru_maxrss // 1024, "cores": len(os.sched_getaffinity(0)), "said": lines[-1:],
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| what | seconds | processor seconds | memory, MB |", "|---|---|---|---|"]
    for each in results:
        if each["code"] == 0:
            figures = f"{each['seconds']:,.0f} | {each['cpu_s']:,.0f} | {each['peak_mb']:,}"
        else:
            figures = f"not done after {each['seconds']:,.0f} | {each['cpu_s']:.0f} | {each['peak_mb']:,}"
        lines.append(f"| {each['name']} | {figures} |")
    return "\n".join(lines) + "\n"


def stored() -> list[dict[str, Any]]:
    """What was measured, in the order of ``ROWS``."""
    found = {}
    if RESULTS.exists():
        found = {each["name"]: each for each in map(json.loads, RESULTS.read_text().splitlines())}
    return [found[row.name] for row in ROWS if row.name in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="Rows whose name holds this.")
    parser.add_argument("--again", action="store_true", help="Measure what is known already.")
    parser.add_argument("--work", type=Path, help="Folder for inputs and outputs, kept.")
    parser.add_argument("--write", action="store_true", help="Write docs/limits.md.")
    asked = parser.parse_args()
    known = {each["name"] for each in stored()}
    with tempfile.TemporaryDirectory(prefix="oppo-limits-") as name:
        folder = asked.work or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for row in ROWS:
            if asked.only in row.name and (asked.again or row.name not in known):
                result = measure(row, folder)
                print(json.dumps(result), flush=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    print(table(stored()))
    if asked.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(stored())}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
