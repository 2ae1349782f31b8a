"""The parts of a run that everything shares."""

from .config import Counters, ReferenceConfig, whole_groups
from .devices import World
from .replica import ContinuousReplica, Replica, StaticReplica
from .scorer import Scorer
from .work import Rollout


class Machine:
    """Clock, replicas, scorer, the weight version and the counts of the current step."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.config = config
        self.world = World(config.interference, config.in_turns)
        self.counters = Counters()
        self.scorer = Scorer(config, self.world, self.counters)
        self.version = 0
        self.chunk_size = config.chunk_size
        kind = StaticReplica if config.static else ContinuousReplica
        self.replicas: list[Replica] = [kind(self, index) for index in range(config.num_replicas)]

    def begin_counting(self) -> None:
        """A new step: counts from nothing."""
        self.counters = self.scorer.counters = Counters()
        self.world.busy = {}
        self.world.row_start = self.world.now
        for replica in self.replicas:
            replica.note_kept_kv()

    def place(self, rollouts: list[Rollout]) -> None:
        """Each in turn to the replica with the fewest unfinished, the lowest index on ties."""
        last: Rollout | None = None
        for rollout in rollouts:
            size = self.config.group_size
            if self.config.together and last is not None and last.id // size == rollout.id // size:
                self.replicas[last.replica].add(rollout)
                last = rollout
                continue
            last = rollout
            replica = min(self.replicas, key=lambda replica: (len(replica.unfinished()), replica.index))
            replica.add(rollout)

    def clear_kv(self) -> None:
        for replica in self.replicas:
            for rollout in replica.members:
                rollout.in_kv = False
                rollout.held = 0

    def made_a_token(self, rollout: Rollout) -> None:
        """Outside rounds a piece may be due after any token."""
        if self.config.in_rounds:
            return
        due = rollout.finished
        if self.config.granularity == "chunk":
            due = due or rollout.generated - rollout.cut >= rollout.threshold
        if due and self.config.granularity != "batch":
            self.scorer.cut(rollout, self.chunk_size)

    def at_barrier(self, rollouts: list[Rollout]) -> None:
        """In rounds pieces are cut when all replicas have stopped."""
        for rollout in rollouts:
            made_some = rollout.generated > rollout.cut
            if made_some and (
                self.config.granularity == "chunk"
                or (self.config.granularity == "rollout" and rollout.finished)
            ):
                self.scorer.cut(rollout, self.chunk_size)

    def round_size(self) -> int:
        return self.config.token_budget if self.config.policy == "partial-rollout" else self.chunk_size

    def blocks(self, tokens: int) -> int:
        return whole_groups(tokens, self.config.kv_block_tokens)
