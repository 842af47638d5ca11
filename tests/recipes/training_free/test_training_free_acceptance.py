"""Training-free methods at equal numbers of nodes: tokens per step on held-out tasks at temperature 0."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.recipes.training_free.aded.recipe import aded
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.recipe import dresd, indexed
from outpace.recipes.training_free.rasd import rasd
from outpace.recipes.training_free.reader import reader
from outpace.recipes.training_free.rest import rest
from outpace.recipes.training_free.sam_decoding import sam_decoding
from outpace.recipes.training_free.token_recycling import token_recycling
from outpace.recipes.verification.mcsd import mcsd
from outpace.sampling.target_probs import LazyTargetProbs
from zoo_training.tasks import Task, make


@cache
def zoo(name: str) -> tuple[Any, Any]:
    return load(resolve(f"zoo:{name}"), dtype="float32")


def written(task: Task, *, answered: bool) -> list[int]:
    answer = [{"role": "assistant", "content": task.answer}] if answered else []
    words = zoo("target")[1]
    return words.apply_chat_template(
        task.messages + answer, add_generation_prompt=not answered, return_dict=False
    )


def corpus(kind: str, count: int = 300) -> list[list[int]]:
    """Tasks with answers, none of which is a prompt below."""
    random = Random(1)
    return [written(make(kind, random), answered=True) for _ in range(count)]


def prompts_of(kind: str, count: int) -> list[list[int]]:
    random = Random(2)
    return [written(make(kind, random, held_out=True), answered=False) for _ in range(count)]


def length(parts: Parts, prompts: list[list[int]], most: int = 64, tokens: int = 48) -> float:
    """Mean tokens a step and row, the bonus counted, no draft having more nodes than `most`."""
    sampling = [SamplingParams(max_tokens=tokens, stop=(zoo("target")[1].eos_token_id,))] * len(prompts)
    generated: list[int] = []
    for step in Session(
        parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs
    ).steps():
        if step.scores.logits is not None:
            generated += map(len, step.generated)
            assert max(map(len, step.draft.tree.forest.nodes)) <= 1 + most
    return sum(generated) / len(generated)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "edit"])
def test_a_search_in_trigrams_accepts_more_than_the_most_frequent_continuations(
    tmp_path: Path, kind: str
) -> None:
    target, texts, prompts = zoo("target")[0], corpus(kind), prompts_of(kind, 4)
    store.save(SuffixArray.build(texts), tmp_path / "continuations")
    store.save(TrigramTable.build(texts), tmp_path / "trigrams")
    found = length(aded.build(target, index=str(tmp_path / "trigrams")), prompts)
    assert found > 1.05 * length(rest.build(target, index=str(tmp_path / "continuations")), prompts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "edit"])
def test_alike_states_are_followed_more_alike_than_equal_tokens(tmp_path: Path, kind: str) -> None:
    target, texts, prompts = zoo("target")[0], corpus(kind, 60), prompts_of(kind, 4)
    store.save(SuffixArray.build(texts), tmp_path / "tokens")
    store.save(indexed(target, texts), tmp_path / "states")
    found = length(dresd.build(target, index=str(tmp_path / "states")), prompts, most=100)
    assert found > 1.05 * length(
        rest.build(target, index=str(tmp_path / "tokens"), max_cached_tokens=0), prompts
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "edit"])
def test_a_model_and_retrieval_accept_more_than_either(tmp_path: Path, kind: str) -> None:
    target, draft, prompts, nodes = zoo("target")[0], zoo("draft")[0], prompts_of(kind, 4), 28
    store.save(SuffixArray.build(corpus(kind)), tmp_path / "corpus")
    index = str(tmp_path / "corpus")
    alone = max(
        length(rest.build(target, index=index, nodes=nodes), prompts, nodes),
        length(sam_decoding.build(target), prompts),
        length(mcsd.build(target, draft=draft, widths=(4, 2, 1, 1)), prompts, nodes),
    )
    fused = rasd.build(target, draft=draft, index=index, widths=(2, 2, 1, 1), nodes=nodes // 2)
    assert length(fused, prompts, nodes) > 1.05 * alone
    assert length(reader.build(target, draft=draft, index=index, nodes=nodes), prompts, nodes) > 1.3 * alone


@pytest.mark.slow
def test_recycled_tokens_are_accepted_more_than_text_of_earlier_chats() -> None:
    target, prompts, most = zoo("target")[0], prompts_of("chat", 8), 24
    recycling, retrieving = token_recycling.build(target, nodes=most), rest.build(target, nodes=most)
    found = [
        [length(parts, prompts[at : at + 4], most) for at in (0, 4)] for parts in (recycling, retrieving)
    ]
    assert sum(found[0]) > 1.05 * sum(found[1])
