"""Broken scenarios, traces, logs, journals and run folders: each must end with code 0, or one sentence and 2.

    python experiments/attacks/mutate.py --count 2000 [--seed 0] [--results mutants.jsonl] [--only WORD]

Case N of a seed is always the same file broken the same way. Every command runs in a process of a batch that
may take 2 GB of memory beyond what Python and its libraries take, and each may take 10 s of processor time; a
process that dies or says nothing for two minutes is a failure of the case that it was at. Cases whose result
is in the results file already are not run again; ``--again`` runs those that failed. Code 1: some failed.
"""

import argparse
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from experiments.attacks.corpus import Target

BATCH = 50
MOST_BYTES = 2 << 30
MOST_SECONDS = 10.0
SILENCE_S = 120


def run_case(number: int, seed: int, folder: Path, targets: Sequence["Target"]) -> dict[str, Any]:
    """Break a file of ``folder`` (a fresh copy of the corpus, the current folder), run a command on it, and
    say what came of it."""
    from experiments.attacks.mutations import mutate
    from oppo_sim.cli.main import run

    rng = random.Random(f"{seed}/{number}")
    target = rng.choice(targets)
    named = rng.choice(target.files)
    path = folder / named
    if path.is_dir():
        path = rng.choice(sorted(each for each in path.rglob("*") if each.is_file()))
    how = mutate(path, rng)
    command = rng.choice(target.commands)
    out, err = io.StringIO(), io.StringIO()
    begun, code, wrong = time.process_time(), -1, ""
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run([*command, "--quiet"])
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [each for each in traceback.extract_tb(error.__traceback__) if "oppo_sim" in each.filename][
            -1:
        ]
        where = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in (last, *ours))
        wrong = f"{type(error).__name__}: {str(error)[:150]} ({where})"
    seconds = time.process_time() - begun
    said = err.getvalue()
    if not wrong:
        wrong = _judged(code, seconds, said, command)
    return {
        "case": number, "target": target.name, "file": path.relative_to(folder).as_posix(), "how": how,
        "command": " ".join(command[:2]), "code": code, "seconds": round(seconds, 2),
        "said": said[:300], "wrong": wrong,
    }  # fmt: skip


def _judged(code: int, seconds: float, said: str, command: tuple[str, ...]) -> str:
    """What is wrong with how a command ended; empty: nothing."""
    if seconds > MOST_SECONDS:
        return f"took {seconds:.0f} s"
    # Costs asked outside of what was measured are meant to be warned of.
    if "Traceback" in said or "Warning" in said.replace("ProfileRangeWarning", ""):
        return "a traceback or warning of Python on standard error"
    if code == 0 or (code == 3 and command[0] == "tune"):
        return ""
    if code != 2:
        return f"ended with code {code}"
    lines = said.splitlines()
    if len(lines) != 1 or not lines[0].startswith("oppo: error: ") or len(lines[0]) > 3000:
        return "more or less than one sentence"
    return ""


# ---- the process of a batch --------------------------------------------------------------------------------


def _batch(corpus: Path, seed: int, only: str) -> None:
    """Cases by number from standard input, results to standard output."""
    import resource

    # What everything needs, before memory is measured.
    from experiments.attacks.corpus import TARGETS

    targets = [each for each in TARGETS if only in each.name]

    answers = os.fdopen(os.dup(1), "w")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, -1))
    for line in sys.stdin:
        folder = Path(tempfile.mkdtemp(prefix="oppo-mutant-"))
        try:
            shutil.copytree(corpus, folder, dirs_exist_ok=True)
            os.chdir(folder)
            result = run_case(int(line), seed, folder, targets)
        finally:
            os.chdir(corpus)
            shutil.rmtree(folder, ignore_errors=True)
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def _run(cases: Iterable[int], corpus: Path, asked: argparse.Namespace, results: Path) -> None:
    waiting = list(cases)
    while waiting:
        now, waiting = waiting[:BATCH], waiting[BATCH:]
        batch = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--batch",
                str(corpus),
                "--seed",
                str(asked.seed),
                "--only",
                asked.only,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        )
        assert batch.stdin is not None
        assert batch.stdout is not None
        for at, case in enumerate(now):
            print(case, file=batch.stdin, flush=True)
            ready, _, _ = select.select([batch.stdout], [], [], SILENCE_S)
            line = batch.stdout.readline() if ready else ""
            if not line:
                batch.kill()
                how = f"ended the process (code {batch.wait()})" if ready else f"no end after {SILENCE_S} s"
                line = json.dumps({"case": case, "target": "?", "wrong": how}) + "\n"
                waiting = now[at + 1 :] + waiting
            with results.open("a") as file:
                file.write(line)
            if batch.poll() is not None:
                break
        batch.stdin.close()
        batch.stdout.close()
        batch.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Targets whose name holds this.")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="Run those that failed once more.")
    parser.add_argument("--batch", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.batch is not None:
        _batch(asked.batch, asked.seed, asked.only)
        return
    known = {}
    if asked.results.exists():
        known = {each["case"]: each for each in map(json.loads, asked.results.read_text().splitlines())}
    if asked.again:
        known = {case: each for case, each in known.items() if not each["wrong"]}
        asked.results.write_text("".join(json.dumps(each) + "\n" for each in known.values()))
    cases = [case for case in range(asked.first, asked.first + asked.count) if case not in known]
    if cases:
        from experiments.attacks.corpus import make_corpus

        with tempfile.TemporaryDirectory(prefix="oppo-corpus-") as name:
            here = Path.cwd()
            results = asked.results.resolve()
            os.chdir(name)
            with redirect_stdout(io.StringIO()):
                make_corpus(Path(name))
            os.chdir(here)
            _run(cases, Path(name), asked, results)
    _print(map(json.loads, asked.results.read_text().splitlines()))


def _print(results: Iterable[dict[str, Any]]) -> None:
    found = list(results)
    ended: Counter[tuple[str, str]] = Counter()
    for each in found:
        outcome = "wrong" if each["wrong"] else "refused" if each["code"] == 2 else "accepted"
        ended[each["target"], outcome] += 1
    for target in sorted({name for name, _ in ended}):
        counts = ", ".join(f"{ended[target, how]} {how}" for how in ("accepted", "refused", "wrong"))
        print(f"{target:24} {counts}")
    wrong = [each for each in found if each["wrong"]]
    seconds = max(each.get("seconds", 0) for each in found)
    peak = max(each.get("peak_mb", 0) for each in found)
    print(f"{len(found)} cases, {len(wrong)} wrong; the longest {seconds:.1f} s, at most {peak:,} MB")
    for each in wrong[:60]:
        file, how = each.get("file", ""), each.get("how", "")
        print(f"  case {each['case']} {each['target']} {file} ({how}): {each['wrong']}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
