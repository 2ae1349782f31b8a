"""Sampling by counter: the draw for token p of rollout i depends on (seed, i, p) only, so batching and
carrying change no token."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from oppo_real.engines.device import to_device, to_host
from oppo_real.engines.interface import Sampling
from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError


def check_sampling(sampling: Sampling) -> None:
    """Raises OppoError for a temperature below 0 or a top_p outside (0, 1]."""
    if not sampling.temperature >= 0:
        raise OppoError(f"temperature is {sampling.temperature}; give 0 (greedy) or more.")
    if not 0 < sampling.top_p <= 1:
        raise OppoError(f"top_p is {sampling.top_p}; give a share above 0 and at most 1.")


@lru_cache(maxsize=1 << 14)
def _key(seed: int, rollout_id: int) -> int:
    return stream_key(seed, f"token:{rollout_id}")


def token_draw(seed: int, rollout_id: int, position: int) -> float:
    """Uniform in (0, 1) for response token ``position`` (from 0) of a rollout."""
    return draw_uniform(_key(seed, rollout_id), position)


def sample(
    logits: torch.Tensor, draws: Sequence[float], temperature: float, top_p: float
) -> tuple[list[int], list[float]]:
    """Tokens of ``logits`` [n, vocabulary] by inverting the distribution at ``draws`` [n], and their
    log-probabilities.

    Log-probabilities are under the temperature (1 when greedy) and before ``top_p`` cuts, as a forward pass
    gives them again.
    """
    logits = logits.float()
    if temperature == 0:
        tokens = logits.argmax(-1, keepdim=True)
        log_probs = logits.log_softmax(-1)
    else:
        log_probs = (logits / temperature).log_softmax(-1)
        weights = log_probs.double().exp()
        if top_p < 1:
            weights = _nucleus(weights, top_p)
        cumulative = weights.cumsum(-1)
        drawn = to_device(torch.tensor(draws, dtype=torch.float64), logits.device)
        target = drawn.unsqueeze(1) * cumulative[:, -1:]
        # The first token whose cumulative weight exceeds the target, or (rounding) the last with weight.
        last = (cumulative < cumulative[:, -1:]).sum(-1, keepdim=True)
        tokens = torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
    chosen = log_probs.gather(1, tokens)
    # float64 holds both exactly, so that the host waits once.
    told, chances = to_host(torch.cat((tokens.double(), chosen.double()), dim=1)).t().tolist()
    return [int(token) for token in told], chances


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Weights [n, vocabulary], 0 but for the fewest most likely tokens of total weight ≥ ``top_p``."""
    ordered, places = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(weights).scatter_(-1, places, kept)
