"""One replica of the rollout engine: it jumps from one change to the next, exact to the token.

Between two changes (a finish, a cut, the end of a round, a full KV cache, the end of a cost line) n is
constant and kv grows by n an iteration, so k iterations take k·fixed + slope·(k·kv + n·k(k−1)/2) seconds: an
arithmetic series.
"""

from bisect import insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from oppo_sim.costs.interface import NO_DEMAND, EngineCost
from oppo_sim.instants import instant_tolerance
from oppo_sim.model.device import Runner
from oppo_sim.model.formulas import iterations_that_fit, iterations_until, series_seconds, time_on_device
from oppo_sim.model.kept import KeptKv
from oppo_sim.model.prefixes import SharedPrefixes
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.tally import Tally, Work
from oppo_sim.results.spans import Span

IDLE, READY, DECODE, PREFILL = range(4)


class ReplicaRules(NamedTuple):
    """What a replica needs to know of the scenario."""

    static: bool
    kv_blocks: int | None
    kv_block_tokens: int
    max_num_seqs: int | None
    keeps_kv: bool
    """KV outlasts a round."""
    stream: bool
    """Cut pieces while decoding (``chunk`` scoring with the ``token`` stop check)."""
    keep_kv_on_tool_call: bool = True
    turn_s: float = 0.0
    """Seconds that an iteration takes longer while its device is shared in time slices."""
    free_recompute: bool = False
    """Counterfactual: prefilling again costs nothing."""
    free_padding: bool = False
    """Counterfactual: rows and columns computed for nobody cost nothing."""


class Replica:
    """Running and waiting rollouts of one replica, and the activity in progress."""

    def __init__(
        self,
        index: int,
        runner_of: Callable[[Callable[[float], None]], Runner],
        cost: EngineCost,
        rules: ReplicaRules,
        on_finish: Callable[[Rollout, float], None],
        on_piece: Callable[[Rollout, int, int, bool], None],
        on_call: Callable[[Rollout, float], None],
        ready: list["Replica"],
    ) -> None:
        """``on_call``: a rollout calls a tool; ``ready`` collects replicas whose activity has ended at this
        instant."""
        self.index = index
        self.runner = runner_of(self._activity_ended)
        self.tally = Tally()
        self.spans: list[Span] | None = None
        self.step = 0
        self.origin = 0.0
        """Seconds of the run at which the row began: all other times here count from there."""
        self.chunk_size = 1
        self.round_left: int | None = None
        """Iterations left in the round; None outside rounds."""
        self.state = IDLE
        self.at = 0.0
        """When its last activity ended."""
        self.work = Work()
        self.waiting: list[Rollout] = []
        """In line to be prefilled, by id."""
        self.away: set[Rollout] = set()
        """At a tool."""
        self.made_in_round: list[Rollout] = []
        self._cost = cost
        self._rules = rules
        self._on_finish = on_finish
        self.on_piece = on_piece
        self._on_call = on_call
        self._prefixes = SharedPrefixes(rules.kv_block_tokens)
        self._kept = KeptKv(rules.kv_block_tokens, self._prefixes)
        self._ready = ready
        self._iteration = 0
        self._running = 0
        self._kv = 0
        self._finishes: list[tuple[int, int, Rollout]] = []
        self._cuts: dict[int, list[Rollout]] = {}
        self._cut_iterations: list[int] = []
        # Static batches cost by padded rows; continuous ones by what runs.
        self._rows = 0
        self._padded_kv = 0
        # The run of iterations in progress: how many, its cost line, and n and kv at its start.
        self._k = 0
        self._fixed = 0.0
        self._slope = 0.0
        self._demand_stale = True
        self._decode_demand = NO_DEMAND
        self._turns = 0.0
        self._work_lines: dict[int, tuple[float, float, float, float] | None] = {}

    # ---- what the driver does ------------------------------------------------------------------------------

    @property
    def running(self) -> list[Rollout]:
        """Rollouts with KV here, by id."""
        return sorted((entry[2] for entry in self._finishes), key=lambda rollout: rollout.rollout_id)

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

    def begin_phase(self, at: float, round_size: int | None) -> None:
        """Start (or resume) decoding at ``at``."""
        self.at = at
        self.round_left = round_size
        self._demand_stale = True
        if self._rules.static or not (round_size is None or self._rules.keeps_kv):
            self.release_kv()
        self.state = READY
        self._ready.append(self)

    def begin_round(self, at: float, round_size: int) -> None:
        """Go on after a barrier."""
        self.at = at
        self.round_left = round_size
        self._demand_stale = True
        if not self._rules.keeps_kv:
            self.release_kv()

    def next_activity(self) -> None:
        """Start what comes next at ``self.at``; goes idle when there is nothing, or the round is over."""
        if self.round_left == 0:
            self.state = IDLE
            return
        if self._rules.kv_blocks is not None and self._running:
            self._preempt_until_it_fits()
        if self.waiting and self._join():
            return
        if not self._running:
            self.state = IDLE
            return
        self._decode()

    def tool_answered(self, rollout: Rollout) -> None:
        """A rollout that was at a tool is in line again."""
        self.away.remove(rollout)
        self.enqueue(rollout)

    def wake(self, at: float) -> None:
        """Somebody is in line again: begin, or let him join after the iteration in progress."""
        if self.state == IDLE:
            self.at = at
            self.state = READY
            self._ready.append(self)
        else:
            self._end_with_iteration(at)

    def stop(self, at: float) -> None:
        """Complete the iteration or prefill in progress and start no other."""
        if self.state == READY:
            self.state = IDLE
        else:
            self._end_with_iteration(at)

    def _end_with_iteration(self, at: float) -> None:
        if self.state == DECODE:
            passed = self.runner.progress(at - instant_tolerance(at))
            k = iterations_until(passed, self._k, self._fixed, self._slope)
            if k < self._k:
                self._k = k
                self.runner.shorten(series_seconds(k, self._fixed, self._slope))

    def stops_at(self, now: float) -> bool:
        """True if the iteration in progress ends at this instant."""
        runner = self.runner
        return self.state == DECODE and runner.progress(now + instant_tolerance(now)) >= runner.seconds

    def sync_generated(self) -> None:
        """Bring ``generated`` of the running rollouts up to date."""
        iteration = self._iteration
        for final_iteration, _, rollout in self._finishes:
            rollout.generated = rollout.turn_end - (final_iteration - iteration)

    def release_kv(self) -> None:
        """Free all KV: whatever runs must be prefilled again."""
        self.sync_generated()
        for _, _, rollout in self._finishes:
            rollout.has_kv = False
            self._prefixes.leave(rollout)
            self.waiting.append(rollout)
        self.waiting.sort(key=_by_id)
        self._kept.release_all()
        self._forget_running()

    def remove(self, rollout: Rollout) -> None:
        """Take a rollout off this replica (dropped, moved or held); its KV here is freed."""
        if rollout.has_kv:
            self.sync_generated()
            self._finishes = [entry for entry in self._finishes if entry[2] is not rollout]
            heapify(self._finishes)
            self._running -= 1
            self._kv -= rollout.context
            self._prefixes.leave(rollout)
            for cuts in self._cuts.values():
                if rollout in cuts:
                    cuts.remove(rollout)
        elif rollout.waits_for_tool:
            self.away.remove(rollout)
        else:
            self.waiting.remove(rollout)
        self._kept.release(rollout)
        rollout.has_kv = False
        rollout.queued = False
        self._rows = self._running
        self._padded_kv = self._kv

    # ---- joining and leaving -------------------------------------------------------------------------------

    def _forget_running(self) -> None:
        self._finishes.clear()
        self._cuts.clear()
        self._cut_iterations.clear()
        self._running = 0
        self._kv = 0
        self._rows = 0
        self._padded_kv = 0

    def _join(self) -> bool:
        """Let waiting rollouts join and prefill them as one batch. True if something started."""
        joining = self.waiting[: self._room()] if self._limited() else self.waiting
        if not joining:
            return False
        rules, prefixes = self._rules, self._prefixes
        iteration = self._iteration
        tokens = recomputed = cached = kv = longest = 0
        pairs = recomputed_pairs = 0.0
        for rollout in joining:
            context = rollout.context
            new, rollout.unseen = rollout.unseen, 0
            past = context - new
            if not rollout.kept:
                shared = rollout.prefix if prefixes.holds(rollout.group_id) else 0
                cached += shared
                if past:
                    again = past - shared
                    recomputed += again
                    recomputed_pairs += again * (shared + again * 0.5)
                else:
                    new, past = new - shared, shared
            tokens += new
            pairs += new * (past + new * 0.5)
            self._kept.release(rollout)
            prefixes.join(rollout)
            kv += context
            longest = context if context > longest else longest
            rollout.has_kv = True
            final = rollout.final_iteration = iteration + rollout.turn_end - rollout.generated
            self._finishes.append((final, rollout.rollout_id, rollout))
            if rules.stream:
                self._schedule_cut(rollout, final)
        heapify(self._finishes)
        count = len(joining)
        if joining is self.waiting:
            self.waiting = []
        else:
            del self.waiting[:count]
        self._running += count
        self._kv += kv
        if self._kept and rules.kv_blocks is not None:
            self._give_up_kept()
        tally = self.tally
        tally.prefilled += tokens
        tally.recomputed += recomputed
        tally.prefix_cached += cached
        tally.kv_peak = max(tally.kv_peak, self._kv + self._kept.tokens - prefixes.tokens)
        if rules.static:
            self._rows = count
            self._padded_kv = count * longest
            tally.padding += count * longest - kv
            if not rules.free_padding:
                if rules.free_recompute:
                    fresh = [rollout for rollout in joining if not rollout.generated]
                    longest = max((rollout.prompt_length for rollout in fresh), default=0)
                    count = len(fresh)
                tokens, recomputed = count * longest, 0
                pairs, recomputed_pairs = count * longest * longest * 0.5, 0.0
        else:
            self._rows = self._running
            self._padded_kv = self._kv
        if not rules.free_recompute:
            tokens += recomputed
            pairs += recomputed_pairs
        self._demand_stale = True
        if not tokens:
            return False
        self._prefill(tokens, pairs, count)
        return True

    def _schedule_cut(self, rollout: Rollout, final: int) -> None:
        if not rollout.next_cut:
            rollout.next_cut = self.chunk_size
        cut = self._iteration + rollout.next_cut - rollout.generated
        if cut < final or (cut == final and rollout.turn_end < rollout.response_length):
            bucket = self._cuts.get(cut)
            if bucket is None:
                self._cuts[cut] = [rollout]
                heappush(self._cut_iterations, cut)
            else:
                bucket.append(rollout)

    def _limited(self) -> bool:
        return self._rules.kv_blocks is not None or self._rules.max_num_seqs is not None

    def _room(self) -> int:
        """How many waiting rollouts, in id order, may join now."""
        rules = self._rules
        count = len(self.waiting)
        if rules.max_num_seqs is not None:
            count = min(count, rules.max_num_seqs - self._running)
        if rules.kv_blocks is None:
            return max(count, 0)
        block = rules.kv_block_tokens
        used = self._blocks_for_next_token()
        joining = -1
        for position in range(count):
            rollout = self.waiting[position]
            used += rollout.context // block + 1
            if rollout.prefix:
                if rollout.group_id == joining or self._prefixes.runs(rollout.group_id):
                    used -= rollout.prefix // block
                joining = rollout.group_id
            if used > rules.kv_blocks:
                return position
        return max(count, 0)

    # ---- KV blocks: a rollout with c tokens of context needs c // block + 1 blocks before its next iteration

    def _contexts(self) -> list[int]:
        iteration = self._iteration
        return [
            r.prompt_length + r.tool_tokens + r.turn_end - (final - iteration)
            for final, _, r in self._finishes
        ]

    def _blocks_for_next_token(self) -> int:
        block = self._rules.kv_block_tokens
        shared = self._prefixes.running_blocks
        if block == 1:
            return self._kv + self._running - shared
        return sum(context // block + 1 for context in self._contexts()) - shared

    def _kept_blocks(self) -> int:
        """Of those that do not run, less what they share with those that do."""
        return self._kept.blocks - (self._prefixes.blocks - self._prefixes.running_blocks)

    def _iterations_before_full(self) -> int:
        """Iterations before the growth check fails."""
        rules = self._rules
        assert rules.kv_blocks is not None
        block, running = rules.kv_block_tokens, self._running
        free = rules.kv_blocks - self._blocks_for_next_token() - self._kept_blocks()
        residues = [0] * block
        if block > 1:
            for context in self._contexts():
                residues[context % block] += 1
        else:
            residues[0] = running
        return iterations_that_fit(residues, free, running)

    def _preempt_until_it_fits(self) -> None:
        capacity = self._rules.kv_blocks
        assert capacity is not None
        self._give_up_kept()
        while self._running and self._blocks_for_next_token() > capacity:
            victim = max((entry[2] for entry in self._finishes), key=_by_id)
            self.remove(victim)
            victim.preemptions += 1
            self.tally.preemptions += 1
            self.enqueue(victim)
            self._demand_stale = True
            if self.round_left is not None:
                self.made_in_round.append(victim)

    def _give_up_kept(self) -> None:
        """What others keep is in the way of the next iteration."""
        capacity, kept = self._rules.kv_blocks, self._kept
        assert capacity is not None
        while kept and self._blocks_for_next_token() + self._kept_blocks() > capacity:
            kept.release_highest()

    # ---- activities ----------------------------------------------------------------------------------------

    def _prefill(self, tokens: int, pairs: float, count: int) -> None:
        self.state = PREFILL
        cost = self._cost
        seconds, demand = cost.prefill_time(tokens, pairs), cost.prefill_demand(tokens, pairs)
        self.runner.start(self.at, seconds, demand)
        self.work.kernel_s += time_on_device(demand.memory, demand.arithmetic) * seconds
        work = cost.prefill_work(tokens, pairs)
        if work is not None:
            self.work.flops += work.flops
            self.work.bytes += work.bytes
        self._k = count

    def _decode(self) -> None:
        iteration = self._iteration
        k = self._finishes[0][0] - iteration
        if self._cut_iterations and self._cut_iterations[0] - iteration < k:
            k = self._cut_iterations[0] - iteration
        if self.round_left is not None and self.round_left < k:
            k = self.round_left
        rules = self._rules
        if rules.kv_blocks is not None:
            k = min(k, self._iterations_before_full())
        if rules.static and rules.free_padding:
            rows, kv = self._running, self._kv
        else:
            rows, kv = self._rows, self._padded_kv
        fixed, slope, kv_until = self._cost.decode_line(rows, kv)
        if kv_until != inf:
            k = min(k, int((kv_until - kv) // rows) + 1)
        # Seconds of iteration j of this run: fixed + j·slope.
        self._fixed = fixed + slope * kv
        self._slope = slope * rows
        self._k = k
        self.state = DECODE
        runner = self.runner
        seconds = series_seconds(k, self._fixed, self._slope)
        if self._demand_stale:
            self._decode_demand = self._cost.decode_demand(rows, kv)
            self._turns = self._rules.turn_s / self._fixed
            self._demand_stale = False
        runner.start(self.at, seconds, self._decode_demand, self._turns)

    def _activity_ended(self, at: float) -> None:
        if self.state == PREFILL:
            if self.spans is not None:
                self._record("prefill", at, {"n": self._k})
        elif self._k:
            self._advance(at)
        self.at = at
        self.state = READY
        self._ready.append(self)

    def _advance(self, at: float) -> None:
        """Account the iterations that just ended: tokens, finishes, cuts."""
        k, running, rows, kv = self._k, self._running, self._rows, self._padded_kv
        tally = self.tally
        tally.decoded += k * running
        demand = self._decode_demand
        self.work.kernel_s += time_on_device(demand.memory, demand.arithmetic) * self.runner.seconds
        if self.spans is not None:
            self._record("decode", at, {"n": running, "iterations": k, "kv_tokens": kv})
        if rows != running:
            tally.padding += k * (rows - running)
        if rows not in self._work_lines:
            self._work_lines[rows] = self._work_line(rows)
        line = self._work_lines[rows]
        if line is not None:
            kv_sum = k * kv + rows * (k * (k - 1) * 0.5)
            self.work.flops += k * line[0] + line[1] * kv_sum
            self.work.bytes += k * line[2] + line[3] * kv_sum
        self._padded_kv = kv = kv + k * rows
        tally.kv_peak = max(tally.kv_peak, kv + self._kept.tokens - self._prefixes.tokens)
        self._kv += k * running
        iteration = self._iteration = self._iteration + k
        if self.round_left is not None:
            self.round_left -= k
        finishes = self._finishes
        if finishes[0][0] == iteration:
            self._finish_rollouts(at, iteration)
        if self._cut_iterations and self._cut_iterations[0] == iteration:
            self._cut_rollouts(iteration)

    def _record(self, stage: str, at: float, args: dict[str, float | int | str]) -> None:
        assert self.spans is not None
        began, ended = self.origin + self.runner.started, self.origin + at
        self.spans.append(Span("rollout", self.index, stage, began, ended, self.step, args))

    def _finish_rollouts(self, at: float, iteration: int) -> None:
        finishes = self._finishes
        rules = self._rules
        while finishes and finishes[0][0] == iteration:
            rollout = heappop(finishes)[2]
            rollout.generated = rollout.turn_end
            self._running -= 1
            self._kv -= rollout.context
            rollout.has_kv = False
            self._prefixes.leave(rollout)
            if rollout.turn_end < rollout.response_length:
                self._call_tool(rollout, at)
                continue
            rollout.queued = False
            if self.round_left is not None:
                self.made_in_round.append(rollout)
            elif rules.stream:
                self.hand_over(rollout, True)
            self._on_finish(rollout, at)
        if not rules.static:
            self._rows = self._running
            self._padded_kv = self._kv
        self._demand_stale = True

    def _call_tool(self, rollout: Rollout, at: float) -> None:
        """It leaves the batch until its tool has answered."""
        self.away.add(rollout)
        if self._rules.keep_kv_on_tool_call:
            self._kept.keep(rollout)
        if self.round_left is not None:
            self.made_in_round.append(rollout)
        self._on_call(rollout, at)

    def _cut_rollouts(self, iteration: int) -> None:
        heappop(self._cut_iterations)
        chunk = self.chunk_size
        for rollout in self._cuts.pop(iteration):
            rollout.generated = rollout.next_cut
            self.hand_over(rollout, False)
            rollout.next_cut = rollout.cut + chunk
            if rollout.has_kv:
                self._schedule_cut(rollout, rollout.final_iteration)

    def hand_over(self, rollout: Rollout, last: bool) -> None:
        """Give the scorer what the rollout has made since its last cut (``generated`` must be current)."""
        new, past = rollout.take_piece()
        self.on_piece(rollout, new, past, last)

    def _work_line(self, rows: int) -> tuple[float, float, float, float] | None:
        """(flops at kv 0, flops a kv token, bytes at kv 0, bytes a kv token) of an iteration of ``rows``."""
        empty, unit = self._cost.decode_work(rows, 0.0), self._cost.decode_work(rows, 1.0)
        if empty is None or unit is None:
            return None
        return empty.flops, unit.flops - empty.flops, empty.bytes, unit.bytes - empty.bytes


def _by_id(rollout: Rollout) -> int:
    return rollout.rollout_id
