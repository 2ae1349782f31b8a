"""Which devices there are and what runs on each (docs/model.md C6), by number."""

from dataclasses import dataclass

from oppo_sim.model.setup import MachineSetup


@dataclass(frozen=True)
class DeviceLayout:
    """Devices of replicas first, then those of training, of scoring workers, and the hosts."""

    rollout: tuple[int, ...]
    """Of each replica."""
    training: tuple[int, ...]
    """All of them run every training stage."""
    scoring: tuple[int, ...]
    """Of each worker; workers may share one with a replica or with training."""
    hosts: tuple[int, ...]
    """What a replica, a worker and training have in common (``shares_host``); empty: nothing."""
    shared: tuple[bool, ...]
    """By device: two activities may run on it."""

    @property
    def num_devices(self) -> int:
        """Without hosts; a shared device counts once."""
        return len({*self.rollout, *self.training, *self.scoring})

    @property
    def sync(self) -> tuple[int, ...]:
        """Devices on which ``update_weights`` runs, without hosts."""
        return tuple(dict.fromkeys((*self.training, *self.rollout)))

    def host_of(self, index: int) -> tuple[int, ...]:
        """The host of replica or worker ``index``; empty: none."""
        return (self.hosts[index % len(self.hosts)],) if self.hosts else ()


def device_layout(machine: MachineSetup, *, contention: bool) -> DeviceLayout:
    """Devices of a machine. Without ``contention`` (a counterfactual) every scoring worker has its own."""
    replicas, workers = machine.num_replicas, machine.num_workers
    scoring_on = machine.scoring_on if contention else "separate"
    rollout = tuple(range(replicas))
    if machine.training_on == "rollout":
        training = rollout
        shared = [scoring_on != "separate"] * replicas
    else:
        count = max(1, workers) if scoring_on == "training" else 1
        training = tuple(range(replicas, replicas + count))
        shared = [scoring_on == "rollout"] * replicas + [scoring_on == "training"] * count
    if scoring_on == "separate":
        scoring = tuple(range(len(shared), len(shared) + workers))
        shared += [False] * workers
    else:
        on = rollout if scoring_on == "rollout" else training
        scoring = tuple(on[worker % len(on)] for worker in range(workers))
    count = replicas if contention and max(machine.slowed_by) > 1.0 else 0
    hosts = tuple(range(len(shared), len(shared) + count))
    return DeviceLayout(rollout, training, scoring, hosts, (*shared, *[True] * count))
