"""Training steps a second of the compiled path and of the SimPy model, in one run on one core, all metrics
on.

    python experiments/bench_fast.py             # prints a table
    python experiments/bench_fast.py --json      # a JSON line instead
    python experiments/bench_fast.py --quick     # a tenth of the steps

The set-ups are those of ``bench_simulator.py``: B = 112 on 7 replicas (chunk 256, overcommit 8), the same
under ``sequential``, and B = 512 on 8 replicas (overcommit 64). The two engines take turns, and the best of
each counts, so that a busy moment of the machine touches both. Both keep the whole step table. ``start_s`` is
what a first compiled run of one step costs a fresh process, cached and compiled.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from time import perf_counter

from bench_simulator import LENGTHS

from oppo_sim.fast.choose import run_columns
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.rewards import BatchRewards, NoRewards
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.traces.config import TraceConfig
from oppo_sim.traces.replay import build_replay


def bench_setup(batch_size: int, replicas: int, overcommit: int, policy: str = "oppo") -> Setup:
    """A set-up of ``bench_simulator.py`` as a built scenario."""
    replay = build_replay(
        TraceConfig.model_validate(LENGTHS),
        max_prompt_length=1024,
        max_response_length=4096,
        group_size=1,
        seed=0,
    )
    settings = {"chunk_size": 256, "overcommit": overcommit} if policy == "oppo" else {}
    batch = Batch(batch_size)
    return replace(
        build_setup(load_scenario("paper-stackexchange-7b")),
        machine=MachineSetup(num_replicas=replicas),
        policy_factory=lambda: make_policy(policy, batch, settings),
        batch=batch,
        replay=replay,
        rewards=lambda: BatchRewards(NoRewards(), 0, None),
        warmup_steps=0,
    )


def seconds_a_step(setup: Setup, engine: str, steps: int) -> float:
    began = perf_counter()
    run_columns(replace(setup, steps=steps), engine=engine)  # type: ignore[arg-type]
    return (perf_counter() - began) / steps


def compare(name: str, setup: Setup, steps: int, rounds: int = 5) -> dict[str, object]:
    """Best of each engine over ``rounds`` turns; the model makes a tenth of the compiled path's steps."""
    seconds_a_step(setup, "compiled", 2)
    best = {"compiled": float("inf"), "simpy": float("inf")}
    for _ in range(rounds):
        for engine, count in (("compiled", steps), ("simpy", max(10, steps // 10))):
            best[engine] = min(best[engine], seconds_a_step(setup, engine, count))
    rates = {f"{engine}_steps_per_s": 1.0 / seconds for engine, seconds in best.items()}
    return {"setup": name, **rates, "ratio": best["simpy"] / best["compiled"]}


def start_seconds(cache: str | None) -> float:
    """Seconds of a fresh process that runs one compiled step, less those of one that only builds the
    scenario."""
    code = (
        "from oppo_sim.scenario.build import build_setup; from oppo_sim.scenario.load import load_scenario; "
    )
    code += (
        "from oppo_sim.fast.choose import run_summary; s ="
        " build_setup(load_scenario('paper-stackexchange-7b'), steps=11)"
    )
    env = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}

    def run(more: str) -> float:
        began = perf_counter()
        subprocess.run([sys.executable, "-c", code + more], check=True, env=env, capture_output=True)
        return perf_counter() - began

    return run("; run_summary(s, engine='compiled')") - run("")


def main() -> None:
    steps = 500 if "--quick" in sys.argv else 5000
    rows = [
        compare("B = 112, 7 replicas, chunk 256, overcommit 8", bench_setup(112, 7, 8), steps),
        compare("B = 112, 7 replicas, sequential", bench_setup(112, 7, 0, "sequential"), steps),
        compare("B = 512, 8 replicas, chunk 256, overcommit 64", bench_setup(512, 8, 64), steps // 5),
    ]
    start = {"cached": start_seconds(None)}
    if "--quick" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            start["compiling"] = start_seconds(folder)
    if "--json" in sys.argv:
        print(json.dumps({"runs": rows, "start_s": start}))
        return
    print(f"{'':46} compiled      SimPy   ratio")
    for row in rows:
        print(
            f"{row['setup']:46} {row['compiled_steps_per_s']:8.0f}/s {row['simpy_steps_per_s']:8.0f}/s"
            f" {row['ratio']:6.0f}x"
        )
    print(
        "start of a process that runs compiled:",
        ", ".join(f"{what} {seconds:.1f} s" for what, seconds in start.items()),
    )


if __name__ == "__main__":
    main()
