"""One run: a policy over real engines in lock-step, real PPO on a rule's reward, and what it learned.

In lock-step the decisions are those of the simulator where every decode iteration takes one second and
nothing else takes time; lengths, tokens, log-probabilities and updates are real. So runs of one seed differ
by what is studied alone, and no other work on the machine can change them.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import process_time
from typing import Any, Final

import torch
from tasks import TASKS, Task, Tokens, tiny_shape

from oppo_real.engines.interface import Request, Sampling
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.run.opened import OwnLoop, open_run
from oppo_real.run.plant import make_plant
from oppo_real.run.setup import build_real_setup
from oppo_real.task.arithmetic import EOS
from oppo_sim import columns as c
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.schema import Scenario

BATCH: Final = 32
STEPS: Final = 30
EVALUATE_EVERY: Final = 6
EVALUATED: Final = 96
"""Problems of an evaluation, the same ones for all runs of a seed; none is trained on."""
EVALUATION_SEED: Final = 2_000_000
WHOLE: Final = 1.0


@dataclass(frozen=True)
class Arm:
    """What is varied."""

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    carried: str = "behaviour"
    corrected: bool = True
    """Importance weights from the behaviour's log-probabilities, at most 2."""
    kept: float = WHOLE
    """Share of the problems that is trained on, the shortest ones: a selection of lengths without
    staleness."""


def scenario_of(task: Task, arm: Arm, seed: int) -> Scenario:
    """The run as a scenario; its costs only count iterations."""
    return Scenario.model_validate(
        {
            "format": "oppo-scenario/1",
            "name": f"staleness-{task.name}",
            "seed": seed,
            "steps": STEPS,
            "warmup_steps": 0,
            "rollout_batch_size": BATCH,
            "max_prompt_length": task.max_prompt_length,
            "max_response_length": task.max_response_length,
            # Lengths of a simulation only: the engines sample their own.
            "trace": {"synth": {"mean": 28, "p99": 99, "rows": 100}, "prompt_length": 4},
            "placement": {
                "scoring": "separate",
                "training": "rollout" if arm.policy != "async" else "separate",
            },
            "costs": {"kind": "linear", "decode": {"fixed": 1.0}},
            "policy": {"name": arm.policy, **arm.settings},
            "real": {
                "mode": "replay",
                "lock_step": True,
                "models": {"actor": tiny_shape(task), "reward": tiny_shape(task)},
                "placement": {"kind": "inline", "threads": 1},
                "checkpoint_every": None,
            },
        }
    )


class Learner:
    """PPO on the rule's reward, in place of the score of the (random) reward model; keeps what each step
    was."""

    def __init__(self, task: Task, arm: Arm, seed: int, policy: Any, numbers: Sequence[int]) -> None:
        config = PPOConfig(
            learning_rate=task.learning_rate, num_ppo_epochs=2, num_mini_batches=2, temperature=1.0,
            kl_coef=0.02, critic="value_head", carried=arm.carried,
            importance_clip=2.0 if arm.corrected else None, seed=seed,
        )  # fmt: skip
        self.trainer = PPOTrainer(policy, copy.deepcopy(policy), None, config)
        self.task, self.seed, self.numbers = task, seed, numbers
        self.rows: list[dict[str, float]] = []
        self.curve: list[tuple[int, float]] = []
        self.seconds = 0.0
        """Of updates, processor time."""
        self.outside = 0.0
        """Of evaluations."""
        self._judge = TorchActor(copy.deepcopy(policy), Sampling(1.0, 1.0, EOS, EVALUATION_SEED + seed))
        self._expected = fmean(len(task.answer(seed, number)) for number in range(2000))

    def update(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """One step of PPO."""
        if version == 0:
            self.evaluate(0)
        numbers = [self.numbers[rollout.rollout_id] for rollout in batch]
        scored = [
            replace(rollout, score=self.task.reward(self.seed, number, rollout.response))
            for rollout, number in zip(batch, numbers, strict=True)
        ]
        began = process_time()
        found = self.trainer.update(scored, version)
        self.seconds += process_time() - began
        right = fmean(len(self.task.answer(self.seed, number)) for number in numbers)
        self.rows.append(
            {
                "reward": fmean(rollout.score for rollout in scored),
                "bias": right / self._expected - 1.0,
                "length": fmean(len(rollout.response) for rollout in scored),
                "kl": found["objective/kl"],
                "update_cpu_s": process_time() - began,
            }
        )
        if (version + 1) % EVALUATE_EVERY == 0:
            self.evaluate(version + 1)
        return {}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The policy's."""
        return self.trainer.weights()

    def evaluate(self, updates: int) -> None:
        """Mean reward on the evaluation's problems, sampled as in training."""
        began = process_time()
        self._judge.load_weights(self.weights(), updates, False)
        drawn_from = EVALUATION_SEED + self.seed
        self._judge.submit(
            [
                Request(number, self.task.prompt(drawn_from, number), self.task.max_response_length)
                for number in range(EVALUATED)
            ]
        )
        made: dict[int, list[int]] = {number: [] for number in range(EVALUATED)}
        while self._judge.running():
            for each in self._judge.step():
                made[each.rollout_id].extend(each.tokens)
        reached = fmean(self.task.reward(drawn_from, number, tokens) for number, tokens in made.items())
        self.curve.append((updates, reached))
        self.outside += process_time() - began


def run(task_name: str, arm: Arm, seed: int, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Simple numbers: the curve of evaluations, and one list a column of the steps."""
    torch.set_num_threads(1)
    task = TASKS[task_name]
    numbers = _numbers(task, arm, seed)

    def prompt(number: int) -> Tokens:
        return task.prompt(seed, numbers[number])

    began = process_time()
    setup = build_real_setup(scenario_of(task, arm, seed), seed=seed, own_prompts=True)
    frames = FrameSink(keep_rollouts=False)
    with open_run(setup, own=OwnLoop(prompt, EOS)) as opened:
        # The engines and the trainer start from random weights of the shape; all get the fitted ones.
        opened.policy_model.load_state_dict(weights)
        opened.worker_group.load_weights(weights, 0, True)
        learner = Learner(task, arm, seed, opened.policy_model, numbers)
        make_plant(replace(opened.inputs(), training=learner), frames).run()
    table = frames.steps()
    return {
        "curve": learner.curve,
        "steps": {name: [round(row[name], 5) for row in learner.rows] for name in learner.rows[0]}
        | {name: [round(float(value), 5) for value in table[column]] for name, column in COLUMNS.items()}
        | {"staleness": [list(map(int, row)) for row in table[c.STALENESS_HISTOGRAM]]},
        "cpu_s": process_time() - began - learner.outside,
    }


COLUMNS: Final = {
    "staleness_mean": c.STALENESS_MEAN,
    "staleness_max": c.STALENESS_MAX,
    "spans_mean": c.SPANS_MEAN,
    "partial": c.PARTIAL_RATIO,
    "deferred": c.ROLLOUTS_DEFERRED,
    "iterations": c.TIMING_STEP,
    "decoded": c.TOKENS_DECODED,
}


def _numbers(task: Task, arm: Arm, seed: int) -> list[int]:
    """The problems in order of admission: all, or those no longer than the ``kept`` quantile."""
    wanted = BATCH * (STEPS + 8)
    pool = range(round(wanted / arm.kept) + 400)
    if arm.kept == WHOLE:
        return list(pool)
    lengths = {number: len(task.answer(seed, number)) for number in pool}
    longest = sorted(lengths.values())[int(arm.kept * len(lengths))]
    return [number for number in pool if lengths[number] < longest][: wanted + 100]
