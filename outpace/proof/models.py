"""Small models for the distribution tests: targets with exactly computable distributions, and drafts."""

from __future__ import annotations

import copy
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from outpace.core.contracts import Target
from outpace.models.table import TableTarget
from outpace.models.vocabulary import END, CrossVocabularyDraft, Vocabulary
from outpace.proof.enumeration import BOUND
from outpace.proof.reference import Logits, table_logits

IMPOSSIBLE = -2000.0  # logit whose probability underflows to exactly 0, at temperatures up to 2 too
TEXTS, TEXT_LENGTH = 24, 14  # number of `Models.texts`, and tokens in each
GREEDY_LENGTH = 12  # tokens of `Models.greedy_text`
FLOAT32_BOUND = 1e-5  # largest difference of a probability attributed to rounding, in float32

# Strings by token id for a draft model whose vocabulary is not the target's: "a" and "b" are in both under
# different ids, the target's "ab" is two draft tokens, the draft's "bb" is no target token, and the end of
# text (None) has the id 3 in the target and 2 in the draft.
TARGET_STRINGS, DRAFT_STRINGS = (b"a", b"b", b"ab", None), (b"b", b"a", None, b"bb")
# for larger draft vocabularies: most tokens have the same id as in the target
WIDE_DRAFT_STRINGS = (b"a", b"b", None, b"ab")
MORE_STRINGS = tuple(bytes([letter]) for letter in range(ord("c"), ord("z") + 1))  # further tokens of both


@dataclass(frozen=True, eq=False)
class Models:
    """A target with a known distribution, and values for recipe options that need a model or a file;
    implementation of outpace.recipes.Fixtures."""

    name: str
    target: Target
    drafts: tuple[Target, ...]
    logits: Logits  # the target's logits, computed without the engine
    cross_vocabulary: CrossVocabularyDraft  # draft model whose vocabulary is not the target's
    bound: float = BOUND  # largest difference of a probability attributed to rounding
    deep: Target | None = None  # a draft model of at least four layers; None: the first of `drafts` is one

    @property
    def deep_draft(self) -> Target:
        """A draft model of at least four layers, for methods that change its middle ones."""
        return self.deep or self.drafts[0]

    @property
    def folder(self) -> Path:
        """A temporary folder, deleted when this object is garbage-collected."""
        return self._folder

    @property
    def texts(self) -> list[list[int]]:
        """`TEXTS` texts of `TEXT_LENGTH` token ids each, sampled from the target with a fixed seed."""
        return self._texts

    @cached_property
    def greedy_text(self) -> tuple[int, ...]:
        """Token id 0 and its greedy continuation by the target, `GREEDY_LENGTH` tokens in all. It soon
        repeats itself, so that drafts copied from it are probable continuations."""
        text = (0,)
        while len(text) < GREEDY_LENGTH:
            text = (*text, int(self.logits([text]).argmax()))
        return text

    @cached_property
    def _folder(self) -> Path:
        folder = Path(mkdtemp(prefix="outpace-proof-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @cached_property
    def _texts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        texts = [(index % self.target.vocab,) for index in range(TEXTS)]
        while len(texts[0]) < TEXT_LENGTH:
            probs = self.logits(texts).double().softmax(-1)
            following = torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()
            texts = [(*text, token) for text, token in zip(texts, following, strict=True)]
        return [list(text) for text in texts]


def cross_vocabulary(model: Target, vocab: int) -> CrossVocabularyDraft:
    """`model` as a draft model for a target of `vocab` tokens whose strings differ from the draft's."""
    strings = (*TARGET_STRINGS, *MORE_STRINGS)[:vocab]
    target = Vocabulary.longest_match(strings, {END: 3} if vocab > 3 else {})
    own = DRAFT_STRINGS if model.vocab <= len(DRAFT_STRINGS) else WIDE_DRAFT_STRINGS
    draft = Vocabulary.longest_match((*own, *MORE_STRINGS)[: model.vocab], {END: 2})
    return CrossVocabularyDraft(model, draft, target)


def tables(vocab: int = 3) -> Models:
    """A table target whose distribution depends on the last three tokens, and two table drafts that depend on
    two and one; every token has positive probability."""
    target = TableTarget(vocab, seed=1)
    drafts = (TableTarget(vocab, seed=2, order=2), TableTarget(vocab, seed=3, order=1))
    other = cross_vocabulary(TableTarget(len(DRAFT_STRINGS), seed=4, order=2), vocab)
    return Models("table", target, drafts, table_logits(target.logits, target.state), other)


def peaked_tables(vocab: int = 3) -> Models:
    """Table models in which most texts have a single possible next token, so that deep drafts are enumerated
    in few runs."""
    return _few_choices("peaked table", vocab, order=2, branching=0.5)


def long_tables(vocab: int = 3) -> Models:
    """Table models in which few texts have more than one possible next token, so that texts and drafts of
    more than a dozen tokens are enumerated in few runs."""
    return _few_choices("table of few choices", vocab, order=3, branching=0.12)


def _few_choices(name: str, vocab: int, *, order: int, branching: float) -> Models:
    target, drafts = _peaked(vocab, order=order, branching=branching, dtype=torch.float64)
    other = cross_vocabulary(TableTarget(len(DRAFT_STRINGS), seed=4, order=1), vocab)
    return Models(name, target, drafts, table_logits(target.logits, target.state), other)


def broad_tables(vocab: int = 5) -> Models:
    """Table models in which every one of five tokens can follow: a node can have more than three siblings."""
    return replace(tables(vocab), name=f"table of {vocab} tokens")


def wide_tables(vocab: int = 20) -> Models:
    """Table models in float32 with a vocabulary of more than 16 tokens, of which one to three have positive
    probability at a time."""
    target, drafts = _peaked(vocab, order=1, branching=0.4, dtype=torch.float32)
    logits = target.logits.double()
    return Models(
        f"table of {vocab} tokens in float32",
        target,
        drafts,
        table_logits(logits, target.state),
        cross_vocabulary(drafts[0], vocab),
        FLOAT32_BOUND,
    )


def _peaked(
    vocab: int, *, order: int, branching: float, dtype: torch.dtype
) -> tuple[TableTarget, tuple[TableTarget, TableTarget]]:
    """A target with one possible next token in most states and two in a fraction `branching` of the states,
    and two drafts.

    Both drafts can draw the target's possible tokens and, in some states, one more, with different
    probabilities.
    """
    target = TableTarget(vocab, order=order, seed=1)
    generator = torch.Generator().manual_seed(7)
    states = len(target.logits)
    order_of_tokens = torch.rand(states, vocab, generator=generator).argsort(-1)
    two = torch.rand(states, generator=generator) < branching
    three = torch.rand(states, generator=generator) < branching / 3
    rank = order_of_tokens.argsort(-1)
    possible = rank < 1 + two[:, None].long()
    drafted = possible | (rank < 1 + two[:, None].long() + three[:, None].long())
    models = [target, TableTarget(vocab, order=order, seed=2), TableTarget(vocab, order=order, seed=3)]
    for model, mask in zip(models, (possible, drafted, drafted), strict=True):
        model.logits = (model.logits / 2).masked_fill(~mask, IMPOSSIBLE).to(dtype)
    return models[0], (models[1], models[2])


def transformers_models(window: int | None = None, vocab: int = 4) -> Models:
    """Randomly initialised transformers models in float64: a two-layer target, one-layer drafts and one
    of four layers. `window`: sliding attention window in tokens (Mistral); None: full attention (Llama)."""
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    from outpace.models.hf.target import HFTarget

    def model(layers: int, seed: int, size: int = vocab) -> Any:
        torch.manual_seed(seed)
        shape: dict[str, Any] = {**_shape(layers, size), "attn_implementation": "sdpa"}
        if window is None:
            made = LlamaForCausalLM(LlamaConfig(**shape))
        else:
            made = MistralForCausalLM(MistralConfig(**shape, sliding_window=window))
        return made.double().eval()

    target = model(2, 1)
    untouched = copy.deepcopy(target)

    def logits(texts: list[tuple[int, ...]]) -> Tensor:
        with torch.inference_mode():
            return untouched(torch.tensor(texts), use_cache=False).logits[:, -1]

    name = "transformers, full attention" if window is None else f"transformers, window of {window}"
    other = cross_vocabulary(HFTarget(model(1, 4, len(DRAFT_STRINGS))), vocab)
    drafts = HFTarget(model(1, 2)), HFTarget(model(1, 3))
    return Models(name, HFTarget(target), drafts, logits, other, deep=HFTarget(model(4, 5)))


RecurrentCode = Literal["qwen3_5", "bamba"]  # a gated delta rule, Mamba 2
RECURRENT_CODES: tuple[RecurrentCode, ...] = get_args(RecurrentCode)


def recurrent_models(code: RecurrentCode = "qwen3_5", vocab: int = 4) -> Models:
    """Randomly initialised models with the code of Qwen3.5 or Bamba: a target of a recurrent layer and one of
    attention, and drafts of one layer, a recurrent one and one of attention. Their code computes states in
    float32."""
    from outpace.models.hf.target import HFTarget

    model = {"qwen3_5": _qwen3_5, "bamba": _bamba}[code]
    target = model(("recurrent", "attention"), 1, vocab)
    untouched = copy.deepcopy(target)

    def logits(texts: list[tuple[int, ...]]) -> Tensor:
        with torch.inference_mode():
            return untouched(torch.tensor(texts), use_cache=False).logits[:, -1]

    drafts = HFTarget(model(("recurrent",), 2, vocab)), HFTarget(model(("attention",), 3, vocab))
    other = cross_vocabulary(HFTarget(model(("recurrent",), 4, len(DRAFT_STRINGS))), vocab)
    name = f"transformers, recurrent layers of {code}"
    return Models(name, HFTarget(target), drafts, logits, other, FLOAT32_BOUND)


def _shape(num_layers: int, vocab: int) -> dict[str, Any]:
    """The arguments of the configurations of all models of transformers."""
    return dict(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _qwen3_5(kinds: Sequence[str], seed: int, vocab: int) -> Any:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        **_shape(len(kinds), vocab),
        layer_types=["linear_attention" if kind == "recurrent" else "full_attention" for kind in kinds],
        head_dim=8,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    model = Qwen3_5ForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                # With transformers' initial decays mostly less than a hundredth of what a token adds to a
                # state is left at the next token, and a mistake in sums over several tokens is not seen.
                weight -= 4
    return model


def _bamba(kinds: Sequence[str], seed: int, vocab: int) -> Any:
    from transformers import BambaConfig, BambaForCausalLM

    torch.manual_seed(seed)
    config = BambaConfig(
        **_shape(len(kinds), vocab),
        attn_layer_indices=[index for index, kind in enumerate(kinds) if kind == "attention"],
        mamba_n_heads=2,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=4,
    )
    return BambaForCausalLM(config).double().eval()
