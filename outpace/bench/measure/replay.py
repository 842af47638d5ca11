"""Replay recorded texts without a model: the acceptance that methods drafting from text would have had on
them.

Session, drafters and verifiers are those of decoding; only the target is replaced, by one that generates the
recorded tokens. For texts generated at temperature 0 the counts equal those of the engine on the same
requests, one at a time in this order; for sampled texts they equal those of sampling with the same seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from outpace.api.prompt_texts import split_lines
from outpace.bench.measure.metrics import Counts, StepRecord
from outpace.core.clock import Seconds
from outpace.core.context import Context
from outpace.core.contracts import (
    NOTHING,
    Carry,
    Forest,
    Noise,
    Parts,
    Prompt,
    Recipe,
    Scores,
    TokenTree,
    Want,
)
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine
from outpace.recipes import RecipeError, configure
from outpace.recipes._option_kinds import FunctionOpener

PROMPT_TOKENS = ("prompt_token_ids", "prompt_tokens", "prompt")
TOKENS = ("token_ids", "tokens", "output_token_ids", "text")
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class RecordedText:
    """A prompt and the tokens generated after it, at least one token each."""

    prompt: list[int]
    tokens: list[int]


@dataclass
class ReplayResult:
    """The acceptance counts and drafting times of one method on recorded texts."""

    method: str
    each: list[Counts] = field(default_factory=list[Counts])  # one entry per text
    seconds: list[float] = field(default_factory=list[float])  # per step: drafting and updating the drafter

    @property
    def counts(self) -> Counts:
        return sum(self.each, Counts())

    @property
    def halves(self) -> list[Counts]:
        """Counts of the first and of the second half of the texts, in their order; empty for a single
        text."""
        middle = len(self.each) // 2
        return [sum(part, Counts()) for part in (self.each[:middle], self.each[middle:])] if middle else []

    def figures(self) -> dict[str, Any]:
        """The method's entry in the JSON report."""
        counts = self.counts
        return {
            "method": self.method,
            "mean_acceptance_length": counts.mean_acceptance_length,
            "mean_acceptance_length_of_halves": [half.mean_acceptance_length for half in self.halves],
            "acceptance_rate": counts.accepted / counts.drafted if counts.drafted else None,
            "drafted_per_step": counts.drafted / max(1, counts.row_steps),
            "drafting_steps": counts.draft_row_steps / max(1, counts.row_steps),
            # shares of all steps with a draft token at each position, and with an accepted one
            "drafted_by_position": _shares(counts.drafted_at, counts.row_steps),
            "accepted_by_position": _shares(counts.accepted_at, counts.row_steps),
            "steps": counts.row_steps,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "generated": counts.generated,
            "milliseconds_drafting_per_step": 1000
            * median(self.seconds),  # median: the first step may compile numba loops
        }


def _shares(at: Counter[int], steps: int) -> list[float]:
    return [at[position] / max(1, steps) for position in range(1, max(at, default=0) + 1)]


def read(path: Path, encode_prompt: Encode, encode: Encode, vocab: int) -> list[RecordedText]:
    """The `RecordedText`s in a .jsonl file or in the .json file that `outpace generate --json` prints.
    "prompt" and "text" of a row are tokenised with `encode_prompt` and `encode`, unless the row has token
    ids, which must be below `vocab`. ValueError for other contents."""
    try:
        data = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            rows = json.loads(data)["results"]
        else:
            rows = [json.loads(line) for line in split_lines(data) if line.strip()]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f'{path} is neither lines of JSON (.jsonl) nor a .json file with "results"'
        ) from None
    texts: list[RecordedText] = []
    for number, row in enumerate(rows, 1):
        where = f"{path}, text {number}"
        prompt = _tokens(row, PROMPT_TOKENS, encode_prompt, vocab, where)
        tokens = _tokens(row, TOKENS, encode, vocab, where)
        if prompt and tokens:  # nothing to replay in an empty prompt or output
            texts.append(RecordedText(prompt, tokens))
    return texts


def _tokens(row: Any, names: Sequence[str], encode: Encode, vocab: int, where: str) -> list[int]:
    for name in names:
        value = row.get(name) if isinstance(row, dict) else None
        if isinstance(value, str):
            return encode(value)
        if isinstance(value, list) and all(type(each) is int for each in value):
            if value and not 0 <= min(value) <= max(value) < vocab:
                raise ValueError(
                    f"{where}: {name} has tokens beyond the tokenizer's {vocab}: give the model's own"
                )
            return value
    raise ValueError(f'{where} has no "{names[-1]}", nor numbers as {" or ".join(names[:-1])}: add one')


def build(recipe: Recipe, options: dict[str, Any], vocab: int, tokenizer: Any = None) -> Parts:
    """The recipe's parts with a target that replays texts; RecipeError if the recipe needs a model."""
    if recipe.needs:
        needs_model(recipe.name)
    target = RecordedTarget(vocab)
    opener = FunctionOpener(lambda value: needs_model(recipe.name), tokenizer)
    values = configure(recipe, target, options, opener)
    parts = recipe(target, **values)
    if parts.want != NOTHING or parts.drafter.claims:
        needs_model(recipe.name)
    return parts


def replay(
    name: str,
    parts: Parts,
    texts: Sequence[RecordedText],
    *,
    stop: tuple[int, ...] = (),  # stop tokens of the recorded generation
    max_tokens: int
    | None = None,  # max_tokens of texts that a stop token ended; None: the length of each text
    on_text: Callable[[], None] = lambda: None,
) -> ReplayResult:
    """Decode every text again, one at a time with the same parts, so that drafters keep what they learn from
    earlier texts. `on_text` is called after each text."""
    found = ReplayResult(name)
    for text in texts:
        size = len(text.tokens)
        limit = max(max_tokens, size) if max_tokens and text.tokens[-1] in stop else size
        found.each.append(Counts.of(_steps(parts, text, SamplingParams(max_tokens=limit, stop=stop), found)))
        on_text()
    return found


def _steps(
    parts: Parts, text: RecordedText, sampling: SamplingParams, found: ReplayResult
) -> Iterator[StepRecord]:
    whole = [*text.prompt, *text.tokens]

    def distribution(scores: Scores, tree: TokenTree, ctx: Context) -> RecordedTargetProbs:
        return RecordedTargetProbs(tree, ctx, whole)

    engine = Engine.of(parts, [torch.tensor(text.prompt)], [sampling], target_probs=distribution)
    for step in engine.steps():
        if step.generated[0]:  # else the step only reads a part of the prompt
            found.seconds.append(step.seconds["draft"] + step.seconds["observe"])
            yield StepRecord.of(step)


class RecordedTarget:
    """A core.contracts.Target without a model: it keeps cache lengths only; RecordedTargetProbs supplies the
    tokens."""

    chains_only = False
    sizes: Sequence[int] = ()
    chain_sizes: Sequence[int] = ()
    max_length: int | None = None
    torch_threads: int | None = None
    token_bytes = 0
    state_bytes = 0
    caches: tuple[LengthOnlyCache, ...] = ()

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def open(self, slots: int, capacity: int) -> LengthOnlyCache:
        return LengthOnlyCache(slots, capacity)

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Any, want: Want
    ) -> tuple[TokenTree, Scores]:
        for prompt, slot in zip(prompts, slots, strict=True):
            cache.lengths[slot] = len(prompt.tokens) - 1
        forest = Forest.chain(tuple(len(prompt.tokens) - 2 for prompt in prompts))
        tokens = [prompt.tokens[:1] for prompt in prompts] + [prompt.tokens[1:-1] for prompt in prompts]
        return TokenTree(torch.cat(tokens), forest), Scores(0, None)

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Any,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        for slot, tokens in zip(slots, gap or (), strict=False):
            cache.lengths[slot] += len(tokens)
        return Scores(0, cast(Tensor, MissingLogits()))


class LengthOnlyCache:
    """A core.contracts.Cache that stores only the length of each slot."""

    device = torch.device("cpu")

    def __init__(self, slots: int, capacity: int) -> None:
        self.lengths = [0] * slots
        self.capacity = capacity

    @property
    def num_bytes(self) -> int:
        return 0

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return 0

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return 0

    def grow(self, slots: int) -> None:
        self.lengths += [0] * (slots - len(self.lengths))

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        for slot, node in zip(slots, leaf, strict=True):
            if node >= 0:
                self.lengths[slot] += tree.forest.depths[node] + 1

    def discard(self) -> None:
        """Does nothing: no tree is stored."""

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            self.lengths[slot] = length

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.lengths[slot] = 0


class RecordedTargetProbs:
    """The target's choices (core.contracts.TargetProbs), read from a recorded text instead of a model.

    For a node at depth d, `choose` returns the recorded token at depth d + 1, or -1 after the end of the
    text. That is right for nodes whose path is the recorded text; verification reaches no others.
    """

    seconds: Seconds = 0.0

    def __init__(self, tree: TokenTree, ctx: Context, text: Sequence[int]) -> None:
        self._tree, self._ctx, self._text = tree, ctx, text

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = "target") -> list[int]:
        depths, start = self._tree.forest.depths, self._ctx.committed[0]
        positions = [start + depths[node] for node in (range(len(depths)) if nodes is None else nodes)]
        return [self._text[position] if position < len(self._text) else -1 for position in positions]

    def probs(self, nodes: Sequence[int] | None) -> NoReturn:
        needs_model("this method")


class MissingLogits:
    """Placeholder for logits that do not exist: any access raises RecipeError."""

    def __getattr__(self, name: str) -> NoReturn:
        needs_model("this method")

    def __getitem__(self, index: Any) -> NoReturn:
        needs_model("this method")

    def __len__(self) -> NoReturn:
        needs_model("this method")


def needs_model(name: str) -> NoReturn:
    raise RecipeError(
        f"{name} drafts or learns with a model, and a text has none: replay what drafts from text, such as "
        "prompt-lookup, suffix-decoding or sam-decoding, and measure the others with `outpace bench`"
    )
