"""A scoring process: ``python -m oppo_real.trl_client.scoring_worker FD``, started by ``ScoringProcess``. It
reads from a socket that it inherits: first the reward model, then what any scoring worker is told."""

import io
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from oppo_real.engines.interface import Scorer
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.placement.cores import bind
from oppo_real.placement.worker import serve_built_scorer
from oppo_real.trl_client.scorers import ResponseScorer


def serve(connection: "Connection[Any, Any]") -> None:
    """Score until the parent closes or asks for the end."""
    model, device, pad_token_id, max_scoring_tokens, core = connection.recv()

    def build() -> Scorer:
        if core is not None:
            bind([core], 1)
        # The bytes come from the parent process, which made them a moment ago.
        loaded = torch.load(io.BytesIO(model), map_location=device, weights_only=False)
        return ResponseScorer(TorchScorer(loaded, max_batched_tokens=max_scoring_tokens), pad_token_id)

    serve_built_scorer(connection, 0, build, max_scoring_tokens)


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(0)  # the parent is gone, or the user stopped both
