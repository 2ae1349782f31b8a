"""Checkpoints of a real run: written whole or not at all between two steps, and enough to go on with
identical decisions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from oppo_real.run.inputs import Training
from oppo_real.run.plant import EnginePlant
from oppo_real.run.record import Record
from oppo_real.run.rollout import RealRollout
from oppo_real.run.setup import RealSetup
from oppo_sim.columns import RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.files import whole_file
from oppo_sim.plain_json import plain
from oppo_sim.report.labels import counted
from oppo_sim.results.sinks import Sink
from oppo_sim.runs.differing import differing
from oppo_sim.turns import ToolWait

FORMAT: Final = "oppo-real-checkpoint/3"
FILE: Final = "checkpoint.pt"
_KEPT: Final = (
    "admitted_step", "deferrals", "drops", "finished_at", "finished_step", "generated", "generated_before",
    "group_id", "head_version",
    "prompt_length", "replica", "rollout_id", "span", "tail_version",
    "admitted_s", "clipped", "cut", "next_cut", "preemptions",
    "handed", "response_length", "scored_at", "sent_to_scorer", "trace_row", "withheld",
    "finish_reason", "forced_length", "log_probs", "prompt", "ref_log_probs", "score", "tokens", "versions",
    "answer_at", "answers", "tail", "tool_tokens", "turn_end", "turns_done", "unseen", "waits_for_tool",
)  # fmt: skip


class Trains(Training, Protocol):
    """Training whose state can be saved."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    body: Mapping[str, Any]

    @property
    def next_step(self) -> int:
        """The step to go on with."""
        return int(self.body["next_step"])

    @property
    def engines(self) -> dict[str, Any]:
        """What the engines ran with."""
        return dict(json.loads(self.body.get("engines", "{}")))

    @property
    def elapsed_s(self) -> float:
        """What the run's clock showed."""
        return float(self.body["elapsed_s"])


def write_body(body: Mapping[str, Any], file: BinaryIO) -> None:
    """As ``torch.save``. Raises OSError when the disk refuses."""
    import torch

    try:
        torch.save(body, file)
    except RuntimeError as error:
        # torch ends its archive after a write that failed, and fails at that, too.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


class Checkpoints:
    """The checkpoint file of one run."""

    def __init__(self, path: Path, setup: RealSetup, every: int, *, resume: bool) -> None:
        """``every``: steps from one to the next; ``resume``: go on from the file, which must be there."""
        self._path = path
        self._decisive = decisive(setup)
        self._every = every
        self._resume = resume
        self._steps = setup.base.steps
        self._saved: Saved | None = None

    def load(self) -> Saved | None:
        """The checkpoint to go on from, perhaps at the run's end; None for a fresh run. Raises OppoError if
        it is missing, damaged, another scenario's, or beyond the steps asked for."""
        if self._resume and self._saved is None:
            self._saved = read_checkpoint(self._path, self._decisive, self._steps)
        return self._saved

    def after_step(self, step: int, plant: EnginePlant, training: Trains, record: Record) -> None:
        """Write one if it is time for it. Raises OppoError when the disk refuses."""
        if (step + 1) % self._every and step + 1 != self._steps:
            return
        body = {
            "format": FORMAT,
            "run": run_hash(self._decisive),
            "decisive": json.dumps(self._decisive, default=str),
            "next_step": step + 1,
            "elapsed_s": plant.now(),
            "version": plant.scheduler.version,
            "policy": plant.inputs.policy.state_dict(),
            "ledger": ledger_state(plant),
            "training": training.state_dict(),
            "steps": record.step_rows,
            "rollouts": [tuple(row) for row in record.rollout_rows],  # plain: checkpoints hold no classes
            "trace": record.trace_rows,
            "metrics": record.metric_rows,
            "engines": json.dumps(plain(record.resolved)),
        }
        with whole_file(self._path) as file:
            write_body(body, file)

    def restore(self, saved: Saved, plant: EnginePlant, training: Trains, record: Record, sink: Sink) -> None:
        """Put everything back, and give ``sink`` the rows of the steps that were done."""
        body = saved.body
        inputs, ledger = plant.inputs, plant.scheduler.ledger
        version = plant.scheduler.version = int(body["version"])
        inputs.policy.load_state_dict(body["policy"])
        for admitted_step in body["ledger"]["admitted_steps"]:
            # The source deals prompts in order of admission: repeat what was dealt.
            inputs.source.draw(len(plant.admitted_steps), int(admitted_step))
            plant.admitted_steps.append(int(admitted_step))
        restore_ledger(plant, body["ledger"])
        training.load_state_dict(body["training"])
        inputs.worker_group.load_weights(training.weights(), version, True)
        restore_record(saved, record, sink)
        for rollout in (*ledger.finished, *ledger.unfinished.values()):
            if rollout.handed and rollout.scored_at is None:
                # Workers begin anew: one piece with all that was handed over before.
                sent = rollout.handed - rollout.withheld
                last = rollout.finished_at is not None and rollout.cut == len(rollout.tokens)
                if sent > 0:
                    plant.router.offer(rollout, sent, 0, last)


def restore_record(saved: Saved, record: Record, sink: Sink) -> None:
    """Give the record and ``sink`` the rows of the steps that were done."""
    body = saved.body
    record.step_rows = list(body["steps"])
    record.rollout_rows = [RolloutRow(*row) for row in body["rollouts"]]
    record.trace_rows, record.metric_rows = list(body["trace"]), list(body["metrics"])
    record.resolved = saved.engines
    for row in record.step_rows:
        sink.on_step(row)
    sink.on_rollouts(record.rollout_rows)


def decisive(setup: RealSetup) -> dict[str, Any]:
    """Whatever decides what a run does, as plain values; not how many steps it has, or how often it is
    saved."""
    plain = setup.base.scenario.to_plain()
    for name in ("name", "description", "published", "steps", "warmup_steps", "real"):
        del plain[name]
    plain["real"] = setup.config.model_dump(mode="json", exclude={"checkpoint_every", "placement"})
    plain["run"] = [setup.policy_name, setup.base.seed, setup.base.policy_factory().state_dict()]
    return plain


def run_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 over what is ``decisive``."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def read_checkpoint(path: Path, settings: Mapping[str, Any], steps: int) -> Saved:
    """Read and check a checkpoint of a run of ``settings`` (``decisive``). Raises OppoError."""
    import pickle

    import torch

    if not path.is_file():
        raise OppoError(
            f"there is no checkpoint {path} to go on from: run without --resume, with"
            " real.checkpoint_every set"
        )
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise OppoError(f"checkpoint {path} is damaged ({reason}): run without --resume") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise OppoError(f"{path} is no checkpoint of this version ({FORMAT}): run without --resume")
    if body["run"] != run_hash(settings):
        raise OppoError(
            f"checkpoint {path} belongs to another scenario, policy or seed{_difference(body, settings)}:"
            " resume with the ones it was made with"
        )
    if body["next_step"] > steps:
        raise nothing_left(path, body["next_step"])
    return Saved(body)


def _difference(body: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """In brackets; nothing for a checkpoint of before these were written."""
    if "decisive" not in body:
        return ""
    both = [json.loads(body["decisive"]), json.loads(json.dumps(settings, default=str))]
    for each in both:
        policy, seed, _ = each.pop("run")
        # How a policy begins follows from its settings.
        each["policy"], each["seed"] = {**each["policy"], "name": policy}, seed
    return f" ({said})" if (said := differing(*both)) else ""


def nothing_left(path: Path, done: int) -> OppoError:
    """The sentence for a run that has all its steps."""
    return OppoError(
        f"checkpoint {path} has all {counted(done, 'step')}: nothing is left to do; raise steps to go on"
    )


def ledger_state(plant: EnginePlant) -> dict[str, Any]:
    """The ledger between two steps, as plain values."""
    return plant.scheduler.ledger.state_dict(_plain) | {"admitted_steps": list(plant.admitted_steps)}


def restore_ledger(plant: EnginePlant, saved: Mapping[str, Any]) -> None:
    """Put a ledger back; its rollouts are with no engine yet."""
    plant.scheduler.ledger.load_state_dict(saved, _rollout)
    for rollout in plant.scheduler.ledger.unfinished.values():
        if rollout.waits_for_tool:
            plant.tools.wait_on(rollout)


def _plain(rollout: RealRollout) -> dict[str, Any]:
    kept = {name: getattr(rollout, name) for name in _KEPT}
    return kept | {"waits": [tuple(wait) for wait in rollout.waits]}


def _rollout(plain: Mapping[str, Any]) -> RealRollout:
    rollout = RealRollout(
        plain["rollout_id"],
        plain["group_id"],
        tuple(plain["prompt"]),
        plain["forced_length"],
        plain["trace_row"],
        plain["admitted_step"],
        0.0,
        tuple([ToolWait(*wait) for wait in plain["waits"]]),
    )
    for name in _KEPT:
        setattr(rollout, name, plain[name])
    return rollout
