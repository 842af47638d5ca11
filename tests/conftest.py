"""Tiny checkpoints, made once: two layers, random weights, a small byte-level BPE tokenizer with a chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
