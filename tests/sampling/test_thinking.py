"""The rule on reasoning depends on the generated text alone, so that it holds at every node of a tree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.models.vocabulary import Vocabulary
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions
from outpace.proof.reference import difference, plain_distribution, table_logits
from outpace.recipes import find
from outpace.sampling.grammar import compile_grammar
from outpace.sampling.thinking import Phase, Place, ThinkingRule, ThinkingTags

SPELLING = "<>a."  # of the tokens of a small vocabulary; the last ends the text


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return outpace.load("zoo:target").tokenizer


def tags_of(tokenizer: Any) -> tuple[ThinkingTags, int]:
    vocab = len(tokenizer)
    pieces = Vocabulary.of(tokenizer, vocab).pieces
    return ThinkingTags("<think>", "</think>", tokenizer, lambda token: pieces[token] or b"", vocab), vocab


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("budget", [None, 0, 3])
@pytest.mark.parametrize("constrained", [True, False])
def test_a_path_allows_what_the_same_text_allows(
    tokenizer: Any, is_open: bool, budget: int | None, constrained: bool
) -> None:
    pytest.importorskip("xgrammar")
    tags, vocab = tags_of(tokenizer)
    stop = (tokenizer.eos_token_id,)
    grammar = 'root ::= "yes" | "no" " "* "way"'
    make = compile_grammar(tokenizer, vocab, stop, grammar=grammar, json_schema=None)

    def rule() -> ThinkingRule:
        own = make() if constrained else None
        return ThinkingRule(tags, vocab, is_open=is_open, budget=budget, grammar=own, stop=stop)

    draw, shared = random.Random(1), rule()
    for _ in range(12):
        allowed_text: list[int] = []
        for _ in range(draw.randrange(14)):
            row = rule().allowed(torch.tensor(allowed_text, dtype=torch.int64), [()])[0]
            options = row.nonzero()[:, 0].tolist()
            wanted = [token for token in ids(tokenizer, "<think>x</think>noway") if row[token]]
            if not options or (allowed_text and allowed_text[-1] in stop):
                break
            allowed_text.append(draw.choice(wanted or options))
        cut = draw.randrange(len(allowed_text) + 1)
        text = torch.tensor(allowed_text[:cut], dtype=torch.int64)
        paths = [allowed_text[cut:end] for end in range(cut, len(allowed_text) + 1)]
        found = shared.allowed(text, paths)
        for path, row in zip(paths, found, strict=True):
            whole = torch.tensor([*text.tolist(), *path], dtype=torch.int64)
            assert torch.equal(row, rule().allowed(whole, [()])[0])


def test_tokens_across_the_end_tag_are_not_allowed_before_a_grammar() -> None:
    pieces = [b"<", b"/think", b">", b">x", b"x", b"</think>", b"</think>y", b"", b"think"]

    def spell(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": {"<think>": [0, 8, 2], "</think>": [5]}[text]}

    tags = ThinkingTags("<think>", "</think>", spell, pieces.__getitem__, len(pieces))

    class All:
        def allowed(self, text: Any, paths: Any) -> torch.Tensor:
            self.seen = text.tolist(), [list(path) for path in paths]
            return torch.ones(len(paths), len(pieces), dtype=torch.bool)

    grammar = All()
    rule = ThinkingRule(tags, len(pieces), is_open=True, budget=None, grammar=grammar, stop=(7,))
    empty = torch.empty(0, dtype=torch.int64)
    found = rule.allowed(empty, [(), (0,), (0, 1), (0, 1, 2), (5, 4)])
    forbidden = [[token for token in range(len(pieces)) if not row[token]] for row in found]
    assert forbidden == [[6, 7], [6, 7], [3, 6, 7], [], []]
    assert grammar.seen == ([], [[], [4]])
    rule.allowed(torch.tensor([4, 5, 4]), [(4,)])
    assert grammar.seen == ([4], [[4]])
    place = Place(Phase.UNDECIDED)
    for token in (0, 8, 2, 4, 0, 1, 3, 4):
        place = tags.after(place, token)
    assert (place.phase, place.num_thinking, place.answer) == (Phase.ANSWER, 4, 7)


class ByHand:
    """Two tokens of reasoning at most, then `<>`, then the answer `a` and the end."""

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        found = [self._after("".join(SPELLING[token] for token in [*text.tolist(), *path])) for path in paths]
        return torch.tensor([[token in wanted for token in SPELLING] for wanted in found])

    def _after(self, text: str) -> str:
        reasoning, tag, answer = text.partition("<>")
        if not tag:
            return {2: "<", 3: ">"}.get(len(reasoning), "<>a")
        return {"": "a", "a": "."}.get(answer, "<>a.")


class OneLetter:
    """The grammar of the answer `a`."""

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        texts = [[*text.tolist(), *path] for path in paths]
        wanted = [{(): "a", (2,): "."}.get(tuple(each), "<>a.") for each in texts]
        return torch.tensor([[token in each for token in SPELLING] for each in wanted])


@pytest.mark.parametrize("name", ["speculative-sampling", pytest.param("traversal", marks=pytest.mark.slow)])
def test_the_distribution_is_plain_decodings_under_the_rule(name: str) -> None:
    def spell(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [SPELLING.index(letter) for letter in text]}

    target, draft = TableTarget(4, seed=1), TableTarget(4, seed=2, order=2)
    tags = ThinkingTags("<", "<>", spell, lambda token: SPELLING[token].encode(), 4)
    rule = ThinkingRule(tags, 4, is_open=True, budget=2, grammar=OneLetter(), stop=(3,))
    requests = [
        SamplingParams(1.0, max_tokens=6, stop=(3,)),
        SamplingParams(0.7, top_k=2, max_tokens=6, stop=(3,), repetition_penalty=1.4),
        SamplingParams(0.0, max_tokens=6, stop=(3,)),
    ]
    recipe = find()[name]
    known = {"draft": draft, "widths": (1, 2), "depth": 2}
    options = {option: known[option] for option in recipe.options if option in known}
    cases = [Case((0, 1, 2), replace(params, grammar=rule)) for params in requests]
    found = enumerate_distributions(lambda: recipe.build(target, **options), cases)
    logits = table_logits(target.logits, target.state)
    for distribution, params in zip(found.distributions, requests, strict=True):
        expected = plain_distribution(logits, (0, 1, 2), replace(params, grammar=ByHand()))
        assert difference(distribution, expected) <= BOUND
    assert len(found.distributions[0]) > 4


def test_a_tokenizer_that_cannot_spell_the_tags_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot spell <think>: name another reasoning parser"):
        ThinkingTags("<think>", "</think>", lambda text, **_: {"input_ids": [0]}, lambda token: b"?", 1)
