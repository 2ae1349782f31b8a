"""A validation into a run folder: tables, page, figures, JSON, the profile it rests on, manifest."""

from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from oppo_real.calibrate.cache import without_volatile
from oppo_real.validate.measure import forget_runs
from oppo_real.validate.present import page, record, unit_of
from oppo_real.validate.session import Validated
from oppo_sim.costs.profile import profile_text
from oppo_sim.given_command import COMMAND
from oppo_sim.manifest import versions
from oppo_sim.run_files import JOURNAL
from oppo_sim.run_folder import RunFolder, beside, open_run_folder
from oppo_sim.run_kinds import VALIDATION

if TYPE_CHECKING:
    import pandas as pd

RESULT = "validation.json"
PAGE = "validation.md"
STEPS = "steps.parquet"
RUNS = "runs.json"
PROFILE = "profile.json"


def was_being_written(work: Path) -> bool:
    """What lies in the folder is an unfinished page of runs that are all kept beside it: a full disk, or a
    killed process."""
    if not (work / JOURNAL).is_file() or not beside(work, ".runs.jsonl").is_file():
        return False
    written = {JOURNAL, COMMAND, RESULT, RUNS, STEPS, PROFILE, PAGE, "figures"}
    # Of files that are written in part, the name is still another.
    return all(any(name in one.name for name in written) for one in work.iterdir())


def write_validation(validated: Validated, *, force: bool = False, figures: bool = True) -> list[str]:
    """Write the run folder, and, where all was measured, remove its runs and measured points beside it, which
    are in it or no longer needed. Gives what is still kept there, in sentences.

    Raises OppoError for a folder that is taken and a disk that refuses; what is finished then stays beside
    it.
    """
    request = validated.request
    with open_run_folder(request.work, VALIDATION, force=force) as folder:
        folder.write_json(RESULT, record(validated))
        folder.write_json(RUNS, [run.to_plain() for run in validated.runs])
        folder.write_frame(STEPS, step_frame(validated))
        if validated.profile is not None:
            folder.write_text(PROFILE, profile_text(validated.profile))
        drawn = _write_figures(folder, validated) if figures else []
        folder.write_text(PAGE, page(validated, drawn))
        folder.finish(_manifest(validated))
    return _clear(validated) if request.measure else []


def _clear(validated: Validated) -> list[str]:
    request = validated.request
    journal, points = request.beside(".runs.jsonl"), request.beside(".points")
    left = forget_runs(journal, validated.inputs, {run.turn for run in validated.runs})
    for folder in validated.points:
        rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds points of other models or versions
        points.rmdir()
    told = []
    if left:
        one = left == 1
        told.append(
            f"{journal} still keeps {left} {'run' if one else 'runs'} that {'is' if one else 'are'} not in"
            f" {request.work}: delete it when you need {'it' if one else 'them'} no more"
        )
    if points.is_dir():
        told.append(
            f"{points} still keeps points that were calibrated for something else: delete it likewise"
        )
    return told


def step_frame(validated: Validated) -> "pd.DataFrame":
    """One row a policy, step and stage: predicted, measured, lowest and highest of the repeats."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "policy": policy,
                "step": number,
                "stage": stage,
                "predicted": cell.predicted,
                "measured": cell.measured,
                "lowest": cell.lowest,
                "highest": cell.highest,
            }
            for policy, rows in validated.comparison.steps.items()
            for number, cells in enumerate(rows)
            for stage, cell in cells.items()
        ]
    )


def _write_figures(folder: RunFolder, validated: Validated) -> list[str]:
    from oppo_real.validate import figures

    found, unit, name = validated.comparison, unit_of(validated), validated.request.scenario.name
    drawn = {"figures/stages.png": figures.stages_figure(found, unit, f"{name}: predicted and measured")}
    if found.speedups:
        drawn["figures/speedups.png"] = figures.speedups_figure(found, validated.request.policies[0], name)
    drawn["figures/steps.png"] = figures.steps_figure(found, unit, name)
    for path, figure in drawn.items():
        folder.write_figure(path, figure)
    return list(drawn)


def _manifest(validated: Validated) -> dict[str, Any]:
    request, scenario = validated.request, validated.request.scenario
    measured = None if validated.profile is None else validated.profile.measured.model_dump(mode="json")
    return {
        "kind": VALIDATION,
        "scenario": scenario.name,
        "scenario_sha256": scenario.content_hash,
        "scenario_yaml": scenario.to_yaml(),
        "policies": list(request.policies),
        "repeats": request.repeats,
        "steps": request.steps,
        "warmup_steps": scenario.warmup_steps,
        "seed": scenario.seed,
        "costs": (
            {"kind": "profile", "measured": measured}
            if measured
            else {"kind": "lock-step", "measured": False}
        ),
        "hardware": validated.hardware,
        "versions": versions() | dict(validated.versions),
        "engines": without_volatile(dict(validated.runs[0].resolved)),
        "warnings": list(validated.notes),
    }
