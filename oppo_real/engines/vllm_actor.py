"""An actor on vLLM, stepped inside this process.

*Lock-step* (replay, comparison with the simulator): one ``step`` is one vLLM engine iteration. In vLLM the
iteration that completes a prefill also samples, so ``prefill what joins, then decode`` is a single iteration:
a joiner's prompt (or, with recomputed KV, its prompt and partial response) runs together with the decode of
the others, and each of them, joiner or not, gets one token. The token budget of an iteration is made large
enough for any join (``max_num_seqs * max_model_len``, or the KV capacity where that is smaller). Where a
smaller ``max_num_batched_tokens`` is asked for, a large join takes several engine iterations; what others
make meanwhile is kept and delivered by the following steps, still one token a step.

*Free-running* (throughput): vLLM's own defaults (asynchronous scheduling on GPUs, split prefills; not split
where a CPU samples); a step still delivers one token to each rollout that has one.

*Order.* The rollout id is the scheduling priority: lower ids join first, the highest id is preempted first.

*Reproducibility.* With temperature above 0 each submission of a rollout gets a seed of its own, a hash of
(``Sampling.seed``, rollout id, tokens already made), and vLLM draws from that generator token by token,
whatever else runs in the batch. The same submissions therefore give the same draws on the same machine, also
over preemption and cleared KV; a checkpoint starts a new generator. vLLM does not
promise the same logits for another batch composition (floating point sums are ordered differently, most
visibly in 16 bit), so a sampled or greedy token can differ where two are nearly tied;
``VLLM_BATCH_INVARIANT=1`` removes that on GPUs that support it.

*Prefix caching* is on where KV is to outlive a call of a tool (``keep_kv_on_tool_call``) or samples of one
prompt are to share it (``share_prompts``). A rollout that calls ends for vLLM; its whole blocks stay in the
cache until somebody needs the room, the longest unused first, and what it had of the last block is prefilled
again. Each rollout (or all samples of a prompt) has a salt of its own, and is handed no blocks of others.
Cleared KV empties the cache.

*Log-probabilities* are those of the distribution sampled from: after temperature and, where ``top_p`` < 1,
after the cut. Greedy ones are at temperature 1.

Not run here: GPUs, and asynchronous scheduling (vLLM turns it off on CPUs).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_real.engines.interface import ActorCounts, FinishReason, NewTokens, Request, Sampling
from oppo_real.engines.vllm_arguments import Sizes, actor_arguments, sampling_arguments
from oppo_real.engines.vllm_engine import (
    describe_engine,
    model_folder,
    start_engine,
    step_engine,
    stop_engine,
)
from oppo_real.engines.vllm_probe import probe_vllm, require_vllm
from oppo_real.engines.vllm_track import Track
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import torch

_IDLE_ITERATIONS = 8
"""Iterations without any token after which the engine is stuck; asynchronous scheduling needs two."""
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class VllmActor:
    """``Actor`` over ``vllm.LLMEngine``. ``model`` is a folder written by ``save_pretrained``; no tokenizer
    is needed.

    ``lock_step``: or free-running (see above). ``max_num_seqs`` bounds the rollouts that run together; the
    others wait, by id. ``kv_capacity_tokens``: None is what vLLM finds free on a GPU, 1 GiB on a CPU.
    ``keep_kv_on_tool_call``, ``share_prompts``: see *Prefix caching*. ``engine_args`` go to vLLM as they are,
    last.

    Raises ``OppoError`` where vLLM is absent, lacks something needed, or does not start.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        lock_step: bool = True,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        kv_capacity_tokens: int | None = None,
        keep_kv_on_tool_call: bool = False,
        share_prompts: bool = False,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._vllm = require_vllm()
        self._keeps_on_call, self._shares = keep_kv_on_tool_call, share_prompts
        caches = keep_kv_on_tool_call or share_prompts
        self._features = probe_vllm()
        self._features.need(
            reloading_of_weights=self._features.reload_weights_iterator,
            reset_of_running_requests=self._features.reset_running_requests,
            in_process_request_state=self._features.request_state,
            pause_of_scheduling=lock_step or self._features.pause_scheduling,
            cache_salt=self._features.cache_salt or not caches,
        )
        self._folder = model_folder(model)
        self._sampling, self._lock_step = sampling, lock_step
        sizes = Sizes(dtype, max_model_len, max_num_seqs, kv_capacity_tokens)
        settings = actor_arguments(
            self._folder,
            self._features.device_type,
            sizes,
            lock_step=lock_step,
            samples=sampling.temperature > 0.0,
            caches=caches,
            own=engine_args or {},
        )
        self._expected_names = _weight_names(self._folder)
        self._tracks: dict[int, Track] = {}
        self._by_external: dict[str, Track] = {}
        self._salts = 0
        self._kept_salts: dict[int, str] = {}
        """Of rollouts at tools whose KV is kept."""
        self._counts = ActorCounts()
        self._version = 0
        self._engine = start_engine(settings, self._features)
        config = self._engine.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._budget = int(config.scheduler_config.max_num_batched_tokens)
        self._tied = bool(getattr(config.model_config.hf_text_config, "tie_word_embeddings", False))
        if bool(config.cache_config.enable_prefix_caching) != caches:
            stop_engine(self._engine)
            raise OppoError(
                f"The vLLM actor runs {'with' if caches else 'without'} prefix caching here: leave"
                " enable_prefix_caching out of its arguments, rollout.enable_prefix_caching and"
                " rollout.clear_kv_cache_on_tool_call decide it."
            )

    # -- the Actor interface ---------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue all or none. Raises ``OppoError`` for an id in use, no prompt, or too great a length."""
        tracks = dict(self._tracks)
        for request in requests:
            self._check(request, tracks)
            tracks[request.rollout_id] = Track(request, list(request.generated))
        for request in requests:
            track = tracks[request.rollout_id]
            kept = self._kept_salts.pop(request.rollout_id, None)
            track.own_kv = kept is not None
            track.salt = kept or self._new_salt(request)
        self._tracks = tracks

    def step(self) -> list[NewTokens]:
        """A token for each rollout that runs, ascending ids; waiting ones (KV, ``max_num_seqs``) get none."""
        self._enter_queued()
        for _ in range(_IDLE_ITERATIONS):
            active = self._active()
            if not active:
                return []
            if any(not track.buffer for track in active):
                self._iterate_until_joined()
            news = [track.buffer.popleft() for track in self._active() if track.buffer]
            if news:
                self._counts = replace(self._counts, iterations=self._counts.iterations + 1)
                self._forget_finished(news)
                return news
        raise self._stuck()

    def running(self) -> tuple[int, ...]:
        """Ids of those unfinished, or with tokens still to deliver; ascending."""
        return tuple(track.request.rollout_id for track in self._active())

    def abort(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts, undelivered tokens too, and free their KV; unknown ids are ignored."""
        tracks = [self._tracks[one] for one in set(rollout_ids) if one in self._tracks]
        self._remove(tracks)
        for track in tracks:
            del self._tracks[track.request.rollout_id]
        for rollout_id in rollout_ids:
            self._kept_salts.pop(rollout_id, None)

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
            self._clear_kv()
            for track in self._tracks.values():
                track.own_kv = False
                if track.handle is not None:
                    track.lose_kv()

    def counts(self) -> ActorCounts:
        """Work since the start; tokens made elsewhere count as prefilled. Preemptions are vLLM's own."""
        return self._counts

    def reset(self) -> None:
        """Be as new, with these weights. Raises ``OppoError`` where vLLM does not clear its cache."""
        self._drain()
        self.abort(list(self._tracks))
        self._clear_kv()
        self._version = 0
        self._counts = ActorCounts()

    def resolved_config(self) -> dict[str, Any]:
        """As ``describe_engine``, plus the mode."""
        mode = "lock-step" if self._lock_step else "free-running"
        return {**describe_engine(self._engine, self._features), "mode": mode}

    def close(self) -> None:
        """Drop all rollouts and stop the engine (``stop_engine`` says when its memory is freed)."""
        self._remove(list(self._tracks.values()))
        self._tracks.clear()
        stop_engine(self._engine)

    # -- inside ----------------------------------------------------------------------------------------------

    def _active(self) -> list[Track]:
        return [self._tracks[key] for key in sorted(self._tracks)]

    def _in_engine(self) -> list[Track]:
        return [track for track in self._tracks.values() if track.handle is not None]

    def _check(self, request: Request, known: Mapping[int, Track]) -> None:
        name = f"rollout {request.rollout_id}"
        total, limit = request.turn_end, request.max_response_length - request.answer_tokens
        if request.rollout_id in known:
            raise OppoError(f"Cannot submit {name}: the actor already has it, abort it first.")
        if not request.prompt:
            raise OppoError(f"Cannot submit {name}: its prompt is empty, give at least one token.")
        if len(request.prompt) + request.max_response_length > self._max_model_len:
            raise OppoError(
                f"Cannot submit {name}: prompt {len(request.prompt)} plus max_response_length"
                f" {request.max_response_length} tokens exceed max_model_len {self._max_model_len}: raise"
                " max_model_len or shorten the response."
            )
        if not len(request.generated) < total <= limit:
            raise OppoError(
                f"Cannot submit {name}: with {len(request.generated)} tokens made it is to end after {total},"
                f" of at most {limit}: give a length above what is made and within"
                " max_response_length."
            )

    def _new_salt(self, request: Request) -> str:
        if self._shares and request.prompt_key is not None:
            return f"prompt {request.prompt_key}"
        self._salts += 1
        return str(self._salts)

    def _enter_queued(self) -> None:
        for track in self._active():
            if track.handle is None and not track.finished:
                self._enter(track)

    def _enter(self, track: Track) -> None:
        request = track.request
        track.external_id = str(request.rollout_id)
        prompt = self._vllm.inputs.TokensPrompt(prompt_token_ids=list(request.context))
        if self._keeps_on_call or self._shares:
            prompt["cache_salt"] = track.salt
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
        settings = sampling_arguments(track.request, self._sampling, len(track.response))
        delta = self._vllm.sampling_params.RequestOutputKind.DELTA
        return self._vllm.SamplingParams(**settings, output_kind=delta)

    def _iterate_until_joined(self) -> None:
        # An iteration that used up its token budget may have left part of a join undone.
        while self._iterate() >= self._budget and any(track.waiting() for track in self._in_engine()):
            pass

    def _iterate(self) -> int:
        """One engine iteration; returns the tokens that went through the model."""
        live = self._in_engine()
        outputs = step_engine(self._engine, self._features)
        computed = 0
        found = {output.request_id: output.num_cached_tokens or 0 for output in outputs}
        for track in live:
            new, self._counts = track.look(self._counts, found.get(track.external_id, 0))
            computed += new
        for output in outputs:
            self._take(self._by_external[output.request_id], output.outputs[0])
        return computed

    def _take(self, track: Track, completion: Any) -> None:
        tokens, reason = completion.token_ids, completion.finish_reason
        if reason not in (None, "stop", "length"):
            raise OppoError(
                f"vLLM ended rollout {track.request.rollout_id} with {reason!r}: see its log"
                " (VLLM_LOGGING_LEVEL=INFO)."
            )
        end, calls = self._end(track, tokens, reason)
        for place, (token, entry) in enumerate(zip(tokens, completion.logprobs, strict=True)):
            last = place == len(tokens) - 1
            track.buffer.append(
                NewTokens(
                    track.request.rollout_id,
                    (int(token),),
                    (float(entry[token].logprob),),
                    self._version,
                    end if last else None,
                    calls and last,
                )
            )
            track.response.append(int(token))
        self._counts = replace(self._counts, decoded=self._counts.decoded + len(tokens))
        if reason is not None:
            track.finished = True
            track.leave()
            del self._by_external[track.external_id]

    def _end(
        self, track: Track, tokens: Sequence[int], reason: str | None
    ) -> tuple[FinishReason | None, bool]:
        """As ``Request.end_of_turn``."""
        if reason is None:
            return None, False
        request = track.request
        if request.forced_length is not None or request.call_after is not None:
            return request.end_of_turn(len(track.response) + len(tokens))
        return ("stop" if tokens and int(tokens[-1]) == self._sampling.stop_token_id else "length"), False

    def _drain(self) -> None:
        """Complete iterations in flight, so that every token of these weights is known."""
        if self._lock_step or not self._in_engine():
            return
        self._engine.sleep(level=0, mode="keep")
        in_flight = self._engine.engine_core.engine_core
        self._iterate()
        while getattr(in_flight, "batch_queue", None):
            self._iterate()
        self._engine.wake_up(tags=["scheduling"])

    def _clear_kv(self) -> None:
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise OppoError(
                "vLLM did not clear the KV of the running rollouts: load weights with keep_kv, or use the"
                " torch engine."
            )
        self._kept_salts.clear()

    def _remove(self, tracks: Iterable[Track]) -> None:
        inside = [track for track in tracks if track.handle is not None]
        if inside:
            self._engine.abort_request([track.external_id for track in inside])
        for track in inside:
            track.leave()
            del self._by_external[track.external_id]

    def _forget_finished(self, news: Sequence[NewTokens]) -> None:
        for one in news:
            if one.finish_reason is not None or one.calls_tool:
                track = self._tracks.pop(one.rollout_id)
                if one.calls_tool and self._keeps_on_call:
                    self._kept_salts[one.rollout_id] = track.salt

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


def _weight_names(folder: Path) -> frozenset[str]:
    """Names in the folder's safetensors files; empty (nothing can be checked) where there are none."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names.update(opened.keys())
    return frozenset(names)
