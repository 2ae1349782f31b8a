"""The torch actor against transformers' own ``generate``, against itself under other batching, and against
the simulator's replica."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_real.engines.interface import Actor, NewTokens, Request, Sampling
from oppo_real.engines.torch_actor import ActorLimits, TorchActor
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from tests.real.tiny import full_log_probs, generate, random_tokens, single_thread, tiny_actor
from tests.small import run

single_thread()

GREEDY = Sampling(temperature=0.0)
OLD, NEW = 0, 11
"""Seeds of the weights."""


@pytest.fixture(scope="module")
def reference() -> Any:
    return tiny_actor(OLD)


@pytest.fixture(scope="module")
def updated() -> Any:
    return tiny_actor(NEW)


def actor(sampling: Sampling = GREEDY, **limits: Any) -> TorchActor:
    return TorchActor(tiny_actor(OLD), sampling, ActorLimits(**limits))


def requests(count: int, seed: int = 3, longest: int = 20, forced: bool = False) -> list[Request]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for rollout_id in range(count):
        prompt = random_tokens(generator, int(torch.randint(1, 30, (1,), generator=generator)))
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        made.append(Request(rollout_id, prompt, longest if forced else length, length if forced else None))
    return made


class Transcript:
    """Collects what the steps give, and drives an actor to the end."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.log_probs: dict[int, list[float]] = {}
        self.versions: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}

    def take(self, made: list[NewTokens]) -> bool:
        for new in made:
            self.tokens.setdefault(new.rollout_id, []).extend(new.tokens)
            self.log_probs.setdefault(new.rollout_id, []).extend(new.log_probs)
            self.versions.setdefault(new.rollout_id, []).extend([new.weight_version] * len(new.tokens))
            if new.finish_reason is not None:
                self.reasons[new.rollout_id] = new.finish_reason
        return bool(made)

    def finish(self, engine: Actor) -> Transcript:
        while self.take(engine.step()):
            pass
        return self


@pytest.mark.parametrize("limits", [{}, {"max_batched_tokens": 7}])
def test_greedy_decode_equals_generate_with_joins_in_mid_run(reference: Any, limits: dict[str, Any]) -> None:
    engine, script, asked = actor(**limits), Transcript(), requests(9)
    engine.submit(asked[3:6])
    for step in range(6):
        if step == 2:
            engine.submit(asked[:3])
        if step == 4:
            engine.submit(asked[6:])
        script.take(engine.step())
    script.finish(engine)
    for request in asked:
        assert script.tokens[request.rollout_id] == generate(
            reference, request.prompt, request.max_response_length
        )
    counts = engine.counts()
    assert counts.prefilled == sum(len(request.prompt) for request in asked)
    assert counts.decoded == sum(request.max_response_length for request in asked)
    assert counts.recomputed == counts.preemptions == 0
    assert engine.running() == () and engine._packed.store.tokens == 0
    assert set(script.reasons.values()) == {"length"}


def test_n_tokens_take_n_iterations() -> None:
    engine = actor()
    engine.submit([Request(0, (1, 2, 3), 5), Request(1, (4,), 2)])
    made = [[new.rollout_id for new in engine.step()] for _ in range(6)]
    assert made == [[0, 1], [0, 1], [0], [0], [0], []]
    assert engine.counts().iterations == 5


def test_long_contexts_are_read_in_place_and_still_equal_generate(reference: Any) -> None:
    generator = torch.Generator().manual_seed(8)
    engine = actor()
    # 256 bytes of keys and values a token and layer: beyond 768 tokens a sequence is no longer gathered.
    asked = [
        Request(0, random_tokens(generator, 1000), 4),
        Request(1, random_tokens(generator, 760), 20),
        Request(2, (5,), 10),
    ]
    engine.submit(asked)
    script = Transcript().finish(engine)
    for request in asked:
        assert script.tokens[request.rollout_id] == generate(
            reference, request.prompt, request.max_response_length
        )


def test_recomputed_kv_continues_as_the_new_weights_would(reference: Any, updated: Any) -> None:
    engine, script, asked = actor(), Transcript(), requests(5, longest=24)
    engine.submit(asked)
    for _ in range(6):
        script.take(engine.step())
    partial = {rollout_id: tuple(script.tokens[rollout_id]) for rollout_id in engine.running()}
    assert partial
    engine.load_weights(updated.state_dict(), version=4, keep_kv=False)
    assert engine._packed.store.tokens == 0
    script.finish(engine)
    for rollout_id, made in partial.items():
        request = asked[rollout_id]
        rest = generate(updated, (*request.prompt, *made), request.max_response_length - len(made))
        assert script.tokens[rollout_id] == [*made, *rest]
        assert script.versions[rollout_id] == [0] * len(made) + [4] * len(rest)
    assert engine.counts().recomputed == sum(
        len(asked[rollout_id].prompt) + len(made) for rollout_id, made in partial.items()
    )


def test_kept_kv_continues_with_the_old_keys(reference: Any, updated: Any) -> None:
    """By hand: the old model's cache of all but the newest token, then the new weights on top of it."""
    from transformers import DynamicCache

    engine, script, asked = actor(), Transcript(), requests(4, seed=6, longest=24)
    engine.submit(asked)
    for _ in range(5):
        script.take(engine.step())
    partial = {rollout_id: tuple(script.tokens[rollout_id]) for rollout_id in engine.running()}
    engine.load_weights(updated.state_dict(), version=1, keep_kv=True)
    script.finish(engine)
    differs = False
    for rollout_id, made in partial.items():
        context = [*asked[rollout_id].prompt, *made]
        cache = DynamicCache(config=reference.config)
        expected = list(made)
        with torch.no_grad():
            reference(input_ids=torch.tensor([context[:-1]]), past_key_values=cache, use_cache=True)
            token = context[-1]
            while len(expected) < asked[rollout_id].max_response_length:
                token = int(
                    updated(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                    .logits[0, -1]
                    .argmax()
                )
                expected.append(token)
        assert script.tokens[rollout_id] == expected
        differs |= expected[len(made) :] != generate(updated, context, len(expected) - len(made))
    assert differs, "keeping and recomputing must not be the same thing, or this test shows nothing"
    assert engine.counts().recomputed == 0


@settings(max_examples=12, deadline=None)
@given(st.integers(4, 40), st.integers(1, 8), st.integers(1, 6), st.integers(0, 100))
def test_kv_limits_change_no_token_and_count_as_the_simulator_does(
    extra: int, block: int, max_num_seqs: int, seed: int
) -> None:
    asked = requests(7, seed=seed, longest=16, forced=True)
    longest = max(len(request.prompt) for request in asked) + 16
    capacity = (-(-longest // block) + extra // block) * block
    # The simulator first checks that the longest rollout fits, as the engine does.
    limits: dict[str, Any] = {
        "kv_capacity_tokens": capacity,
        "kv_block_tokens": block,
        "max_num_seqs": max_num_seqs,
    }
    free, bound = actor(Sampling(seed=seed)), actor(Sampling(seed=seed), **limits)
    free.submit(asked)
    bound.submit(asked)
    expected, found = Transcript().finish(free), Transcript()
    while found.take(bound.step()):
        assert bound._packed.store.tokens <= capacity
        assert len(bound._running) <= max_num_seqs
    assert found.tokens == expected.tokens
    counts = bound.counts()
    machine = MachineSetup(**limits)
    prompts, lengths = (
        [len(request.prompt) for request in asked],
        [request.forced_length or 0 for request in asked],
    )
    simulated = run("sequential", lengths, prompts=prompts, steps=1, batch=7, machine=machine).steps.iloc[0]
    assert counts.iterations == simulated["timing_s/gen"]
    assert counts.preemptions == simulated["kv/preemptions"]
    assert (counts.prefilled, counts.recomputed) == (
        simulated["tokens/prefilled"],
        simulated["tokens/recomputed"],
    )


def test_preemption_happens_and_is_recomputed() -> None:
    engine = actor(kv_capacity_tokens=48, kv_block_tokens=4)
    engine.submit([Request(i, (1, 2, 3, 4), 20, forced_length=20) for i in range(5)])
    Transcript().finish(engine)
    assert engine.counts().preemptions > 0
    assert engine.counts().recomputed > 0
    assert engine.counts().decoded == 100


def test_sampled_tokens_do_not_depend_on_the_batch_or_on_carrying() -> None:
    sampling = Sampling(temperature=0.9, top_p=0.8, seed=5)
    asked = requests(8, seed=1, longest=24)
    together, alone, carried = Transcript(), Transcript(), Transcript()
    engine = actor(sampling)
    engine.submit(asked)
    together.finish(engine)
    for request in asked:
        single = actor(sampling)
        single.submit([request])
        alone.finish(single)
    # Carried: half done elsewhere, then handed over as a partial response.
    engine = actor(sampling, max_num_seqs=3)
    for request in asked:
        half = tuple(together.tokens[request.rollout_id][: request.max_response_length // 2])
        carried.tokens[request.rollout_id] = list(half)
        engine.submit(
            [Request(request.rollout_id, request.prompt, request.max_response_length, generated=half)]
        )
    carried.finish(engine)
    assert together.tokens == alone.tokens == carried.tokens
    other = actor(Sampling(temperature=0.9, top_p=0.8, seed=6))
    other.submit(asked)
    assert Transcript().finish(other).tokens != together.tokens


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.5), (0.0, 1.0)])
def test_log_probs_equal_a_full_forward(reference: Any, temperature: float, top_p: float) -> None:
    engine, asked = actor(Sampling(temperature, top_p, seed=2)), requests(5, seed=9)
    engine.submit(asked)
    script = Transcript().finish(engine)
    for request in asked:
        expected = full_log_probs(
            reference, request.prompt, script.tokens[request.rollout_id], temperature or 1.0
        )
        torch.testing.assert_close(
            torch.tensor(script.log_probs[request.rollout_id]), expected, atol=1e-4, rtol=1e-4
        )


def test_samples_follow_the_distribution(reference: Any) -> None:
    """1,500 first tokens of one prompt against the model's own probabilities: Pearson's chi-squared over the
    likely tokens."""
    from scipy.stats import chi2

    prompt = (3, 14, 15, 92)
    with torch.no_grad():
        likely = (reference(input_ids=torch.tensor([prompt])).logits[0, -1].double() / 3).softmax(-1)
    engine = actor(Sampling(temperature=3.0, seed=4))
    engine.submit([Request(i, prompt, 1) for i in range(1500)])
    seen = torch.bincount(torch.tensor([new.tokens[0] for new in engine.step()]), minlength=len(likely))
    common = likely * 1500 >= 5
    observed = torch.cat((seen[common], seen[~common].sum().view(1))).double()
    expected = torch.cat((likely[common], likely[~common].sum().view(1))) * 1500
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < chi2.ppf(0.999, len(observed) - 1)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    from oppo_real.engines.torch_sampling import sample

    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    draws = [i / 200 + 0.0025 for i in range(200)]
    kept = [
        set(sample(logits.expand(200, 4), draws, 1.0, top_p)[0]) for top_p in (0.4, 0.5, 0.6, 0.8, 0.9, 1.0)
    ]
    assert kept == [{0}, {0}, {0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]


def test_forced_lengths_are_exact_and_ignore_stop_tokens(reference: Any) -> None:
    prompt = (1, 2, 3)
    first = generate(reference, prompt, 1)[0]
    engine = actor(Sampling(temperature=0.0, stop_token_id=first))
    engine.submit(
        [
            Request(0, prompt, 9),
            Request(1, prompt, 9, forced_length=6),
            Request(2, prompt, 9, forced_length=9),
        ]
    )
    script = Transcript().finish(engine)
    assert {key: len(tokens) for key, tokens in script.tokens.items()} == {0: 1, 1: 6, 2: 9}
    assert script.reasons == {0: "stop", 1: "stop", 2: "length"}
    assert script.tokens[2] == generate(reference, prompt, 9)


def test_aborted_rollouts_are_forgotten_and_may_come_again(reference: Any) -> None:
    engine, script, asked = actor(), Transcript(), requests(4, seed=2, longest=18)
    asked = [Request(request.rollout_id, request.prompt, 12) for request in asked]
    engine.submit(asked)
    script.take(engine.step())
    engine.abort([2])
    assert engine.running() == (0, 1, 3)
    script.take(engine.step())
    engine.abort([2, 3, 77])
    assert engine.running() == (0, 1)
    script.finish(engine)
    for rollout_id in (0, 1):
        assert script.tokens[rollout_id] == generate(reference, asked[rollout_id].prompt, 12)
    assert len(script.tokens[2]) == 1 and len(script.tokens[3]) == 2
    assert engine.counts().recomputed == 0
    engine.submit([asked[2]])
    assert engine.running() == (2,)
    engine.close()
    assert engine.running() == () and engine.step() == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(1, (), 5), "empty prompt"),
        (Request(1, (1, 97), 5), "token 97"),
        (Request(1, (1,), 0), "max_response_length 0"),
        (Request(1, (1,), 5, forced_length=6), "forced_length 6"),
        (Request(1, (1,), 2, generated=(1, 2)), "finished"),
        (Request(1, (1,), 100), "kv_capacity_tokens"),
        (Request(1, (1,), 5000), "max_position_embeddings"),
        (Request(0, (1,), 5), "already being generated"),
    ],
)
def test_impossible_requests_are_refused_and_nothing_is_queued(request_: Request, message: str) -> None:
    engine = actor(kv_capacity_tokens=64)
    engine.submit([Request(0, (1,), 5)])
    with pytest.raises(OppoError, match=message):
        engine.submit([Request(5, (1,), 5), request_])
    assert engine.running() == (0,)


def test_sampling_and_limits_that_make_no_sense_are_refused() -> None:
    for sampling in (Sampling(temperature=-1), Sampling(top_p=0), Sampling(stop_token_id=97)):
        with pytest.raises(OppoError):
            actor(sampling)
    for name in ("kv_capacity_tokens", "max_num_seqs", "max_batched_tokens", "kv_block_tokens"):
        limits: dict[str, Any] = {name: 0}
        with pytest.raises(OppoError, match=name):
            actor(**limits)


def test_no_logits_are_made_for_tokens_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = actor()
    rows: list[int] = []
    engine._packed.model.lm_head.register_forward_hook(lambda module, given, out: rows.append(out.shape[0]))  # type: ignore[union-attr]
    engine.submit([Request(i, tuple(range(20)), 3) for i in range(4)])
    Transcript().finish(engine)
    assert rows == [4, 4, 4]


def test_resolved_config_says_what_runs() -> None:
    engine = actor(kv_capacity_tokens=100, kv_block_tokens=16)
    engine.submit([Request(0, (1, 2), 2)])
    engine.step()
    resolved = engine.resolved_config()
    assert resolved["kv_capacity_tokens"] == 96
    assert resolved["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert (resolved["attention_path"], resolved["dtype"], resolved["device"]) == ("plain", "float32", "cpu")
