"""A whole forward as a few numbers, affine in its tokens: quick to evaluate, and to be lowered."""

from collections.abc import Callable
from typing import NamedTuple

from oppo_sim.costs.collectives import collectives_seconds, tensor_parallel_seconds
from oppo_sim.costs.formulas import roofline_forward
from oppo_sim.costs.operators import NO_WORK, Group, prefill_attention
from oppo_sim.costs.split import Split


class Terms(NamedTuple):
    """An operator group whose parts are affine in tokens and touched experts: at none of both, and what one
    of each adds."""

    fixed: Group
    per_token: Group
    per_expert: Group


def affine_terms(groups_at: Callable[[float, float], tuple[Group, ...]]) -> tuple[Terms, ...]:
    """The groups of ``groups_at(tokens, touched experts)`` as terms."""

    def added(more: Group, none: Group) -> Group:
        return Group(*(b - a for a, b in zip(none, more, strict=True)))

    ends = zip(groups_at(0.0, 0.0), groups_at(1.0, 0.0), groups_at(0.0, 1.0), strict=True)
    return tuple(Terms(none, added(token, none), added(expert, none)) for none, token, expert in ends)


class ForwardTerms(NamedTuple):
    """A forward over new tokens in numbers; seconds, operations and bytes of one device.

    seconds = max(Σ longer(group) + latency_s + collective_s_per_token · tokens, least_s) + host_s, where a
    group is longer by its arithmetic or its traffic.
    """

    groups: tuple[tuple[float, ...], ...]
    """Attention (of a token, of a query-key pair), then each other group (``Terms``), the numbers of its
    three ``Group`` one after the other."""
    latency_s: float
    collective_s_per_token: float
    least_s: float
    host_s: float
    experts: int
    """Of a layer; 0: none."""
    missed: float
    """Share of the experts that a token, and one of each other rank whose experts lie with its own, does not
    use."""
    devices: int

    def at(self, tokens: float, pairs: float) -> tuple[float, Group]:
        """Seconds, and the parts of one device."""
        seconds, *parts = roofline_forward(
            self.groups,
            0,
            len(self.groups),
            self.experts,
            self.missed,
            self.latency_s,
            self.collective_s_per_token,
            self.least_s,
            self.host_s,
            tokens,
            pairs,
        )
        return seconds, Group(*parts)

    def over(self, ranks: int) -> "ForwardTerms":
        """Of tokens and pairs that so many ranks share evenly, each on its own ``devices``."""

        def shared(group: tuple[float, ...], first: int, last: int) -> tuple[float, ...]:
            return (*group[:first], *(number / ranks for number in group[first:last]), *group[last:])

        attention, *others = self.groups
        return self._replace(
            groups=(shared(attention, 0, 8), *(shared(group, 4, 8) for group in others)),
            collective_s_per_token=self.collective_s_per_token / ranks,
            missed=self.missed ** (1.0 / ranks),
            devices=self.devices * ranks,
        )


def forward_terms(
    split: Split,
    groups_at: Callable[[float, float], tuple[Group, ...]],
    layer_latency_s: float,
    least_s: float = 0.0,
    host_s: float = 0.0,
    collectives: float = 1.0,
    attention: float = 1.0,
    tp_comm_overlap: bool = False,
) -> ForwardTerms:
    """The forward of a model: attention, the groups of ``groups_at(tokens, touched experts)``, collectives,
    and ``layer_latency_s`` of all layers. ``collectives`` and ``attention`` are factors on the seconds of
    both. ``tp_comm_overlap``: all-reduces run beside the matrix products."""
    shape = split.shape

    def attended(tokens: float, pairs: float) -> Group:
        group = prefill_attention(split, tokens, pairs)
        return group._replace(
            arithmetic_s=attention * group.arithmetic_s, memory_s=attention * group.memory_s
        )

    of_attention = Terms(attended(1.0, 0.0), attended(0.0, 1.0), NO_WORK)
    terms = (of_attention, *affine_terms(groups_at))
    none, one = (collectives * collectives_seconds(split, rows) for rows in (0.0, 1.0))
    if tp_comm_overlap:
        hidden, reduced = (collectives * tensor_parallel_seconds(split, rows) for rows in (0.0, 1.0))
        none -= hidden
        one -= hidden + min(reduced - hidden, sum(per_token.arithmetic_s for _, per_token, _ in terms[1:]))
    return ForwardTerms(
        tuple((*fixed, *per_token, *per_expert) for fixed, per_token, per_expert in terms),
        layer_latency_s + none,
        one - none,
        least_s,
        host_s,
        shape.num_experts,
        (1.0 - shape.num_experts_per_tok / shape.num_experts) ** split.expert_ranks
        if shape.num_experts
        else 0.0,
        split.tensor_parallel,
    )
