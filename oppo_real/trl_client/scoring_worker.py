"""A scoring process: ``python -m oppo_real.trl_client.scoring_worker FD``, started by
``scoring.ProcessScoring``.

It reads messages from a socket that it inherits: first the reward model, then pieces; it answers with scores.
It ends with its parent.
"""

import io
import os
import sys
from collections import deque
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch

from oppo_real.engines.interface import ScorePiece
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_sim.errors import OppoError


def serve(connection: "Connection[Any, Any]") -> None:
    """Answer until the parent closes or asks for the end."""
    try:
        scorer, most = _start(*connection.recv())
    except Exception as error:  # loading a pickled model can fail in any way
        connection.send(("failed", _sentence(error)))
        return
    connection.send(("ready",))
    waiting: deque[ScorePiece] = deque()
    while True:
        if not _receive(connection, waiting, scorer):
            return
        if not waiting:
            continue
        batch = [waiting.popleft()]
        tokens = len(batch[0].tokens)
        while waiting and tokens + len(waiting[0].tokens) <= most:
            batch.append(waiting.popleft())
            tokens += len(batch[-1].tokens)
        began = perf_counter()
        try:
            scores = scorer.append(batch)
        except (OppoError, RuntimeError) as error:
            connection.send(("failed", _sentence(error)))
            return
        connection.send(("scored", scores, tokens, perf_counter() - began))


def _start(model: bytes, device: str, max_scoring_tokens: int, core: int | None) -> tuple[TorchScorer, int]:
    if core is not None:
        os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
    # The bytes come from the parent process, which made them a moment ago.
    loaded = torch.load(io.BytesIO(model), map_location=device, weights_only=False)
    return TorchScorer(loaded, max_batched_tokens=max_scoring_tokens), max_scoring_tokens


def _receive(connection: "Connection[Any, Any]", waiting: "deque[ScorePiece]", scorer: TorchScorer) -> bool:
    """Take every message that is there, waiting for one if there is nothing to score. False: the end."""
    while not waiting or connection.poll():
        message = connection.recv()
        if message[0] == "close":
            return False
        if message[0] == "forget":
            gone = set(message[1])
            kept = [piece for piece in waiting if piece.rollout_id not in gone]
            waiting.clear()
            waiting.extend(kept)
            scorer.release(message[1])
        else:
            waiting.extend(ScorePiece(*piece) for piece in message[1])
    return True


def _sentence(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(0)  # the parent is gone, or the user stopped both
