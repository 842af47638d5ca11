"""Grammars and JSON schemas by xgrammar, applied at every node of a draft tree.

Between calls the automaton of a request is in the state after its generated text. For a node it is advanced
along the node's path and rolled back, so the allowed tokens depend only on the node's history.

Letters: M nodes, V vocabulary size, G generated tokens of a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from outpace.core.common_length import common_length

CACHE_BYTES = 64 << 20  # of compiled grammars that are kept
POSITION = re.compile(r"^\[[\d:]+\] \S+:\d+: ")  # time and line of xgrammar's source, before its messages


class GrammarState:
    """Implementation of core.sampling_params.Grammar of one request: an xgrammar automaton that follows its
    generated text."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._text = torch.empty(0, dtype=torch.int64)  # the generated text that the automaton has accepted

    def allowed(self, text: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        words = torch.full((len(paths), (self._vocab + 31) // 32), -1, dtype=torch.int32)
        if self._follow(text):
            path: list[int] = []  # draft tokens that the automaton has accepted after the text
            for node, tokens in enumerate(paths):
                if self._advance(path, tokens) and not self._matcher.is_terminated():
                    self._matcher.fill_next_token_bitmask(words, node)
            self._advance(path, ())
        bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
        return bits.flatten(1)[:, : self._vocab].bool()

    def _follow(self, text: Tensor) -> bool:  # (G,)
        """Bring the grammar's automaton into the state after this text. False if it rejects a token."""
        shared = common_length(self._text, text)
        if shared < len(self._text):
            self._matcher.rollback(len(self._text) - shared)
        shared += self._accept(text[shared:].tolist())
        self._text = text[:shared]
        return shared == len(text)

    def _advance(self, accepted: list[int], tokens: Sequence[int]) -> bool:
        """Roll the automaton back from the tokens `accepted` to their common prefix with `tokens`, then
        advance it along the rest of `tokens`; updates `accepted`. False if the grammar rejects a token."""
        pairs = enumerate(zip(accepted, tokens, strict=False))
        differing = (at for at, (one, other) in pairs if one != other)
        shared = next(differing, min(len(accepted), len(tokens)))
        if shared < len(accepted):
            self._matcher.rollback(len(accepted) - shared)
        end = shared + self._accept(tokens[shared:])
        accepted[shared:] = tokens[shared:end]
        return end == len(tokens)

    def _accept(self, tokens: Sequence[int]) -> int:
        """Feed these tokens to the grammar's automaton, up to the first that the grammar rejects; returns how
        many it has accepted."""
        for count, token in enumerate(tokens):
            if self._matcher.is_terminated() or not self._matcher.accept_token(token):
                return count
        return len(tokens)


def compile_grammar(
    tokenizer: Any,
    vocab: int,
    stop: tuple[int, ...],
    *,
    grammar: str | None,
    json_schema: str | Mapping[str, Any] | None,
) -> Callable[[], GrammarState]:
    """Compile a grammar (EBNF of xgrammar and llama.cpp) or a JSON schema; returns a function that creates
    the GrammarState of a request. ValueError for an invalid grammar, or without tokenizer or stop token."""
    if grammar is not None and json_schema is not None:
        raise ValueError("give a grammar or a json_schema, not both")
    if tokenizer is None:
        raise ValueError("a grammar needs a tokenizer: pass tokenizer=...")
    if not stop:
        raise ValueError(
            "a grammar needs a token that ends the text: leave out ignore_eos, or choose a model with one"
        )
    xgrammar, compiler = _compiler(tokenizer, vocab, stop)
    try:
        if grammar is not None:
            compiled = compiler.compile_grammar(grammar)
        else:
            schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
            # with any_whitespace a model may generate blanks without end
            compiled = compiler.compile_json_schema(schema, any_whitespace=False)
    except (RuntimeError, ValueError, TypeError) as error:
        what = "grammar" if grammar is not None else "json_schema"
        raise ValueError(f"{what} cannot be read: {_reason(error)}") from error
    return lambda: GrammarState(xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(stop)), vocab)


def regex_grammar(pattern: str) -> str:
    """The grammar (EBNF) of the texts that a regular expression matches as a whole. ValueError for an invalid
    one."""
    try:
        return str(_xgrammar().Grammar.from_regex(pattern))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"grammar cannot be read: {_reason(error)}") from error


def choice_grammar(texts: Sequence[str]) -> str:
    """The grammar (EBNF) of a choice between these texts. ValueError if one is empty."""
    if not all(texts):
        raise ValueError("grammar cannot be read: one of the texts to choose from is empty")
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


@lru_cache(maxsize=4)
def _compiler(tokenizer: Any, vocab: int, stop: tuple[int, ...]) -> tuple[Any, Any]:
    """The xgrammar module and its compiler for this tokenizer, which keeps the newest compiled grammars.
    ModuleNotFoundError if xgrammar is missing."""
    xgrammar = _xgrammar()
    tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab, stop_token_ids=list(stop))
    return xgrammar, xgrammar.GrammarCompiler(tokens, max_threads=1, cache_limit_bytes=CACHE_BYTES)


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ModuleNotFoundError as error:
        sentence = f"{error.name} is not installed: pip install 'outpace[grammar]'"
        raise ModuleNotFoundError(sentence, name=error.name) from error
    return xgrammar


def _reason(error: Exception) -> str:
    """The message of an error of xgrammar, in one line."""
    return POSITION.sub("", " ".join(str(error).split()))
