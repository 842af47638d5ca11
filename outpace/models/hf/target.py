"""Any transformers causal language model as a target.

A private copy of the model runs with our attention functions; these receive the tree through the forward's
cache object.

Letters: B rows, N nodes of all trees, V vocabulary size, D hidden size, T tokens.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from outpace.core.contracts import NOTHING, Cache, Carry, Choose, Ends, Prompt, Scores, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.checkpoint import load_checkpoint
from outpace.models.eager.eight_bits import FORMATS
from outpace.models.eager.forward import Forward
from outpace.models.eager.reading_check import check_reading
from outpace.models.eager.recurrent_forward import RecurrentForward
from outpace.models.eager.recurrent_states import fresh_states
from outpace.models.forward.backend import Backend
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.hf.compiling import compiled
from outpace.models.hf.fitted_vocabulary import FittedVocabulary
from outpace.models.hf.layout import RowLayout, both_ways, layout_of
from outpace.models.hf.logits_head import logits_head
from outpace.models.openvino.compiled import OnStage
from outpace.models.openvino.compressed_weights import CompressedWeights, compress, map_values
from outpace.models.unsupported import attends_by_cache_slot, refuse, rope_limit

CHUNK = 512  # maximum number of prompt tokens per forward


def load(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,  # None: CUDA if available, else CPU
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    threads: int | None = None,
    compile: bool = False,
    weights: str | None = None,  # int8 or int4: compressed weights, for a compiled model on a CPU
    kv_cache: str | None = None,  # int8: KV cache in 8 bits, for a compiled model on a CPU
    on_stage: OnStage = lambda stage: None,
) -> tuple[HFTarget, Tokenizer]:
    """Load a checkpoint folder or hub name as a target, with its tokenizer. `threads` sets torch's number of
    threads for the process. ValueError if the checkpoint cannot be used."""
    if weights is not None and not compile:
        raise ValueError(f"weights in {weights} need a compiled model: add compile=True (--compile)")
    if kv_cache is not None and not compile:
        raise ValueError(f"a KV cache in {kv_cache} needs a compiled model: add compile=True (--compile)")
    if threads is not None:
        torch.set_num_threads(threads)
    model, tokenizer = load_checkpoint(
        str(name_or_path),
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    compressed = None if weights is None else compress(model, weights, advance=on_stage)
    target = HFTarget(model, compile=compile, on_stage=on_stage, weights=compressed, kv_cache=kv_cache)
    if compressed is not None:
        map_values(model, compressed.values)  # comparing compiled and eager forwards read them into memory
    return target, tokenizer


class HFTarget:
    """Implementation of core.contracts.Target for a transformers causal language model.

    The model itself is never changed: forwards run on a private copy that shares its weights. Several threads
    may decode with one target, each in a separate session; only one forward runs at a time. Move the model to
    its device and add adapters before it is wrapped. ValueError for unsupported models.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        compile: bool = False,  # OpenVINO on a CPU, with a copy of the weights; CUDA graphs on a GPU
        on_stage: OnStage = lambda stage: None,  # called with the name of each stage of compiling
        hidden: frozenset[
            int
        ] = frozenset(),  # layers whose outputs compiled forwards have from the beginning
        weights: CompressedWeights | None = None,  # of the model, for its compiled forwards
        kv_cache: str | None = None,  # int8: keys and values are rounded to 8 bits, also in eager forwards
    ) -> None:
        if kv_cache is not None and kv_cache not in FORMATS:
            raise ValueError(f"there is no KV cache in {kv_cache}: use {' or '.join(FORMATS)}")
        self.model = model
        self.compressed_weights, self.kv_cache = weights, kv_cache
        self.forward = RecurrentForward(model) if fresh_states(model) else Forward(model)
        refuse(model, self.forward.parameters, recurrent=self.forward.keeps_states)
        config = model.config.get_text_config()
        draft_ids: Tensor | None = getattr(model, "draft_ids", None)  # token of each logit; None: all
        self.own_vocab: int = config.vocab_size  # number of token ids that it can read
        self.vocab: int = config.vocab_size if draft_ids is None else len(draft_ids)
        self._drafts_all = draft_ids is None
        self._fit: FittedVocabulary | None = None  # for a target with another number of token ids
        self.rope_limit = rope_limit(config)
        names = ("max_position_embeddings", "n_positions", "max_seq_len")
        limits = [int(getattr(config, name)) for name in names if getattr(config, name, None)][:1]
        if self.rope_limit is not None:
            limits.append(self.rope_limit)
        self.max_length: int | None = min(limits, default=None)  # tokens, prompt and output together
        self.forward.cache_in_8_bits = kv_cache is not None
        self.forward.probe()
        check_reading(self.forward)
        # a model of recurrent layers alone attends to nothing
        by_slot = bool(self.forward.planes.of_layer) and attends_by_cache_slot(
            model, self.forward.parameters, dense=self.forward.dense
        )
        self.chains_only = by_slot or not self.forward.scores_trees
        # of a draft head that reads blocks: each of a tree's nodes attends to all of them
        self._two_way = bool(getattr(model, "two_way", False))
        self._in_windows = False  # the same but for roots, which attend to the text alone
        if self.chains_only:
            name = type(model).__name__
            why = (
                "may attend by cache position instead of position id"
                if self.forward.scores_trees
                else "has recurrent layers that cannot read siblings in one forward"
            )
            warnings.warn(f"{name} {why}: it scores chains, not trees", stacklevel=2)
        if kv_cache is not None and self.device.type != "cpu":
            raise ValueError(f"a KV cache in {kv_cache} is for CPUs: use device cpu, or leave out kv_cache")
        self.reader = (
            compiled(
                self.forward,
                on_stage,
                trees=not self.chains_only,
                hidden=hidden,
                weights=weights,
                cache_in_8_bits=kv_cache is not None,
            )
            if compile
            else self.forward
        )
        self._logits_head: nn.Module | None = None
        self._allocates_ahead = True
        self._lock = Lock()  # one forward at a time: sessions of several threads may share the target
        self._caches: list[ref[SlotCache]] = []  # shared with the models that `on_demand` returns

    @property
    def device(self) -> torch.device:
        """The device of the input embeddings."""
        return self.forward.device

    @property
    def embed(self) -> nn.Module:
        """The model's input embedding: (...) int64 -> (..., D)."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> nn.Module:
        """The model's LM head with the scale or cap of its logits: (..., D) -> (..., V), always the same
        module. ValueError for a model without an LM head, or with logits computed in another way."""
        if self._logits_head is None:
            self._logits_head = logits_head(self.model)
        head = self._logits_head
        if head is None:
            raise ValueError(f"{type(self.model).__name__} has no LM head that a draft head could use")
        return head

    @property
    def num_layers(self) -> int:
        """Number of layers, whose outputs `Want.hidden` names from 0."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def compiled(self) -> Backend | None:
        """The compiled forwards; None if the model runs eagerly."""
        return None if self.reader is self.forward else self.reader

    @property
    def torch_threads(self) -> int | None:
        """Number of torch threads during a session's steps: 1 if OpenVINO runs the model, else None, which
        leaves the number unchanged."""
        # idle torch threads spin for a while on the cores that OpenVINO's threads need
        return 1 if self.reader.outside_torch else None

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of tokens to which compiled forwards on a CPU are padded; empty for other forwards."""
        return self.reader.sizes

    @property
    def chain_sizes(self) -> Sequence[int]:
        """Padded sizes of forwards over a single sequence whose draft is a chain; empty if not compiled."""
        return self.reader.chain_sizes

    @property
    def token_bytes(self) -> int:
        """Memory of the KV entries of one token, in bytes."""
        return self.reader.planes.token_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of the states of recurrent layers of one text, before and after a forward, in bytes."""
        return 2 * self.reader.planes.state_bytes

    @property
    def caches(self) -> list[SlotCache]:
        """The KV caches opened so far that are still in use."""
        return [cache for cache_ref in self._caches if (cache := cache_ref()) is not None]

    def open(self, slots: int, capacity: int) -> SlotCache:
        """A new KV cache with `slots` slots of `capacity` cache positions each, draft nodes included.
        ValueError if the default device of torch is not the CPU, on which sessions keep token ids."""
        if (device := torch.get_default_device()).type != "cpu":
            raise ValueError(
                f"torch's default device is {device}, but outpace needs the CPU as such: call "
                "torch.set_default_device('cpu'); models stay on the devices they are on"
            )
        with self._lock:
            ahead = self.compiled is not None or self._allocates_ahead
            cache = self.reader.open(slots, capacity if ahead else 0)
            self._caches[:] = [ref(opened) for opened in (*self.caches, cache)]
        return cache

    def count_caches_with(self, other: HFTarget) -> None:
        """Let `caches` of either model list the KV caches of both, for a model that replaces the other."""
        self._lock, self._caches = other._lock, other._caches

    def on_demand(self) -> HFTarget:
        """The same model, but with KV caches of capacity 0 for eager forwards: a slot grows with its text, in
        blocks of 64 positions, by copying, instead of being allocated for the longest text."""
        made = copy.copy(self)
        made._allocates_ahead = False
        return made

    def fitted(self, vocab: int) -> HFTarget:
        """The same model as a draft for a target with the same tokenizer and `vocab` token ids: it then reads
        all of these and has logits for them. Logits for a part of the vocabulary stay as they are."""
        if vocab == self.own_vocab:
            return self
        made = copy.copy(self)
        made._fit = FittedVocabulary(self.own_vocab, vocab)
        made.vocab = vocab if self._drafts_all else self.vocab
        return made

    def in_windows(self) -> HFTarget:
        """The same model, but the nodes of a draft attend to all nodes of their tree, as the masks of a
        diffusion model do. Roots attend to the text alone, so that their KV entries are those of a text.
        ValueError for a model that reads no trees."""
        if self.chains_only or self.forward.keeps_states:
            raise ValueError(
                f"{type(self.model).__name__} reads tokens in order, and masks of a window attend to those "
                "after them: use a draft model without recurrent layers, or speculative-sampling"
            )
        made = copy.copy(self)
        made._two_way = made._in_windows = True
        return made

    def over_vocabulary(self, logits: Tensor) -> Tensor:  # (N, K) -> (N, V)
        """The model's logits over the ids of the target that it was fitted to; unchanged if there is none."""
        return logits if self._fit is None or not self._drafts_all else self._fit.logits(logits)

    @torch.no_grad()
    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        """Compute and store the KV entries of all but the last token of each prompt, in chunks, after the
        tokens that the slots hold. ValueError for a prompt of one token."""
        assert isinstance(cache, SlotCache)
        pieces = [prompt.tokens[:-1] for prompt in prompts]
        if short := [row for row, tokens in enumerate(pieces) if len(tokens) == 0]:
            raise ValueError(
                f"prompt {short[0]} has one token, which leaves nothing to prefill: give it 2 tokens or more"
            )
        outputs = self.keep(pieces, slots, cache, want)
        forest = Forest.chain(tuple(len(tokens) - 1 for tokens in pieces))
        # not by `layout_of`, whose results are cached: prompts are too large for that
        order = (
            None
            if len(pieces) == 1
            else torch.tensor([node for row in forest.nodes for node in row]).argsort()
        )
        tokens = torch.cat(pieces)
        tree = TokenTree(tokens if order is None else tokens[order], forest)
        return tree, outputs.scores(0, order)

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
        features: Sequence[Tensor] | None = None,  # of a draft head, B × (G_b + new nodes of the row, D)
        logits: bool = True,  # false: only the outputs in `want`, without running the LM head
        also: Sequence[tuple[int, int]] = (),  # pairs of new nodes of which the earlier attends to the later
    ) -> Scores:
        """Run one forward over `gap` and the tree's new nodes; a gap of more than CHUNK tokens is computed in
        earlier forwards. Eager forwards without a gap continue from `carry`. ValueError for a tree that the
        target or the KV cache cannot process."""
        if torch.is_grad_enabled():  # sessions have it off: switching it at every call takes measurable time
            with torch.no_grad():
                return self.score(
                    tree,
                    slots,
                    cache,
                    want,
                    gap=gap,
                    carry=carry,
                    features=features,
                    logits=logits,
                    also=also,
                )
        assert isinstance(cache, SlotCache)
        if self.chains_only and not tree.forest.is_chain:
            raise ValueError(
                f"{type(self.model).__name__} scores chains only: draft one token a level, as "
                "speculative-sampling does"
            )
        slots = tuple(slots)
        first = cache.extend(tree, slots)
        gaps = [0] * len(slots) if gap is None else [len(tokens) for tokens in gap]
        if gap is not None and any(gaps):
            if first:
                raise ValueError(
                    "committed tokens cannot follow draft nodes: commit the tree scored before first"
                )
            if sum(gaps) > CHUNK:
                of_gaps = [part[:num] for part, num in zip(features, gaps, strict=True)] if features else None
                self.keep(gap, slots, cache, NOTHING, of_gaps)
                if features:
                    features = [part[num:] for part, num in zip(features, gaps, strict=True)]
                gap, gaps = None, [0] * len(slots)
        else:
            gap = None
        layout = layout_of(tree.forest, first)
        rows = [self._row(row, slots[row.row], gaps[row.row], cache) for row in layout.rows]
        if also:
            rows = [both_ways(inputs, row, also) for inputs, row in zip(rows, layout.rows, strict=True)]
        tokens = tree.tokens[first:] if first else tree.tokens
        if layout.order is not None:
            tokens = tokens[layout.order]
        nodes = [len(row.nodes) for row in layout.rows]
        if gap is not None:
            # with a gap no node is in the KV cache, so every row has new nodes
            parts = zip(gap, tokens.split(nodes), strict=True)
            tokens = torch.cat([part.to(tokens.device) for pair in parts for part in pair])
        if not rows:
            return Scores(first, torch.empty(0, self.vocab, device=self.device))
        states, after = None if features is None else torch.cat(list(features)), None
        if carry is not None and gap is None and not first and self._continues(carry, tree, want):
            after = carry.layer
            states = carry.hidden if layout.order is None else carry.hidden[layout.order]
        outputs = self._read(ForwardRequest(rows, nodes, tokens, want, logits, states, after), cache)
        if gap is not None:
            for slot, length in zip(slots, gaps, strict=True):
                cache.lengths[slot] += length
        cache.tree, cache.slots, cache.read = tree, slots, len(tree)
        return outputs.scores(first, layout.inverse)

    def _read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        """One forward over tokens in the ids of the target that the model is fitted to."""
        if self._fit is not None:
            request.tokens = self._fit.readable(request.tokens)
        with self._lock:
            outputs = self.reader.read(request, cache)
        if outputs.logits is not None:
            outputs.logits = self.over_vocabulary(outputs.logits)
        return outputs

    def _continues(self, carry: Carry, tree: TokenTree, want: Want) -> bool:
        """Whether a forward over this tree can begin after the layers that a draft has computed."""
        # the outputs of the carried layer are known, its attention weights are not
        is_known = all(layer < 0 or layer >= carry.layer for layer in want.hidden)
        is_known = is_known and all(layer > carry.layer for layer in want.attention)
        return carry.tree is tree and self.reader.begins_later and is_known

    def continue_chain(
        self,
        root: Tensor,  # (1,)
        slot: int,
        cache: Cache,
        depth: int,
        choose: Choose | None,
        *,
        gap: Tensor | None = None,
        features: Tensor | None = None,
        ends: Ends | None = None,
    ) -> tuple[list[int], Tensor] | None:
        """Implementation of core.contracts.ReadsChains, for models compiled with OpenVINO."""
        assert isinstance(cache, SlotCache)
        if not self.reader.outside_torch or cache.read:
            return None
        length = cache.lengths[slot]
        tokens = root if gap is None else torch.cat((gap, root))
        end = length + len(tokens)
        self._check_positions(end + depth - 2)
        cache.reserve(slot, end + depth - 1)
        row = RowInputs(slot, length, end, end - 1, top=end - 1)
        chosen_by = choose
        if self._fit is not None:
            tokens = self._fit.readable(tokens)
            if self._drafts_all:
                chosen_by = self._over_vocabulary_by(choose)
        with self._lock:
            chain = self.reader.read_chain(
                ForwardRequest([row], [1], tokens, features=features), cache, depth, chosen_by, ends
            )
        if chain is None:
            return None
        chosen, logits = chain[0], self.over_vocabulary(chain[1])
        cache.lengths[slot] = end - 1
        read = torch.tensor(chosen[:-1], dtype=torch.int64)
        cache.tree = TokenTree(torch.cat((root, read)), Forest.chain((len(read),)))
        cache.slots, cache.read = (slot,), len(chosen)
        return chosen, logits

    def _over_vocabulary_by(self, choose: Choose | None) -> Choose:
        """`choose` from the logits over the ids of the target."""
        select = choose or (lambda logits: int(logits.argmax()))
        return lambda logits: select(self.over_vocabulary(logits))

    def _row(self, row: RowLayout, slot: int, gap: int, cache: SlotCache) -> RowInputs:
        length = cache.lengths[slot]
        base = length + gap
        end = base + row.first + len(row.nodes)
        self._check_positions(base + row.deepest)
        cache.reserve(slot, end)
        start = base + row.first if row.first else length
        if self._two_way:
            size = row.first + len(row.nodes)
            depths = torch.arange(size) if row.depths is None else row.depths
            visible, top = torch.ones(size, size, dtype=torch.bool), base + row.deepest
            if self._in_windows:
                visible[0, 1:] = False
            return RowInputs(slot, start, end, base, depths, visible, top, two_way=True)
        if row.is_chain:
            return RowInputs(slot, start, end, base, top=end - 1)
        return RowInputs(slot, start, end, base, row.depths, row.visible, base + row.deepest)

    def _check_positions(self, last: int) -> None:
        if self.rope_limit is not None and last >= self.rope_limit:
            raise ValueError(
                f"{type(self.model).__name__} changes its rotary frequencies beyond {self.rope_limit} "
                "tokens: "
                "keep prompt and answer together within them"
            )

    @torch.no_grad()
    def keep(
        self,
        pieces: Sequence[Tensor],
        slots: Sequence[int],
        cache: Cache,
        want: Want,
        features: Sequence[Tensor] | None = None,
    ) -> ForwardOutputs:
        """Compute and store the KV entries of these committed tokens, at most CHUNK tokens per forward;
        returns the outputs row by row. `features`: of the tokens, if the model is a draft head."""
        assert isinstance(cache, SlotCache)
        for tokens, slot in zip(pieces, slots, strict=True):
            self._check_positions(cache.lengths[slot] + len(tokens) - 1)
            cache.reserve(slot, cache.lengths[slot] + len(tokens))
        outputs: list[list[ForwardOutputs]] = [[] for _ in pieces]
        for batch in _batches([len(tokens) for tokens in pieces], self.reader.packs):
            rows = []
            for index, start, end in batch:
                length = cache.lengths[slots[index]]
                last = length + end - start
                rows.append(RowInputs(slots[index], length, last, length, top=last - 1))
            sizes = [end - start for _, start, end in batch]
            tokens = torch.cat([pieces[index][start:end] for index, start, end in batch])
            states = (
                torch.cat([features[index][start:end] for index, start, end in batch]) if features else None
            )
            read = self._read(ForwardRequest(rows, sizes, tokens, want, want.prompt_logits, states), cache)
            for (index, start, end), part in zip(batch, read.split(sizes), strict=True):
                outputs[index].append(part)
                cache.lengths[slots[index]] += end - start
        return ForwardOutputs.joined([part for row in outputs for part in row])


def _batches(lengths: list[int], packs: bool) -> list[list[tuple[int, int, int]]]:
    """The rows' tokens as pieces (row, start, end), grouped into forwards of at most CHUNK tokens in which no
    row occurs twice. Without `packs` each forward has one piece."""
    pieces = [
        (row, start, min(start + CHUNK, length))
        for row, length in enumerate(lengths)
        for start in range(0, length, CHUNK)
    ]
    batches: list[list[tuple[int, int, int]]] = []
    remaining = 0
    for piece in pieces:
        size = piece[2] - piece[1]
        if not batches or not packs or size > remaining or batches[-1][-1][0] == piece[0]:
            batches.append([])
            remaining = CHUNK
        batches[-1].append(piece)
        remaining -= size
    return batches
