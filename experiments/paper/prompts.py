"""Whose rollouts are deferred: real traces with several responses of a prompt, under ``oppo`` on machines of
the priors of Stack-Exchange-7B. Written to results/question_d_prompts.csv."""

from dataclasses import replace
from typing import Any, Final

import pandas as pd
from answers import shared, table
from asking import FIRST_WORLD, deviations_of, laid_over, terms_of_machine
from setups import SETUPS
from study import RESULTS
from unknowns import scenario_of, world_of

from oppo_sim.fast.choose import run_into
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.build import build_parts, build_setup, cost_context
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.catalog import load_named
from oppo_sim.traces.replay import Replay, prompt_codes

TRACES: Final = (
    "math_qwen25math_math100",
    "math_gsm8k_gpt3",
    "code_codet_humaneval",
    "reason_longcot_misguided",
)
DELTAS: Final = (4, 14, 56)
_LONGEST: Final = 16_384
_STEPS, _WARMUP = 60, 20
PROMPTS: Final = RESULTS / "question_d_prompts.csv"


def ask_prompts(machines: int) -> pd.DataFrame:
    """One row a trace, machine and Δ; what is there is kept."""
    rows: list[dict[str, Any]] = pd.read_csv(PROMPTS).to_dict("records") if PROMPTS.exists() else []
    done = {(row["trace"], int(row["world"])) for row in rows}
    for name in TRACES:
        for number in range(FIRST_WORLD, FIRST_WORLD + machines):
            if (name, number) not in done:
                rows += [_asked(name, number, delta) for delta in DELTAS]
        pd.DataFrame(rows).to_csv(PROMPTS, index=False, float_format="%.4g")
    return pd.read_csv(PROMPTS)


def _asked(name: str, number: int, delta: int) -> dict[str, Any]:
    setup = SETUPS["se-7b"]
    world = {**world_of(setup, number), "engine": "vllm", "checkpointing": True}
    lengths = {
        "trace": {"name": name, "sampling": "resample", "synth": None},
        "max_response_length": _LONGEST,
        "max_prompt_length": 2048,
    }
    scenario = Scenario.model_validate(laid_over(scenario_of(setup, world).to_plain(), lengths))
    parts = build_parts(scenario)
    settings = {"overcommit": delta, "chunk_size": int(world["chunk_size"])}
    built = build_setup(
        scenario, policy="oppo", policy_settings=settings, steps=_STEPS, seed=number, parts=parts
    )
    terms = terms_of_machine(scenario, deviations_of(number))
    sink = FrameSink()
    run_into(replace(built, costs=scenario.costs.under(parts.costs, terms, cost_context(scenario))), sink)
    trained = sink.rollouts()
    trained = trained[trained["trained_step"] >= _WARMUP]
    return {"trace": name, "world": number, "delta": delta, **told(trained, parts.replay, name)}


def told(trained: pd.DataFrame, replay: Replay, name: str) -> dict[str, float]:
    """Shares of trained rollouts that were deferred, by the mean length of their prompt's responses in the
    trace, and how much longer the deferred are."""
    prompt_of_row = prompt_codes(load_named(name))
    lengths_of_row = pd.Series(replay.response_lengths)
    at = trained["trace_row"].to_numpy()
    mean = lengths_of_row.groupby(prompt_of_row).transform("mean").to_numpy()[at]
    low, high = pd.Series(mean).quantile([1 / 3, 2 / 3])
    deferred = (trained["deferrals"] > 0).to_numpy()
    again = (trained["deferrals"] > 1).to_numpy()
    visits = pd.DataFrame({"prompt": prompt_of_row[at], "deferred": deferred}, index=trained["rollout_id"])
    visits = visits.sort_index()
    before = visits.groupby("prompt")["deferred"].shift()
    lengths = trained["response_length"].to_numpy()
    return {
        "short_prompts": float(deferred[mean <= low].mean()),
        "long_prompts": float(deferred[mean > high].mean()),
        "long_prompts_again": float(again[mean > high].mean()),
        "after_deferred": float(visits.loc[before.eq(True), "deferred"].mean()),
        "after_not": float(visits.loc[before.eq(False), "deferred"].mean()),
        "longer": float(lengths[deferred].mean() / lengths[~deferred].mean()),
    }


def prompts_table(rows: pd.DataFrame) -> str:
    """By trace and Δ."""
    names = ("short_prompts", "long_prompts", "long_prompts_again", "after_not", "after_deferred")
    lines = [
        [str(trace), str(delta), *(shared(part[name]) for name in names), f"{part['longer'].median():.3g}"]
        for (trace, delta), part in rows.groupby(["trace", "delta"], sort=False)
    ]
    head = [
        "trace", "Δ", "deferred, shortest third of prompts", "longest third", "longest third, twice or more",
        "if not deferred the last time", "if deferred the last time", "deferred over others, length",
    ]  # fmt: skip
    return table(head, lines)
