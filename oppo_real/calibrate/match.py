"""Whether a profile was measured on what a scenario runs."""

from collections.abc import Mapping
from typing import Any

from oppo_real.calibrate.subject import comparable
from oppo_real.config import RealConfig
from oppo_sim.costs.profile import Profile
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError


def check_profile_matches(
    profile: Profile,
    config: RealConfig,
    training: TrainingConfig | None = None,
    hardware_here: str | None = None,
) -> None:
    """Raises OppoError, naming the first difference, if ``profile`` was measured on other models, engines,
    types or devices than a real section names, or says nothing about them.

    Args:
        training: the scenario's training section; None: PPO's settings are not compared.
        hardware_here: what ``subject.hardware`` says of the machine that is to run; None: not compared.
    """
    measured = profile.measured.engine.get("subject")
    if not isinstance(measured, Mapping):
        raise OppoError(
            f"cost profile {profile.name} does not say which models it was measured on, so it cannot stand"
            " for this scenario's real section: measure one with oppo calibrate"
        )
    wanted = comparable(config)
    if training is not None:
        wanted["ppo"] = config.ppo_config(training).model_dump(mode="json")
    for name, here in wanted.items():
        difference = _difference(name, measured.get(name), here)
        if difference is not None:
            where, there, now = difference
            raise OppoError(
                f"cost profile {profile.name} was measured with {where} {there!r} and the scenario's real"
                f" section has {now!r}: calibrate this scenario, or name the profile of its own models and"
                " devices"
            )
    if hardware_here is not None and hardware_here != profile.measured.hardware:
        raise OppoError(
            f"cost profile {profile.name} was measured on {profile.measured.hardware} and this machine has"
            f" {hardware_here}: calibrate here"
        )


def _difference(where: str, there: Any, here: Any) -> tuple[str, Any, Any] | None:
    """The first field that differs, with both values; numbers of devices do not count (cuda:0 and cuda:1 are
    alike)."""
    if where.startswith("devices."):
        there, here = _kinds(there), _kinds(here)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            found = _difference(f"{where}.{key}", there.get(key), here.get(key))
            if found is not None:
                return found
        return None
    return None if there == here else (where, there, here)


def _kinds(devices: Any) -> Any:
    names = [devices] if isinstance(devices, str) else devices
    return (
        ", ".join(sorted({str(name).partition(":")[0] for name in names}))
        if isinstance(names, list | tuple)
        else devices
    )
