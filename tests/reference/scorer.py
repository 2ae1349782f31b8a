"""Scoring workers: pieces of responses in, scores out."""

from dataclasses import dataclass, field

from .config import Counters, ReferenceConfig, linear
from .devices import World
from .work import Rollout


@dataclass(eq=False)
class Piece:
    """``new`` tokens of a rollout over ``past`` ones; ``last`` ends it."""

    rollout: Rollout
    attempt: int
    instant: int
    new: int
    past: int
    last: bool

    def prefilled(self, block: int) -> range:
        """The places of the rollout's tokens that are prefilled with this piece."""
        upto = self.past + self.new
        return range(_kept(self.past, block), upto if self.last else _kept(upto, block))

    @property
    def void(self) -> bool:
        return self.attempt != self.rollout.attempt


def _kept(upto: int, block: int) -> int:
    """How many of the first ``upto`` tokens a scorer with such blocks has prefilled."""
    if block == 1:
        return upto
    kept = 0
    while kept + block < upto:
        kept += block
    return kept


@dataclass(eq=False)
class Sent:
    """A rollout's tokens up to ``upto`` (prompt included), on their way to the scorer."""

    rollout: Rollout
    upto: int
    last: bool


@dataclass(eq=False)
class Request:
    """A rollout's pieces of one batch, at a serving engine."""

    owner: tuple[int, int]
    past: int
    upto: int
    found: int | None = None
    """Tokens that were there when it began"""
    done: int = 0
    blocks: list[object] = field(default_factory=list)


class Engine:
    """A worker's serving engine with its blocks one by one: what each has, (owner, its place) or nothing."""

    def __init__(self, count: int, block: int, at_a_time: int | None) -> None:
        self.block = block
        self.at_a_time = at_a_time or 10**9
        self.free: list[object] = [None] * count
        """The next one to be given away first"""

    def run(self, requests: list[Request]) -> None:
        """Iterations until all are done."""
        while requests:
            room = self.at_a_time
            began = []
            for request in requests:
                if room == 0 or not self._begin(request):
                    break
                tokens = min(room, request.upto - request.done)
                room -= tokens
                request.done += tokens
                while len(request.blocks) * self.block < request.done:
                    self.free.pop(0)
                    request.blocks.append((request.owner, len(request.blocks)))
                began.append(request)
            for request in began:
                if request.done == request.upto:
                    requests.remove(request)
                    rest = request.upto % self.block > 0
                    if rest:
                        self.free.insert(0, None)
                    self.free += reversed(request.blocks[: len(request.blocks) - rest])

    def _begin(self, request: Request) -> bool:
        """Finds what is there; False if the rest does not fit beside what runs."""
        if request.found is not None:
            return True
        blocks = [(request.owner, place) for place in range(-(-request.upto // self.block))]
        there = next((place for place, name in enumerate(blocks) if name not in self.free), len(blocks))
        if len(blocks) - there > len(self.free) - there:
            return False
        for name in blocks[:there]:
            self.free.remove(name)
        request.blocks = list(blocks[:there])
        request.found = request.done = there * self.block
        return True


@dataclass(eq=False)
class Worker:
    """One worker: what waits, what it does now, the tokens it holds by rollout id."""

    index: int
    engine: Engine
    asleep: bool = False
    """Since a phase began; it wakes for its next batch"""
    queue: list[Piece] = field(default_factory=list)
    in_service: list[Piece] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)

    @property
    def load(self) -> int:
        return sum(piece.new for piece in self.queue) + sum(piece.new for piece in self.in_service)


class Scorer:
    """All workers. ``cut`` hands in; ``take``, once an instant's ends are over, lets free workers begin."""

    def __init__(self, config: ReferenceConfig, world: World, counters: Counters) -> None:
        self.config = config
        self.world = world
        self.counters = counters
        self.workers = [
            Worker(index, Engine(config.scorer_cache or 0, config.scorer_block, config.scorer_iteration))
            for index in range(config.num_workers)
        ]
        self.cut_now: list[tuple[Rollout, bool, int]] = []
        self.on_the_way: list[Sent] = []
        self.arrived: list[Sent] = []
        self.link_free = [0.0] * config.num_replicas
        """When the link of each replica has nothing left to send"""

    def cut(self, rollout: Rollout, next_threshold: int) -> None:
        """Hand in what the rollout has made and the scorer does not have."""
        rollout.cut = rollout.generated
        rollout.threshold = next_threshold
        self.cut_now.append((rollout, rollout.finished, rollout.context))

    def forget(self, rollout: Rollout) -> None:
        """A drop: what waits is removed, what is in service counts for nothing, what is held is freed. Call
        before ``restart``."""
        self.cut_now = [entry for entry in self.cut_now if entry[0] is not rollout]
        self.on_the_way = [sent for sent in self.on_the_way if sent.rollout is not rollout]
        self.arrived = [sent for sent in self.arrived if sent.rollout is not rollout]
        for worker in self.workers:
            worker.queue = [piece for piece in worker.queue if piece.rollout is not rollout]
            worker.held.pop(rollout.id, None)

    def take(self) -> None:
        """Send what was cut in this instant, assign what arrived in it, in id order; then every free worker
        takes what it may."""
        self._send(sorted(self.cut_now, key=lambda entry: entry[0].id))
        self.cut_now = []
        for sent in sorted(self.arrived, key=lambda sent: sent.rollout.id):
            self._receive(sent.rollout, sent.upto, sent.last)
        self.arrived = []
        for worker in self.workers:
            if worker.queue and not worker.in_service:
                self._begin(worker)

    def _send(self, cut: list[tuple[Rollout, bool, int]]) -> None:
        """Each replica's pieces of this instant are one message, behind those that it sent before."""
        messages: dict[int, list[Sent]] = {}
        lasts: dict[int, float] = {}
        for rollout, last, upto in cut:
            tokens, rollout.left = upto - rollout.left, upto
            seconds = self.config.added.get("piece_send", 0.0) + tokens * self.config.send_per_token
            lasts[rollout.replica] = lasts.get(rollout.replica, 0.0) + seconds
            messages.setdefault(rollout.replica, []).append(Sent(rollout, upto, last))
        for replica, message in messages.items():
            if lasts[replica] <= 0:
                self.arrived += message
                continue
            arrival = max(self.link_free[replica], self.world.now) + lasts[replica]
            self.link_free[replica] = arrival
            self.on_the_way += message
            self.world.start(
                arrival - self.world.now, (), (0.0, 0.0), lambda end, message=message: self._arrive(message)
            )

    def _arrive(self, message: list[Sent]) -> None:
        for sent in message:
            if sent in self.on_the_way:  # else its rollout was dropped
                self.on_the_way.remove(sent)
                self.arrived.append(sent)

    def _receive(self, rollout: Rollout, upto: int, last: bool) -> None:
        if rollout.withheld and not last:
            return
        if rollout.worker is None:
            worker = min(self.workers, key=lambda worker: (worker.load, worker.index))
        else:
            worker = self.workers[rollout.worker]
        piece = Piece(rollout, rollout.attempt, self.world.instant, upto - rollout.sent, rollout.sent, last)
        capacity = self.config.scorer_kv_capacity
        if not last and capacity is not None and sum(worker.held.values()) + piece.new > capacity:
            rollout.withheld = True
            return
        rollout.worker = worker.index
        rollout.sent += piece.new
        worker.held[rollout.id] = rollout.sent
        worker.queue.append(piece)
        worker.queue.sort(key=lambda queued: (queued.instant, queued.rollout.id))

    def _begin(self, worker: Worker) -> None:
        worker.in_service = [worker.queue.pop(0)]
        tokens = worker.in_service[0].new
        while worker.queue and tokens + worker.queue[0].new <= self.config.max_scoring_tokens:
            tokens += worker.queue[0].new
            worker.in_service.append(worker.queue.pop(0))
        places = [piece.prefilled(self.config.scorer_block) for piece in worker.in_service]
        pieces = sum(1 for place in places if len(place))
        self.counters.scored += sum(piece.new for piece in worker.in_service)
        if self.config.scorer_cache is not None:
            again = self._lost(worker, places)
            self.counters.scored += sum(map(len, again))
            places += again
        tokens = sum(map(len, places))
        pairs = sum((place.stop**2 - place.start**2) / 2 for place in places)
        seconds, host = 0.0, 0.0
        if tokens:
            seconds = linear(self.config.score, tokens, pairs)
            if self.config.stream_ref:
                seconds += linear(self.config.stages.get("ref", (0.0, 0.0, 0.0)), tokens, pairs)
            seconds *= self.config.factors.get("score", 1.0)
            host = self.config.added.get("score_batch", 0.0)
        host += pieces * self.config.added.get("piece_fixed", 0.0)
        if worker.asleep:
            worker.asleep = False
            host += self.config.added.get("reward_phase", 0.0)
        self.counters.batches += 1
        self.counters.pieces += len(worker.in_service)
        devices = self.config.devices_of_worker(worker.index)
        demand = self.config.demand("score", seconds, host)
        self.counters.kernel_score += max(demand) * (seconds + host)
        _, slowed_by, _ = self.config.slowed_by
        self.world.start(
            seconds + host, devices, demand, lambda end: self._done(worker, end), slowed_by=slowed_by
        )

    def _lost(self, worker: Worker, places: list[range]) -> list[range]:
        """What is prefilled again."""
        requests: dict[tuple[int, int], Request] = {}
        for piece, place in zip(worker.in_service, places, strict=True):
            owner = piece.rollout.id, piece.attempt
            requests.setdefault(owner, Request(owner, place.start, place.stop)).upto = place.stop
        begun = [request for request in requests.values() if request.upto > request.past]
        worker.engine.run(list(begun))
        return [range(request.found or 0, request.past) for request in begun]

    def _done(self, worker: Worker, end: float) -> None:
        for piece in worker.in_service:
            if piece.last and not piece.void:
                piece.rollout.score_time = end
                del worker.held[piece.rollout.id]
        worker.in_service = []
