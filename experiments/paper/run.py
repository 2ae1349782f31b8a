"""Makes all of this folder again: fits of the baselines alone, predictions, the reviewers' questions, the
map, comparison, figures and pages.

    python experiments/paper/run.py                      # what is missing in results/, then the page
    python experiments/paper/run.py --fresh              # everything again
    python experiments/paper/run.py --only se-7b         # one baseline
    python experiments/paper/run.py --part -o out/       # a small part, for CI
    python experiments/paper/run.py --page               # comparison, figures and page alone

What is in ``results/`` is not made again, so an interrupted run goes on where it was.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fitting import DRAWS, WORLDS, draws_file, fit, worlds_file
from oppo_runs import oppo_study
from others import other_study, read_others
from predicting import predict, runs_file
from production import NAME as PRODUCTION
from production import production_study
from setups import SETUPS
from study import RESULTS, Study
from timing import timed

SIZES = {PRODUCTION: (48, 40)}
OTHERS = (32, 40)
"""Worlds and draws of a baseline of others: of thousands of rollouts a step."""
STAGES = (120, 40)
"""Where the seconds of several stages are known, few worlds agree with all."""
PART = ("gsm8k-7b", 4, 3)
"""Baseline, worlds and draws of ``--part``."""


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


def make(study: Study, worlds: int, draws: int, results: Path) -> None:
    """Fit, then predict."""
    with timed(study.name, results == RESULTS and not worlds_file(study.name, results).exists()):
        predict(study, fit(study, worlds, draws, results, say), results, say)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(studies()), action="append", help="of these baselines alone")
    parser.add_argument("--part", action="store_true", help="one baseline with few draws")
    parser.add_argument("--fresh", action="store_true", help="remove what is there first")
    parser.add_argument("--fit-only", action="store_true", help="do not predict")
    parser.add_argument("--page", action="store_true", help="write the comparison and the page alone")
    parser.add_argument("--score", metavar="LABEL", help="also log the comparison in scorings.csv")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="folder of the tables")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    known = studies()
    names = [] if said.page or said.score else said.only or list(known)
    if said.part:
        names = [PART[0]]
    for name in names:
        worlds, draws = PART[1:] if said.part else size_of(name)
        if said.fresh:
            for file in (worlds_file, draws_file, runs_file):
                file(name, said.output).unlink(missing_ok=True)
        if said.fit_only:
            fit(known[name], worlds, draws, said.output, say)
        else:
            make(known[name], worlds, draws, said.output)
    if not (said.only or said.part or said.fit_only or said.page or said.score):
        import policy_map
        import questions

        for letter, question in questions.QUESTIONS.items():
            questions.answer(letter, question.machines)
        policy_map.answer()
    if said.output == RESULTS and not (said.only or said.fit_only):
        # The comparison is made last, and nothing above knows of it.
        from paper_page import log_scoring, write_page

        if said.score:
            log_scoring(said.score, time.strftime("%Y-%m-%d", time.gmtime()))
        write_page()


if __name__ == "__main__":
    main()
