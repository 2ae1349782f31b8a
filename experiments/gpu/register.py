"""Make the complete profiles of part 1 presets of the simulator:
``costs: {kind: profile, name: h200/qwen2.5-7b+1.5b/torch}``.

    python experiments/gpu/register.py            # into oppo_sim/costs/measured/, with the index
    python experiments/gpu/register.py --to DIR   # elsewhere; the only way for a rehearsal

The raw samples go with them; a profile names its own with their SHA-256.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from workplace import HERE, run_main

from oppo_sim.costs.profile import load_profile, samples_path
from oppo_sim.costs.shipped_profiles import SHIPPED_FOLDER, register_profile
from oppo_sim.errors import OppoError


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError for a profile that was not measured on a GPU, and for samples that are
    not those of the profile."""
    parser = argparse.ArgumentParser(description="Register measured profiles by name.")
    parser.add_argument("--work", type=Path, default=HERE)
    parser.add_argument("--to", type=Path, default=SHIPPED_FOLDER)
    given = parser.parse_args(arguments)
    root = given.work / "profiles"
    profiles = [path for path in sorted(root.glob("*/*/*.json")) if not path.name.endswith(".fit.json")]
    if not profiles:
        raise OppoError(f"there are no profiles under {root}: run part1_calibrate.py first")
    for path in profiles:
        name = path.relative_to(root).with_suffix("").as_posix()
        profile = load_profile(path)
        if given.to.resolve() == SHIPPED_FOLDER.resolve() and "CUDA" not in profile.measured.hardware:
            raise OppoError(
                f"{path} was measured on {profile.measured.hardware}, which is no GPU: it is not shipped;"
                " give --to for a rehearsal"
            )
        if not samples_path(path).exists():
            raise OppoError(f"{samples_path(path)} is missing: bring both back from the same call of part 1")
        print(f"{name} -> {register_profile(path, name, given.to)}")


if __name__ == "__main__":
    run_main(main)
