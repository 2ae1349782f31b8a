"""Make the shipped trace ``synth_tools_openagentrl``: rollouts that call tools, drawn from what a run logged.

    python experiments/agents/make_trace.py OUT.parquet

verl logs of each step means and maxima, no single rollout. The targets below are medians over the 215 steps
of openagentrl's run 20251203_214315 (512 rollouts a step, responses with tool output to 8,096 tokens, up to 8
assistant turns, tools that time out after 30 s). What no log says is assumed, and stands here.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from oppo_sim.traces.config import SynthConfig
from oppo_sim.traces.storage import save_trace
from oppo_sim.traces.synth import synthesise

PROMPTS, SAMPLES = 256, 16
LONGEST = 8096
MEAN_RESPONSE, CLIP_RATIO = 3403, 0.117  # tokens, tool output counted; share at the cut
MEAN_PROMPT = 333
MOST_TURNS, MEAN_MESSAGES = 8, 10.28  # verl counts messages: two a turn
MEAN_TOOL_S = 2.83  # of a rollout, all its calls
TIMEOUT_S = 30.0  # logged maxima of tool seconds lie near 5, 30, 60, 90
# Assumed: one rollout in ten has calls that time out, one call in five of its own, which gives the logged
# maximum of 90 s among 512 rollouts; other calls take what is left of the logged mean, exponentially.
HEAVY, TIMES_OUT = 0.10, 0.20
ANSWER_MEAN, ANSWER_SIGMA, ANSWER_MOST = 80.0, 0.8, 512  # assumed: tokens of an answer, lognormal
CORRELATION = 0.5  # assumed: of the samples of a prompt


def rows(seed: int) -> pd.DataFrame:
    """The trace, one rollout a row."""
    config = SynthConfig(
        mean=MEAN_RESPONSE,
        clip_ratio=CLIP_RATIO,
        max_response_length=LONGEST,
        rows=PROMPTS * SAMPLES,
        samples_per_prompt=SAMPLES,
        prompt_correlation=CORRELATION,
        prompt_mean=MEAN_PROMPT,
        prompt_p99=2 * MEAN_PROMPT,
        seed=seed,
    )
    frame = synthesise(config)
    random = np.random.default_rng(seed)
    calls_mean = MEAN_MESSAGES / 2 - 1
    quick = (MEAN_TOOL_S / calls_mean - HEAVY * TIMES_OUT * TIMEOUT_S) / (1 - HEAVY * TIMES_OUT)
    turns, seconds, answers = [], [], []
    for total in frame["response_length"]:
        calls = int(random.binomial(MOST_TURNS - 1, calls_mean / (MOST_TURNS - 1)))
        drawn = random.lognormal(np.log(ANSWER_MEAN) - ANSWER_SIGMA**2 / 2, ANSWER_SIGMA, calls)
        tokens = np.clip(np.rint(drawn), 1, ANSWER_MOST).astype(np.int64)
        while len(tokens) and tokens.sum() + len(tokens) + 1 > total // 2:
            tokens = tokens[:-1]  # a short response has fewer calls
        decoded = int(total - tokens.sum())
        cuts = np.sort(random.choice(np.arange(1, decoded), len(tokens), replace=False))
        turns.append(np.diff([0, *cuts, decoded]).astype(np.int64))
        heavy = random.random() < HEAVY
        waits = random.exponential(quick, len(tokens))
        late = random.random(len(tokens)) < (TIMES_OUT if heavy else 0.0)
        seconds.append(np.round(np.where(late, TIMEOUT_S, np.minimum(waits, TIMEOUT_S)), 3))
        answers.append(tokens)
    return frame.assign(
        source="synthesised from openagentrl/20251203_214315",
        response_length=[int(part.sum()) for part in turns],
        turn_response_lengths=turns,
        tool_seconds=seconds,
        tool_tokens=answers,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the shipped trace with tools.")
    parser.add_argument("out", type=Path)
    frame = rows(seed=0)
    save_trace(frame, parser.parse_args().out, overwrite=True)
    whole = frame["response_length"] + [int(part.sum()) for part in frame["tool_tokens"]]
    waited = frame["tool_seconds"].map(np.sum)
    steps = waited.to_numpy().reshape(-1, 512).max(axis=1)
    print(f"response with answers: mean {whole.mean():.0f}, at the cut {(whole >= LONGEST).mean():.3f}")
    print(f"messages: mean {2 * frame['turn_response_lengths'].map(len).mean():.2f}")
    print(f"tool seconds of a rollout: mean {waited.mean():.2f}, longest of 512: {np.median(steps):.1f}")


if __name__ == "__main__":
    main()
