"""A policy asked from Python at the boundaries of a phase, while the machine runs compiled.

Shipped policies that admit up to B + Δ, and the oracle, decide in the kernel: of them Python only sets the
knobs, once a step, where they are controlled. Everything else is answered by the policy object.
"""

import inspect
from collections.abc import Callable
from itertools import repeat
from math import isnan
from typing import TYPE_CHECKING, Any, TypeAlias

from oppo_sim.columns import (
    CHUNK_SIZE,
    OVERCOMMIT,
    REWARD_MEAN,
    ROLLOUTS_DEFERRED,
    ROLLOUTS_SURPLUS,
    STAGES,
    TOKENS_TRAINED,
    timing,
)
from oppo_sim.fast.state import Memory
from oppo_sim.policies.interface import OraclePoolView, Policy, PoolView, RolloutView, StepPlan, StepReport
from oppo_sim.policies.refill import Refill, ShippedPolicy
from oppo_sim.policies.shipped.oracle import Oracle
from oppo_sim.scenario.build import Setup
from oppo_sim.schedule.answers import Answers

if TYPE_CHECKING:
    import numpy as np

Places: TypeAlias = "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]"
"""Group slots and slots."""
METHODS = ("plan", "arrange", "select", "drop", "observe")
_TIMED = (*STAGES, "step")


def own_methods(policy: Policy, kind: type[Policy]) -> frozenset[str]:
    """Methods of the policy that are not those of ``kind``."""
    found = set()
    for name in METHODS:
        method = inspect.unwrap(getattr(policy, name))
        if getattr(method, "__func__", None) is not getattr(kind, name):
            found.add(name)
    return frozenset(found)


def compiled_kind(policy: Policy) -> type[Policy] | None:
    """The class whose decisions the kernel makes itself, if they are this policy's; else None."""
    for kind in (Refill, Oracle):
        if isinstance(policy, kind) and not own_methods(policy, kind):
            return kind
    return None


class Asked:
    """The policy of one compiled run."""

    def __init__(self, kernel: Any, setup: Setup, policy: Policy, memory: Memory) -> None:
        import numpy as np

        self._kernel = kernel
        self._policy = policy
        self._memory = memory
        self._batch = setup.batch
        self._replicas = setup.machine.num_replicas
        self._answers = Answers(policy, setup.batch)
        self._shelved: set[int] = set()
        self._seen: dict[bool, Places] = {}
        self._flying: dict[int, int] | None = None
        self._members = np.arange(setup.batch.group_size)
        self._state = memory.states[0]
        self._is_asked = compiled_kind(policy) is None
        own = own_methods(policy, Policy)
        self._arranges = self._is_asked and "arrange" in own
        self._learns = _learns(policy) if isinstance(policy, ShippedPolicy) else "observe" in own
        self._plan = StepPlan(0, 1)
        self._begun = 0
        """Rollouts in flight once the plan is carried out."""
        from oppo_sim.fast import records

        self._records = records
        self._first_stage = records.NAMES.index(timing("gen"))
        self._told = [
            records.NAMES.index(name)
            for name in (
                REWARD_MEAN,
                TOKENS_TRAINED,
                ROLLOUTS_DEFERRED,
                ROLLOUTS_SURPLUS,
                OVERCOMMIT,
                CHUNK_SIZE,
            )
        ]
        self._respond: dict[int, Callable[[], None]] = {
            records.PLAN: self._ask_plan,
            records.ARRANGE: self._ask_arrange,
            records.SELECT: self._ask_select,
            records.DROP: self._ask_drop,
        }

    def advance(self, until: int) -> int:
        """Run until so many steps are done; returns what the kernel does. Raises OppoError for an impossible
        answer."""
        kernel, states, state = self._kernel, self._memory.states, self._state
        step = int(state["step"])
        while True:
            target = step + 1 if self._learns else until
            code = kernel.advance(states, target)
            if code == self._records.OK:
                if self._learns:
                    self._observe(step)
                step = target
                if step == until:
                    return int(code)
            elif code in self._respond:
                self._respond[code]()
            else:
                return int(code)

    # ---- what the policy sees ------------------------------------------------------------------------------

    def _places(self, finished: bool) -> "Places":
        """Of those that may be selected, in order, or of the others, by id; looked up once a question."""
        if finished not in self._seen:
            state, tables = self._state, self._memory.tables
            if finished:
                groups = tables["finished"][: int(state["fin"]) - int(state["arrived"])]
            else:
                groups = tables["flights"][: int(state["flights"])]
                groups = groups[tables["groups"]["whole"][groups] == 0]
                groups = groups[tables["groups"]["id"][groups].argsort()]
            size = self._batch.group_size
            slots = groups if size == 1 else (groups[:, None] * size + self._members).ravel()
            self._seen[finished] = groups, slots
        return self._seen[finished]

    def _views(self, finished: bool) -> tuple[RolloutView, ...]:
        groups, slots = self._places(finished)
        if not len(slots):
            return ()
        rollouts, of_groups, size = (
            self._memory.tables["rollouts"],
            self._memory.tables["groups"],
            self._batch.group_size,
        )
        places = groups if size == 1 else groups.repeat(size)
        columns = (
            rollouts["id"][slots].tolist(),
            of_groups["id"][places].tolist(),
            rollouts["prompt"][slots].tolist(),
            rollouts["generated"][slots].tolist(),
            rollouts["replica"][slots].tolist(),
            rollouts["admitted_step"][slots].tolist(),
            of_groups["deferrals"][places].tolist(),
            [None if head < 0 else head for head in rollouts["head"][slots].tolist()],
            of_groups["finished_step"][places].tolist() if finished else repeat(None),
        )
        # What RolloutView._make does, without its Python.
        return tuple(map(tuple.__new__, repeat(RolloutView), zip(*columns, strict=False)))

    def _ids(self, finished: bool) -> dict[int, int]:
        """Id → slot."""
        slots = self._places(finished)[1]
        ids = self._memory.tables["rollouts"]["id"][slots]
        return dict(zip(ids.tolist(), slots.tolist(), strict=True))

    def _groups_in_flight(self) -> dict[int, int]:
        """Group → group slot; looked up once a question."""
        if self._flying is None:
            tables = self._memory.tables
            places = tables["flights"][: int(self._state["flights"])]
            ids = tables["groups"]["id"][places].tolist()
            self._flying = dict(zip(ids, places.tolist(), strict=True))
        return self._flying

    def _ids_in_flight(self) -> list[int]:
        size, groups = self._batch.group_size, self._groups_in_flight()
        if size == 1:
            return list(groups)
        return [group * size + member for group in groups for member in range(size)]

    def _pool(self) -> PoolView:
        self._seen.clear()
        self._flying = None
        state, size = self._state, self._batch.group_size
        step = int(state["step"])
        kind = OraclePoolView if self._policy.oracle else PoolView
        pool = kind(
            step,
            step,
            int(state["admitted"]) * size,
            int(state["flights"]) * size,
            self._replicas,
            self._views,
            self._ids_in_flight,
        )
        if isinstance(pool, OraclePoolView):
            lengths = self._memory.tables["rollouts"]["response"]
            pool.response_lengths = {
                rollout_id: int(lengths[slot])
                for rollout_id, slot in (*self._ids(False).items(), *self._ids(True).items())
            }
        return pool

    # ---- what it is asked ----------------------------------------------------------------------------------

    def _ask_plan(self) -> None:
        state, policy, batch = self._state, self._policy, self._batch
        self._answers.step = int(state["step"])
        plan = self._plan = policy.plan(self._pool())
        self._answers.check_plan(plan, self._shelved)
        state["to_admit"], state["next_chunk"], state["overcommit"] = (
            plan.admit,
            plan.chunk_size,
            plan.overcommit,
        )
        state["stop_after"] = batch.rollout_batch_size if plan.stop_after is None else plan.stop_after
        limit = policy.max_deferrals
        state["max_deferrals"] = self._records.UNBOUNDED if limit is None else limit
        first, size = int(state["admitted"]) * batch.group_size, batch.group_size
        self._begun = int(state["flights"]) * size + plan.admit + len(plan.readmit)
        if plan.readmit:
            self._fill("readmit", plan.readmit)
            self._shelved.difference_update(plan.readmit)
        state["readmits"] = len(plan.readmit)
        awaited: list[int] = []
        if plan.wait_for:
            known = self._ids(False).keys() | set(plan.readmit)
            new = range(first, first + plan.admit)
            awaited = sorted(i for i in plan.wait_for if i in known or i in new)
            self._fill("answer", awaited)
        state["answers"] = len(awaited)
        if not self._arranges:
            self._answers.check_phase_can_end(int(state["stop_after"]), self._begun, (), ())
        state["planned"] = 1

    def _ask_arrange(self) -> None:
        state, rollouts = self._state, self._memory.tables["rollouts"]
        arrangement = self._policy.arrange(self._pool())
        slots = self._ids(False)
        pairs: list[int] = []
        for rollout_id, replica in sorted(arrangement.move.items()):
            slot = slots.get(rollout_id)
            self._answers.check_move(rollout_id, replica, slot is not None, self._replicas)
            assert slot is not None
            if rollouts["replica"][slot] != replica and not rollouts["finished"][slot]:
                pairs += (slot, replica)
        self._fill("answer", pairs)
        state["answers"] = len(pairs) // 2
        held = [slots[rollout_id] for rollout_id in arrangement.hold if rollout_id in slots]
        rollouts["on_hold"][list(slots.values())] = 0
        rollouts["on_hold"][held] = 1
        size = self._batch.group_size
        stuck = {int(rollouts["id"][slot]) // size for slot in held if not rollouts["finished"][slot]}
        awaited = [rollout_id for rollout_id in self._plan.wait_for if rollout_id in slots]
        self._answers.check_phase_can_end(int(state["stop_after"]), self._begun, stuck, awaited)
        state["arranged"] = 1

    def _ask_select(self) -> None:
        selected = list(self._policy.select(self._pool()))
        slots = self._ids(True)
        self._answers.check_selection(selected, slots)
        self._fill("answer", [slots[rollout_id] for rollout_id in selected])

    def _ask_drop(self) -> None:
        import numpy as np

        state, tables, size = self._state, self._memory.tables, self._batch.group_size
        wanted = set(self._policy.drop(self._pool()))
        state["answers"] = 0
        if not wanted:
            return
        places = self._groups_in_flight()
        self._answers.check_drop(wanted, self._ids_in_flight())
        groups = sorted({places[group] for group in {rollout_id // size for rollout_id in wanted}})
        shelf = int(state["shelved"]) + len(groups)
        if shelf > len(tables["shelf_groups"]):
            for name, count in (("shelf_groups", 2 * shelf), ("shelf_rollouts", 2 * shelf * size)):
                larger = np.zeros(count, dtype=tables[name].dtype)
                larger[: len(tables[name])] = tables[name]
                self._memory.put(name, larger)
        self._fill("answer", groups)
        state["answers"] = len(groups)
        self._shelved |= wanted

    def _fill(self, name: str, values: "list[int] | tuple[int, ...]") -> None:
        import numpy as np

        if len(values) > len(self._memory.tables[name]):
            self._memory.put(name, np.zeros(2 * len(values), dtype=np.int64))
        self._memory.tables[name][: len(values)] = values

    # ---- what it is told -----------------------------------------------------------------------------------

    def _observe(self, step: int) -> None:
        state, tables = self._state, self._memory.tables
        values = tables["out"][int(state["row"]) - 1].tolist()
        reward, *counts = (values[place] for place in self._told)
        trained = tables["rollouts"]["id"][tables["batch"]]
        policy = self._policy
        policy.observe(
            StepReport(
                step,
                dict(zip(_TIMED, values[self._first_stage :], strict=False)),
                tuple(trained.tolist()),
                int(counts[0]),
                None if isnan(reward) else reward,
                *map(int, counts[1:]),
            )
        )
        if not self._is_asked and isinstance(policy, ShippedPolicy):
            state["next_chunk"] = policy.chunk_size
            if isinstance(policy, Refill):
                state["next_delta"] = policy.overcommit


def _learns(policy: ShippedPolicy) -> bool:
    """A policy whose knobs are controlled, or that observes in its own way."""
    if policy.chunk_control or (isinstance(policy, Refill) and policy.delta):
        return True
    method = getattr(policy.observe, "__func__", None)
    return method not in (ShippedPolicy.observe, Refill.observe)
