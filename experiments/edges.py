"""Where the best chunk size, Δ and split of each shipped scenario lie: inside of what is searched, or at an
edge that a sweep tells. Δ is searched twice: for the least seconds, and for the least time to the reward.

    python experiments/edges.py [NAME…]
"""

import sys

import oppo_sim
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.sweep.beyond import best_edges
from oppo_sim.sweep.edges import Edge
from oppo_sim.sweep.result import Sweep

STEPS, SEEDS = 16, 2
SHARES = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the batch, Δ."""


def swept(name: str, grid: dict[str, object], *, policy: str = "", objective: str = "rollouts") -> Sweep:
    scenario = load_scenario(name, [f"policy.name={policy}"] if policy else [])
    steps = STEPS + scenario.warmup_steps
    return oppo_sim.sweep(
        scenario, grid=grid, seeds=SEEDS, draws=0, steps=steps, executor="serial", objective=objective
    )


def told(sweep: Sweep) -> tuple[str, str]:
    """The best values, and the edges in words."""
    values = {} if sweep.best is None else dict(sweep.plan.points[sweep.best])
    best = ", ".join(f"{field.split('.')[-1]} {value}" for field, value in values.items())
    edges = "; ".join(_short(edge) for edge in best_edges(sweep)[0])
    return best, edges or "inside"


def _short(edge: Edge) -> str:
    end = "there is" if edge.limit else "searched"
    return f"{edge.what} is the {edge.side} {end}" + (f" ({edge.why})" if edge.why else "")


def main() -> None:
    print("| scenario | searched | best | edges |")
    print("|---|---|---|---|")
    for name in sys.argv[1:] or shipped_scenarios():
        scenario = load_scenario(name)
        size, group = scenario.rollout_batch_size, scenario.group_size
        longest = scenario.max_response_length
        chunks = [2**power for power in range(6, 15) if 2**power <= longest]
        deltas = sorted({group * round(size * share / group) for share in SHARES})
        searches: list[tuple[str, dict[str, object], str, str]] = []
        if scenario.policy.name == "async":
            bounds: dict[str, object] = {"policy.max_staleness": [0, 1, 2, 3, 4, 6, 8]}
            searches = [("max_staleness", bounds, "", "rollouts")]
            searches += [("max_staleness, to the reward", bounds, "", "time_to_reward")]
        else:
            both: dict[str, object] = {"policy.chunk_size": chunks, "policy.overcommit": deltas}
            searches = [("chunk, Δ", both, "oppo", "rollouts")]
            carried: dict[str, object] = {"policy.overcommit": deltas}
            searches += [("Δ, to the reward", carried, "inter", "time_to_reward")]
        searches += [("split", {"cluster.split": "auto"}, "", "rollouts")]
        for what, grid, policy, objective in searches:
            other = policy if scenario.policy.name != policy else ""
            best, edges = told(swept(name, grid, policy=other, objective=objective))
            print(f"| `{name}` | {what} | {best} | {edges} |", flush=True)


if __name__ == "__main__":
    main()
