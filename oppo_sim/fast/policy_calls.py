"""Calls of a policy's Python methods at the boundaries of a phase, while the machine runs compiled.

Shipped policies that admit up to B + Δ, and the oracle, decide in the kernel: of them Python only sets the
knobs, once a step, where they are controlled. Everything else is answered by the policy object.
"""

import inspect
from collections.abc import Callable, Iterable
from itertools import repeat
from math import isnan
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
from oppo_sim.fast import codes
from oppo_sim.fast.memory import Memory
from oppo_sim.policies.interface import OraclePoolView, Policy, PoolView, RolloutView, StepPlan, StepReport
from oppo_sim.policies.refill import Refill, ShippedPolicy
from oppo_sim.policies.shipped.oracle import Oracle
from oppo_sim.scenario.build import Setup
from oppo_sim.schedule.answers import Answers

if TYPE_CHECKING:
    import numpy as np

Places: TypeAlias = "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]"
"""Group slots and slots (or ids of groups)."""
_FIELDS = (
    "step", "row", "fin", "arrived", "flights", "admitted", "shelved", "to_admit", "next_chunk", "next_delta",
    "overcommit", "stop_after", "max_deferrals", "readmits", "answers", "planned", "arranged",
    "filtered_ever",
)  # fmt: skip
"""What is read and written of the run's state."""
METHODS = ("plan", "arrange", "select", "drop", "observe")
_TIMED = (*STAGES, "step")
_REPORTED = (REWARD_MEAN, TOKENS_TRAINED, ROLLOUTS_DEFERRED, ROLLOUTS_SURPLUS, OVERCOMMIT, CHUNK_SIZE)
"""What a policy observes of a step besides its seconds and its batch."""


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


class PolicyCalls:
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
        self._flying: Places | None = None
        self._members = np.arange(setup.batch.group_size)
        # Fields one by one: a record's are dear to look up.
        self._state = {name: memory.states[name].data for name in _FIELDS}
        self._group_ids = memory.tables["groups"]["id"]
        self._rows = memory.tables["out"].view(np.float64).reshape(len(memory.tables["out"]), -1)
        self._observed = 0
        """Steps that the policy has observed."""
        self._decides = compiled_kind(policy) is None
        self._has_tools = setup.replay.waits is not None
        own = own_methods(policy, Policy)
        self._arranges = self._decides and "arrange" in own
        shipped = policy if isinstance(policy, ShippedPolicy) else None
        self._learns = _learns(shipped) if shipped else "observe" in own
        self._paced = shipped if shipped and _takes_pace(shipped) else None
        """The policy, where all it observes is the pace."""
        self._plan = StepPlan(0, 1)
        self._begun = 0
        """Rollouts in flight once the plan is carried out."""
        first = codes.NAMES.index(timing("gen"))
        self._timed = slice(first, first + len(_TIMED))
        self._reported = itemgetter(*(codes.NAMES.index(name) for name in _REPORTED))
        self._pace = [codes.NAMES.index(name) for name in (timing("step"), TOKENS_TRAINED, REWARD_MEAN)]
        self._respond: dict[int, Callable[[], None]] = {
            codes.PLAN: self._ask_plan,
            codes.ARRANGE: self._ask_arrange,
            codes.SELECT: self._ask_select,
            codes.DROP: self._ask_drop,
        }

    def advance(self, until: int) -> int:
        """Run until so many steps are done; returns what the kernel does. Raises OppoError for an impossible
        answer."""
        kernel, states, step = self._kernel, self._memory.states, self._state["step"]
        while True:
            # A policy that plans observes the step before then.
            one_by_one = self._learns and not self._decides
            code = kernel.advance(states, step[0] + 1 if one_by_one else until)
            if code in self._respond:
                if code == codes.PLAN:
                    self._observe()
                self._respond[code]()
                continue
            if code == codes.OK:
                self._observe()
                if step[0] < until:
                    continue
            return int(code)

    # ---- what the policy sees ------------------------------------------------------------------------------

    def _places(self, finished: bool) -> "Places":
        """Of those that may be selected, in order, or of the others, by id; looked up once a question."""
        if finished not in self._seen:
            state, tables = self._state, self._memory.tables
            if finished:
                groups = tables["finished"][: state["fin"][0] - state["arrived"][0]]
            else:
                groups = tables["flights"][: state["flights"][0]]
                groups = groups[tables["groups"]["whole"][groups] == 0]
                groups = groups[self._group_ids[groups].argsort()]
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
            (self._memory.tables["turns"] if self._has_tools else rollouts)["prompt"][slots].tolist(),
            rollouts["generated"][slots].tolist(),
            rollouts["replica"][slots].tolist(),
            rollouts["admitted_step"][slots].tolist(),
            of_groups["deferrals"][places].tolist(),
            [None if head < 0 else head for head in rollouts["head"][slots].tolist()],
            of_groups["finished_step"][places].tolist() if finished else repeat(None),
            *self._turns(slots),
        )
        # What RolloutView._make does, without its Python.
        return tuple(map(tuple.__new__, repeat(RolloutView), zip(*columns, strict=False)))

    def _turns(self, slots: "np.ndarray[Any, Any]") -> "tuple[Iterable[int], Iterable[bool]]":
        """Turns done, and who waits for a tool."""
        if not self._has_tools:
            return repeat(0), repeat(False)
        turns = self._memory.tables["turns"][slots]
        return (turns["call"] - turns["first"]).tolist(), (turns["at_tool"] != 0).tolist()

    def _ids(self, finished: bool) -> dict[int, int]:
        """Id → slot."""
        slots = self._places(finished)[1]
        ids = self._memory.tables["rollouts"]["id"][slots]
        return dict(zip(ids.tolist(), slots.tolist(), strict=True))

    def _groups_in_flight(self) -> Places:
        """Group slots and groups, in the order of their admission; looked up once a question."""
        if self._flying is None:
            places = self._memory.tables["flights"][: self._state["flights"][0]]
            self._flying = places, self._group_ids[places]
        return self._flying

    def _ids_in_flight(self) -> list[int]:
        size, groups = self._batch.group_size, self._groups_in_flight()[1]
        if size > 1:
            groups = (groups[:, None] * size + self._members).ravel()
        ids: list[int] = groups.tolist()
        return ids

    def _pool(self) -> PoolView:
        self._seen.clear()
        self._flying = None
        state, size = self._state, self._batch.group_size
        step = state["step"][0]
        kind = OraclePoolView if self._policy.oracle else PoolView
        pool = kind(
            step,
            step,
            state["admitted"][0] * size,
            state["flights"][0] * size,
            self._replicas,
            self._views,
            self._ids_in_flight,
            state["filtered_ever"][0],
        )
        if isinstance(pool, OraclePoolView):
            lengths = self._memory.tables["rollouts"]["response"]
            pool.response_lengths = {
                rollout_id: int(lengths[slot])
                for rollout_id, slot in (*self._ids(False).items(), *self._ids(True).items())
            }
        return pool

    # ---- its decisions -------------------------------------------------------------------------------------

    def _ask_plan(self) -> None:
        state, policy, batch = self._state, self._policy, self._batch
        self._answers.step = state["step"][0]
        plan = self._plan = policy.plan(self._pool())
        self._answers.check_plan(plan, self._shelved)
        state["to_admit"][0], state["next_chunk"][0] = int(plan.admit), int(plan.chunk_size)
        state["overcommit"][0] = int(plan.overcommit)
        stop_after = batch.rollout_batch_size if plan.stop_after is None else int(plan.stop_after)
        state["stop_after"][0] = stop_after
        limit = policy.max_deferrals
        state["max_deferrals"][0] = codes.UNBOUNDED if limit is None else limit
        self._begun = state["flights"][0] * batch.group_size + plan.admit + len(plan.readmit)
        if plan.readmit:
            self._fill("readmit", plan.readmit)
            self._shelved.difference_update(plan.readmit)
        state["readmits"][0] = len(plan.readmit)
        awaited: list[int] = []
        if plan.wait_for:
            first = state["admitted"][0] * batch.group_size
            known = self._ids(False).keys() | set(plan.readmit)
            new = range(first, first + plan.admit)
            awaited = sorted(i for i in plan.wait_for if i in known or i in new)
            self._fill("answer", awaited)
        state["answers"][0] = len(awaited)
        if not self._arranges:
            self._answers.check_phase_can_end(stop_after, self._begun, (), ())
        state["planned"][0] = 1

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
        state["answers"][0] = len(pairs) // 2
        held = [slots[rollout_id] for rollout_id in arrangement.hold if rollout_id in slots]
        rollouts["on_hold"][list(slots.values())] = 0
        rollouts["on_hold"][held] = 1
        size = self._batch.group_size
        stuck = {int(rollouts["id"][slot]) // size for slot in held if not rollouts["finished"][slot]}
        awaited = [rollout_id for rollout_id in self._plan.wait_for if rollout_id in slots]
        self._answers.check_phase_can_end(state["stop_after"][0], self._begun, stuck, awaited)
        state["arranged"][0] = 1

    def _ask_select(self) -> None:
        selected = list(self._policy.select(self._pool()))
        slots = self._ids(True)
        self._answers.check_selection(selected, slots)
        self._fill("answer", [slots[rollout_id] for rollout_id in selected])

    def _ask_drop(self) -> None:
        import numpy as np

        state, tables, size = self._state, self._memory.tables, self._batch.group_size
        wanted = set(self._policy.drop(self._pool()))
        state["answers"][0] = 0
        if not wanted:
            return
        in_flight = self._ids_in_flight()
        places, ids = self._groups_in_flight()
        if len(wanted) != len(in_flight) or not wanted.issuperset(in_flight):
            self._answers.check_drop(wanted, in_flight)
            places = places[np.isin(ids, [rollout_id // size for rollout_id in wanted])]
        count = len(places)
        shelf = state["shelved"][0] + count
        if shelf > len(tables["shelf_groups"]):
            for name, room in (("shelf_groups", 2 * shelf), ("shelf_rollouts", 2 * shelf * size)):
                larger = np.zeros(room, dtype=tables[name].dtype)
                larger[: len(tables[name])] = tables[name]
                self._memory.put(name, larger)
        self._fill("answer", places)
        state["answers"][0] = count
        self._shelved |= wanted

    def _fill(self, name: str, values: "list[int] | tuple[int, ...] | np.ndarray[Any, Any]") -> None:
        import numpy as np

        if len(values) > len(self._memory.tables[name]):
            self._memory.put(name, np.zeros(2 * len(values), dtype=np.int64))
        self._memory.tables[name][: len(values)] = values

    # ---- what it observes ----------------------------------------------------------------------------------

    def _observe(self) -> None:
        """Let the policy observe the step that has ended, if there is one since."""
        state, step = self._state, self._observed
        if step == state["step"][0] or not self._learns:
            return
        self._observed += 1
        row = int(state["row"][0]) - 1
        if self._paced is not None:
            step_s, tokens, reward = [self._rows.item(row, column) for column in self._pace]
            self._paced.observe_pace(_Pace(step_s, int(tokens), None if isnan(reward) else reward))
            self._set_knobs(self._paced)
            return
        values = self._rows[row].tolist()
        reward, tokens, deferred, surplus, overcommit, chunk_size = self._reported(values)
        policy = self._policy
        policy.observe(
            StepReport(
                step,
                dict(zip(_TIMED, values[self._timed], strict=True)),
                tuple(self._memory.tables["trained"].tolist()),
                int(tokens),
                None if isnan(reward) else reward,
                int(deferred),
                int(surplus),
                int(overcommit),
                int(chunk_size),
            )
        )
        if isinstance(policy, ShippedPolicy):
            self._set_knobs(policy)

    def _set_knobs(self, policy: ShippedPolicy) -> None:
        if not self._decides:
            self._state["next_chunk"][0] = policy.chunk_size
            if isinstance(policy, Refill):
                self._state["next_delta"][0] = policy.overcommit


class _Pace(NamedTuple):
    """A ``StepPace``."""

    step_s: float
    tokens_trained: int
    reward_mean: float | None


def _takes_pace(policy: ShippedPolicy) -> bool:
    """A policy that observes as ``ShippedPolicy`` does, unwatched."""
    return getattr(policy.observe, "__func__", None) is ShippedPolicy.observe


def _learns(policy: ShippedPolicy) -> bool:
    """A policy whose knobs are controlled, or that observes in its own way."""
    return bool(policy.chunk_control or (isinstance(policy, Refill) and policy.delta)) or not _takes_pace(
        policy
    )
