"""The training stages of one batch, polled at every instant."""

from .config import INFERENCE_STAGES, LATER_STAGES, STAGES, ReferenceConfig, TrainedRollout
from .machine import Machine
from .work import Group, Rollout, members_of


def own_seconds(config: ReferenceConfig, rollouts: list[Rollout]) -> dict[str, float]:
    """Seconds of every stage for this batch, alone on its devices."""
    tokens = sum(rollout.context for rollout in rollouts)
    pairs = sum(rollout.context**2 / 2 for rollout in rollouts)
    seconds = {stage: sum(config.stage(stage, tokens, pairs)) for stage in STAGES}
    if config.old_log_prob == "behaviour":
        seconds["old_log_prob"] = 0.0
    if config.stream_ref:
        seconds["ref"] = 0.0
    return seconds


class Training:
    """One batch through the stages. A leg is (stages that it is part of, own seconds); legs follow each
    other.

    Parallel stages share their devices as if they were one activity as long as the longest: legs end where
    the shorter stages do.
    """

    def __init__(self, machine: Machine, batch: list[Group]) -> None:
        self.machine = machine
        self.batch = batch
        self.stages = dict.fromkeys(STAGES, 0.0)
        self.done = False
        self.busy = False
        seconds = own_seconds(machine.config, members_of(batch))
        self.legs: list[tuple[tuple[str, ...], float]] = []
        if machine.config.parallel_inference:
            before = 0.0
            for until in sorted({seconds[stage] for stage in INFERENCE_STAGES}):
                self.legs.append(
                    (tuple(stage for stage in INFERENCE_STAGES if seconds[stage] >= until), until - before)
                )
                before = until
        else:
            self.legs.extend(((stage,), seconds[stage]) for stage in INFERENCE_STAGES)
        self.legs.extend(((stage,), seconds[stage]) for stage in LATER_STAGES)

    def poll(self) -> None:
        """Begin the next leg if none runs; legs of no seconds are passed over."""
        while not self.busy and self.legs:
            stages, seconds = self.legs.pop(0)
            if seconds > 0:
                self._begin(stages, seconds)
        self.done = not self.busy and not self.legs

    def _begin(self, stages: tuple[str, ...], seconds: float) -> None:
        start = self.machine.world.now

        def done(end: float) -> None:
            self.busy = False
            for stage in stages:
                self.stages[stage] += end - start

        self.busy = True
        config = self.machine.config
        devices, (_, _, slowed_by) = config.devices_of_training(), config.slowed_by
        self.machine.world.start(seconds, devices, config.training_demand(), done, slowed_by=slowed_by)

    def trained(self, version: int) -> tuple[TrainedRollout, ...]:
        """The records of the batch, ``version`` being the one before its update."""
        return tuple(
            TrainedRollout(
                member.id,
                member.prompt_length,
                member.response_length,
                version - member.versions[0],
                version - member.versions[-1],
                len(set(member.versions)),
                group.deferrals,
                member.finish_time if member.finish_time is not None else float("nan"),
                member.score_time if member.score_time is not None else float("nan"),
            )
            for group in self.batch
            for member in group.members
        )


class Other:
    """What is done outside the stages, on no device."""

    def __init__(self, machine: Machine) -> None:
        self.start = machine.world.now
        self.done = True
        self.seconds = 0.0
        seconds = machine.config.added.get("other", 0.0)
        if seconds > 0:
            self.done = False
            machine.world.start(seconds, (), (0.0, 0.0), self._finish)

    def _finish(self, end: float) -> None:
        self.done = True
        self.seconds = end - self.start


class WeightUpdate:
    """``update_weights``: once it is over the version is one more, and without kept KV all of it is gone."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.start = machine.world.now
        self.done = False
        config = machine.config
        device, host = config.stage("update_weights", 0.0, 0.0)
        if device + host > 0:
            demand = config.demand("sync", device, host)
            devices, (_, _, slowed_by) = config.devices_of_sync(), config.slowed_by
            machine.world.start(device + host, devices, demand, self._finish, slowed_by=slowed_by)
        else:
            self._finish(self.start)

    def _finish(self, end: float) -> None:
        self.done = True
        self.seconds = end - self.start
        self.machine.version += 1
        if self.machine.config.clear_kv:
            self.machine.clear_kv()
