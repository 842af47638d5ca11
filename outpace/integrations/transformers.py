"""outpace inside `model.generate`: `model.generate(**inputs, custom_generate=outpace.hf("prompt-lookup"))`.

At every node of a draft tree, logits processors receive the history with the path to that node; stopping
criteria are called after every token. The model itself is not changed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from outpace.api.methods import choose_method
from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener, short_drafts
from outpace.api.statistics import Statistics
from outpace.core.contracts import Recipe
from outpace.core.sampling_params import PARAMETERS, SamplingParams
from outpace.engine.engine import Engine
from outpace.integrations.batch_rows import BatchRow, end_tokens, sequences
from outpace.integrations.processors import PLAIN, ConvertedProcessors
from outpace.integrations.refusals import lengths, refuse
from outpace.models.hf.target import HFTarget
from outpace.recipes import RecipeError, configure

# numbers that `generate` lacks, so that they are options of `hf`
LACKED = tuple(p.name for p in PARAMETERS if p.warps and not p.transformers and isinstance(p.default, float))


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
        given = _arguments_of_generate()
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
        converted = ConvertedProcessors.of(
            logits_processor,
            len(counts),
            sampled=bool(generation_config.do_sample),
            padded=min(counts) < input_ids.shape[1],
            params=self.params,
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
        rows = [
            BatchRow(row, count, stopping_criteria, streamer, input_ids.device)
            for row, count in zip(input_ids.cpu(), counts, strict=True)
        ]
        paddings, stop = [row.padding for row in rows], end_tokens(stopping_criteria)
        sampling = [converted.sampling(max_tokens, stop) for _ in rows]
        engine = Engine.of(
            self.recipe(target, **options),
            [row.prompt for row in rows],
            sampling,
            target_probs=lambda scores, tree, ctx: converted.distribution(scores, tree, ctx, paddings),
            done=lambda row, text: rows[row].stops(text),
        )
        for step in engine.steps():
            for new in engine.new_tokens(step):
                rows[new.owner].add(new)
        self.statistics = [row.statistics(each.seed) for row, each in zip(rows, sampling, strict=True)]
        if streamer is not None:
            streamer.end()
        texts = sequences(input_ids, rows, generation_config)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, texts))
        return texts

    def _load(self, name: str, device: str) -> Model:
        """The model with this name on this device, loaded on first use and kept for later calls."""
        if (name, device) not in self._loaded:
            self._loaded[name, device] = load(name, device=device)
        return self._loaded[name, device]


def _arguments_of_generate() -> Mapping[str, Any]:
    """The arguments of the running `model.generate`, which passes a callable neither its streamer nor its
    assistant model: only its frame has them, and without them they would be ignored in silence."""
    frame = inspect.currentframe()
    decoder = frame.f_back if frame else None
    return decoder.f_back.f_locals if decoder and decoder.f_back else {}
