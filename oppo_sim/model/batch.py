"""Who runs and who waits on a replica, and the KV blocks they hold.

A rollout with c tokens of context needs c // block + 1 blocks before its next iteration.
"""

from bisect import insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from oppo_sim.model.formulas import iterations_that_fit
from oppo_sim.model.kept import KeptKv
from oppo_sim.model.prefixes import SharedPrefixes
from oppo_sim.model.replica_rules import ReplicaRules
from oppo_sim.model.rollout import Rollout


class ReplicaBatch:
    """Rollouts of one replica, counted in its iterations."""

    def __init__(self, rules: ReplicaRules) -> None:
        self.chunk_size = 1
        self.iteration = 0
        """Iterations that it has decoded."""
        self.running = 0
        self.kv = 0
        """Tokens of context of those that run."""
        # Static batches cost by padded rows; continuous ones by what runs.
        self.rows = 0
        self.padded_kv = 0
        self.waiting: list[Rollout] = []
        """In line to be prefilled, by id."""
        self.away: set[Rollout] = set()
        """At a tool."""
        self.prefixes = SharedPrefixes(rules.kv_block_tokens)
        self.kept = KeptKv(rules.kv_block_tokens, self.prefixes)
        self._rules = rules
        self._limited = rules.kv_blocks is not None or rules.max_num_seqs is not None
        self._finishes: list[tuple[int, int, Rollout]] = []
        self._cuts: dict[int, list[Rollout]] = {}
        self._cut_iterations: list[int] = []

    # ---- waiting -------------------------------------------------------------------------------------------

    def enqueue(self, rollout: Rollout) -> None:
        """Put a rollout in line, where it does not wait for a tool; it is prefilled when it joins."""
        rollout.queued = True
        if rollout.waits_for_tool:
            self.away.add(rollout)
            return
        waiting = self.waiting
        if not waiting or waiting[-1].rollout_id < rollout.rollout_id:
            waiting.append(rollout)
        else:
            insort(waiting, rollout, key=_by_id)

    def tool_answered(self, rollout: Rollout) -> None:
        """A rollout that was at a tool is in line again."""
        self.away.remove(rollout)
        self.enqueue(rollout)

    def take_joining(self) -> list[Rollout]:
        """Those that may join now, no longer in line."""
        if not self._limited:
            joining, self.waiting = self.waiting, []
            return joining
        count = self._room()
        joining = self.waiting[:count]
        del self.waiting[:count]
        return joining

    def _room(self) -> int:
        """How many waiting rollouts, in id order, may join now."""
        rules = self._rules
        count = len(self.waiting)
        if rules.max_num_seqs is not None:
            count = max(0, min(count, rules.max_num_seqs - self.running))
        if rules.kv_blocks is None:
            return count
        block = rules.kv_block_tokens
        used = self._blocks_for_next_token()
        joining = -1
        for position in range(count):
            rollout = self.waiting[position]
            used += rollout.context // block + 1
            if rollout.prefix:
                if rollout.group_id == joining or self.prefixes.runs(rollout.group_id):
                    used -= rollout.prefix // block
                joining = rollout.group_id
            if used > rules.kv_blocks:
                return position
        return count

    # ---- running -------------------------------------------------------------------------------------------

    @property
    def rollouts(self) -> list[Rollout]:
        """Those with KV here, by id."""
        return sorted((entry[2] for entry in self._finishes), key=_by_id)

    def begin(self, rollout: Rollout) -> None:
        """It runs, until the end of its turn; ``settle`` follows."""
        self.kept.release(rollout)
        self.prefixes.join(rollout)
        rollout.has_kv = True
        final = rollout.final_iteration = self.iteration + rollout.turn_end - rollout.generated
        self._finishes.append((final, rollout.rollout_id, rollout))
        if self._rules.stream:
            self.schedule_cut(rollout)

    def settle(self, count: int, kv: int) -> None:
        """After ``begin`` of ``count`` rollouts with ``kv`` tokens of context."""
        heapify(self._finishes)
        self.running += count
        self.kv += kv
        if self.kept and self._rules.kv_blocks is not None:
            self._give_up_kept()

    def schedule_cut(self, rollout: Rollout) -> None:
        """The next cut of a running rollout, if one comes before its turn ends."""
        if not rollout.next_cut:
            rollout.next_cut = self.chunk_size
        cut, final = self.iteration + rollout.next_cut - rollout.generated, rollout.final_iteration
        if cut < final or (cut == final and rollout.turn_end < rollout.response_length):
            bucket = self._cuts.get(cut)
            if bucket is None:
                self._cuts[cut] = [rollout]
                heappush(self._cut_iterations, cut)
            else:
                bucket.append(rollout)

    def iterations_to_change(self) -> int:
        """Until the next finish or cut."""
        k = self._finishes[0][0] - self.iteration
        if self._cut_iterations and self._cut_iterations[0] - self.iteration < k:
            k = self._cut_iterations[0] - self.iteration
        return k

    def advance(self, k: int) -> None:
        """``k`` iterations have ended."""
        self.iteration += k
        self.kv += k * self.running
        self.padded_kv += k * self.rows

    def finish_next(self) -> Rollout | None:
        """A rollout whose turn has ended with this iteration, no longer running; None: there is none left."""
        if not self._finishes or self._finishes[0][0] != self.iteration:
            return None
        rollout = heappop(self._finishes)[2]
        rollout.generated = rollout.turn_end
        self.running -= 1
        self.kv -= rollout.context
        rollout.has_kv = False
        self.prefixes.leave(rollout)
        return rollout

    def take_cuts(self) -> Sequence[Rollout]:
        """Rollouts that are cut after this iteration."""
        if not self._cut_iterations or self._cut_iterations[0] != self.iteration:
            return ()
        heappop(self._cut_iterations)
        return self._cuts.pop(self.iteration)

    def without_padding(self) -> None:
        """Rows that ended cost nothing from now on."""
        self.rows = self.running
        self.padded_kv = self.kv

    def sync_generated(self) -> None:
        """Bring ``generated`` of the running rollouts up to date."""
        iteration = self.iteration
        for final_iteration, _, rollout in self._finishes:
            rollout.generated = rollout.turn_end - (final_iteration - iteration)

    def release_kv(self) -> None:
        """Free all KV: whatever runs must be prefilled again."""
        self.sync_generated()
        for _, _, rollout in self._finishes:
            rollout.has_kv = False
            self.prefixes.leave(rollout)
            self.waiting.append(rollout)
        self.waiting.sort(key=_by_id)
        self.kept.release_all()
        self._finishes.clear()
        self._cuts.clear()
        self._cut_iterations.clear()
        self.running = 0
        self.kv = 0
        self.without_padding()

    def remove(self, rollout: Rollout) -> None:
        """Take a rollout off this replica (dropped, moved or held); its KV here is freed."""
        if rollout.has_kv:
            self.sync_generated()
            self._finishes = [entry for entry in self._finishes if entry[2] is not rollout]
            heapify(self._finishes)
            self.running -= 1
            self.kv -= rollout.context
            self.prefixes.leave(rollout)
            for cuts in self._cuts.values():
                if rollout in cuts:
                    cuts.remove(rollout)
        elif rollout.waits_for_tool:
            self.away.remove(rollout)
        else:
            self.waiting.remove(rollout)
        self.kept.release(rollout)
        rollout.has_kv = False
        rollout.queued = False
        self.without_padding()

    # ---- KV blocks -----------------------------------------------------------------------------------------

    def iterations_before_full(self) -> int:
        """Iterations before the growth check fails, where KV has a bound."""
        rules = self._rules
        assert rules.kv_blocks is not None
        block, running = rules.kv_block_tokens, self.running
        free = rules.kv_blocks - self._blocks_for_next_token() - self._kept_blocks()
        residues = [0] * block
        if block > 1:
            for context in self._contexts():
                residues[context % block] += 1
        else:
            residues[0] = running
        return iterations_that_fit(residues, free, running)

    def preempt_until_it_fits(self) -> list[Rollout]:
        """The growth check, where KV has a bound: those that are in line again."""
        capacity = self._rules.kv_blocks
        assert capacity is not None
        self._give_up_kept()
        preempted = []
        while self.running and self._blocks_for_next_token() > capacity:
            victim = max((entry[2] for entry in self._finishes), key=_by_id)
            self.remove(victim)
            self.enqueue(victim)
            preempted.append(victim)
        return preempted

    def _give_up_kept(self) -> None:
        """What others keep is in the way of the next iteration."""
        capacity, kept = self._rules.kv_blocks, self.kept
        assert capacity is not None
        while kept and self._blocks_for_next_token() + self._kept_blocks() > capacity:
            kept.release_highest()

    def _contexts(self) -> list[int]:
        iteration = self.iteration
        return [
            r.prompt_length + r.tool_tokens + r.turn_end - (final - iteration)
            for final, _, r in self._finishes
        ]

    def _blocks_for_next_token(self) -> int:
        block = self._rules.kv_block_tokens
        shared = self.prefixes.running_blocks
        if block == 1:
            return self.kv + self.running - shared
        return sum(context // block + 1 for context in self._contexts()) - shared

    def _kept_blocks(self) -> int:
        """Of those that do not run, less what they share with those that do."""
        return self.kept.blocks - (self.prefixes.blocks - self.prefixes.running_blocks)


def _by_id(rollout: Rollout) -> int:
    return rollout.rollout_id
