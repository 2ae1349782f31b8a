"""Makes all of this folder again: fits of the baselines alone, predictions, the reviewers' questions, the
map, the check of the ranges, comparison, figures and pages.

    python experiments/paper/run.py                      # what is missing in results/, two at a time
    python experiments/paper/run.py --fresh              # everything again
    python experiments/paper/run.py --list               # the parts, and seconds of those that were timed
    python experiments/paper/run.py --only se-7b         # one part
    python experiments/paper/run.py --part -o out/       # one baseline with few draws, for CI
    python experiments/paper/run.py --page               # comparison, figures and page alone

What is in ``results/`` is not made again, so an interrupted run goes on where it was.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import moved
import policy_map
import prompts
import questions
import synthetic
from asking import rows_file
from fitting import DRAWS, WORLDS, draws_file, fit, worlds_file
from oppo_runs import oppo_study
from others import other_study, read_others
from predicting import predict, runs_file
from production import NAME as PRODUCTION
from production import production_study
from setups import SETUPS
from study import RESULTS, Study
from timing import Whole, record_whole, seconds_known, timed

SIZES = {PRODUCTION: (48, 40)}
OTHERS = (32, 40)
"""Worlds and draws of a baseline of others: of thousands of rollouts a step."""
STAGES = (moved.WORLDS, moved.DRAWS)
"""Where the seconds of several stages are known, few worlds agree with all."""
SMALL = ("gsm8k-7b", 4, 3)
"""Baseline, worlds and draws of ``--part``."""
JOBS: Final = 2
_LOOK_S: Final = 0.2
_STOPPED_S: Final = 10.0
"""Between two looks: the call was stopped."""


class Part(NamedTuple):
    """What is made by itself."""

    make: Callable[[], object]
    files: tuple[Path, ...]
    """What it takes long to make."""


def studies() -> dict[str, Study]:
    """All by name."""
    others = {name: other_study(other) for name, other in read_others().items()}
    return {name: oppo_study(name) for name in SETUPS} | {PRODUCTION: production_study()} | others


def size_of(name: str) -> tuple[int, int]:
    """Worlds and draws."""
    if name in SETUPS:
        return WORLDS, DRAWS
    return STAGES if name.startswith("verl") else SIZES.get(name, OTHERS)


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def make_study(study: Study, worlds: int, draws: int, results: Path, fit_only: bool = False) -> None:
    """Fit, then predict."""
    whole = results == RESULTS and not fit_only and not worlds_file(study.name, results).exists()
    with timed(study.name, whole):
        drawn = fit(study, worlds, draws, results, say)
        if not fit_only:
            predict(study, drawn, results, say)


def parts(results: Path = RESULTS, fit_only: bool = False) -> dict[str, Part]:
    """All by name, fits first. Only studies know another folder than ``RESULTS``."""
    found = {}
    for name, study in studies().items():
        files = tuple(file(name, results) for file in (worlds_file, draws_file, runs_file))
        found[name] = Part(partial(make_study, study, *size_of(name), results, fit_only), files)
    return (
        found
        | {moved.PART: Part(moved.ask, (moved.FILE,))}
        | {
            synthetic.part_of(name): Part(partial(synthetic.check_ranges, name), synthetic.files(name))
            for name in SETUPS
        }
        | {
            questions.part_of(letter): Part(
                partial(questions.answer, letter, question.machines),
                (rows_file(letter), *([prompts.PROMPTS] if letter == "d" else [])),
            )
            for letter, question in questions.QUESTIONS.items()
        }
        | {policy_map.PART: Part(policy_map.answer, (policy_map.FILE,))}
    )


def make_all(names: Sequence[str], jobs: int) -> Whole:
    """Every part in a process of its own, ``jobs`` at a time. Ends with the first that fails."""
    began, known = time.monotonic(), seconds_known()
    looked, stopped = began, 0.0
    left, running = list(names), dict[str, subprocess.Popen[bytes]]()
    try:
        while left or running:
            while left and len(running) < jobs:
                name = left.pop(0)
                command = [sys.executable, __file__, "--only", name, "--no-page"]
                running[name] = subprocess.Popen(command, env={"OMP_NUM_THREADS": "1", **os.environ})
            time.sleep(_LOOK_S)
            since, looked = time.monotonic() - looked, time.monotonic()
            stopped += since if since > _STOPPED_S else 0.0
            for name, process in list(running.items()):
                if (code := process.poll()) is None:
                    continue
                del running[name]
                if code:
                    raise SystemExit(f"{name} ended with {code}: run the same command to go on")
                done = len(names) - len(left) - len(running)
                rest = sum(known.get(each, 0.0) for each in (*left, *running)) / jobs
                words = f"{done} of {len(names)} parts, {(time.monotonic() - began) / 60:.0f} min"
                say(f"{words}; {name} is made; the rest took {rest / 60:.0f} min when it was made last")
    finally:
        for process in running.values():
            process.terminate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Whole(len(names), jobs, used.ru_utime + used.ru_stime, time.monotonic() - began, stopped)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PART", action="append", help="of these parts alone: see --list")
    parser.add_argument("--list", action="store_true", help="the parts, and their seconds of one processor")
    parser.add_argument("--jobs", type=int, default=JOBS, help="parts at a time")
    parser.add_argument("--part", action="store_true", help="one baseline with few draws")
    parser.add_argument("--fresh", action="store_true", help="remove what is there first")
    parser.add_argument("--fit-only", action="store_true", help="do not predict")
    parser.add_argument("--page", action="store_true", help="write the comparison and the page alone")
    parser.add_argument("--no-page", action="store_true", help="do not write them")
    parser.add_argument("--score", metavar="LABEL", help="also log the comparison in scorings.csv")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="folder of the tables of fits")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    if said.part:
        name, worlds, draws = SMALL
        make_study(studies()[name], worlds, draws, said.output, said.fit_only)
        return
    known = parts(said.output, said.fit_only)
    if said.list:
        seconds = seconds_known()
        for name in known:
            print(f"{name:28} {seconds[name]:6.0f} s" if name in seconds else f"{name:28}  not timed")
        return
    if unknown := set(said.only or ()) - set(known):
        parser.error(f"no part {', '.join(sorted(unknown))}: see --list")
    if said.fresh:
        for name in said.only or known:
            for file in known[name].files:
                file.unlink(missing_ok=True)
    if said.only:
        for name in said.only:
            known[name].make()
    elif not (said.page or said.score):
        from_nothing = not any(file.exists() for part in known.values() for file in part.files)
        made = make_all(list(known), said.jobs)
        if from_nothing:
            record_whole(made)
    if said.output == RESULTS and not (said.fit_only or said.no_page):
        # The comparison is made last, and nothing above knows of it.
        from paper_page import log_scoring, write_page

        if said.score:
            log_scoring(said.score, time.strftime("%Y-%m-%d", time.gmtime()))
        write_page()


if __name__ == "__main__":
    main()
