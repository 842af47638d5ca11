"""Tiny checkpoints, made once: two layers, random weights, a small byte-level BPE tokenizer with a chat
template. For tests of indexes: compiled and plain functions, random texts, occurrences by search."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

TEXT = [
    "def add(a, b):\n    return a + b\n",
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n",
    "for index in range(10):\n    print(index)\n",
]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """Folders of checkpoints."""

    target: str
    draft: str  # the target's weights, disturbed: agrees often, not always
    stranger: str  # another vocabulary size
    lookalike: str  # the same size, other tokens


def tokenizer(vocab: int, text: list[str] = TEXT, template: str | None = TEMPLATE):
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    inner = ByteLevelBPETokenizer()
    inner.train_from_iterator(text, vocab_size=vocab, min_frequency=1, special_tokens=["<end>", "<pad>"])
    made = PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, eos_token="<end>", pad_token="<pad>")
    made.chat_template = template
    return made


def model(vocab: int, seed: int = 0, noise: float = 0.0):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    made = LlamaForCausalLM(config)
    if noise:
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in made.parameters():
                weight += noise * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    return made.eval()


def save(folder: Path, vocab: int, *, noise: float = 0.0, text: list[str] = TEXT) -> str:
    words = tokenizer(vocab, text)
    assert len(words) <= vocab
    model(vocab, seed=1, noise=noise).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    return Tiny(
        save(folder / "target", 320),
        save(folder / "draft", 320, noise=0.1),
        save(folder / "stranger", 304),
        save(folder / "lookalike", 320, text=["lorem ipsum dolor sit amet consectetur adipiscing elit " * 3]),
    )


@pytest.fixture(scope="session")
def loaded(tiny: Tiny):
    """Target and draft, in float64."""
    import outpace

    return outpace.load(tiny.target, dtype="float64"), outpace.load(tiny.draft, dtype="float64")


WORDS = [
    "def add(a, b):\n    return a + b\n",
    "for index in range(10):\n    print(index)\n",
    "naïve Straße",
] * 2


def fast(inner, **options):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **options)


def byte_level(size: int = 400, *, prefix: bool = False, end: str = "<end>"):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        WORDS,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return fast(inner, eos_token=end)


def sentence_piece(size: int = 120):
    """As in Llama 2: a space before every text, bytes for what no piece spells, and a token before
    everything."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    before = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = before
    text = ["def add a b return a for index in range print index"] * 3
    learner.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = {word: place for place, word in enumerate([*first, *learnt["vocab"]])}
    inner = Tokenizer(
        models.BPE(words, [tuple(pair) for pair in learnt["merges"]], unk_token="<unk>", byte_fallback=True)
    )
    inner.pre_tokenizer = before
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast(inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="session")
def tokenizers():
    """Makers of small tokenizers of different kinds."""
    return SimpleNamespace(fast=fast, byte_level=byte_level, sentence_piece=sentence_piece)


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with compiled functions and with plain Python."""
    if request.param == "plain":
        from outpace.indexes.compiled_loops import CompiledLoop

        monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    elif not find_spec("numba"):
        pytest.skip("numba is not installed")
    return request.param


@pytest.fixture
def texts() -> Callable[..., list[list[int]]]:
    """(seed, num) -> random texts over alphabets of 1 to 5 tokens, each with a repeated part."""

    def make(seed: int, num: int, longest: int = 60) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        found: list[list[int]] = []
        for _ in range(num):
            text = rng.integers(0, rng.integers(1, 6), rng.integers(0, longest)).tolist()
            start = int(rng.integers(0, len(text) + 1))
            found.append((text + text[start:])[:longest])
        return found

    return make


@pytest.fixture
def occurrences() -> Callable[[Sequence[Sequence[int]], Sequence[int]], int]:
    """The number of occurrences of a part in documents, overlapping ones included."""

    def count(documents: Sequence[Sequence[int]], part: Sequence[int]) -> int:
        return sum(
            list(text[start : start + len(part)]) == list(part)
            for text in documents
            for start in range(len(text) - len(part) + 1)
        )

    return count
