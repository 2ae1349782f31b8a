"""``oppo fit`` on logs as they lie around: used in part, with a count of what was left out, or refused in one
sentence."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from oppo_sim.cli.main import run
from tests.fit_logs import TRUTH, fit_scenario, short_chains, verl_log

STEPS: Final = 9
NEGATIVE: Final = "step with negative seconds"
Lines = list[str]


@pytest.fixture(scope="module", autouse=True)
def _short_chains() -> Iterator[None]:
    with short_chains():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario and the log of a run of it without a reference model, so that a fit takes seconds."""
    folder = tmp_path_factory.mktemp("bad")
    scenario = fit_scenario(
        training={"critic": "none", "ref": False, "old_log_prob": "behaviour"}, steps=STEPS
    )
    (folder / "mine.yaml").write_text(scenario.to_yaml())
    verl_log(folder / "good.log", scenario, TRUTH, steps=STEPS)
    return folder


def with_value(line: str, name: str, change: Callable[[float], float]) -> str:
    """The line with another value of a figure."""
    before = line.split(f"{name}:np.float64(")[1].split(")", maxsplit=1)[0]
    return line.replace(f"{name}:np.float64({before})", f"{name}:{change(float(before))}")


def without(line: str, name: str) -> str:
    """The line without a figure."""
    return " - ".join(part for part in line.split(" - ") if not part.startswith(f"{name}:"))


def _missing_stage(lines: Lines) -> Lines:
    return [
        without(line, "timing_s/update_actor") if place in (2, 5) else line
        for place, line in enumerate(lines)
    ]


def _mixed_units(lines: Lines) -> Lines:
    return [*lines[:4], with_value(lines[4], "timing_s/update_actor", lambda s: 1000 * s), *lines[5:]]


def _restart(lines: Lines) -> Lines:
    return [*lines[:6], *lines[4:]]


def _duplicate(lines: Lines) -> Lines:
    return [*lines[:3], lines[2], *lines[3:]]


def _truncated(lines: Lines) -> Lines:
    return [*lines[:-1], lines[-1][:40]]


def _zero(lines: Lines) -> Lines:
    return [*lines[:3], with_value(lines[3], "timing_s/gen", lambda _s: 0.0), *lines[4:]]


def _negative(lines: Lines) -> Lines:
    return [*lines[:3], with_value(lines[3], "timing_s/gen", lambda s: -s), *lines[4:]]


def _two_runs(lines: Lines) -> Lines:
    return [*lines[:4], *lines]


def _always_zero(lines: Lines) -> Lines:
    return [with_value(line, "timing_s/update_weights", lambda _s: 0.0) for line in lines]


def _steps_of_zero(lines: Lines) -> Lines:
    return [with_value(line, "timing_s/step", lambda _s: 0.0) for line in lines]


def _always_nan(lines: Lines) -> Lines:
    return [with_value(line, "timing_s/update_weights", lambda _s: float("nan")) for line in lines]


def _no_longest(lines: Lines) -> Lines:
    return [with_value(line, "response_length/max", lambda _n: 0) for line in lines]


CASES: Final[dict[str, tuple[Callable[[Lines], Lines], str, int]]] = {
    "missing stage": (_missing_stage, "step without timing_s/update_actor", 2),
    "mixed units": (_mixed_units, "timing_s/update_actor in milliseconds among seconds: divided by 1,000", 1),
    "restart": (_restart, "step repeated after a restart: the later one counts", 2),
    "duplicate step": (_duplicate, "step logged twice: the later figures count", 1),
    "truncated line": (
        _truncated,
        "step whose line names no seconds and no lengths",
        1,
    ),
    "zero seconds": (_zero, "step whose generation or whole took zero seconds", 1),
    "negative seconds": (_negative, NEGATIVE, 1),
    "a stage of zero seconds": (_always_zero, "timing_s/update_weights of zero seconds", STEPS),
    "whole steps of zero seconds": (_steps_of_zero, "timing_s/step of zero seconds", STEPS),
    "a stage that is no number": (
        _always_nan,
        "timing_s/update_weights that is no number in any step",
        STEPS,
    ),
    "a longest response of 0": (_no_longest, "response_length/max that cannot be", STEPS),
    "two runs": (_two_runs, "step of another run in the same file", 4),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_log_is_used_in_part_with_a_count(
    case: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, reason, count = CASES[case]
    log = tmp_path / "bad.log"
    log.write_text("\n".join(change((folder / "good.log").read_text().splitlines())) + "\n")
    arguments = ["fit", str(log), "--scenario", str(folder / "mine.yaml"), "-o", str(tmp_path / "fit")]
    assert run([*arguments, "--draws", "20", "--fit-steps", str(STEPS), "--no-figures"]) == 0
    record: dict[str, Any] = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert record["left_out"]["bad.log"][reason] == count
    said = capsys.readouterr()
    assert f"{count} × {reason}" in " ".join(said.out.split())
    assert "Traceback" not in said.out + said.err


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (lambda lines: [with_value(line, "timing_s/gen", lambda s: -s) for line in lines], NEGATIVE),
        (lambda lines: [line[:30] for line in lines], "names no seconds of a stage"),
        (
            lambda lines: [" - ".join(p for p in line.split(" - ") if "timing" not in p) for line in lines],
            "names no seconds of a stage",
        ),
        (
            lambda lines: [without(line, "response_length/mean") for line in lines],
            "has no response lengths",
        ),
    ],
)
def test_a_log_without_a_usable_step_is_refused_in_one_sentence(
    lines: Callable[[Lines], Lines],
    sentence: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "bad.log"
    log.write_text("\n".join(lines((folder / "good.log").read_text().splitlines())) + "\n")
    arguments = ["fit", str(log), "--scenario", str(folder / "mine.yaml"), "-o", str(tmp_path / "fit")]
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "fit").exists()
