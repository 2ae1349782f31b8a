"""A fit in a run folder: the scenario that every command takes as it is, its draws, the record, figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oppo_sim.costs.terms import SECONDS, CostTerms, write_draws
from oppo_sim.fit.estimate import Fitted
from oppo_sim.given_command import command_text
from oppo_sim.manifest import versions
from oppo_sim.run_folder import RunFolder, open_run_folder
from oppo_sim.run_kinds import FIT
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.relocate import relocated
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import dump_yaml
from oppo_sim.traces.storage import save_trace

SCENARIO: Final = "scenario.yaml"
DRAWS_FILE: Final = "draws.csv"
LENGTHS_FILE: Final = "lengths.parquet"
RECORD: Final = "fit.json"
REPORT: Final = "report.html"


def write_fit(
    path: Path,
    fitted: Sequence[Fitted],
    record: Mapping[str, Any],
    comments: Sequence[str],
    *,
    force: bool = False,
    figures: bool = True,
) -> Path:
    """Write the folder; returns the path of its first scenario. Further scenarios are ``scenario-2.yaml`` and
    so on, with ``draws-2.csv`` where their draws are others, and ``lengths-2.parquet`` with lengths of logs.

    Raises OppoError for a folder that is taken and a disk that refuses.
    """
    with open_run_folder(path, FIT, force=force) as folder:
        written: list[str] = []
        texts: list[str] = []
        write_draws(folder.path(DRAWS_FILE), fitted[0].draws)
        for number, each in enumerate(fitted, start=1):
            name, draws_file = SCENARIO if number == 1 else f"scenario-{number}.yaml", DRAWS_FILE
            if each.draws != fitted[0].draws:
                draws_file = f"draws-{number}.csv"
                write_draws(folder.path(draws_file), each.draws)
            lengths_file = LENGTHS_FILE if number == 1 else f"lengths-{number}.parquet"
            if each.lengths is not None and each.lengths.frame is not None:
                save_trace(each.lengths.frame, folder.path(lengths_file))
            said = [*comments, *([f"Tools: {each.waits}."] if each.waits else [])]
            texts.append(fitted_yaml(each, draws_file, path, said, lengths_file))
            folder.write_text(name, texts[-1])
            written.append(name)
        folder.write_json(RECORD, record)
        if figures:
            _write_figures(folder, record)
            folder.write_text(REPORT, _report(record, fitted[0].scenario.name, texts[0]))
        folder.finish(
            {
                "kind": FIT,
                "scenario": fitted[0].scenario.name,
                "scenarios": written,
                "scenario_hash": fitted[0].scenario.content_hash,
                "versions": versions(),
                "warnings": list(record.get("notes", ())),
            }
        )
    return path / written[0]


def fitted_scenario(
    fitted: Fitted, draws_file: str, folder: Path, lengths_file: str = LENGTHS_FILE
) -> Scenario:
    """The scenario under the fitted terms, as it lies in ``folder``."""
    plain = relocated(fitted.scenario.to_plain(), fitted.scenario.base_dir, folder)
    if fitted.lengths is not None:
        plain["trace"] = fitted.lengths.trace(lengths_file, folder)
    plain["costs"] = {
        **plain["costs"],
        "terms": rounded(fitted.point),
        "draws": draws_file,
        "drawn_from_priors": list(fitted.believed),
    }
    return scenario_from_plain(plain, where=SCENARIO, base_dir=folder)


def fitted_yaml(
    fitted: Fitted, draws_file: str, folder: Path, comments: Sequence[str], lengths_file: str = LENGTHS_FILE
) -> str:
    """The file, ``comments`` on top."""
    head = "".join(f"# {line}\n" for comment in comments for line in comment.splitlines())
    plain = fitted_scenario(fitted, draws_file, folder, lengths_file).to_plain()
    plain["costs"]["terms"] = rounded(fitted.point)
    return head + dump_yaml(plain)


def rounded(point: CostTerms) -> dict[str, float]:
    """A fit's point as a scenario states it, six digits: no term is known to more."""
    return {
        name: float(f"{value:.6g}")
        for name, value in point.changed().items()
        if name not in SECONDS or value > 0
    }


def _write_figures(folder: RunFolder, record: Mapping[str, Any]) -> None:
    from oppo_sim.report.fit_figures import fit_figures

    for name, figure in fit_figures(record).items():
        folder.write_figure(f"figures/{name}.png", figure)


def _report(record: Mapping[str, Any], name: str, code: str) -> str:
    from oppo_sim.report.html_fit import chapter_of
    from oppo_sim.report.html_page import page_html

    chapter = chapter_of(record, name, code, "fit").made_by(command_text())
    return page_html(f"Fit: {name}", [chapter])
