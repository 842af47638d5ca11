"""Logits processors of transformers as sampling parameters, which drafters apply too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process

from outpace.core.context import Context
from outpace.core.contracts import Scores
from outpace.core.sampling_params import BY_NAME, LOGIT_PARAMETERS, TRUNCATIONS, Parameter, SamplingParams
from outpace.core.tree import TokenTree
from outpace.sampling.target_probs import LazyTargetProbs

# class of transformers -> (its attribute, name in SamplingParams), in the order in which both apply them
Processors = Mapping[type[Any], tuple[str, str]]
PLAIN = SamplingParams()


def _processors_of(parameters: Sequence[Parameter]) -> Processors:
    found: dict[type[Any], tuple[str, str]] = {}
    for each in parameters:
        if each.processor:
            kind, _, attribute = each.processor.partition(".")
            found[getattr(logits_process, kind)] = attribute, each.name
    return found


WARPERS = _processors_of([BY_NAME["temperature"], *TRUNCATIONS])
PROCESSORS = _processors_of(LOGIT_PARAMETERS)


@dataclass(frozen=True)
class ConvertedProcessors:
    """The logits processors of one `generate` call, converted to sampling parameters, which drafters apply
    too, as far as that is possible."""

    processors: tuple[Callable[[Tensor, Tensor], Tensor], ...]  # processors without such a parameter
    num_rows: int
    params: SamplingParams  # sampling parameters that replace the other logits processors

    @staticmethod
    def of(
        processors: Sequence[Any],
        num_rows: int,
        *,
        sampled: bool,
        padded: bool = False,
        params: SamplingParams = PLAIN,
    ) -> ConvertedProcessors:
        left: list[Any] = list(processors)
        found: dict[str, Any] = {"temperature": 1.0} if sampled else {}
        kinds = list(WARPERS)
        rank = len(kinds)
        while sampled and left and type(left[-1]) in kinds[:rank] and _is_convertible(left[-1]):
            rank = kinds.index(type(left[-1]))
            attribute, name = WARPERS[kinds[rank]]
            found[name] = getattr(left.pop(), attribute)
        if not padded and (settings := _settings(left)) is not None:
            found |= settings
            left = []
        return ConvertedProcessors(tuple(left), num_rows, replace(params, **found))

    def sampling(self, max_tokens: int, stop: tuple[int, ...] = ()) -> SamplingParams:
        """Sampling parameters of one row with this max_tokens, these end-of-text tokens and, unless greedy, a
        seed drawn from torch's generator."""
        return replace(
            self.params,
            max_tokens=max_tokens,
            stop=stop,
            seed=0 if self.params.greedy else int(torch.randint(2**62, ())),
        )

    def distribution(
        self, scores: Scores, tree: TokenTree, ctx: Context, padding: Sequence[Tensor]
    ) -> LazyTargetProbs:
        """The target's distribution after processors and sampling parameters. `padding`: the left padding of
        each slot, which processors receive as part of the history."""
        if not self.processors:
            return LazyTargetProbs(scores, tree, ctx)
        # `_process` receives one sequence per call: [slot, left padding, tokens]. Logits processors expect
        # the padding, and may depend on the row's index in the batch of `generate`, which is the slot
        rows = zip(ctx.slots, ctx.tokens, strict=True)
        tokens = tuple(torch.cat([torch.tensor([slot]), padding[slot], row]) for slot, row in rows)
        lengths = zip(ctx.slots, ctx.prompt_lengths, strict=True)
        prompts = tuple(1 + len(padding[slot]) + length for slot, length in lengths)
        return LazyTargetProbs(
            scores, tree, replace(ctx, tokens=tokens, prompt_lengths=prompts), self._process
        )

    # history: (1, 1 + T), the row's slot followed by its T tokens (left padding included); logits: (1, V)
    def _process(self, history: Tensor, logits: Tensor) -> Tensor:  # (1, V)
        slot, history = int(history[0, 0]), history[:, 1:].to(logits.device).expand(self.num_rows, -1)
        # float32 as in plain decoding; a copy, as processors may change their input in place
        logits = logits.expand(self.num_rows, -1).to(torch.float32, copy=True)
        for processor in self.processors:
            logits = processor(history, logits)
        return logits[slot : slot + 1]


def _settings(processors: Sequence[Any]) -> dict[str, Any] | None:
    """Fields of SamplingParams equivalent to these processors, by name; None if there are none for one of
    them, or if their order differs."""
    kinds = [type(processor) for processor in processors]
    if kinds != [kind for kind in PROCESSORS if kind in kinds]:
        return None
    found: dict[str, Any] = {}
    for processor in processors:
        attribute, name = PROCESSORS[type(processor)]
        value = getattr(processor, attribute)
        if name == "bad_words":
            value = tuple(value)
        elif name == "logit_bias":
            if any(len(word) > 1 for word in value):
                return None
            value = tuple((word[0], bias) for word, bias in value.items())
        elif isinstance(getattr(processor, "prompt_ignore_length", None), int):
            return None
        found[name] = value
    return found


def _is_convertible(warper: Any) -> bool:
    """Whether a warper sets excluded tokens to -inf and has no minimum number of kept tokens above 1."""
    return (
        getattr(warper, "filter_value", float("-inf")) == float("-inf")
        and getattr(warper, "min_tokens_to_keep", 1) == 1
    )
