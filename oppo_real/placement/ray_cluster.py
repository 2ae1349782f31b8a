"""Every replica and every scoring worker as a Ray actor, on one machine or several: Ray places them, carries
messages and weights, and says which died."""

import logging
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from oppo_real.placement.connected import PATIENCE_S, gone, receiver, silent, start_timeout
from oppo_real.placement.cores import available_cores
from oppo_real.placement.engines import ENGINES, ActorSpec, ScorerSpec, Spec, parallel_size
from oppo_real.placement.ray_worker import THREADS, RayWorker, StoredWeights
from oppo_real.placement.worker import Pin, serve_replica, serve_scorer
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import torch

    from oppo_real.config import RaySection, RayShare

_ANSWER_S = 10.0  # for the head of a cluster
_CLOCK_READINGS = 10
_LEAST_STORE_BYTES = 256 << 20
_WAKES_WITHIN_S = 0.02
_WEIGHTS_IN_STORE = 3  # the version that is read, the next, and room between them


class _RayLink:
    """The driver's end of an actor. One call of ``collect`` is always under way; it is what fails when the
    actor dies."""

    def __init__(self, name: str, actor: Any, timeout_s: float | None, *task: Any) -> None:
        self.name = name
        self.actor = actor
        self.ended = actor.run.remote(*task)
        self.pending = actor.collect.remote()
        self.received: deque[tuple[Any, ...]] = deque()
        self.clock_offset = 0.0
        self.about: dict[str, Any] = {}
        self._timeout_s = timeout_s
        self._limit_s = start_timeout(timeout_s)
        self._sent = 0

    def send(self, *message: Any) -> None:
        self.actor.post.remote(self._sent, message)
        self._sent += 1

    def receive(self) -> tuple[Any, ...]:
        while not self.received:
            self.received.extend(self._answer(self.pending))
            self.pending = self.actor.collect.remote()
        message = receiver(self.name, self.received.popleft())
        if message[0] == "ready":
            self._limit_s = self._timeout_s
        return message

    def meet(self, own_node: str) -> None:
        """Ask where it is, and what its clock shows: machines have clocks of their own. Raises OppoError if
        it could not start."""
        where = self._answer(self.actor.where.remote())
        error = 0.0
        if where["node"] != own_node:
            self.clock_offset, error = self._offset()
        self.about = {
            "ray": {"address": where["address"], "process": where["process"], "clock_error_s": error}
        }

    def _offset(self) -> tuple[float, float]:
        """Its clock less ours, read half-way of the quickest of some calls (Cristian 1989), and how wrong
        that may be, seconds."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            asked = monotonic()
            shown = self._answer(self.actor.clock.remote())
            answered = monotonic()
            readings.append(((answered - asked) / 2, shown - (asked + answered) / 2))
        error, offset = min(readings)
        return offset, error

    def _answer(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference, timeout=self._limit_s)
        except ray.exceptions.GetTimeoutError:
            raise self.hung() from None
        except ray.exceptions.RayError as error:
            raise self._dead(error) from None

    def hung(self) -> OppoError:
        import ray

        ray.kill(self.actor)
        return gone(self._named, silent(self._limit_s))

    @property
    def _named(self) -> str:
        where = self.about.get("ray")
        return f"{self.name} (process {where['process']} on {where['address']})" if where else self.name

    def _dead(self, error: Exception) -> OppoError:
        return gone(self._named, f"died ({_reason(error)})")


def _reason(error: Exception) -> str:
    """What Ray knows of an actor's death, without its tables, tracebacks and guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    if not lines:
        return type(error).__name__
    reason = lines[-1] if getattr(error, "actor_init_failed", False) else lines[min(1, len(lines) - 1)]
    reason = reason.partition("Worker exit detail: ")[2] or reason
    for guesses in (" Some common causes", " There are some potential"):
        reason = reason.partition(guesses)[0]
    return reason.rstrip(" .")


class RayTransport:
    """Actors, calls between them and the driver, and weights in Ray's object store.

    ``close`` ends the Ray that was started for it, and leaves a cluster that was joined for it; a Ray that
    this process belonged to before is used as it is.
    """

    def __init__(
        self,
        actors: Sequence[tuple[ActorSpec, Pin]],
        scorers: Sequence[tuple[ScorerSpec, Pin]],
        weights: "Mapping[str, torch.Tensor]",
        config: "RaySection",
        *,
        stream: bool,
        max_scoring_tokens: int,
        timeout_s: float | None,
    ) -> None:
        """``weights``: the policy's, for their names and shapes; ``timeout_s``: how long a worker that has
        something to do may say nothing. Raises OppoError where Ray is not to be had, or has no room."""
        import torch

        from oppo_real.placement.shared_weights import layout_of

        self.timeout_s = timeout_s
        self.replicas: list[_RayLink] = []
        self.workers: list[_RayLink] = []
        self._group: Any = None
        self._layout = layout_of(weights)
        self._block = torch.empty(self._layout.size, dtype=torch.uint8)
        self._joined = _join(config, _WEIGHTS_IN_STORE * self._layout.size)
        try:
            bundles = [_bundle(spec, config.rollout) for spec, _ in actors] + [
                _bundle(spec, config.scoring) for spec, _ in scorers
            ]
            self._group = _room(bundles, config)
            published = StoredWeights(self._layout)
            for index, (actor, to) in enumerate(actors):
                started = self._start(
                    f"replica {index}",
                    bundles,
                    serve_replica,
                    index,
                    _inside_ray(actor),
                    stream,
                    to,
                    published,
                )
                self.replicas.append(started)
            for index, (scorer, to) in enumerate(scorers):
                task = (serve_scorer, index, _inside_ray(scorer), max_scoring_tokens, to)
                self.workers.append(self._start(f"scoring worker {index}", bundles, *task))
            self._meet()
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, bundles: Sequence[Mapping[str, float]], *task: Any) -> _RayLink:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        number = len(self.replicas) + len(self.workers)
        wanted = dict(bundles[number])
        actor = (
            ray.remote(RayWorker)
            .options(
                num_cpus=wanted.pop("CPU"),
                num_gpus=wanted.pop("GPU", 0),
                resources=wanted,
                max_concurrency=THREADS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=number
                ),
            )
            .remote()
        )
        return _RayLink(name, actor, self.timeout_s, *task)

    def _meet(self) -> None:
        import ray

        own_node = ray.get_runtime_context().get_node_id()
        for link in (*self.replicas, *self.workers):
            link.meet(own_node)

    def ready(self, timeout: float | None) -> list[_RayLink]:
        import ray

        links = [*self.replicas, *self.workers]
        known = [link for link in links if link.received]
        if known:
            return known
        pending = {link.pending: link for link in links}
        slice_s = timeout if timeout is None else min(timeout, _WAKES_WITHIN_S)
        found, _ = ray.wait(list(pending), num_returns=1, timeout=slice_s)
        return [pending[reference] for reference in found]

    def wake(self) -> None:
        pass  # nothing interrupts ray.wait, so it waits in slices

    def publish(self, weights: "Mapping[str, torch.Tensor]") -> Any:
        import ray

        self._layout.write(self._block, weights)
        return ray.put(self._block.numpy())

    def close(self) -> None:
        import ray

        links = [*self.replicas, *self.workers]
        with suppress(ray.exceptions.RayError):
            for link in links:
                link.send("close")
            if links:
                ray.wait([link.ended for link in links], num_returns=len(links), timeout=PATIENCE_S)
        for link in links:
            with suppress(ray.exceptions.RayError):
                ray.kill(link.actor)
        if self._group is not None:
            with suppress(ray.exceptions.RayError):
                ray.util.remove_placement_group(self._group)
        if self._joined:
            ray.shutdown()


def _join(config: "RaySection", store_bytes: int) -> bool:
    """Have this process belong to a Ray cluster; True if it did not before. Raises OppoError where that
    fails."""
    import ray

    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if config.address is not None:
            if config.address != "auto":
                # Ray itself would try for minutes.
                host, _, port = config.address.rpartition(":")
                socket.create_connection((host, int(port)), _ANSWER_S).close()
            ray.init(config.address, **quiet)
            return True
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        size = max(_LEAST_STORE_BYTES, store_bytes)
        ray.init(
            "local",
            num_cpus=len(available_cores()),
            include_dashboard=False,
            object_store_memory=size,
            **quiet,
        )
        return True
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(". ")
        if config.address is None:
            raise OppoError(
                f"Ray does not start on this machine ({reason}): mend that, or set real.placement.kind to"
                " processes"
            ) from None
        mend = (
            "run this on a machine of the cluster (ray start), or leave real.placement.cluster.address out"
            " for this machine alone"
        )
        raise OppoError(f"no Ray cluster at '{config.address}' ({reason}): {mend}") from None


def _bundle(spec: ActorSpec | ScorerSpec, share: "RayShare") -> dict[str, float]:
    """What a worker takes of the cluster, under Ray's names."""
    gpus = share.num_gpus
    if gpus is None:
        gpus = parallel_size(spec) if spec.device.startswith("cuda") else 0
    return {"CPU": share.num_cpus, **({"GPU": float(gpus)} if gpus else {}), **share.resources}


def _room(bundles: Sequence[Mapping[str, float]], config: "RaySection") -> Any:
    """A placement group with a bundle for each worker. Raises OppoError if the cluster has no room for it in
    time."""
    import ray

    group = ray.util.placement_group([dict(bundle) for bundle in bundles], strategy=config.strategy)
    if group.wait(config.start_timeout_s):
        return group
    ray.util.remove_placement_group(group)
    names = list(dict.fromkeys(name for bundle in bundles for name in bundle))
    wanted = ", ".join(f"{sum(bundle.get(name, 0) for bundle in bundles):g} {name}" for name in names)
    found = ray.cluster_resources()  # type: ignore[no-untyped-call]
    there = ", ".join(f"{found.get(name, 0):g} {name}" for name in names)
    count = sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
    machines = f"{count} machine{'s have' if count > 1 else ' has'} {there}"
    raise OppoError(
        f"Ray found no room for {len(bundles)} workers within {config.start_timeout_s:g} s: together they"
        f" want {wanted} ({config.strategy}), and {machines}, perhaps in use: change real.placement.cluster,"
        " or add machines"
    )


def _inside_ray(spec: Spec) -> Spec:
    if parallel_size(spec) == 1:
        return spec
    return replace(spec, engine_args={**ENGINES[spec.engine].args_inside_ray, **spec.engine_args})
