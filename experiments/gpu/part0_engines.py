"""Part 0, engines: do actor, scorer and PPO update make on this device what they make on the CPU? Writes
``engines.json``.

    python experiments/gpu/part0_engines.py [--rehearse]

In float32, where tokens must be the same and numbers close; in bfloat16 captured decode steps beside eager
ones, streamed pieces beside whole rollouts, and an update on the fast attention beside the plain one. What
the engines do is what the tests have them do on a CUDA machine without a GPU (tests/real/fake_cuda).
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from workplace import Workplace, run_main, workplace_given, write_json

from oppo_sim.errors import OppoError

FORMAT: Final = "oppo-gpu-engines/1"
SHAPE: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
"""Heads of 64, which the fast kernels take."""
FLOAT32, BFLOAT16 = 1e-3, 0.1
"""Of log-probabilities and scores, absolute; of metrics and weights of an update, a share of the largest."""
UPDATED: Final = 0.02
"""Of a bfloat16 update's metrics, relative."""


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError where a case failed, after writing the file."""
    place = workplace_given("Compare the engines on a device with those on the CPU.", arguments)
    cases = [run(name, case, place) for name, case in CASES.items()]
    failed = [case["case"] for case in cases if not case["passed"]]
    content = {
        "format": FORMAT,
        "passed": not failed,
        "device": place.device,
        "hardware": place.hardware,
        "versions": place.versions,
        "rehearsal": place.rehearse,
        "cases": cases,
    }
    write_json(place.folder / "engines.json", content)
    for case in cases:
        print(f"{'agrees ' if case['passed'] else 'DIFFERS'} {case['case']}: {case['said']}")
    if failed:
        raise OppoError(
            f"{len(failed)} of {len(cases)} cases differ on {place.hardware}: {', '.join(failed)}"
        )


def run(name: str, case: Callable[[str], tuple[bool, str]], place: Workplace) -> dict[str, Any]:
    """One case, as JSON; an error of torch is a case that failed."""
    try:
        passed, said = case(place.device)
    except (OppoError, RuntimeError, AssertionError) as error:
        passed, said = False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"case": name, "passed": passed, "said": said}


def decode_float32(device: str) -> tuple[bool, str]:
    """Greedy, with rollouts that join, new weights, a tool and KV that is kept."""
    from oppo_real.engines import models
    from tests.real.fake_cuda import exercises

    fresh = models.build_causal_lm(exercises.SMALL, 7).state_dict()
    found = []
    for place in ("cpu", device):
        plain = exercises.decoded(exercises.actor(place))
        updated = exercises.through_an_update(exercises.actor(place, keep_kv_on_tool_call=True), fresh, True)
        found.append((plain, updated))
    same = all(there.tokens == here.tokens for there, here in zip(*found, strict=True))
    worst = max(_apart(there.log_probs, here.log_probs) for there, here in zip(*found, strict=True))
    return same and worst <= FLOAT32, f"tokens {'alike' if same else 'unlike'}, log-probabilities {worst:.1e}"


def decode_captured(device: str) -> tuple[bool, str]:
    """The same steps from captured graphs and launched one by one, in bfloat16."""
    from tests.real.fake_cuda import exercises

    engines = [exercises.actor(device, "bfloat16", kv_capacity_tokens=256) for _ in range(2)]
    engines[0]._packed._graphs = None
    eager, captured = (exercises.decoded(engine) for engine in engines)
    again = exercises.decoded(engines[1])
    config = engines[1].resolved_config()
    worst = max(_apart(eager.log_probs, made.log_probs) for made in (captured, again))
    state = f"attention {config['attention_path']}, graphs {config['cuda_graphs']}"
    on = device == "cpu" or config["cuda_graphs"] == "on"
    return on and worst <= BFLOAT16, f"{state}, log-probabilities {worst:.1e}"


def score_float32(device: str) -> tuple[bool, str]:
    """Streamed pieces, and a reference model beside them."""
    from tests.real.fake_cuda import exercises

    (scores, reference), (here, beside) = (
        exercises.scored(exercises.scorer(place)) for place in ("cpu", device)
    )
    worst = max(
        *(abs(scores[key] - here[key]) for key in scores),
        *(abs(one - other) for one, other in zip(reference, beside, strict=True)),
    )
    return worst <= FLOAT32, f"scores and the reference's log-probabilities {worst:.1e}"


def score_streamed(device: str) -> tuple[bool, str]:
    """A rollout in pieces and the same in one, in bfloat16."""
    from oppo_real.engines.interface import ScorePiece
    from tests.real.fake_cuda import exercises

    tokens = tuple(1 + place % 11 for place in range(300))
    scorer = exercises.scorer(device, "bfloat16")
    stream = scorer.reference_stream()
    assert stream is not None
    stream.expect({0: 20, 1: 20})
    scores = scorer.append([ScorePiece(0, tokens, True)])
    for begin in range(0, len(tokens), 37):
        piece = ScorePiece(1, tokens[begin : begin + 37], begin + 37 >= len(tokens))
        scores |= scorer.append([piece])
    worst = abs(scores[0] - scores[1])
    return worst <= BFLOAT16, f"scores {worst:.1e}"


def update_float32(device: str) -> tuple[bool, str]:
    """Two PPO updates: metrics, and the weights after them."""
    from tests.real.fake_cuda import exercises

    worst = 0.0
    for settings in (
        {"critic": "separate", "carried": "mask"},
        {"critic": "value_head", "carried": "recompute"},
    ):
        learners = [exercises.trainer(place, **settings) for place in ("cpu", device)]
        for _ in range(2):
            there, here = (exercises.timeless(one.update(exercises.BATCH, 1)) for one in learners)
            worst = max(worst, _relative(there, here))
        weights = [one.weights() for one in learners]
        worst = max(
            worst, *(float((weights[0][name] - one.cpu()).abs().max()) for name, one in weights[1].items())
        )
    return worst <= FLOAT32, f"metrics and weights {worst:.1e}"


def update_fast(device: str) -> tuple[bool, str]:
    """An update in bfloat16 on the fast attention, and on the plain one."""
    import torch

    from oppo_real.engines import attention_check
    from oppo_real.ppo.rollout import TrainRollout
    from tests.real.fake_cuda import exercises

    rollouts = [
        TrainRollout(
            number,
            tuple(1 + place % 13 for place in range(20 + number)),
            tuple(1 + place * (3 + number) % 89 for place in range(length)),
            (-4.0,) * length,
            (1,) * length,
            0.5 * number,
            "stop",
        )
        for number, length in enumerate((40, 130, 260))
    ]

    def norm() -> float:
        learner = exercises.trainer(device, "bfloat16", micro_batch_tokens=512)
        return float(learner.update(rollouts, 1)["actor/grad_norm"])

    shape = exercises.SMALL
    heads, shared = int(shape["num_attention_heads"]), int(shape["num_key_value_heads"])
    width = int(shape["hidden_size"]) // heads
    path = attention_check.training_path(torch.device(device), torch.bfloat16, heads, shared, width)
    quick = norm()
    fast, attention_check.training_path = attention_check.training_path, lambda *shape: "plain"  # type: ignore[assignment]
    try:
        worst = abs(quick / norm() - 1.0)
    finally:
        attention_check.training_path = fast
    used = device == "cpu" or path != "plain"
    return used and worst <= UPDATED, f"attention {path}, norm of the gradient {worst:.1e} apart"


CASES: Final[Mapping[str, Callable[[str], tuple[bool, str]]]] = {
    "decoding, float32": decode_float32,
    "decoding, captured and eager, bfloat16": decode_captured,
    "scoring, float32": score_float32,
    "scoring, streamed and whole, bfloat16": score_streamed,
    "update, float32": update_float32,
    "update, fast and plain attention, bfloat16": update_fast,
}


def _apart(there: Mapping[int, Sequence[float]], here: Mapping[int, Sequence[float]]) -> float:
    return max(abs(one - other) for key in there for one, other in zip(there[key], here[key], strict=True))


def _relative(there: Mapping[str, float], here: Mapping[str, float]) -> float:
    return max(abs(value - here[name]) / max(1.0, abs(value)) for name, value in there.items())


@contextmanager
def heads_of_64() -> Iterator[None]:
    """The tests' exercises with ``SHAPE``."""
    from tests.real.fake_cuda import exercises

    small, exercises.SMALL = exercises.SMALL, exercises.SMALL | SHAPE
    try:
        yield
    finally:
        exercises.SMALL = small


if __name__ == "__main__":
    with heads_of_64():
        run_main(main)
