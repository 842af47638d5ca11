"""Draft models with the target's tokenizer and another number of token ids, by every way to give one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import outpace
from outpace.api.model import Model

IDS, MORE = 320, 352  # token ids of the tiny checkpoints, and of the padded ones
TEXTS = ["for index in", "def add("]


def save_padded(source: str, folder: Path) -> Path:
    """A checkpoint whose embedding and LM head have rows for which there is no token."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(MORE, mean_resizing=False)
    with torch.no_grad():  # probable ones, as in no trained model
        model.get_output_embeddings().weight[IDS:] *= 20
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def padded(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("padded")
    return {name: save_padded(getattr(tiny, name), folder / name) for name in ("target", "draft")}


@pytest.fixture(scope="module")
def pairs(loaded: tuple[Model, Model], padded: dict[str, Path]) -> dict[str, tuple[Model, Model]]:
    """(Target, draft) of which one has more ids."""
    target, draft = loaded
    return {
        "wider draft": (target, outpace.load(padded["draft"], dtype="float64")),
        "wider target": (outpace.load(padded["target"], dtype="float64"), draft),
    }


@pytest.mark.parametrize("wider", ["wider draft", "wider target"])
@pytest.mark.parametrize("method", ["speculative-sampling", "specinfer"])
def test_texts_are_the_targets(method: str, wider: str, pairs: dict[str, tuple[Model, Model]]) -> None:
    target, draft = pairs[wider]
    options: dict[str, Any] = {"method": method, "max_tokens": 12}
    options |= {"drafts": (draft, draft), "widths": (2, 1)} if method == "specinfer" else {"draft": draft}
    for params in ({"temperature": 0.0}, {"temperature": 0.0, "repetition_penalty": 1.3}):
        plain = outpace.generate(target, TEXTS, method="autoregressive", max_tokens=12, **params)
        found = outpace.generate(target, TEXTS, **options, **params)
        assert [each.tokens for each in found] == [each.tokens for each in plain]
    found = outpace.generate(target, TEXTS, **options, temperature=1.0, seed=1)
    assert sum(each.statistics.num_draft_tokens for each in found) > 0
    if wider == "wider target":  # it has generated ids that the draft model has no embedding for
        assert max(token for each in found for token in each.tokens) >= IDS


@pytest.mark.slow
def test_a_compiled_pair_and_a_chain_in_one_call(tiny: Any, padded: dict[str, Path]) -> None:
    for target, draft in ((tiny.target, padded["draft"]), (padded["target"], tiny.draft)):
        model = outpace.load(target, dtype="float32", compile=True)
        for options in ({}, {"sampled": False}):
            [plain] = outpace.generate(model, TEXTS[0], method="autoregressive", max_tokens=12)
            [found] = outpace.generate(model, TEXTS[0], draft=str(draft), max_tokens=12, **options)
            assert found.tokens == plain.tokens and found.statistics.num_draft_tokens
        outpace.generate(model, TEXTS, draft=str(draft), max_tokens=12, temperature=1.0, seed=1)


def test_pairs_of_loaded_transformers_models_are_taken_for_one_tokenizer(
    tiny: Any, padded: dict[str, Path]
) -> None:
    model, draft = (AutoModelForCausalLM.from_pretrained(each) for each in (tiny.target, padded["draft"]))
    inputs = AutoTokenizer.from_pretrained(tiny.target)(TEXTS[:1], return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    decoder = outpace.hf("speculative-sampling", draft=draft)
    with pytest.warns(
        UserWarning, match="has 352 token ids and .* 320: without both tokenizers it is assumed"
    ):
        found = model.generate(**inputs, max_new_tokens=8, do_sample=False, custom_generate=decoder)
    assert torch.equal(found, plain)


def copied(source: str | Path, folder: Path, tokens: list[str]) -> Path:
    """A copy of a checkpoint whose tokenizer has further tokens."""
    shutil.copytree(source, folder)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(tokens)
    tokenizer.save_pretrained(folder)
    return folder


def test_tokens_that_one_model_has_besides_are_no_other_tokenizer(
    tiny: Any, padded: dict[str, Path], tmp_path: Path
) -> None:
    target = outpace.load(copied(padded["target"], tmp_path / "target", ["<think>", "</think>"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outpace.generate(target, "def", draft=tiny.draft, max_tokens=4)
    same_id = copied(padded["draft"], tmp_path / "draft", ["<tool>"])
    with pytest.raises(ValueError, match="2 differ: '<th.*is no token in the draft|'<tool>' is token 32"):
        outpace.generate(target, "def", draft=str(same_id), max_tokens=4)


def test_other_tokenizers_are_refused_whatever_their_sizes(tiny: Any, padded: dict[str, Path]) -> None:
    target = outpace.load(padded["target"])
    with pytest.raises(
        ValueError, match="vocabularies of 320 and 352 tokens but not the same tokens.*such as tli"
    ):
        outpace.generate(target, "def", draft=tiny.lookalike, max_tokens=4)
