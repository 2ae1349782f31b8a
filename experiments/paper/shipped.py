"""The shipped ``paper-*`` scenarios from the posterior of each set-up's baseline.

    python experiments/paper/shipped.py           # do the shipped files say what the posterior says?
    python experiments/paper/shipped.py --write   # draw the seconds again, into oppo_sim/costs/drawn
    python experiments/paper/shipped.py --compare # what oppo compare says of them, into results/shipped.csv

The point is the draw of the posterior whose predictions are nearest to the medians of all draws: its ranks
differ least from one half, in the mean over the baseline's seconds and GPU use and the speed-ups of intra,
inter and oppo. Only draws with ``generate()`` and with GPU use as the busy share are asked, as the baselines
together say (the page's hypotheses). The scenario's draws are those of ``oppo fit --observe`` on the scenario
itself, from the baseline's numbers: other lengths, models and training than the point's are not among them.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import numpy.typing as npt
import pandas as pd
from fitting import draws_file, worlds_file
from predicting import by_run, runs_file
from setups import SETUPS, known_of
from study import RESULTS
from unknowns import scenario_of, world_of

from oppo_sim import columns as c
from oppo_sim.comparison.call import compare
from oppo_sim.comparison.published import held_against
from oppo_sim.costs.shipped_draws import SHIPPED_FOLDER
from oppo_sim.costs.terms import CostTerms, write_draws
from oppo_sim.fit.call import observe
from oppo_sim.fit.folder import rounded
from oppo_sim.fit.observe import Observed
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario

OF: Final = {
    "paper-stackexchange-7b": "se-7b",
    "paper-stackexchange-3b": "se-3b",
    "paper-gsm8k-7b": "gsm8k-7b",
    "paper-opencoder-3b": "opencoder-3b",
}
"""Set-up by scenario."""
COMPARED: Final = RESULTS / "shipped.csv"
DRAWS: Final = 400
"""Made, of which the mean is the point."""
KEPT: Final = 80
"""The first of them: they are in random order."""
MEANT: Final = {"engine": "generate", "gpu_use": "utilization/inference"}
"""The most probable by all baselines together."""
_DIGITS: Final = 6
_NEAR: Final = 0.01
"""Relative, of the files' rounded values."""
_COMPARED: Final = (
    "max_prompt_length",
    "max_response_length",
    "trace.synth.mean",
    "trace.synth.p99",
    "trace.synth.clip_ratio",
    "trace.synth.max_response_length",
    "trace.synth.prompt_mean",
    "trace.synth.prompt_p99",
    "trace.sampling",
    "rollout.batching",
    "training.num_ppo_epochs",
    "training.remove_padding",
    "training.gradient_checkpointing",
    "training.weight_sync.kind",
    "costs.kind",
    "costs.device",
    "costs.actor_model",
    "costs.reward_model.kind",
    "costs.reward_model.dtype",
    "costs.reward_model.achievable.gemm",
    "costs.reward_model.achievable.attention",
    "costs.rollout.host",
)
Floats = npt.NDArray[np.float64]


def point(setup: str) -> int:
    """Number of the world in which the draw nearest to the medians lies."""
    draws, runs = pd.read_csv(draws_file(setup)), pd.read_csv(runs_file(setup))
    worlds = pd.read_csv(worlds_file(setup)).set_index("world").loc[draws["world"]].reset_index(drop=True)
    seconds = by_run(runs, "step_s")
    base = seconds["sequential"]
    predicted = {"step": base, "use": by_run(runs, "utilization")["sequential"]}
    predicted |= {run: base / seconds[run] for run in ("intra", "inter", "oppo")}
    far = np.mean([_from_median(each) for each in predicted.values()], axis=0)
    asked = (worlds[list(MEANT)] == pd.Series(MEANT)).all(axis=1)
    return int(draws["world"].iloc[int(np.where(asked, far, np.inf).argmin())])


def _from_median(values: npt.ArrayLike) -> Floats:
    ranks = pd.Series(np.asarray(values)).rank(pct=True).to_numpy()
    return np.asarray(np.abs(ranks - 0.5))


def differences(name: str) -> list[str]:
    """Where a shipped scenario is not the point of its set-up: one line a field."""
    setup = OF[name]
    wanted = scenario_of(SETUPS[setup], world_of(SETUPS[setup], point(setup))).to_plain()
    shipped = load_scenario(name).to_plain()
    found = []
    for field in _COMPARED:
        want, have = _at(wanted, field), _at(shipped, field)
        numbers = isinstance(want, int | float) and isinstance(have, int | float)
        if not (abs(want - have) <= _NEAR * abs(want) if numbers else want == have):
            found.append(f"{name}: {field} is {have}, the posterior's point has {want}")
    return found


def _at(plain: Any, field: str) -> Any:
    for name in field.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def bare(name: str) -> Scenario:
    """The shipped scenario without its terms and draws."""
    scenario = load_scenario(name)
    costs = scenario.costs.model_copy(update={"terms": CostTerms(), "draws": None})
    return scenario.model_copy(update={"costs": costs})


def drawn(name: str) -> Observed:
    """What agrees with the numbers of the baseline."""
    return observe(bare(name), known_of(OF[name], MEANT["gpu_use"]), draws=DRAWS)


def _shortened(terms: CostTerms) -> CostTerms:
    """Terms to as many digits as anybody needs."""
    return CostTerms(**{key: float(f"{value:.{_DIGITS}g}") for key, value in terms.stated().items()})


def compared(name: str) -> list[dict[str, str]]:
    """One row a policy: its range, what is published, where that lies."""
    scenario = load_scenario(name)
    table = compare(scenario, ["intra", "inter", "oppo"], attribution=False, jobs=None).table
    held = {one.policy: one for one in held_against(scenario.published, table)}
    return [
        {
            "scenario": name,
            "policy": str(policy),
            "oppo compare [95 %]": f"{row[c.SPEEDUP]:.2f} [{row[c.SPEEDUP_BOTH_LOW]:.2f},"
            f" {row[c.SPEEDUP_BOTH_HIGH]:.2f}]",
            "published": f"{held[policy].published:g}" if policy in held else "–",
            "lies": held[policy].place if policy in held else "–",
        }
        for policy, row in table.to_dict(orient="index").items()
    ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(OF), action="append")
    parser.add_argument("--write", action="store_true", help="draw the seconds again")
    parser.add_argument("--compare", action="store_true", help="compare the policies as ``oppo compare``")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    names = said.only or list(OF)
    lines = [line for name in names for line in differences(name)]
    for line in lines:
        print(line)
    for name in names if said.write else ():
        found = drawn(name)
        print(f"{name}: {', '.join(one.text for one in found.observations)}; worth {found.effective:.0f}")
        for place, one in enumerate(found.observations):
            low, middle, high = np.percentile(found.after[:, place], (2.5, 50, 97.5))
            print(f"  {one.name}: {middle:.3g} [{low:.3g}, {high:.3g}]")
        write_draws(SHIPPED_FOLDER / f"{name}.csv", [_shortened(terms) for terms in found.draws[:KEPT]])
        print(f"  costs.terms: {rounded(found.point)}")
    if said.compare:
        pd.DataFrame([row for name in names for row in compared(name)]).to_csv(COMPARED, index=False)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
