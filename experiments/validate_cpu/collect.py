"""Copy what is worth keeping of a validation's run folder into results/, with a README:
``python collect.py RUN_FOLDER``."""

import sys
from pathlib import Path
from shutil import copyfile

from oppo_sim.finished_run import read_run_folder

HERE = Path(__file__).parent
COMMAND = (
    "oppo validate experiments/validate_cpu/scenario.yaml --policies sequential,intra,inter,oppo --repeats 3"
    " --budget-s 240 -o runs/validate-cpu"
)


def main() -> None:
    """Copy and write."""
    folder = read_run_folder(sys.argv[1])
    folder.verify()
    results = HERE / "results"
    kept = [
        "validation.json",
        "runs.json",
        "profile.json",
        *(name for name in folder.files if name.endswith(".png")),
    ]
    for name in kept:
        target = results / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copyfile(folder.path(name), target)
    page = folder.path("validation.md").read_text(encoding="utf-8")
    findings = (HERE / "findings.md").read_text(encoding="utf-8")
    title, rest = page.split("\n", 1)
    commands = f"    {COMMAND}\n    python experiments/validate_cpu/collect.py runs/validate-cpu"
    told = f"{title}\n\nMade by\n\n{commands}\n\n{findings.strip()}\n{rest}"
    (results / "README.md").write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
