"""outpace inside `model.generate`: `model.generate(**inputs, custom_generate=outpace.hf("prompt-lookup"))`.

Logits processors see, at every node of a draft, that node's own history; stopping criteria are asked for
every token in its turn. The model itself is not changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process as t
from transformers.generation.utils import GenerateDecoderOnlyOutput

from outpace.api.methods import choose_method
from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener
from outpace.core.context import Context
from outpace.core.contracts import Recipe, Scores
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.integrations.refusals import lengths, refuse
from outpace.models.hf.target import HFTarget
from outpace.recipes import RecipeError, configure
from outpace.sampling.target_probs import LazyTargetProbs

# in the order in which the distribution applies them: class, its attribute, the setting
WARPERS = (
    (t.TemperatureLogitsWarper, "temperature", "temperature"),
    (t.TopKLogitsWarper, "top_k", "top_k"),
    (t.TopPLogitsWarper, "top_p", "top_p"),
    (t.MinPLogitsWarper, "min_p", "min_p"),
    (t.TypicalLogitsWarper, "mass", "typical_p"),
)
PLAIN = SamplingParams()
PROCESSORS = (t.SequenceBiasLogitsProcessor, t.RepetitionPenaltyLogitsProcessor, t.NoBadWordsLogitsProcessor)


def hf(
    method: str | Path | Recipe | None = None,
    *,
    streamer: Any = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    **options: Any,
) -> Decoder:
    """A `custom_generate` that decodes with this method. Other models among the options may be transformers
    models, names or folders; sampling follows torch's seed. Settings are those of `generate`, and two that it
    does not have."""
    asked = SamplingParams(presence_penalty=presence_penalty, frequency_penalty=frequency_penalty)
    recipe, options = choose_method(method, options, target="")
    if strange := [name for name in options if name not in recipe.options]:
        raise RecipeError(
            f"{recipe.name} has no option {strange[0]}; it has "
            f"{', '.join(recipe.options) or 'none of its own'}"
        )
    return Decoder(recipe, options, streamer, asked)


@dataclass
class Decoder:
    """What `hf` returns and `model.generate` calls, after it has prepared everything but the decoding."""

    recipe: Recipe
    options: dict[str, Any]
    streamer: Any = None
    asked: SamplingParams = PLAIN  # what generate() has no name for
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
        # generate() does not hand these to a callable, so they are looked up where they are
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
        rows = Rows(input_ids, counts, stopping_criteria, streamer)
        sampled, padded = bool(generation_config.do_sample), any(map(len, rows.padding))
        warped = Warped.of(logits_processor, len(input_ids), sampled=sampled, padded=padded, asked=self.asked)
        room = (generation_config.max_length or 0) - input_ids.shape[1]
        target = HFTarget(model)
        if target.rope_limit and input_ids.shape[1] + room > target.rope_limit:
            raise ValueError(
                f"prompt and answer may have {input_ids.shape[1] + room} tokens, but beyond "
                f"{target.rope_limit} "
                f"{type(model).__name__} changes its rotary frequencies: ask for fewer tokens"
            )
        device = str(target.device)
        opener = ModelOpener(Model(type(model).__name__, target), lambda name: self._load(name, device))
        options = configure(self.recipe, target, self.options, opener)
        session = Session(
            self.recipe(target, **options),
            rows.prompts,
            [warped.sampling(room) for _ in rows.prompts],
            lambda scores, tree, ctx: warped.distribution(scores, tree, ctx, rows.padding),
            done=rows.ended,
        )
        for step in session.steps():
            for slot in step.ctx.slots:
                rows.take(slot, session.history[slot, : session.lengths[slot]])
        if streamer is not None:
            streamer.end()
        sequences = rows.sequences(generation_config)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
        return sequences

    def _load(self, name: str, device: str) -> Model:
        """A draft given by name, loaded at the first call that needs it."""
        if (name, device) not in self._loaded:
            self._loaded[name, device] = load(name, device=device)
        return self._loaded[name, device]


@dataclass(frozen=True)
class Warped:
    """The distribution that the processors describe: as settings, which drafters follow too, and what has no
    such name."""

    processors: tuple[Callable[[Tensor, Tensor], Tensor], ...]
    num_rows: int
    params: SamplingParams

    @staticmethod
    def of(
        processors: Sequence[Any],
        num_rows: int,
        *,
        sampled: bool,
        padded: bool = False,
        asked: SamplingParams = PLAIN,
    ) -> Warped:
        left: list[Any] = list(processors)
        found: dict[str, Any] = {"temperature": 1.0} if sampled else {}
        kinds = [kind for kind, _, _ in WARPERS]
        rank = len(WARPERS)
        while sampled and left and type(left[-1]) in kinds[:rank] and _ordinary(left[-1]):
            rank = kinds.index(type(left[-1]))
            _, attribute, name = WARPERS[rank]
            found[name] = getattr(left.pop(), attribute)
        if not padded and (settings := _settings(left)) is not None:
            found |= settings
            left = []
        return Warped(tuple(left), num_rows, replace(asked, **found))

    def sampling(self, room: int) -> SamplingParams:
        """One row's settings, with a seed drawn from torch's generator where it matters."""
        return replace(
            self.params, max_tokens=room, seed=0 if self.params.greedy else int(torch.randint(2**62, ()))
        )

    def distribution(
        self, scores: Scores, tree: TokenTree, ctx: Context, padding: Sequence[Tensor]
    ) -> LazyTargetProbs:
        """The target's distribution after the processors."""
        if not self.processors:
            return LazyTargetProbs(scores, tree, ctx)
        # processors know the padding in front of a row, and may know the row: its slot is put before the
        # tokens
        rows = zip(ctx.slots, ctx.tokens, strict=True)
        tokens = tuple(torch.cat([torch.tensor([slot]), padding[slot], row]) for slot, row in rows)
        lengths = zip(ctx.slots, ctx.prompt_lengths, strict=True)
        prompts = tuple(1 + len(padding[slot]) + length for slot, length in lengths)
        return LazyTargetProbs(
            scores, tree, replace(ctx, tokens=tokens, prompt_lengths=prompts), self._process
        )

    def _process(self, history: Tensor, logits: Tensor) -> Tensor:  # (1, 1 + T), (1, V) -> (1, V)
        slot, history = int(history[0, 0]), history[:, 1:].to(logits.device).expand(self.num_rows, -1)
        # float32 as in plain decoding; a copy, for processors may write where they read
        logits = logits.expand(self.num_rows, -1).to(torch.float32, copy=True)
        for processor in self.processors:
            logits = processor(history, logits)
        return logits[slot : slot + 1]


def _settings(processors: Sequence[Any]) -> dict[str, Any] | None:
    """What these processors ask for, as settings; None where that, or their order, cannot be said so."""
    kinds = [type(processor) for processor in processors]
    if kinds != [kind for kind in PROCESSORS if kind in kinds]:
        return None
    found: dict[str, Any] = {}
    for processor in processors:
        if isinstance(processor, t.RepetitionPenaltyLogitsProcessor):
            if isinstance(processor.prompt_ignore_length, int):
                return None
            found["repetition_penalty"] = processor.penalty
        elif isinstance(processor, t.NoBadWordsLogitsProcessor):
            found["bad_words"] = tuple(processor.sequence_bias)
        elif all(len(word) == 1 for word in processor.sequence_bias):
            found["logit_bias"] = tuple((word[0], bias) for word, bias in processor.sequence_bias.items())
        else:
            return None
    return found


def _ordinary(warper: Any) -> bool:
    """Whether a warper hides tokens for good and keeps no more than asked."""
    return (
        getattr(warper, "filter_value", float("-inf")) == float("-inf")
        and getattr(warper, "min_tokens_to_keep", 1) == 1
    )


class Rows:
    """The rows of the batch: what they began with, and where a criterion ended them."""

    def __init__(
        self, input_ids: Tensor, counts: Sequence[int], criteria: Sequence[Any], streamer: Any
    ) -> None:
        self.input_ids, self._criteria, self._streamer = input_ids, criteria, streamer
        host, width = input_ids.cpu(), input_ids.shape[1]
        self.prompts = [row[width - count :] for row, count in zip(host, counts, strict=True)]
        self.padding = [row[: width - count] for row, count in zip(host, counts, strict=True)]
        self._new: list[list[int]] = [[] for _ in counts]
        self._over = [False] * len(counts)

    def ended(self, slot: int, tokens: Tensor) -> bool:
        """Whether a criterion says stop, asked after each token as plain decoding does."""
        self.take(slot, tokens)
        return self._over[slot]

    def take(self, slot: int, tokens: Tensor) -> None:
        """Book what is new, up to the first token after which a criterion says stop."""
        start = len(self.prompts[slot])
        for end in range(start + len(self._new[slot]) + 1, len(tokens) + 1):
            if self._over[slot]:
                return
            token = int(tokens[end - 1])
            self._new[slot].append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))
            ids = torch.cat([self.padding[slot], tokens[:end]])[None].to(self.input_ids.device)
            self._over[slot] = any(bool(criterion(ids, None)) for criterion in self._criteria)

    def sequences(self, config: GenerationConfig) -> Tensor:  # (B, T + new)
        """Prompts and new tokens, filled up on the right."""
        longest = max(map(len, self._new))
        # generate() falls back to the end-of-text token here where there is no padding token
        padding = getattr(config, "_pad_token_tensor", None)
        fill = 0 if padding is None else int(padding)
        new = torch.tensor([row + [fill] * (longest - len(row)) for row in self._new], dtype=torch.int64)
        return torch.cat([self.input_ids, new.to(self.input_ids.device)], dim=-1)
