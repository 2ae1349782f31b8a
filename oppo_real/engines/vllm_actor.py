"""An actor on vLLM, stepped inside this process.

*Lock-step* (replay, comparison with the simulator): one ``step`` is one vLLM engine iteration. In vLLM the
iteration that completes a prefill also samples, so ``prefill what joins, then decode`` is a single iteration:
a joiner's prompt (or, with recomputed KV, its prompt and partial response) runs together with the decode of
the others, and each of them, joiner or not, gets one token. The token budget of an iteration is made large
enough for any join (``max_num_seqs * max_model_len``, or the KV capacity where that is smaller). Where a
smaller ``max_num_batched_tokens`` is asked for, a large join takes several engine iterations; what others
make meanwhile is kept and delivered by the following steps, still one token a step.

*Free-running* (throughput): vLLM's own defaults (asynchronous scheduling on GPUs, split prefills) and its own
streaming interval; ``step_chunk`` runs a chunk's worth of iterations and delivers what they made.

*Order.* The rollout id is the scheduling priority: lower ids join first, the highest id is preempted first.

*Reproducibility.* With temperature above 0 each submission of a rollout gets a seed of its own, a hash of
(``Sampling.seed``, rollout id, tokens already made), and vLLM draws from that generator token by token,
whatever else runs in the batch. The same submissions therefore give the same draws on the same machine, also
over preemption and cleared KV; ``hold`` and ``resume``, or a checkpoint, start a new generator. vLLM does not
promise the same logits for another batch composition (floating point sums are ordered differently, most
visibly in 16 bit), so a sampled or greedy token can differ where two are nearly tied;
``VLLM_BATCH_INVARIANT=1`` removes that on GPUs that support it.

*Log-probabilities* are those of the distribution sampled from: after temperature and, where ``top_p`` < 1,
after the cut. Greedy ones are at temperature 1.

Not run here: GPUs, and asynchronous scheduling (vLLM turns it off on CPUs).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oppo_real.engines.interface import ActorCounts, FinishReason, NewTokens, Request, Sampling
from oppo_real.engines.vllm_engine import (
    KvMemory,
    describe_engine,
    kv_settings,
    model_folder,
    start_engine,
    step_engine,
    stop_engine,
)
from oppo_real.engines.vllm_probe import probe_vllm, require_vllm
from oppo_real.engines.vllm_track import Track, UndeliveredToken
from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import torch

_IDLE_ITERATIONS = 8
"""Iterations without any token after which the engine is stuck; asynchronous scheduling needs two."""
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class VllmActor:
    """``Actor`` over ``vllm.LLMEngine``. ``model`` is a folder written by ``save_pretrained``; no tokenizer
    is needed.

    ``mode``: ``lock-step`` or ``free-running`` (see above). ``max_num_seqs`` bounds the rollouts that run
    together; the others wait, by id. ``stream_interval``: chunk in tokens until ``step_chunk`` names another.
    ``engine_args`` go to vLLM as they are, last.

    Raises ``OppoError`` where vLLM is absent, lacks something needed, or does not start.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        mode: Literal["lock-step", "free-running"] = "lock-step",
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        kv: KvMemory = KvMemory(),  # noqa: B008 (frozen)
        enforce_eager: bool = False,
        stream_interval: int = 128,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("lock-step", "free-running"):
            raise OppoError(f"The vLLM actor's mode is {mode!r}: choose lock-step or free-running.")
        self._vllm = require_vllm()
        self._features = probe_vllm()
        self._features.need(reloading_of_weights=self._features.reload_weights_iterator)
        self._features.need(
            reset_of_running_requests=self._features.reset_running_requests,
            in_process_request_state=self._features.request_state,
        )
        if mode == "free-running":
            self._features.need(pause_of_scheduling=self._features.pause_scheduling)
        self._folder = model_folder(model)
        self._sampling, self._mode = sampling, mode
        self._interval = self._checked_interval(stream_interval)
        settings: dict[str, Any] = {
            "model": str(self._folder),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "enforce_eager": enforce_eager,
            # With kept KV, blocks of old weights would be handed to later prompts.
            "enable_prefix_caching": False,
            "logprobs_mode": "processed_logprobs",
            "scheduling_policy": "priority",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            **kv_settings(self._folder, dtype, kv, self._features),
        }
        if max_model_len is not None:
            settings["max_model_len"] = max_model_len
        if mode == "lock-step":
            settings["async_scheduling"] = False
            length = max_model_len or _positions(self._folder)
            budget = max_num_batched_tokens or min(
                max_num_seqs * length, max(kv.capacity_tokens or max_num_seqs * length, length) + max_num_seqs
            )
            settings["max_num_batched_tokens"] = budget
        elif max_num_batched_tokens is not None:
            settings["max_num_batched_tokens"] = max_num_batched_tokens
        settings.update(engine_args or {})
        self._expected_names = _weight_names(self._folder)
        self._tracks: dict[int, Track] = {}
        self._by_external: dict[str, Track] = {}
        self._counts = ActorCounts()
        self._version = 0
        self._engine = start_engine(settings, self._features)
        config = self._engine.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._budget = int(config.scheduler_config.max_num_batched_tokens)
        self._tied = bool(getattr(config.model_config.hf_text_config, "tie_word_embeddings", False))
        if config.cache_config.enable_prefix_caching:
            stop_engine(self._engine)
            raise OppoError(
                "The vLLM actor runs without prefix caching, since cached blocks outlive the weights: leave"
                " enable_prefix_caching out."
            )

    # -- the Actor interface ---------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue rollouts, all or none. Raises ``OppoError`` on an id in use, an empty prompt, or a length
        beyond ``max_model_len``."""
        tracks = dict(self._tracks)
        for request in requests:
            self._check(request, tracks)
            tracks[request.rollout_id] = Track(request, list(request.generated))
        self._tracks = tracks

    def step(self) -> list[NewTokens]:
        """One token for each rollout that runs, ascending ids. Rollouts that KV or ``max_num_seqs`` keep
        waiting get none."""
        self._enter_queued()
        for _ in range(_IDLE_ITERATIONS):
            active = self._active()
            if not active:
                return []
            if any(not track.buffer for track in active):
                self._iterate_until_joined()
                self._flush()
            news = [one for track in self._active() for one in track.deliver(1)]
            if news:
                self._counts = replace(self._counts, iterations=self._counts.iterations + 1)
                self._forget_finished(news)
                return news
        raise self._stuck()

    def step_chunk(self, stream_interval: int) -> list[NewTokens]:
        """Run ``stream_interval`` iterations, fewer if all rollouts finish, and deliver every token made,
        ascending ids.

        A rollout has one ``NewTokens`` for each weight version among its tokens. With asynchronous scheduling
        the iteration in flight belongs to the next call. Later submissions stream at this interval inside
        vLLM.
        """
        self._interval = self._checked_interval(stream_interval)
        self._enter_queued()
        if not self._active():
            return []
        ran = idle = 0
        while ran < stream_interval and self._in_engine():
            idle = 0 if self._iterate() else idle + 1
            ran += 1
            if idle > _IDLE_ITERATIONS:
                raise self._stuck()
        self._flush()
        news = [one for track in self._active() for one in track.deliver(None)]
        self._counts = replace(self._counts, iterations=self._counts.iterations + ran)
        self._forget_finished(news)
        return news

    def running(self) -> tuple[int, ...]:
        """Ids of rollouts that are unfinished, or finished with tokens still to deliver, and not held back;
        ascending."""
        return tuple(track.request.rollout_id for track in self._active())

    def hold(self, rollout_ids: Sequence[int]) -> None:
        """Take rollouts out of the engine, which frees their KV, and keep their tokens. vLLM cannot pause a
        single request."""
        tracks = self._known(rollout_ids, "hold")
        self._drain()
        self._remove(tracks)
        for track in tracks:
            track.held = True

    def resume(self, rollout_ids: Sequence[int]) -> None:
        """Put held rollouts back: prompt and partial response are prefilled again (counted as recomputed)."""
        for track in self._known(rollout_ids, "resume"):
            track.held = False

    def abort(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts, tokens not yet delivered included, and free their KV; ids that are not (or no
        longer) here are ignored."""
        tracks = [self._tracks[one] for one in set(rollout_ids) if one in self._tracks]
        self._remove(tracks)
        for track in tracks:
            del self._tracks[track.request.rollout_id]

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        """New weights, in the names of the saved model. A tied output head is passed on explicitly: vLLM
        would keep the old one without a word.

        Raises ``OppoError`` when a weight of the saved model is missing, or one is unknown to it. Tokens made
        before keep their version.
        """
        named = self._complete(weights)
        self._drain()
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
        except (KeyError, ValueError, RuntimeError, AssertionError) as error:
            raise OppoError(f"vLLM did not take the weights of version {version}: {error}") from error
        self._version = version
        if not keep_kv:
            if not self._engine.reset_prefix_cache(reset_running_requests=True):
                raise OppoError(
                    "vLLM did not clear the KV of the running rollouts: load weights with keep_kv, or use the"
                    " torch engine."
                )
            for track in self._in_engine():
                track.lose_kv()

    def counts(self) -> ActorCounts:
        """Work since the start. ``iterations`` counts steps, and in ``step_chunk`` engine iterations. A
        rollout that comes with tokens made elsewhere
        counts as prefilled, not recomputed. Preemptions are vLLM's own."""
        return self._counts

    def resolved_config(self) -> dict[str, Any]:
        """As ``describe_engine``, plus the mode."""
        return {
            **describe_engine(self._engine, self._features),
            "mode": self._mode,
            "stream_interval": self._interval if self._streams() else 1,
        }

    def close(self) -> None:
        """Drop all rollouts and stop the engine. Its memory is freed when no other vLLM engine of this
        process is open."""
        self._remove(list(self._tracks.values()))
        self._tracks.clear()
        stop_engine(self._engine)

    # -- inside ----------------------------------------------------------------------------------------------

    def _active(self) -> list[Track]:
        return [self._tracks[key] for key in sorted(self._tracks) if not self._tracks[key].held]

    def _in_engine(self) -> list[Track]:
        return [track for track in self._tracks.values() if track.handle is not None]

    def _known(self, rollout_ids: Iterable[int], verb: str) -> list[Track]:
        missing = [one for one in rollout_ids if one not in self._tracks]
        if missing:
            raise OppoError(
                f"Cannot {verb} rollout {missing[0]}: the actor does not have it, submit it first (or it has"
                " finished)."
            )
        return [self._tracks[one] for one in rollout_ids]

    def _check(self, request: Request, present: Mapping[int, Track]) -> None:
        name = f"rollout {request.rollout_id}"
        total = request.forced_length if request.forced_length is not None else request.max_response_length
        if request.rollout_id in present:
            raise OppoError(f"Cannot submit {name}: the actor already has it, abort it first.")
        if not request.prompt:
            raise OppoError(f"Cannot submit {name}: its prompt is empty, give at least one token.")
        if len(request.prompt) + request.max_response_length > self._max_model_len:
            raise OppoError(
                f"Cannot submit {name}: prompt {len(request.prompt)} plus max_response_length"
                f" {request.max_response_length} tokens exceed max_model_len {self._max_model_len}: raise"
                " max_model_len or shorten the response."
            )
        if not len(request.generated) < total <= request.max_response_length:
            raise OppoError(
                f"Cannot submit {name}: with {len(request.generated)} tokens made it is to end after {total},"
                f" of at most {request.max_response_length}: give a length above what is made and within"
                " max_response_length."
            )

    def _enter_queued(self) -> None:
        for track in self._active():
            if track.handle is None and not track.finished:
                self._enter(track)

    def _enter(self, track: Track) -> None:
        request = track.request
        track.submissions += 1
        track.external_id = f"{request.rollout_id}.{track.submissions}"
        prompt = self._vllm.inputs.TokensPrompt(prompt_token_ids=[*request.prompt, *track.made])
        scheduler = self._engine.engine_core.engine_core.scheduler
        internal = self._engine.add_request(
            track.external_id, prompt, self._sampling_params(track), priority=request.rollout_id
        )
        if internal not in scheduler.requests:
            # Older versions return nothing and keep the given id.
            internal = track.external_id
        track.enter(internal, scheduler.requests[internal])
        self._by_external[track.external_id] = track

    def _sampling_params(self, track: Track) -> Any:
        request, sampling = track.request, self._sampling
        greedy = sampling.temperature == 0.0
        total = request.forced_length if request.forced_length is not None else request.max_response_length
        settings: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
            "max_tokens": total - len(track.made),
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
            "output_kind": self._vllm.sampling_params.RequestOutputKind.DELTA,
        }
        if not greedy:
            settings["seed"] = (
                stream_key(sampling.seed, f"vllm actor {request.rollout_id} {len(track.made)}") >> 1
            )
        if request.forced_length is not None:
            settings["min_tokens"] = settings["max_tokens"]
        elif sampling.stop_token_id is not None:
            settings["stop_token_ids"] = [sampling.stop_token_id]
        if self._streams():
            settings["stream_interval"] = self._interval
        return self._vllm.SamplingParams(**settings)

    def _streams(self) -> bool:
        return self._mode == "free-running" and self._features.unsent_tokens

    def _iterate_until_joined(self) -> None:
        # An iteration that used up its token budget may have left part of a join undone.
        while self._iterate() >= self._budget and any(track.waiting() for track in self._in_engine()):
            pass

    def _iterate(self) -> int:
        """One engine iteration; returns the tokens that went through the model."""
        live = self._in_engine()
        outputs = step_engine(self._engine, self._features)
        computed = prefilled = recomputed = preemptions = 0
        for track in live:
            work = track.look()
            computed += work.computed
            prefilled += work.prefilled
            recomputed += work.recomputed
            preemptions += work.preemptions
        self._counts = replace(
            self._counts,
            prefilled=self._counts.prefilled + prefilled,
            recomputed=self._counts.recomputed + recomputed,
            preemptions=self._counts.preemptions + preemptions,
        )
        for output in outputs:
            completion = output.outputs[0]
            self._take(
                self._by_external[output.request_id],
                completion.token_ids,
                completion.logprobs,
                completion.finish_reason,
            )
        return computed

    def _take(self, track: Track, tokens: Sequence[int], log_probs: Any, reason: str | None) -> None:
        if reason not in (None, "stop", "length"):
            raise OppoError(
                f"vLLM ended rollout {track.request.rollout_id} with {reason!r}: see its log"
                " (VLLM_LOGGING_LEVEL=INFO)."
            )
        end = self._finish_reason(track, tokens, reason)
        for place, (token, entry) in enumerate(zip(tokens, log_probs, strict=True)):
            last = place == len(tokens) - 1
            track.buffer.append(
                UndeliveredToken(
                    int(token), float(entry[token].logprob), self._version, end if last else None
                )
            )
            track.made.append(int(token))
        self._counts = replace(self._counts, decoded=self._counts.decoded + len(tokens))
        if reason is not None:
            track.finished = True
            track.leave()
            del self._by_external[track.external_id]

    def _finish_reason(self, track: Track, tokens: Sequence[int], reason: str | None) -> FinishReason | None:
        if reason is None:
            return None
        request = track.request
        if request.forced_length is not None:
            # A replayed response that ends before the limit stands for one that stopped by itself.
            return "stop" if request.forced_length < request.max_response_length else "length"
        return "stop" if tokens and int(tokens[-1]) == self._sampling.stop_token_id else "length"

    def _flush(self) -> None:
        """Take over the tokens that vLLM's streaming interval still holds back."""
        if not self._streams():
            return
        states = self._engine.output_processor.request_states
        for track in self._in_engine():
            state = states[track.internal_id]
            tokens = (
                list(state.detokenizer.output_token_ids[state.sent_tokens_offset :])
                if state.stream_interval > 1
                else []
            )
            if tokens:
                self._take(track, tokens, state.logprobs_processor.logprobs[-len(tokens) :], None)
                state.sent_tokens_offset += len(tokens)

    def _drain(self) -> None:
        """Complete iterations in flight, so that every token of the present weights is known. Lock-step has
        none in flight."""
        if self._mode == "lock-step" or not self._in_engine():
            return
        self._engine.sleep(level=0, mode="keep")
        in_flight = self._engine.engine_core.engine_core
        self._iterate()
        while getattr(in_flight, "batch_queue", None):
            self._iterate()
        self._engine.wake_up(tags=["scheduling"])
        self._flush()

    def _remove(self, tracks: Iterable[Track]) -> None:
        present = [track for track in tracks if track.handle is not None]
        if present:
            self._engine.abort_request([track.external_id for track in present])
        for track in present:
            track.leave()
            del self._by_external[track.external_id]

    def _forget_finished(self, news: Sequence[NewTokens]) -> None:
        for one in news:
            if one.finish_reason is not None:
                del self._tracks[one.rollout_id]

    def _complete(self, weights: "Mapping[str, torch.Tensor]") -> "list[tuple[str, torch.Tensor]]":
        named = {name: tensor.detach() for name, tensor in weights.items()}
        if self._tied and _HEAD not in named:
            embedding = next((name for name in named if name.endswith(_EMBEDDING)), None)
            if embedding is not None:
                named[_HEAD] = named[embedding]
        missing = sorted(self._expected_names - named.keys())
        unknown = sorted(named.keys() - self._expected_names - {_HEAD}) if self._expected_names else []
        if missing or unknown:
            raise OppoError(
                f"The new weights {f'lack {missing[0]}' if missing else f'have an unknown {unknown[0]}'}"
                f" ({len(missing)} missing, {len(unknown)} unknown): give the state_dict of the model saved"
                f" in {str(self._folder)!r}."
            )
        return list(named.items())

    def _stuck(self) -> OppoError:
        waiting = [track.request.rollout_id for track in self._active()]
        return OppoError(
            f"vLLM ran {_IDLE_ITERATIONS} iterations without a token for rollouts {waiting[:5]}: "
            "give it more KV memory or fewer tokens a rollout."
        )

    @staticmethod
    def _checked_interval(stream_interval: int) -> int:
        if stream_interval < 1:
            raise OppoError(f"stream_interval is {stream_interval}: give at least 1 token.")
        return stream_interval


def _positions(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    length = config.get("max_position_embeddings")
    if not length:
        raise OppoError(
            f"The config.json in {str(folder)!r} names no max_position_embeddings: give max_model_len."
        )
    return int(length)


def _weight_names(folder: Path) -> frozenset[str]:
    """Names in the folder's safetensors files; empty where the weights are kept otherwise, and then nothing
    can be checked."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names.update(opened.keys())
    return frozenset(names)
