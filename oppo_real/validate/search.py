"""The search that a validation is to confirm, made on the machine's own seconds where its folder has none."""

from pathlib import Path
from typing import TYPE_CHECKING

from oppo_real.config import real_config
from oppo_real.run.setup import build_real_setup
from oppo_real.validate.predict import as_run
from oppo_sim.costs.profile import Profile, load_profile, save_profile
from oppo_sim.costs.profile_config import ProfileCostConfig
from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors
from oppo_sim.run_folder import beside
from oppo_sim.tune.folder import TUNE
from oppo_sim.tune.request import TuneRequest
from oppo_sim.tune.session import run_tuning

if TYPE_CHECKING:
    from oppo_sim.progress import OnProgress
    from oppo_sim.scenario.schema import Scenario


def have_search(
    scenario: "Scenario", folder: Path, profile: Path | None, steps: int | None, tell: "OnProgress"
) -> bool:
    """Have ``folder`` hold a finished search of ``scenario``: ``oppo tune`` as it is by default, with the
    seconds of ``profile``, or of the scenario's own costs of kind profile. One that was interrupted goes on;
    a finished one is left as it is (False), whoever made it.

    Raises OppoError where there are no measured seconds, and as ``oppo tune`` does.
    """
    if (folder / TUNE).is_file():
        return False
    found = _measured(scenario, profile)
    if found is None:
        file = scenario.source
        raise OppoError(
            f"{folder} holds no finished search, and the costs of {file} are of kind {scenario.costs.kind},"
            f" not measured here: 'oppo calibrate {file} -o profile.json', then with --profile profile.json"
            " the same command makes the search, too"
        )
    build_real_setup(scenario, policy="sequential")  # a search takes long: first, what cannot run at all
    kept = beside(folder, ".profile.json")
    with write_errors(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
    # As the validation predicts: stages that the run does not have take no time, one machine is shared.
    save_profile(as_run(found, real_config(scenario)), kept)
    measured = on_profile_of(scenario, folder)
    run_tuning(TuneRequest(measured, folder, steps=steps, jobs=None), tell)
    return True


def on_profile_of(scenario: "Scenario", folder: Path) -> "Scenario":
    """What is searched in ``folder`` for a validation of ``scenario``: on the profile that is kept beside."""
    placement = scenario.placement
    if placement.scoring == "separate" and placement.shares_host is None:
        placement = placement.model_copy(update={"shares_host": True})
    costs = ProfileCostConfig(kind="profile", path=str(beside(folder, ".profile.json").resolve()))
    return scenario.model_copy(update={"costs": costs, "placement": placement})


def _measured(scenario: "Scenario", profile: Path | None) -> Profile | None:
    if profile is not None:
        return load_profile(profile)
    costs = scenario.costs
    return costs.profile(scenario.base_dir) if isinstance(costs, ProfileCostConfig) else None
