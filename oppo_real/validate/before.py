"""What a validation has before it runs: its machine and a given profile, or what an interrupted one kept."""

from dataclasses import dataclass
from pathlib import Path

from oppo_real.calibrate.session import CalibrationSession, read_calibration
from oppo_real.calibrate.subject import check_profile_matches, hardware, software_versions
from oppo_real.config import RealConfig, real_config
from oppo_real.validate.measure import Machine, machine_of_runs, own_cores_kept
from oppo_real.validate.predict import check_places
from oppo_real.validate.request import ValidateRequest
from oppo_sim.costs.profile import Profile, load_profile
from oppo_sim.errors import OppoError
from oppo_sim.run_folder import beside
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.folder import TUNE


def check_kept(scenario: Scenario, work: Path, searched: Path | None, given: Path | None) -> None:
    """Refuse early to conclude without measuring where nothing is kept: of the validation that goes to
    ``work``, which calibrated unless a profile was ``given`` or it was in lock-step, and of the search that
    it was of, if of one. Raises OppoError."""
    runs, calibrated = beside(work, ".runs.jsonl"), beside(work, ".profile.json")
    calibrates = given is None and not real_config(scenario).lock_step
    if calibrates and runs.exists() and not calibrated.exists():
        raise OppoError(
            f"there is no {calibrated}, and {runs} is there: give the --profile that the interrupted"
            " validation was given"
        )
    needed = [(runs, "round of runs")]
    if calibrates:
        needed.insert(0, (calibrated, "calibration"))
    for path, what in needed:
        if not path.exists():
            raise OppoError(
                f"there is no {path}: to conclude without measuring takes a validation of the same scenario"
                f" with the same -o that was interrupted after its first {what}"
            )
    if searched is not None and not (searched / TUNE).is_file():
        raise OppoError(
            f"{searched} holds no finished search ({TUNE}): --no-measure makes none, so give the folder of"
            " the search whose settings were run"
        )


@dataclass(frozen=True)
class Kept:
    """What an interrupted validation has apart from its runs."""

    machine: Machine
    profile: Profile | None
    """None: in lock-step."""
    session: CalibrationSession | None
    """None: the profile was given, or there is none."""


def read_kept(request: ValidateRequest) -> Kept:
    """What is there to conclude from. Raises OppoError where nothing is."""
    scenario = request.scenario
    check_kept(scenario, request.work, None, request.profile)
    if request.profile is None and not real_config(scenario).lock_step:
        profile, session = read_calibration(request.beside(".profile.json"), request.sizes, scenario.seed)
        origin = session.origin
        return Kept(Machine(origin.hardware, origin.hardware, origin.software), profile, session)
    journal = request.beside(".runs.jsonl")
    if (machine := machine_of_runs(journal)) is None:
        raise OppoError(f"{journal} keeps no run, or none that says on what machine: leave out --no-measure")
    given = request.profile
    known = None if given is None else _given(given, scenario, machine.hardware, machine.bound)
    return Kept(machine, known, None)


def first_cores(config: RealConfig) -> tuple[int, ...] | None:
    """Cores of the first replica; None where it is not bound."""
    lists = config.placement.cores.rollout
    return None if lists is None else lists[0]


def check_before(scenario: Scenario, given: Path | None) -> tuple[Machine, Profile | None]:
    """Refuse what no choice of policies can mend: (this machine, the given profile). Raises OppoError."""
    if scenario.real is None:
        raise OppoError(
            f"{scenario.source} has no real section, so it cannot be run for real: add real: with models"
            " (docs/real.md)"
        )
    config = real_config(scenario)
    check_places(scenario, config)
    here, software = hardware(config.devices.rollout[0]), software_versions()
    if given is None:
        return Machine(here, here, software), None
    with own_cores_kept(first_cores(config)):
        bound = hardware(config.devices.rollout[0])
    return Machine(here, bound, software), _given(given, scenario, here, bound)


def _given(path: Path, scenario: Scenario, here: str, bound: str) -> Profile:
    """The profile that stands for a scenario on a machine that is called ``here``, or ``bound`` where it is
    seen from a replica's cores. Raises OppoError for one that cannot."""
    config = real_config(scenario)
    if config.lock_step:
        raise OppoError("in lock-step (real.lock_step) nothing is measured in seconds: leave --profile out")
    profile = load_profile(path)
    check_profile_matches(
        profile, config, scenario.training, bound if profile.measured.hardware == bound else here
    )
    return profile
