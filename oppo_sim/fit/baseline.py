"""Steps of a scenario's sequential baseline under any terms: quickly for thousands of draws at once, and
simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import (
    COLD_START,
    KERNEL_GEN,
    KERNEL_REWARD,
    STAGES,
    STEP,
    TIMING_STEP,
    TOKENS_TRAINED,
    TRAINING_STAGES,
    UTILIZATION_INFERENCE,
    timing,
)
from oppo_sim.costs.context import stages_run
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import NO_TERMS, CostTerms
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import Features, build_features
from oppo_sim.fit.terms.stages import stage_seconds, terms_of
from oppo_sim.scenario.build import Parts, build_parts, build_setup, cost_context
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

STEPS: Final = 3
"""Steps looked at, after the first, where nothing else is said."""
TOKENS_PER_S: Final = "tokens_per_s"
ROLLOUTS_PER_S: Final = "rollouts_per_s"
UTILIZATION_KERNELS: Final = "utilization/kernels"
"""As ``utilization/inference``, but only the time in which kernels run counts, as in NVML's counter: between
the launches of a ``generate()`` loop a device is idle."""
_PARALLEL: Final = ("old_log_prob", "ref", "values")


def kernel_utilization(frame: "pd.DataFrame", devices: tuple[int, int]) -> float:
    """``UTILIZATION_KERNELS`` of simulated steps, mean over them; ``devices``: that generate, and that score
    and do not generate."""
    generating, scoring = devices
    running = generating * frame[KERNEL_GEN] + (scoring or generating) * frame[KERNEL_REWARD]
    phase = frame[timing("gen")] + frame[timing("reward")]
    return float((running * frame[TIMING_STEP] / phase).mean() / (generating + scoring))


def known_names() -> list[str]:
    """Quantities of a baseline."""
    shares = (f"share/{stage}" for stage in STAGES)
    used = (UTILIZATION_INFERENCE, UTILIZATION_KERNELS)
    return [*map(timing, (*STAGES, "step")), *shares, *used, TOKENS_PER_S, ROLLOUTS_PER_S]


class Baseline:
    """Quantities by name (``known_names``), means over ``steps`` steps after the first."""

    def __init__(self, scenario: Scenario, names: Sequence[str], steps: int = STEPS) -> None:
        """Raises OppoError for what the scenario refuses."""
        costs = scenario.costs.model_copy(update={"terms": NO_TERMS, "draws": EXACT})
        self._scenario = scenario.model_copy(update={"costs": costs, "warmup_steps": 0})
        self._names = names
        self._parts = build_parts(self._scenario)
        self._setup = build_setup(self._scenario, policy="sequential", steps=steps + 1, parts=self._parts)
        self._features, self._response_tokens = _replica_features(self._scenario, self._parts, steps)
        run = stages_run(scenario.training)._asdict()
        apart = self._parts.machine.num_workers if scenario.placement.scoring == "separate" else 0
        self._devices = self._parts.machine.num_replicas, apart
        self._kernels = self._kernel_seconds() if UTILIZATION_KERNELS in names else None
        """By step, of decode and prefill on all devices, on the machine as given."""
        self._stages = [stage for stage in STAGES if run.get(stage, True)]
        # A few numbers do not tell seconds of a step's scoring from those of its batches.
        woken = scenario.costs.terms.reward_phase_s > 0
        found = [name for name in terms_of(self._stages, self._features) if woken or name != "reward_phase_s"]
        self.terms = [name for name in found if name in CostTerms.model_fields]
        """Unknowns that its seconds depend on."""

    def _kernel_seconds(self) -> Floats:
        frame = run_columns(self._setup).frame().iloc[1:]
        seconds: Floats = (self._devices[0] * frame[KERNEL_GEN] * frame[TIMING_STEP]).to_numpy()
        return seconds

    def estimated(self, terms: Mapping[str, Floats]) -> Floats:
        """Draws × names, without a simulation: what a KV cache that overflows costs is an average."""
        pairs = self._ratios(terms)
        return np.column_stack([above.mean(axis=1) / below.mean(axis=1) for above, below in pairs])

    def estimated_apart(self, terms: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """As ``estimated``, and how far another run of as many steps lies from it, since its rollouts have
        other lengths: covariances, draws × names × names, from how a step differs from the next (lengths that
        drift do so in either run)."""
        pairs = self._ratios(terms)
        means = np.column_stack([above.mean(axis=1) / below.mean(axis=1) for above, below in pairs])
        apart = np.stack(
            [
                (above - mean[:, None] * below) / below.mean(axis=1, keepdims=True)
                for (above, below), mean in zip(pairs, means.T, strict=True)
            ],
            axis=2,
        )
        steps, next_one = apart.shape[1], np.diff(apart, axis=1)
        return means, np.einsum("dti,dtj->dij", next_one, next_one) / (steps * (steps - 1))

    def _ratios(self, terms: Mapping[str, Floats]) -> list[tuple[Floats, Floats]]:
        """Every quantity as two arrays, draws × steps, of whose means it is the ratio."""
        replicas, scenario = self._features, self._scenario
        first = replicas[0]
        each = [stage_seconds("gen", features, terms) for features in replicas]
        seconds = {stage: stage_seconds(stage, first, terms) for stage in self._stages if stage != "gen"}
        seconds["gen"] = np.max(np.broadcast_arrays(*each), axis=0)
        whole = sum((seconds[s] for s in self._stages if s not in _PARALLEL), np.zeros(1))
        beside = [seconds[stage] for stage in self._stages if stage in _PARALLEL]
        if scenario.training.parallel_inference and beside:
            whole = whole + np.max(np.broadcast_arrays(*beside), axis=0)
        else:
            whole = whole + sum(beside, np.zeros(1))
        workers = self._parts.machine.num_workers if scenario.placement.scoring == "separate" else 0
        scoring = (workers or len(each)) * seconds["reward"]
        inference = (len(each) + workers) * (seconds["gen"] + seconds["reward"])
        waking = np.atleast_1d(terms.get("gen_phase_s", np.zeros(1)))[:, None]  # no device is busy meanwhile
        busy = sum(each, np.zeros(1)) - len(each) * waking + scoring
        running = scoring
        if self._kernels is not None:
            prefills = sum((features.prefill[0] for features in replicas), np.zeros(1))
            decode, prefill = (np.atleast_1d(terms.get(name, np.ones(1))) for name in ("decode", "prefill"))
            decodes = np.maximum(self._kernels - prefills, 0.0)
            running = decode[:, None] * decodes + prefill[:, None] * prefills + scoring
        one = np.ones_like(whole)
        quantities = {
            TIMING_STEP: (whole, one),
            UTILIZATION_INFERENCE: (busy / inference, one),
            UTILIZATION_KERNELS: (running / inference, one),
            ROLLOUTS_PER_S: (scenario.rollout_batch_size * one, whole),
            TOKENS_PER_S: (self._response_tokens * one, whole),
        }
        for stage in STAGES:
            taken = seconds.get(stage, np.zeros_like(whole))
            quantities |= {timing(stage): (taken, one), f"share/{stage}": (taken, whole)}
        shape = whole.shape
        return [
            (np.broadcast_to(above, shape), np.broadcast_to(below, shape))
            for above, below in (quantities[name] for name in self._names)
        ]

    def simulated(self, terms: CostTerms) -> list[float]:
        """The same from a run of the simulator."""
        scenario = self._scenario
        costs = scenario.costs.under(self._parts.costs, terms, cost_context(scenario))
        frame = run_columns(replace(self._setup, costs=costs)).frame().iloc[1:]
        whole = float(frame[TIMING_STEP].sum())
        found = []
        for name in self._names:
            if name.startswith("share/"):
                found.append(float(frame[timing(name.removeprefix("share/"))].sum()) / whole)
            elif name == UTILIZATION_KERNELS:
                found.append(kernel_utilization(frame, self._devices))
            elif name == TOKENS_PER_S:
                found.append(float(frame[TOKENS_TRAINED].sum()) / whole)
            elif name == ROLLOUTS_PER_S:
                found.append(scenario.rollout_batch_size * len(frame) / whole)
            else:
                found.append(float(frame[name].mean()))
        return found


def _replica_features(scenario: Scenario, parts: Parts, steps: int) -> tuple[list[Features], Floats]:
    """Of the steps after the first, one for each replica with its own rollouts; stages are of the whole
    batch in each. And the response tokens of each step."""
    import pandas as pd

    batch, replay = scenario.rollout_batch_size, parts.replay
    cursor = replay.cursor()
    drawn = [[cursor.draw(step * batch + place, step) for place in range(batch)] for step in range(steps + 1)]
    rows = drawn[1:]
    replicas = parts.machine.num_replicas
    alone = replace(parts, machine=replace(parts.machine, num_replicas=1))
    whole: list[Features] = []
    for replica in range(min(replicas, batch)):
        mine = {step: dealt[replica::replicas] for step, dealt in enumerate(rows)}
        log = StepLog(
            name=scenario.name,
            frame=pd.DataFrame({STEP: list(mine), COLD_START: False}),
            framework="oppo",
            covers={},
            lengths={step: [replay.response_lengths[row] for row in dealt] for step, dealt in mine.items()},
            prompts={step: [replay.prompt_lengths[row] for row in dealt] for step, dealt in mine.items()},
        )
        whole.append(build_features(log, scenario, parts=alone)[0])
    everyone = StepLog(
        name=scenario.name,
        frame=pd.DataFrame({STEP: list(range(steps)), COLD_START: False}),
        framework="oppo",
        covers={},
        lengths={step: [replay.response_lengths[row] for row in dealt] for step, dealt in enumerate(rows)},
        prompts={step: [replay.prompt_lengths[row] for row in dealt] for step, dealt in enumerate(rows)},
    )
    full, _ = build_features(everyone, scenario, parts=parts)
    shared = {name: getattr(full, name) for name in ("stages", "score", "score_batches", "pieces", "tokens")}
    assert set(full.stages) == set(TRAINING_STAGES)
    tokens = [float(sum(replay.response_lengths[row] for row in dealt)) for dealt in rows]
    # Terms of costs scale a stage as a whole, its gathers too.
    return [replace(features, **shared, gathers={}) for features in whole], np.array(tokens)
