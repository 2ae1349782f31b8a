"""What a replica of the rollout engine does next, and what ended: it jumps from one change to the next, exact
to the token.

Between two changes (a finish, a cut, the end of a round, a full KV cache, the end of a cost line) n is
constant and kv grows by n an iteration, so k iterations take k·fixed + slope·(k·kv + n·k(k−1)/2) seconds: an
arithmetic series.
"""

from collections.abc import Callable
from math import inf

from oppo_sim.costs.interface import NO_DEMAND, EngineCost
from oppo_sim.instants import instant_tolerance
from oppo_sim.model.batch import ReplicaBatch
from oppo_sim.model.device import Runner
from oppo_sim.model.formulas import iterations_until, series_seconds
from oppo_sim.model.replica_rules import ReplicaRules
from oppo_sim.model.rollout import Rollout
from oppo_sim.model.tally import Tally
from oppo_sim.model.work_meter import WorkMeter
from oppo_sim.results.spans import Span

IDLE, READY, DECODE, PREFILL = range(4)


class Replica:
    """One replica: its rollouts (``batch``), and the activity in progress."""

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
        self.batch = ReplicaBatch(rules)
        self.tally = Tally()
        self.meter = WorkMeter(cost)
        self.spans: list[Span] | None = None
        self.step = 0
        self.origin = 0.0
        """Seconds of the run at which the row began: all other times here count from there."""
        self.round_left: int | None = None
        """Iterations left in the round; None outside rounds."""
        self.state = IDLE
        self.at = 0.0
        """When its last activity ended."""
        self.made_in_round: list[Rollout] = []
        self._cost = cost
        self._rules = rules
        self._on_finish = on_finish
        self.on_piece = on_piece
        self._on_call = on_call
        self._ready = ready
        # The run of iterations in progress: how many, and its cost line.
        self._k = 0
        self._fixed = 0.0
        self._slope = 0.0
        self._demand_stale = True
        self._decode_demand = NO_DEMAND
        self._turns = 0.0

    # ---- what the driver does ------------------------------------------------------------------------------

    def begin_phase(self, at: float, round_size: int | None) -> None:
        """Start (or resume) decoding at ``at``."""
        self.at = at
        self.round_left = round_size
        self._demand_stale = True
        if self._rules.static or not (round_size is None or self._rules.keeps_kv):
            self.batch.release_kv()
        self.state = READY
        self._ready.append(self)

    def begin_round(self, at: float, round_size: int) -> None:
        """Go on after a barrier."""
        self.at = at
        self.round_left = round_size
        self._demand_stale = True
        if not self._rules.keeps_kv:
            self.batch.release_kv()

    def next_activity(self) -> None:
        """Start what comes next at ``self.at``; goes idle when there is nothing, or the round is over."""
        if self.round_left == 0:
            self.state = IDLE
            return
        batch = self.batch
        if self._rules.kv_blocks is not None and batch.running:
            self._preempt_until_it_fits()
        if batch.waiting and self._join():
            return
        if not batch.running:
            self.state = IDLE
            return
        self._decode()

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

    def hand_over(self, rollout: Rollout, last: bool) -> None:
        """Give the scorer what the rollout has made since its last cut (``generated`` must be current)."""
        new, past = rollout.take_piece()
        self.on_piece(rollout, new, past, last)

    # ---- activities ----------------------------------------------------------------------------------------

    def _preempt_until_it_fits(self) -> None:
        for victim in self.batch.preempt_until_it_fits():
            victim.preemptions += 1
            self.tally.preemptions += 1
            self._demand_stale = True
            if self.round_left is not None:
                self.made_in_round.append(victim)

    def _join(self) -> bool:
        """Let waiting rollouts join and prefill them as one batch. True if something started."""
        batch = self.batch
        joining = batch.take_joining()
        if not joining:
            return False
        rules, prefixes = self._rules, batch.prefixes
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
            kv += context
            longest = context if context > longest else longest
            batch.begin(rollout)
        count = len(joining)
        batch.settle(count, kv)
        tally = self.tally
        tally.prefilled += tokens
        tally.recomputed += recomputed
        tally.prefix_cached += cached
        tally.kv_peak = max(tally.kv_peak, batch.kv + batch.kept.tokens - prefixes.tokens)
        if rules.static:
            batch.rows = count
            batch.padded_kv = count * longest
            tally.padding += count * longest - kv
            if not rules.free_padding:
                if rules.free_recompute:
                    fresh = [rollout for rollout in joining if not rollout.generated]
                    longest = max((rollout.prompt_length for rollout in fresh), default=0)
                    count = len(fresh)
                tokens, recomputed = count * longest, 0
                pairs, recomputed_pairs = count * longest * longest * 0.5, 0.0
        else:
            batch.without_padding()
        if not rules.free_recompute:
            tokens += recomputed
            pairs += recomputed_pairs
        self._demand_stale = True
        if not tokens:
            return False
        self._prefill(tokens, pairs, count)
        return True

    def _prefill(self, tokens: int, pairs: float, count: int) -> None:
        self.state = PREFILL
        cost = self._cost
        seconds, demand = cost.prefill_time(tokens, pairs), cost.prefill_demand(tokens, pairs)
        self.runner.start(self.at, seconds, demand)
        self.meter.prefilled(seconds, demand, tokens, pairs)
        self._k = count

    def _decode(self) -> None:
        batch, rules = self.batch, self._rules
        k = batch.iterations_to_change()
        if self.round_left is not None and self.round_left < k:
            k = self.round_left
        if rules.kv_blocks is not None:
            k = min(k, batch.iterations_before_full())
        if rules.static and rules.free_padding:
            rows, kv = batch.running, batch.kv
        else:
            rows, kv = batch.rows, batch.padded_kv
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
            self._turns = rules.turn_s / self._fixed
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
        batch, tally, k = self.batch, self.tally, self._k
        running, rows, kv = batch.running, batch.rows, batch.padded_kv
        tally.decoded += k * running
        self.meter.decoded(self.runner.seconds, self._decode_demand, k, rows, kv)
        if self.spans is not None:
            self._record("decode", at, {"n": running, "iterations": k, "kv_tokens": kv})
        if rows != running:
            tally.padding += k * (rows - running)
        batch.advance(k)
        tally.kv_peak = max(tally.kv_peak, batch.padded_kv + batch.kept.tokens - batch.prefixes.tokens)
        if self.round_left is not None:
            self.round_left -= k
        self._finish_rollouts(at)
        self._cut_rollouts()

    def _record(self, stage: str, at: float, args: dict[str, float | int | str]) -> None:
        assert self.spans is not None
        began, ended = self.origin + self.runner.started, self.origin + at
        self.spans.append(Span("rollout", self.index, stage, began, ended, self.step, args))

    def _finish_rollouts(self, at: float) -> None:
        batch, rules = self.batch, self._rules
        rollout = batch.finish_next()
        if rollout is None:
            return
        while rollout is not None:
            if rollout.turn_end < rollout.response_length:
                self._call_tool(rollout, at)
            else:
                rollout.queued = False
                if self.round_left is not None:
                    self.made_in_round.append(rollout)
                elif rules.stream:
                    self.hand_over(rollout, True)
                self._on_finish(rollout, at)
            rollout = batch.finish_next()
        if not rules.static:
            batch.without_padding()
        self._demand_stale = True

    def _call_tool(self, rollout: Rollout, at: float) -> None:
        """It leaves the batch until its tool has answered."""
        self.batch.away.add(rollout)
        if self._rules.keep_kv_on_tool_call:
            self.batch.kept.keep(rollout)
        if self.round_left is not None:
            self.made_in_round.append(rollout)
        self._on_call(rollout, at)

    def _cut_rollouts(self) -> None:
        batch = self.batch
        for rollout in batch.take_cuts():
            rollout.generated = rollout.next_cut
            self.hand_over(rollout, False)
            rollout.next_cut = rollout.cut + batch.chunk_size
            if rollout.has_kv:
                batch.schedule_cut(rollout)
