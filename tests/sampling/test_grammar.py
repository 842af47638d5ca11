"""Grammars: the tokens allowed at a node depend on its path alone, and every method generates only those."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import xgrammar
from torch import Tensor

import outpace
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions
from outpace.proof.reference import difference, plain_distribution, table_logits
from outpace.recipes import find
from outpace.sampling import grammar
from outpace.sampling.grammar import GrammarState
from tests.tiers import slow

LETTERS, END = "abc", 3
EBNF = 'root ::= "a"? ("bc" | "cb" | "b")* "a"'


def sentences(most: int = 8) -> set[str]:
    middles = {""}
    for _ in range(most):
        middles |= {
            middle + part for middle in middles for part in ("bc", "cb", "b") if len(middle + part) <= most
        }
    return {start + middle + "a" for start in ("", "a") for middle in middles}


SENTENCES = sentences()


class ByHand:
    """The same grammar, given as the list of all its sentences."""

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        mask = torch.ones(len(paths), 4, dtype=torch.bool)
        for node, path in enumerate(paths):
            tokens = [*text.tolist(), *path]
            spelt = "".join(LETTERS[token] for token in tokens if token != END)
            if END not in tokens and any(sentence.startswith(spelt) for sentence in SENTENCES):
                following = [any(s.startswith(spelt + letter) for s in SENTENCES) for letter in LETTERS]
                mask[node] = torch.tensor([*following, spelt in SENTENCES])
        return mask


def grammar_state() -> GrammarState:
    words = xgrammar.TokenizerInfo([*LETTERS, "<end>"], stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(words, max_threads=1).compile_grammar(EBNF)
    return GrammarState(xgrammar.GrammarMatcher(compiled, override_stop_tokens=[END]), 4)


PATHS = (
    (),
    (0,),
    (1,),
    (1, 2),
    (1, 2, 1),
    (1, 0),
    (1, 0, 3),
    (1, 0, 3, 3),
    (2,),
    (2, 2),
    (2, 2, 1),
    (1, 1, 0),
    (3,),
)


@pytest.mark.parametrize(
    "texts", [[()], [(0,), (0, 1), ()], [(1, 2, 1), (1, 0), (2,), (1, 2, 1)], [(1, 0, 3), (1,)]]
)
def test_what_is_allowed_depends_on_text_and_path_alone(texts: list[tuple[int, ...]]) -> None:
    ours, theirs = grammar_state(), ByHand()
    for text in texts:
        for paths in (PATHS, PATHS[::-1], PATHS[4:5], ()):
            given = torch.tensor(text, dtype=torch.int64)
            assert torch.equal(ours.allowed(given, paths), theirs.allowed(given, paths)), (text, paths)


@pytest.mark.parametrize(
    "name",
    [
        "prompt-lookup",
        "speculative-sampling",
        "traversal",
        pytest.param("autoregressive", marks=pytest.mark.slow),
        pytest.param("mcsd", marks=pytest.mark.slow),
    ],
)
def test_distribution_is_plain_decodings_under_the_grammar(name: str) -> None:
    """All rows of a batch share one automaton, so state left by one would show in the others."""
    target, draft = TableTarget(4, seed=1), TableTarget(4, seed=2, order=2)
    recipe = find()[name]
    known = {"draft": draft, "widths": (1, 2), "depth": 2}
    options = {option: known[option] for option in recipe.options if option in known}
    requests = [
        SamplingParams(1.0, max_tokens=3, stop=(END,)),
        SamplingParams(0.7, top_k=2, max_tokens=3, stop=(END,), repetition_penalty=1.4),
        SamplingParams(0.0, max_tokens=6, stop=(END,), min_tokens=4),
    ]
    grammar = grammar_state()
    cases = [Case((0, 1, 2), replace(params, grammar=grammar)) for params in requests]
    found = enumerate_distributions(lambda: recipe.build(target, **options), cases)
    logits = table_logits(target.logits, target.state)
    for distribution, params in zip(found.distributions, requests, strict=True):
        assert (
            difference(distribution, plain_distribution(logits, (0, 1, 2), replace(params, grammar=ByHand())))
            <= BOUND
        )
    assert len(found.distributions[0]) > 5


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["ox", "owl"]},
        "well": {"type": "boolean"},
    },
    "required": ["name", "age", "kind", "well"],
    "additionalProperties": False,
}


def options(method: str, draft: object) -> dict[str, object]:
    return {"draft": draft} if "draft" in outpace.recipes.get(method).options else {}


@pytest.mark.parametrize("method", ["prompt-lookup", slow("speculative-sampling"), slow("mcsd"), "traversal"])
def test_json_follows_its_schema(loaded, method: str) -> None:
    target, draft = loaded
    settings = {"json_schema": SCHEMA, "max_tokens": 150, **options(method, draft)}
    for result in outpace.generate(
        target, ["x", "def add(a, b):"], method, n=2, temperature=1.0, seed=4, **settings
    ):
        found = json.loads(result.text)
        assert result.finish_reason == "stop" and list(found) == SCHEMA["required"]
        assert 0 <= found["age"] <= 120 and found["kind"] in ("ox", "owl") and isinstance(found["well"], bool)


@pytest.mark.parametrize("method", ["prompt-lookup", slow("speculative-sampling"), "mcsd"])
def test_greedy_json_is_that_of_plain_decoding(loaded, method: str) -> None:
    target, draft = loaded
    settings = {
        "json_schema": json.dumps(SCHEMA),
        "max_tokens": 60,
        "temperature": 0,
        "repetition_penalty": 1.1,
    }
    plain = outpace.generate(target, ["x", "for"], "autoregressive", **settings)
    found = outpace.generate(target, ["x", "for"], method, **options(method, draft), **settings)
    assert [each.tokens for each in found] == [each.tokens for each in plain]


def test_a_complete_text_ends_even_before_min_tokens(loaded) -> None:
    settings = {"grammar": 'root ::= "ab"', "max_tokens": 40, "temperature": 0}
    result = outpace.generate(loaded[0], "x", "prompt-lookup", min_tokens=30, **settings)[0]
    assert (result.text, result.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"grammar": "root ::= ("}, "grammar cannot be read: "),
        ({"json_schema": "{"}, "json_schema cannot be read: "),
        ({"json_schema": {"type": "nothing"}}, "json_schema cannot be read: "),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "not both"),
        ({"grammar": 'root ::= "a"', "ignore_eos": True}, "needs a token that ends the text"),
    ],
)
def test_invalid_values_are_refused(loaded, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        outpace.generate(loaded[0], "x", "prompt-lookup", **settings)


def test_a_grammar_needs_a_tokenizer(loaded) -> None:
    with pytest.raises(ValueError, match="a grammar needs a tokenizer"):
        outpace.generate(loaded[0].target, [1, 2], "prompt-lookup", grammar='root ::= "a"')


def test_a_missing_package_names_its_extra(loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    grammar._compiler.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'outpace\[grammar\]'"):
        outpace.generate(loaded[0], "x", "prompt-lookup", grammar='root ::= "a"')


def test_compiled_grammars_are_dropped_when_they_take_too_much_memory(loaded, monkeypatch) -> None:
    limit = 300_000
    monkeypatch.setattr(grammar, "CACHE_BYTES", limit)
    grammar._compiler.cache_clear()
    tokenizer, vocab = loaded[0].tokenizer, loaded[0].target.vocab
    _, compiler = grammar._compiler(tokenizer, vocab, (0,))
    sizes: list[int] = []
    for number in range(12):
        schema = {"type": "object", "properties": {f"field_{number}_{part}": {} for part in range(8)}}
        grammar.compile_grammar(tokenizer, vocab, (0,), grammar=None, json_schema=schema)
        sizes.append(compiler.get_cache_size_bytes())
    grammar._compiler.cache_clear()
    assert 0 < max(sizes) <= limit
    assert any(later < earlier for earlier, later in pairwise(sizes)), f"nothing was dropped: {sizes}"


def test_a_step_reads_only_the_new_tokens_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    words = xgrammar.TokenizerInfo([*LETTERS, "<end>"], stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(words, max_threads=1).compile_grammar('root ::= "a"*')
    state = GrammarState(xgrammar.GrammarMatcher(compiled, override_stop_tokens=[END]), 4)
    text, lists, tolist = torch.zeros(5000, dtype=torch.int64), list[int](), Tensor.tolist

    def watched(tokens: Tensor) -> list[int]:
        lists.append(len(tokens))
        return tolist(tokens)

    state.allowed(text[:4990], [()])
    monkeypatch.setattr(Tensor, "tolist", watched)
    for end in (4995, 4995, 5000, 4991):
        assert state.allowed(text[:end], [(), (0,), (1,)]).sum(1).tolist() == [2, 2, 4]
    assert max(lists) <= 5
