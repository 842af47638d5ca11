"""outpace inside `model.generate`: `model.generate(**inputs, custom_generate=outpace.hf("prompt-lookup"))`.

At every node of a draft tree, logits processors receive the history with the path to that node; stopping
criteria are called after every token. The model itself is not changed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process
from transformers.generation.utils import GenerateDecoderOnlyOutput

from outpace.api.methods import choose_method
from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener, short_drafts
from outpace.api.statistics import Statistics, StepCounter
from outpace.core.context import Context
from outpace.core.contracts import Recipe, Scores, Step
from outpace.core.sampling_params import (
    BY_NAME,
    LOGIT_PARAMETERS,
    PARAMETERS,
    TRUNCATIONS,
    Parameter,
    SamplingParams,
)
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.integrations.refusals import lengths, refuse
from outpace.models.hf.target import HFTarget
from outpace.recipes import RecipeError, configure
from outpace.sampling.target_probs import LazyTargetProbs

# class of transformers -> (its attribute, name in SamplingParams), in the order in which both apply them
Processors = Mapping[type[Any], tuple[str, str]]
PLAIN = SamplingParams()
# numbers that `generate` lacks, so that they are options of `hf`
LACKED = tuple(p.name for p in PARAMETERS if p.warps and not p.transformers and isinstance(p.default, float))


def _processors_of(parameters: Sequence[Parameter]) -> Processors:
    found: dict[type[Any], tuple[str, str]] = {}
    for each in parameters:
        if each.processor:
            kind, _, attribute = each.processor.partition(".")
            found[getattr(logits_process, kind)] = attribute, each.name
    return found


WARPERS = _processors_of([BY_NAME["temperature"], *TRUNCATIONS])
PROCESSORS = _processors_of(LOGIT_PARAMETERS)


def hf(
    method: str | Path | Recipe | None = None,
    *,
    streamer: Any = None,
    **options: Any,
) -> Decoder:
    """A callable for `custom_generate` of `model.generate` that decodes with this method.

    Options that are models (such as a draft model) may be transformers models, names or folders. Sampling
    parameters are those of `generate`; those that it lacks, presence_penalty and frequency_penalty, are
    options here. Seeds are drawn from torch's generator. After a call `statistics` of the callable has those
    of each row. `generate` passes no tokenizer on, which its `stop_strings` need: give it
    `stopping_criteria=[StopStringCriteria(tokenizer, strings)]`.
    RecipeError for an option that the method lacks."""
    params = SamplingParams(**{name: options.pop(name) for name in LACKED if name in options})
    recipe, options = choose_method(method, options, target="")
    if unknown := [name for name in options if name not in recipe.options]:
        raise RecipeError(
            f"{recipe.name} has no option {unknown[0]}; it has "
            f"{', '.join(recipe.options) or 'none of its own'}"
        )
    return Decoder(recipe, options, streamer, params)


@dataclass
class Decoder:
    """The callable that `hf` returns; `model.generate` calls it with prepared inputs to decode."""

    recipe: Recipe
    options: dict[str, Any]
    streamer: Any = None
    params: SamplingParams = PLAIN  # parameters that generate() lacks
    statistics: list[Statistics] = field(default_factory=list[Statistics])  # of the last call, one per row
    _loaded: dict[tuple[str, str], Model] = field(default_factory=dict)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,  # (B, T)
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        # generate() does not pass these arguments on to a callable, so they are read from its frame
        caller = inspect.currentframe()
        given = caller.f_back.f_locals if caller and caller.f_back else {}
        streamer = streamer or self.streamer or given.get("streamer")
        refuse(
            model,
            generation_config,
            logits_processor,
            stopping_criteria,
            model_kwargs,
            num_rows=len(input_ids),
            streamer=streamer,
            assistant_model=given.get("assistant_model"),
            synced_gpus=synced_gpus or bool(given.get("synced_gpus")),
        )
        counts = lengths(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids"))
        rows = BatchRows(input_ids, counts, stopping_criteria, streamer)
        sampled, padded = bool(generation_config.do_sample), any(map(len, rows.padding))
        converted = ConvertedProcessors.of(
            logits_processor, len(input_ids), sampled=sampled, padded=padded, params=self.params
        )
        max_tokens = (generation_config.max_length or 0) - input_ids.shape[1]
        target = HFTarget(model)
        if target.rope_limit and input_ids.shape[1] + max_tokens > target.rope_limit:
            raise ValueError(
                f"prompt and answer may have {input_ids.shape[1] + max_tokens} tokens, but beyond "
                f"{target.rope_limit} "
                f"{type(model).__name__} changes its rotary frequencies: ask for fewer tokens"
            )
        device = str(target.device)
        opener = ModelOpener(Model(type(model).__name__, target), lambda name: self._load(name, device))
        options = configure(self.recipe, target, self.options, opener)
        for sentence in short_drafts(options, max(counts) + max_tokens):
            warnings.warn(sentence, stacklevel=4)
        sampling = [converted.sampling(max_tokens, rows.stop) for _ in rows.prompts]
        counted = CountedRows(rows)
        session = Session(
            self.recipe(target, **options),
            rows.prompts,
            sampling,
            lambda scores, tree, ctx: converted.distribution(scores, tree, ctx, rows.padding),
            done=rows.ended,
        )
        for step in session.steps():
            for row, slot in enumerate(step.ctx.slots):
                rows.add_tokens(slot, session.request(slot).text())
                counted.count(step, row, slot)
        self.statistics = counted.statistics([each.seed for each in sampling])
        if streamer is not None:
            streamer.end()
        sequences = rows.sequences(generation_config)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
        return sequences

    def _load(self, name: str, device: str) -> Model:
        """The model with this name on this device, loaded on first use and kept for later calls."""
        if (name, device) not in self._loaded:
            self._loaded[name, device] = load(name, device=device)
        return self._loaded[name, device]


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


class CountedRows:
    """Counts what was drafted and accepted in each row of a batch."""

    def __init__(self, rows: BatchRows) -> None:
        self._rows, self._began = rows, perf_counter()
        self._counters = [StepCounter() for _ in rows.prompts]
        self._num_tokens = [0] * len(rows.prompts)
        self._seconds = [0.0] * len(rows.prompts)

    def count(self, step: Step, row: int, slot: int) -> None:
        """Count a step, of whose row `row` the batch has the tokens already."""
        before, now = self._num_tokens[slot], len(self._rows.new[slot])
        if now > before:
            self._counters[slot].count(step, row, now - before)
            self._num_tokens[slot], self._seconds[slot] = now, perf_counter() - self._began

    def statistics(self, seeds: Sequence[int]) -> list[Statistics]:
        """The statistics of each row."""
        return [
            counter.done(len(prompt), 0, tokens, seconds, seed)
            for counter, prompt, tokens, seconds, seed in zip(
                self._counters, self._rows.prompts, self._num_tokens, self._seconds, seeds, strict=True
            )
        ]


class BatchRows:
    """The prompts, padding and new tokens of a batch's rows; each row ends after the first token at which a
    stopping criterion is true."""

    def __init__(
        self, input_ids: Tensor, counts: Sequence[int], criteria: Sequence[Any], streamer: Any
    ) -> None:
        self.input_ids, self._criteria, self._streamer = input_ids, criteria, streamer
        host, width = input_ids.cpu(), input_ids.shape[1]
        self.prompts = [row[width - count :] for row, count in zip(host, counts, strict=True)]
        self.padding = [row[: width - count] for row, count in zip(host, counts, strict=True)]
        # end-of-text tokens, behind which nothing is drafted
        ends = [criterion.eos_token_id for criterion in criteria if hasattr(criterion, "eos_token_id")]
        self.stop = tuple(int(token) for each in ends for token in each.flatten())
        self.new: list[list[int]] = [[] for _ in counts]  # new tokens of each row
        self._ended = [False] * len(counts)

    def ended(self, slot: int, tokens: Tensor) -> bool:
        """Add the new tokens of a slot and return whether a stopping criterion has ended its row. `tokens`:
        the slot's prompt and all tokens so far."""
        self.add_tokens(slot, tokens)
        return self._ended[slot]

    def add_tokens(self, slot: int, tokens: Tensor) -> None:
        """Add the tokens of a slot that are new, one at a time, to its row and the streamer, up to the first
        after which a stopping criterion is true. `tokens`: the slot's prompt and all tokens so far."""
        start = len(self.prompts[slot])
        for end in range(start + len(self.new[slot]) + 1, len(tokens) + 1):
            if self._ended[slot]:
                return
            token = int(tokens[end - 1])
            self.new[slot].append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))
            ids = torch.cat([self.padding[slot], tokens[:end]])[None].to(self.input_ids.device)
            self._ended[slot] = any(bool(criterion(ids, None)) for criterion in self._criteria)

    def sequences(self, config: GenerationConfig) -> Tensor:  # (B, T + new)
        """Prompts and new tokens of all rows, padded on the right."""
        longest = max(map(len, self.new))
        # generate() has set the padding token to the end-of-text token if the model has none
        padding = getattr(config, "_pad_token_tensor", None)
        fill = 0 if padding is None else int(padding)
        new = torch.tensor([row + [fill] * (longest - len(row)) for row in self.new], dtype=torch.int64)
        return torch.cat([self.input_ids, new.to(self.input_ids.device)], dim=-1)
