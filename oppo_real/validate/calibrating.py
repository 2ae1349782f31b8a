"""The calibration of a validation: in passes, one before each round of runs."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Final

from oppo_real.calibrate.session import CalibrationSession, calibrate_to
from oppo_real.calibrate.subject import subject_of
from oppo_real.config import RealConfig
from oppo_real.validate.before import first_cores
from oppo_real.validate.measure import Progress, own_cores_kept
from oppo_real.validate.request import ValidateRequest
from oppo_sim.costs.profile import Profile

_ROUNDS_A_PASS: Final = 4
"""Of contention, at least: a moment in which other work ran is then one of several."""
_UPDATE_ROUNDS: Final = 2
"""Of contention with an update, from which nothing is predicted, in all passes: they take longest."""


class Calibrating:
    """A calibration in as many passes as there are rounds of runs."""

    def __init__(self, request: ValidateRequest, config: RealConfig, machine: str) -> None:
        """``machine``: what its hardware is called, all of it."""
        self._machine = machine
        self._request = request
        self._passes = 0
        self._spent = 0.0
        self._found: tuple[Profile, CalibrationSession] | None = None
        self._points: set[Path] = set()
        self._cores = first_cores(config)

    def next_pass(self, progress: Progress) -> None:
        """Visit every point again, as often as its part of all visits and the budget say, and measure
        activities together in some rounds more. Raises OppoError."""
        request, effort = self._request, self._request.calibration
        self._passes += 1
        each = max(_ROUNDS_A_PASS, -(-effort.rounds // request.repeats))
        effort = replace(
            effort,
            # As many in each pass: of visits to a machine that has changed, the median lies between.
            repeats=-(-effort.repeats // request.repeats) * self._passes,
            budget_s=max(1.0, (effort.budget_s - self._spent) / (request.repeats - self._passes + 1)),
            asked_s=effort.budget_s,
            rounds=each * self._passes,
            update_rounds=min(self._passes, _UPDATE_ROUNDS),
        )
        begun = perf_counter()
        with own_cores_kept(self._cores):
            session, calibration, _ = calibrate_to(
                request.beside(".profile.json"),
                request.scenario.name,
                subject_of(request.scenario),
                request.sizes,
                request.beside(".points"),
                effort,
                lambda done, total, label: progress(
                    f"calibrating, {self._passes} of {request.repeats}: {label}", done, total
                ),
                self._machine,
            )
        self._spent += perf_counter() - begun
        self._found = calibration.profile, session
        if session.kept_in is not None:
            self._points.add(session.kept_in)

    @property
    def points(self) -> frozenset[Path]:
        """Folders of what was measured."""
        return frozenset(self._points)

    def result(self) -> tuple[Profile, CalibrationSession]:
        """The profile of all passes, and what it was made from."""
        assert self._found is not None, "a request has one repeat at least"
        return self._found
