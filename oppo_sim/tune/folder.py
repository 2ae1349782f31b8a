"""The folder of a search: ``tune.json``, tables, advice, the best scenario, figures and journals."""

import hashlib
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.files import holds, last_file, partial_path, unmark, whole_file, write_errors
from oppo_sim.given_command import COMMAND, keep_command
from oppo_sim.plain_json import json_bytes
from oppo_sim.policies.registry import BASELINE
from oppo_sim.scenario.relocate import relocated
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import dump_yaml
from oppo_sim.sweep.resolve import POLICY_NAME, Resolver
from oppo_sim.tables import write_frame
from oppo_sim.tune.advice_page import advice_markdown
from oppo_sim.tune.check import Swept
from oppo_sim.tune.request import UNIT_COST, broken
from oppo_sim.tune.search import SearchProblem
from oppo_sim.tune.space import Space
from oppo_sim.tune.trials import (
    KnobEffect,
    PairedResult,
    Trial,
    Tuned,
    least_costs,
    mean_cost,
    regrets,
    together,
)

if TYPE_CHECKING:
    import pandas as pd

FORMAT: Final = "oppo-tune/1"
TUNE: Final = "tune.json"
TRIALS: Final = "trials.parquet"
TRIALS_CSV: Final = "trials.csv"
SENSITIVITY: Final = "sensitivity.parquet"
ADVICE: Final = "advice.md"
ADVICE_JSON: Final = "advice.json"
BEST: Final = "best.yaml"
HISTORY_FIGURE: Final = "figures/history.png"
SENSITIVITY_FIGURE: Final = "figures/sensitivity.png"
REGRET_FIGURE: Final = "figures/regret.png"
_FIGURES: Final = (HISTORY_FIGURE, SENSITIVITY_FIGURE, REGRET_FIGURE)
WRITTEN: Final = (
    TUNE, TRIALS, TRIALS_CSV, SENSITIVITY, ADVICE, ADVICE_JSON, BEST, HISTORY_FIGURE, SENSITIVITY_FIGURE,
    REGRET_FIGURE, COMMAND,
)  # fmt: skip


def inputs_digest(resolvers: Sequence[Resolver]) -> str:
    """SHA-256 (hex) over the contents of all files that the worlds name, and this program."""
    found = [resolver.resolve({POLICY_NAME: BASELINE}).request.inputs for resolver in resolvers]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def trial_frame(space: Space, trials: Sequence[Trial], problem: SearchProblem, worlds: int) -> "pd.DataFrame":
    """One row a trial: its knobs under their scenario fields, its cost and measures on the search's seeds,
    and how it ended.

    Knobs with values to choose from are JSON text (``null``, ``8``), the others numbers; empty where the
    policy has no such knob.
    """
    import pandas as pd

    kinds: dict[str, set[str]] = {}
    for knob in chain.from_iterable(space.knobs.values()):
        kinds.setdefault(knob.field, set()).add(knob.kind)
    least = least_costs(trials, worlds) if trials else []
    rows = []
    for trial in trials:
        values = trial.setting.knobs
        row: dict[str, Any] = {c.TRIAL: trial.number, POLICY_NAME: trial.setting.policy}
        for field, kind in kinds.items():
            convert = json.dumps if "choice" in kind else float
            row[field] = convert(values[field]) if field in values else None
        ran = bool(trial.costs)
        row[problem.cost] = mean_cost(trial, 0) if ran else float("nan")
        row[c.REGRET] = together(regrets(trial, least), problem.robust) if ran else float("nan")
        row[c.SEEDS] = len(trial.costs[0]) if ran else 0
        for name in (
            c.COMPARED_STALENESS_MEAN, c.COMPARED_STALENESS_MAX, c.LENGTH_BIAS, c.LENGTH_BIAS_PAIRED,
            c.DEFERRED, c.COMPARED_KV_PEAK_TOKENS,
        ):  # fmt: skip
            row[name] = trial.measures.get(name, float("nan"))
        row[c.STATUS] = trial.status
        row[c.BROKEN] = ", ".join(broken(trial.violations))
        row[c.ERROR] = trial.error
        rows.append(row)
    frame = pd.DataFrame(rows)
    for field, kind in kinds.items():
        if "choice" not in kind:
            frame[field] = frame[field].astype(float)
    return frame


def sensitivity_frame(swept: Sequence[Swept]) -> "pd.DataFrame":
    """One row a value of a knob: cost over the choice's, with interval, and whether it keeps the bounds."""
    import pandas as pd

    columns = ["field", "value", "value_number", "relative", "relative_low", "relative_high"]
    rows = [one.row() for one in swept]
    return pd.DataFrame(rows, columns=[*columns, c.STATUS, c.BROKEN, c.ERROR])


def remove(folder: Path, but: Sequence[str] = ()) -> None:
    """Delete what a search wrote, but its journal and some files. Raises OppoError when the disk refuses."""
    with write_errors(folder / TUNE):
        unmark(folder / TUNE)
    for name in WRITTEN:
        if name in but:
            continue
        with write_errors(folder / name):
            (folder / name).unlink(missing_ok=True)
            partial_path(folder / name).unlink(missing_ok=True)


def write(tuned: Tuned, folder: Path, *, figures: bool) -> None:
    """Write all but the journal, in place of what an earlier search wrote. Without ``figures`` those that are
    there stay, as long as they show this search. Raises OppoError."""
    shown = {
        TRIALS_CSV: tuned.trials.to_csv(index=False, lineterminator="\n").encode(),
        ADVICE_JSON: json_bytes(tuned.advised),
    }
    remove(folder, _FIGURES if not figures and holds(folder, shown) else ())
    write_frame(folder / TRIALS, tuned.trials)
    for name, data in shown.items():
        with whole_file(folder / name) as file:
            file.write(data)
    write_frame(folder / SENSITIVITY, tuned.sensitivity)
    with whole_file(folder / ADVICE) as file:
        file.write(advice_markdown(tuned.advised).encode())
    if tuned.best is not None:
        comments = ["Written by oppo tune. All of it is predicted, not measured."]
        comments += tuned.advised["sections"]["What to set, and what to expect"]
        with whole_file(folder / BEST) as file:
            file.write(best_yaml(tuned.best, folder, comments).encode())
    if figures:
        _write_figures(tuned, folder)
    keep_command(folder)
    with last_file(folder / TUNE) as file:
        file.write(json_bytes(tuned.record))


def _write_figures(tuned: Tuned, folder: Path) -> None:
    from oppo_sim.report import tune_figures as draw

    title = tuned.scenario.name
    made = {HISTORY_FIGURE: draw.history_figure(tuned.trials, _cost_column(tuned), title)}
    if len(tuned.sensitivity):
        made[SENSITIVITY_FIGURE] = draw.sensitivity_figure(tuned.sensitivity, tuned.record["knobs"], title)
    if len(tuned.advised["worlds"]) > 1:
        made[REGRET_FIGURE] = draw.regret_figure(tuned.advised["worlds"], title)
    for name, figure in made.items():
        path = folder / name
        with write_errors(path):
            path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=figure.dpi, metadata={"Software": None})


def _cost_column(tuned: Tuned) -> str:
    return next(name for name in UNIT_COST.values() if name in tuned.trials.columns)


def plain_result(one: PairedResult) -> dict[str, Any]:
    """A setting beside the chosen one, for ``tune.json``."""
    checked = one.checked
    return {
        c.TRIAL: checked.number,
        "why": checked.why,
        "policy": checked.setting.policy,
        "knobs": checked.setting.knobs,
        "baseline": checked.baseline,
        "by_world": [dict(row) for row in checked.rows],
        "measures": dict(checked.measures),
        "violations": dict(checked.violations),
        "keeps_bounds": one.keeps_bounds,
        "difference": one.relative[0],
        "difference_low": one.relative[1],
        "difference_high": one.relative[2],
        "alike": one.alike,
        **one.ranges,
        "regrets": list(one.regrets),
    }


def plain_effect(effect: KnobEffect) -> dict[str, Any]:
    """A knob around the choice, for ``tune.json``."""
    return {
        "field": effect.field,
        "chosen": effect.chosen,
        "within_1_percent": None if effect.flat is None else list(effect.flat),
        "least": effect.least,
        "least_relative": effect.below,
        "most": effect.most,
        "share_of_variance": effect.share,
        "importance": effect.importance,
        "better": effect.better,
    }


# ---- the chosen setting as a scenario file that can be run from the folder it lies in ----------------------


def best_yaml(best: Scenario, folder: Path, comments: Sequence[str]) -> str:
    """The scenario with defaults and paths that start in ``folder``; ``comments`` stand on top."""
    head = "".join(f"# {line}\n" for comment in comments for line in comment.splitlines())
    return head + dump_yaml(relocated(best.to_plain(), best.base_dir, folder))
