"""One packed variable-length forward over per-rollout keys and values: the actor, the scorer and the
reference model all run it.

A forward takes, for any number of rollouts, the tokens that follow what is already stored of them: one token
when decoding, a whole context when joining, a piece when scoring; mixed at will, in one ``[1, T]`` batch
without padding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from oppo_real.engines import attention_check, packed_attention
from oppo_real.engines.device import CudaCapture, device_name, synchronize, to_device
from oppo_real.engines.packed_attention import PackedBatch
from oppo_real.engines.packed_graphs import DecodeGraphs
from oppo_real.engines.packed_plan import Span, whole_spans
from oppo_real.engines.packed_store import KVStore
from oppo_sim.errors import OppoError

_ROOM = 1.5
"""Tokens of an arena that is not to grow, over those that the rollouts may hold: extents have a quarter of
headroom, and a block."""


class Feed(NamedTuple):
    """The next tokens of one rollout."""

    rollout_id: int
    tokens: Sequence[int]


def backbone(model: torch.nn.Module) -> torch.nn.Module:
    """The transformer without its head; calling it gives hidden states.

    Raises OppoError for a model that is not of this form.
    """
    found = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    if not isinstance(found, torch.nn.Module):
        raise OppoError(
            f"{type(model).__name__} is no transformers model with a head; build one with engines.models."
        )
    return found


def head_of(model: torch.nn.Module) -> torch.nn.Module:
    """The vocabulary head of a language model, the score head of a reward or value model.

    Raises OppoError for a model with neither.
    """
    score = getattr(model, "score", None)
    head = score if score is not None else model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(head, torch.nn.Module):
        raise OppoError(f"{type(model).__name__} has neither a vocabulary head nor a score head.")
    return head


def prepare(model: torch.nn.Module) -> None:
    """Give the model packed attention, for good, and check that it computes what the model computed before.

    The check runs four random tokens through the model as it is and through the packed path in two parts.
    Raises OppoError for an architecture whose outputs differ (other masks, scaled or capped logits, positions
    of its own).
    """
    config: Any = model.config
    if getattr(config, "_attn_implementation", None) == packed_attention.IMPLEMENTATION:
        return
    packed_attention.register()
    name = type(model).__name__
    head, trunk = head_of(model), backbone(model)
    vocabulary = int(config.get_text_config().vocab_size)
    device = next(model.parameters()).device
    ids = torch.randint(vocabulary, (4,), generator=torch.Generator().manual_seed(0)).to(device)
    training, before = model.training, config._attn_implementation
    model.eval()
    passed = False
    try:
        with torch.no_grad():
            # A score model's own forward pools; its hidden states are compared instead.
            pooled = getattr(model, "score", None) is not None
            out = (trunk if pooled else model)(input_ids=ids[None], use_cache=False)
            expected = (out.last_hidden_state if pooled else out.logits)[0]
            model.set_attn_implementation(packed_attention.IMPLEMENTATION)  # type: ignore[operator]
            store = KVStore(_layers(model))
            parts = []
            for tokens in (ids[:3], ids[3:]):
                hidden = _cached_forward(trunk, store, [Feed(0, tokens.tolist())], device, fast=False)
                parts.append(hidden if pooled else head(hidden))
        difference = float((torch.cat(parts).float() - expected.float()).abs().max())
        allowed = (1e-3 if expected.dtype in (torch.float32, torch.float64) else 0.1) * max(
            1.0, float(expected.float().abs().max())
        )
        passed = difference <= allowed
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise OppoError(
            f"{name} does not run with packed attention ({str(error).splitlines()[0]}); use the vllm engine."
        ) from error
    finally:
        model.train(training)
        if not passed:
            model.set_attn_implementation(before)  # type: ignore[operator]
    if not passed:
        raise OppoError(
            f"{name} computes something else with packed attention (largest difference {difference:.3g}); use"
            " the vllm engine."
        )


@contextmanager
def packed(model: torch.nn.Module) -> Iterator[None]:
    """Packed attention inside the block; the model's own again behind it."""
    config: Any = model.config
    before = config._attn_implementation
    prepare(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def _layers(model: torch.nn.Module) -> int:
    config: Any = model.config
    return int(config.get_text_config().num_hidden_layers)


def _hidden(
    trunk: torch.nn.Module,
    ids: torch.Tensor,
    positions: torch.Tensor | None,
    packed: PackedBatch | None,
) -> torch.Tensor:
    options: dict[str, Any] = {} if packed is None else {"packed": packed}
    if positions is not None:
        options["position_ids"] = positions.unsqueeze(0)
    out = trunk(input_ids=ids.unsqueeze(0), use_cache=False, **options).last_hidden_state[0]
    assert isinstance(out, torch.Tensor)
    return out


def whole_forward(model: torch.nn.Module, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Hidden states [Σ lengths, hidden] of whole sequences; differentiable, of a ``prepare``d model."""
    device = next(model.parameters()).device
    lengths = [len(sequence) for sequence in sequences]
    ids = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.long)
    positions = torch.cat([torch.arange(length) for length in lengths])
    ids, positions = to_device(torch.stack((ids, positions)), device)
    return _hidden(backbone(model), ids, positions, PackedBatch(whole_spans(lengths)))


def _placed(
    store: KVStore, feeds: Sequence[Feed], limits: Mapping[int, int] | None
) -> tuple[torch.Tensor, list[Span]]:
    """Token ids, positions and arena places [3, T] of the feeds, and their spans. Makes room first."""
    needs = {feed.rollout_id: store.length(feed.rollout_id) + len(feed.tokens) for feed in feeds}
    store.reserve(needs, limits)
    spans: list[Span] = []
    ids: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    for feed in feeds:
        past, count, start = store.length(feed.rollout_id), len(feed.tokens), store.start(feed.rollout_id)
        spans.append(Span(len(ids), count, start, past + count))
        ids.extend(feed.tokens)
        positions.extend(range(past, past + count))
        places.extend(range(start + past, start + past + count))
    return torch.tensor((ids, positions, places), dtype=torch.long), spans


def _cached_forward(
    trunk: torch.nn.Module,
    store: KVStore,
    feeds: Sequence[Feed],
    device: torch.device,
    fast: bool,
    limits: Mapping[int, int] | None = None,
) -> torch.Tensor:
    table, spans = _placed(store, feeds, limits)
    table = to_device(table, device)
    out = _hidden(trunk, table[0], table[1], PackedBatch(spans, store, table[2], fast=fast))
    for feed in feeds:
        store.advance(feed.rollout_id, len(feed.tokens))
    return out


class PackedModel:
    """A model and the keys and values of its rollouts."""

    def __init__(
        self,
        model: torch.nn.Module,
        block_tokens: int = 16,
        graphs: bool = False,
        capacity: int | None = None,
    ) -> None:
        """``model``: a transformers model with a head (see ``models.py``); it keeps packed attention from now
        on.

        ``graphs``: replay captured decode steps on a CUDA device (see ``packed_graphs.py``); no effect
        elsewhere. ``capacity``: tokens that the rollouts together may hold, where that is bounded.
        """
        prepare(model)
        model.eval()
        self.model = model
        self.device = next(model.parameters()).device
        captured = graphs and self.device.type == "cuda"
        # Captured steps hold addresses, so an arena under them is not given back between phases, nor does it
        # grow where its size can be known: every growth would have all steps captured anew.
        room = int(_ROOM * capacity) if captured and capacity is not None else 0
        self.store = KVStore(_layers(model), block_tokens, shrink=not captured, room=room)
        self.dtype = next(model.parameters()).dtype
        self.vocab_size = int(model.config.get_text_config().vocab_size)  # type: ignore[union-attr, operator]
        self._trunk = backbone(model)
        self._head = head_of(model)
        self._graphs = (
            DecodeGraphs(self._captured_step, self.device, CudaCapture(self.device)) if captured else None
        )

    @torch.no_grad()
    def forward(self, feeds: Sequence[Feed], limits: Mapping[int, int] | None = None) -> torch.Tensor:
        """Run the feeds (distinct rollouts, at least a token each) behind what is stored, and store theirs.
        Hidden states [T, hidden].

        ``limits``: the most tokens a rollout will ever have (no memory is set aside beyond).
        """
        return _cached_forward(self._trunk, self.store, feeds, self.device, True, limits)

    @torch.no_grad()
    def next_logits(self, feeds: Sequence[Feed], limits: Mapping[int, int] | None = None) -> torch.Tensor:
        """As ``forward``, then the head on the last token of each feed only: [feeds, vocabulary], float32."""
        if self._graphs is not None and all(len(feed.tokens) == 1 for feed in feeds):
            table, spans = _placed(self.store, feeds, limits)
            longest = max((limits or {}).values(), default=0)
            logits = self._graphs.run(table, spans, self.store, longest)
            if logits is not None:
                for feed in feeds:
                    self.store.advance(feed.rollout_id, 1)
                return logits.float()
        hidden = self.forward(feeds, limits)
        return self.head(
            hidden if len(feeds) == hidden.shape[0] else hidden.index_select(0, self.last_rows(feeds))
        )

    def last_rows(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """Row of each feed's last token in what ``forward`` returned."""
        return to_device(torch.tensor([len(feed.tokens) for feed in feeds]).cumsum(0) - 1, self.device)

    def _captured_step(self, ids: torch.Tensor, positions: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        out = self._head(_hidden(self._trunk, ids, positions, batch))
        assert isinstance(out, torch.Tensor)
        return out

    @torch.no_grad()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocabulary] or scores [n, labels] of hidden states [n, hidden], float32."""
        out = self._head(hidden)
        assert isinstance(out, torch.Tensor)
        return out.float()

    def check_tokens(self, tokens: Sequence[int], whose: str) -> None:
        """Raises OppoError for a token outside the vocabulary."""
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            bad = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise OppoError(
                f"{whose} contains token {bad} but the model knows 0 to {self.vocab_size - 1}; use its own"
                " tokenizer."
            )

    def check_length(self, tokens: int, whose: str) -> None:
        """Raises OppoError for more tokens than the model has positions for."""
        config: Any = self.model.config
        most = getattr(config.get_text_config(), "max_position_embeddings", None)
        if most is not None and tokens > most:
            raise OppoError(
                f"{whose} can have {tokens} tokens but the model's max_position_embeddings is {most}; make it"
                " shorter."
            )

    def load(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Copy all weights in place (of tied ones either name) and wait until they are there. Raises
        OppoError, with nothing changed."""
        own = self.model.state_dict(keep_vars=True)
        mend = "send the weights of the same model."
        unknown = sorted(set(weights) - set(own))
        if unknown:
            raise OppoError(
                f"New weights name {unknown[0]!r}, which {type(self.model).__name__} does not have; {mend}"
            )
        covered = {own[name].data_ptr() for name in weights}
        missing = [name for name, tensor in own.items() if tensor.data_ptr() not in covered]
        if missing:
            raise OppoError(
                f"New weights lack {missing[0]!r} ({len(missing)} in all are missing); send every parameter."
            )
        for name, tensor in weights.items():
            if tensor.shape != own[name].shape:
                raise OppoError(
                    f"New weights {name!r}: shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}; {mend}"
                )
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor, non_blocking=True)
        synchronize(self.device)

    def describe(self) -> dict[str, Any]:
        """What really runs: shape, dtype, device, attention path, versions."""
        import transformers

        text: Any = self.model.config.get_text_config()  # type: ignore[union-attr, operator]
        heads = int(text.num_attention_heads)
        kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
        width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
        return {
            "engine": "torch",
            "model": type(self.model).__name__,
            "layers": int(text.num_hidden_layers),
            "hidden_size": int(text.hidden_size),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": width,
            "vocab_size": self.vocab_size,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "device_name": device_name(self.device),
            "threads": torch.get_num_threads(),
            "attention_path": attention_check.cached_path(self.device, self.dtype, heads, kv_heads, width),
            "cuda_graphs": self._graphs is not None and self._graphs.state(),
            "kv_bytes_per_token": self.store.bytes_per_token(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }


def micro_batches(feeds: Sequence[Feed], max_tokens: int | None) -> Iterator[list[Feed]]:
    """Batches of at most ``max_tokens`` tokens, in order; a longer feed goes on in the next batch."""
    if max_tokens is None:
        if feeds:
            yield list(feeds)
        return
    batch: list[Feed] = []
    room = max_tokens
    for feed in feeds:
        begin = 0
        while begin < len(feed.tokens):
            piece = feed.tokens[begin : begin + room]
            batch.append(Feed(feed.rollout_id, piece))
            begin += len(piece)
            room -= len(piece)
            if not room:
                yield batch
                batch, room = [], max_tokens
    if batch:
        yield batch
