"""Who is in flight, who trains, who waits, who is dropped."""

from collections.abc import Callable

from .config import ReferenceConfig
from .machine import Machine
from .work import Group, Rollout, in_order_of_instants, members_of

Lengths = Callable[[int, int], tuple[int, int]]


class Pool:
    """All admitted and untrained groups, and the order of those that wait finished (surplus) or dropped (long
    queue)."""

    def __init__(self, config: ReferenceConfig, machine: Machine, lengths: Lengths) -> None:
        self.config = config
        self.machine = machine
        self.lengths = lengths
        self.admitted = 0
        self.in_flight: list[Group] = []
        self.surplus: list[Group] = []
        self.held_back: list[Group] = []
        self.long_queue: list[Group] = []
        self.filtered = 0
        self.step = 0
        self.late: list[Group] = []
        """Came in place of others in this phase, which does not wait for them"""

    def admit(self, count: int, step: int) -> list[Group]:
        """``count`` new rollouts in whole groups; nothing is placed yet."""
        self.step = step
        groups = []
        for _ in range(count // self.config.group_size):
            group = Group(self.admitted // self.config.group_size, [])
            for _ in range(self.config.group_size):
                prompt, response = self.lengths(self.admitted, step)
                every = self.config.calls
                calls = every[self.admitted % len(every)] if every else ()
                self._refuse_what_never_fits(prompt + response + sum(tokens for _, _, tokens in calls))
                group.members.append(Rollout(self.admitted, prompt, response, calls=calls, fresh=prompt))
                self.admitted += 1
            self._find_common_prompt(group)
            groups.append(group)
        self.in_flight.extend(groups)
        return groups

    def _find_common_prompt(self, group: Group) -> None:
        """All whole blocks of the prompt but the last token, for members with the first one's prompt."""
        if not self.config.shares_prompts or self.config.group_size == 1:
            return
        prompt, block = group.members[0].prompt_length, self.config.kv_block_tokens
        for member in group.members:
            if member.prompt_length == prompt:
                member.common = sum(1 for end in range(block, prompt, block) if end < prompt) * block

    def filter(self, asynchronous: bool = False) -> list[Group]:
        """Groups whose rewards are known and all equal leave for good."""
        rewards = self.config.sample_rewards
        gone = []
        for group in self.in_flight:
            if (group.scored if asynchronous else group.finished) and rewards:
                seen = {rewards[member.id % len(rewards)] for member in group.members}
                if len(seen) == 1:
                    gone.append(group)
        self.remove(gone)
        for rollout in members_of(gone):
            self.filtered += 1
            self.machine.counters.filtered += 1
            self.machine.counters.filtered_tokens += rollout.generated
            self.machine.scorer.forget(rollout)
            rollout.attempt += 1  # a piece in service counts for nothing
        return gone

    def replace(self, gone: list[Group]) -> list[Group]:
        """As many new ones, in the same step; of generation batches another one, once nothing runs."""
        count = len(members_of(gone))
        if self.config.gen_batch_size is not None:
            count = 0 if self.unfinished() else self.config.gen_batch_size
        new = self.admit(count, self.step)
        self.machine.place(members_of(new))
        self.late += new
        return new

    def rollouts_in_flight(self) -> int:
        return len(members_of(self.in_flight))

    def begin_step(self, step: int, delta: int) -> int:
        """Admit and place for a synchronous step; returns Δ in force."""
        batch = self.config.rollout_batch_size
        self.late = []
        for rollout in members_of(self.in_flight):
            rollout.decoded_in_step = False
        if self.config.policy == "tail-batching":
            return self._begin_tail_batching(step)
        if self.config.policy == "oracle":
            self._begin_oracle(step)
            return 0
        missing = (self.config.gen_batch_size or batch + delta) - self.rollouts_in_flight()
        if missing > 0:
            self.machine.place(members_of(self.admit(missing, step)))
        return delta

    def _begin_tail_batching(self, step: int) -> int:
        batch, group_size = self.config.rollout_batch_size, self.config.group_size
        if len(self.long_queue) * group_size >= batch:
            self.long_queue.sort(key=lambda group: group.id)
            running, self.long_queue = (
                self.long_queue[: batch // group_size],
                self.long_queue[batch // group_size :],
            )
            self.in_flight.extend(running)
        else:
            running = self.admit(self.config.short_step_size, step)
        self.machine.place(members_of(running))
        return len(running) * group_size - batch

    def _begin_oracle(self, step: int) -> None:
        batch, group_size = self.config.rollout_batch_size, self.config.group_size
        if not self.held_back:
            admitted = self.admit(self.config.window * batch, step)
            self.held_back = sorted(
                admitted,
                key=lambda group: (max(member.response_length for member in group.members), group.id),
            )
        running, self.held_back = self.held_back[: batch // group_size], self.held_back[batch // group_size :]
        dealt = [0] * self.config.num_replicas
        for rollout in sorted(members_of(running), key=lambda member: (-member.response_length, member.id)):
            index = dealt.index(min(dealt))
            self.machine.replicas[index].add(rollout)
            dealt[index] += rollout.response_length

    def phase_may_end(self) -> bool:
        """B finished, in whole groups, and all that are waited for."""
        finished = [group for group in self.in_flight if group.finished]
        enough = len(finished) * self.config.group_size >= self.config.rollout_batch_size
        waited = [group for group in self.in_flight if self._waited_for(group) and group not in self.late]
        if self.config.gen_batch_size is not None:
            waited = self.in_flight
        return enough and all(group.finished for group in waited)

    def select(self) -> list[Group]:
        """The batch to train, in order; the rest of the finished becomes the surplus, in order."""
        new = [group for group in self.in_flight if group.finished and group not in self.surplus]
        new = in_order_of_instants(
            new, lambda group: group.finish_time, lambda group: group.id, self.machine.world.row_start
        )
        waited = [
            sorted((group for group in part if self._waited_for(group)), key=lambda group: group.id)
            for part in (self.surplus, new)
        ]
        others = [group for group in [*self.surplus, *new] if not self._waited_for(group)]
        queue = [*waited[0], *waited[1], *others]
        if self.config.gen_batch_size is not None:
            queue.sort(key=lambda group: group.id)
        count = self.config.rollout_batch_size // self.config.group_size
        self.surplus = queue[count:]
        self.remove(queue[:count])
        return queue[:count]

    def remove(self, groups: list[Group]) -> None:
        """Out of flight: trained or dropped."""
        self.in_flight = [group for group in self.in_flight if group not in groups]
        gone = members_of(groups)
        for replica in self.machine.replicas:
            replica.members = [member for member in replica.members if member not in gone]

    def drop_the_rest(self) -> list[Group]:
        """Tail batching: all that is left goes to the long queue, as if it had never run."""
        dropped = sorted(self.in_flight, key=lambda group: group.id)
        self.remove(dropped)
        self.surplus = []
        for group in dropped:
            group.deferrals = 0
            for rollout in group.members:
                self.machine.counters.dropped_tokens += rollout.generated
                self.machine.scorer.forget(rollout)
                rollout.restart()
        self.long_queue.extend(dropped)
        return dropped

    def drop_surplus(self) -> list[Group]:
        """What a generation batch had beyond the batch that is trained is given up."""
        dropped, self.surplus = self.surplus, []
        self.remove(dropped)
        for rollout in members_of(dropped):
            self.machine.counters.dropped_tokens += rollout.generated
            self.machine.scorer.forget(rollout)
            rollout.attempt += 1
        return dropped

    def unfinished(self) -> list[Group]:
        return [group for group in self.in_flight if not group.finished]

    def count_deferrals(self) -> None:
        """A step ends: unfinished groups that decoded in it were deferred once more."""
        for group in self.unfinished():
            if any(member.decoded_in_step for member in group.members):
                group.deferrals += 1

    def _waited_for(self, group: Group) -> bool:
        return self.config.max_deferrals is not None and group.deferrals >= self.config.max_deferrals

    def _refuse_what_never_fits(self, tokens: int) -> None:
        capacity = self.config.kv_capacity_tokens
        if (
            capacity is not None
            and self.machine.blocks(tokens)
            > capacity // self.config.kv_block_tokens * self.config.kv_block_tokens
        ):
            raise ValueError(f"a rollout of {tokens} tokens never fits the KV")
