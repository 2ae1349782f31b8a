"""The folder of a search: ``tune.json``, tables, advice, the best scenario, figures; beside them the journals
that it goes on from."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim import columns as c
from oppo_sim.files import whole_file, write_errors
from oppo_sim.plain_json import json_bytes
from oppo_sim.policies.registry import BASELINE
from oppo_sim.sweep.resolve import POLICY_NAME, Resolver
from oppo_sim.tables import write_frame
from oppo_sim.tune.advice import advice_markdown
from oppo_sim.tune.best_file import best_yaml
from oppo_sim.tune.constraints import broken
from oppo_sim.tune.regret import least_costs, mean_cost, regrets, together
from oppo_sim.tune.result import Tuned
from oppo_sim.tune.search import SearchProblem
from oppo_sim.tune.sensitivity import Swept
from oppo_sim.tune.space import Space
from oppo_sim.tune.store import Trial

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
WRITTEN: Final = (
    TUNE, TRIALS, TRIALS_CSV, SENSITIVITY, ADVICE, ADVICE_JSON, BEST, HISTORY_FIGURE, SENSITIVITY_FIGURE,
    REGRET_FIGURE,
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

    knobs = {knob.field: knob for each in space.knobs.values() for knob in each}
    kinds: dict[str, set[str]] = {}
    for each in space.knobs.values():
        for knob in each:
            kinds.setdefault(knob.field, set()).add(knob.kind)
    least = least_costs(trials, worlds) if trials else []
    rows = []
    for trial in trials:
        given = trial.setting.knobs
        row: dict[str, Any] = {c.TRIAL: trial.number, POLICY_NAME: trial.setting.policy}
        for field in knobs:
            as_text = "choice" in kinds[field]
            row[field] = (
                (json.dumps(given[field]) if as_text else float(given[field])) if field in given else None
            )
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
    for field in knobs:
        if "choice" not in kinds[field]:
            frame[field] = frame[field].astype(float)
    return frame


def sensitivity_frame(swept: Sequence[Swept]) -> "pd.DataFrame":
    """One row a value of a knob: its cost over the choice's, with the interval, and whether it keeps the
    bounds."""
    import pandas as pd

    columns = [
        "field",
        "value",
        "value_number",
        "relative",
        "relative_low",
        "relative_high",
        c.STATUS,
        c.BROKEN,
        c.ERROR,
    ]
    return pd.DataFrame([one.row() for one in swept], columns=columns)


def write(tuned: Tuned, folder: Path, *, figures: bool) -> None:
    """Write everything but the journals; files of an earlier, shorter search are replaced. Raises OppoError
    when the disk refuses."""
    for name in WRITTEN:
        with write_errors(folder / name):
            (folder / name).unlink(missing_ok=True)
    write_frame(folder / TRIALS, tuned.trials)
    with whole_file(folder / TRIALS_CSV) as file:
        file.write(tuned.trials.to_csv(index=False, lineterminator="\n").encode())
    write_frame(folder / SENSITIVITY, tuned.sensitivity)
    with whole_file(folder / ADVICE) as file:
        file.write(advice_markdown(tuned.advice).encode())
    with whole_file(folder / ADVICE_JSON) as file:
        file.write(json_bytes(tuned.advice))
    if tuned.best is not None:
        comments = tuned.advice["sections"]["What to set, and what to expect"]
        with whole_file(folder / BEST) as file:
            file.write(
                best_yaml(
                    tuned.best,
                    folder,
                    ["Written by oppo tune. All of it is predicted, not measured.", *comments],
                ).encode()
            )
    if figures:
        _write_figures(tuned, folder)
    with whole_file(folder / TUNE) as file:
        file.write(json_bytes(tuned.record))


def _write_figures(tuned: Tuned, folder: Path) -> None:
    from oppo_sim.tune import figures as draw

    made = {HISTORY_FIGURE: draw.history_figure(tuned.trials, _cost_column(tuned), tuned.scenario.name)}
    if len(tuned.sensitivity):
        made[SENSITIVITY_FIGURE] = draw.sensitivity_figure(
            tuned.sensitivity, tuned.knobs, tuned.scenario.name
        )
    if len(tuned.advice["worlds"]) > 1:
        made[REGRET_FIGURE] = draw.regret_figure(tuned.advice["worlds"], tuned.scenario.name)
    for name, figure in made.items():
        path = folder / name
        with write_errors(path):
            path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=figure.dpi, metadata={"Software": None})


def _cost_column(tuned: Tuned) -> str:
    return next(name for name in (c.S_PER_ROLLOUT, c.S_PER_TOKEN) if name in tuned.trials.columns)
