"""Training steps a second of the SimPy model on one core, all metrics on.

    python experiments/bench_simulator.py            # prints a table, a JSON line last

Two set-ups: B = 112 on 7 replicas (chunk 256, overcommit 8), and B = 512 (overcommit 64, chunk 256). Lengths:
a lognormal with mean about 700 tokens cut at 4,096. The time of a bare SimPy loop of a million timeouts
stands beside it, so that machines can be compared.
"""

import json
import resource
import sys
from time import perf_counter

import simpy

from oppo_sim.model.run import ModelInput, run_model
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.results.sinks import FrameSink, SummarySink
from oppo_sim.rewards import BatchRewards, NoRewards
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.traces.config import TraceConfig
from oppo_sim.traces.replay import build_replay

LENGTHS = {
    "synth": {
        "distribution": "lognormal",
        "mean": 700.0,
        "p50": 470.0,
        "max_response_length": 4096,
        "rows": 20_000,
        "prompt_mean": 200.0,
    }
}


def bench(
    batch_size: int, replicas: int, overcommit: int, steps: int, policy: str = "oppo", repeats: int = 3
) -> float:
    """Best seconds a step over ``repeats`` runs, per-step and per-rollout tables kept."""
    replay = build_replay(
        TraceConfig.model_validate(LENGTHS),
        max_prompt_length=1024,
        max_response_length=4096,
        group_size=1,
        seed=0,
    )
    costs = build_setup(load_scenario("paper-stackexchange-7b")).costs
    settings = {"chunk_size": 256, "overcommit": overcommit} if policy == "oppo" else {}
    batch = Batch(batch_size)
    best = float("inf")
    for _ in range(repeats):
        given = ModelInput(
            MachineSetup(num_replicas=replicas),
            costs,
            make_policy(policy, batch, settings),
            batch,
            replay,
            replay.cursor(),
            BatchRewards(NoRewards(), 0, None),
            steps,
        )
        began = perf_counter()
        run_model(given, FrameSink())
        best = min(best, (perf_counter() - began) / steps)
    return best


def bare_simpy(events: int = 300_000) -> float:
    """Events a second of one SimPy process that only waits."""

    def wait(env: simpy.Environment):
        for _ in range(events):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(wait(env))
    began = perf_counter()
    env.run()
    return events / (perf_counter() - began)


def memory_growth(steps: int) -> float:
    """MiB of resident memory that ``steps`` further steps add to a summary-only run."""
    setup = build_setup(load_scenario("h200-single", ["policy.chunk_size=256", f"steps={steps}"]))

    def run(count: int) -> float:
        given = ModelInput(
            setup.machine,
            setup.costs,
            setup.policy_factory(),
            setup.batch,
            setup.replay,
            setup.replay.cursor(),
            setup.rewards(),
            count,
        )
        run_model(given, SummarySink(0))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    first = run(steps // 10)
    return run(steps) - first


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    factor = 10 if quick else 1
    paper = bench(112, 7, 8, 1000 // factor)
    large = bench(512, 8, 64, 200 // factor)
    sequential = bench(112, 7, 0, 1000 // factor, "sequential")
    simpy_rate = bare_simpy()
    print(
        f"B = 112, 7 replicas, chunk 256, overcommit 8: {1 / paper:8.0f} steps/s ({paper * 1e3:.2f} ms a"
        " step)"
    )
    print(
        f"B = 112, 7 replicas, sequential:              {1 / sequential:8.0f} steps/s ({sequential * 1e3:.2f}"
        " ms a step)"
    )
    print(f"B = 512, 8 replicas, chunk 256, overcommit 64: {large * 1e3:7.2f} ms a step")
    print(
        f"bare SimPy timeouts: {simpy_rate:.0f} events/s; the first step costs {paper * simpy_rate:.0f} of"
        " them"
    )
    print(f"memory added by 2,000 further steps, summary only: {memory_growth(2000 // factor):.1f} MiB")
    print(
        json.dumps(
            {"paper_steps_per_s": 1 / paper, "large_step_ms": large * 1e3, "simpy_events_per_s": simpy_rate}
        )
    )
