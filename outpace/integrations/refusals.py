"""Checks for options of `model.generate` that are not supported: each raises ValueError, none is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

from outpace.models.cache_argument import CACHE_ARGUMENTS

PLAIN_MODES = ("greedy_search", "sample")
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
UNDERSTOOD = {"attention_mask", "position_ids", *CACHE_ARGUMENTS, "use_cache", "logits_to_keep"}
# processors that keep state between calls or run the model, so they cannot be applied at every node of a
# draft tree
STATEFUL = (
    processors.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    processors.SynthIDTextWatermarkLogitsProcessor,
    processors.WhisperTimeStampLogitsProcessor,
)
# processors that call the user's function for each row of a batch, while here a call has one row's history
BY_ROW = (processors.PrefixConstrainedLogitsProcessor,)


def refuse(
    model: Any,
    generation_config: GenerationConfig,
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    num_rows: int,
    streamer: Any,
    assistant_model: Any,
    synced_gpus: bool,
) -> None:
    """Raise ValueError, with the fix in the message, for the first option that is not supported."""
    mode = generation_config.get_generation_mode(None).value
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder model: outpace decodes decoder-only models"
        )
    owner = getattr(model.prepare_inputs_for_generation, "__self__", model)
    if owner is not model:  # of PEFT, for learnt prompts
        raise ValueError(
            f"{type(owner).__name__} adds inputs to those of {type(model).__name__}, such as a learnt "
            "prompt: leave out custom_generate"
        )
    if assistant_model is not None or mode == "assisted_generation":
        raise ValueError(
            "outpace drafts by itself: leave out assistant_model, prompt_lookup_num_tokens and the like, "
            "or leave out custom_generate"
        )
    if mode not in PLAIN_MODES:
        raise ValueError(
            f"outpace decodes by greedy search or sampling, not by {mode}: leave out what asks for it"
        )
    if generation_config.return_dict_in_generate:
        requested = [name for name in OUTPUTS if getattr(generation_config, name)]
        if requested:
            raise ValueError(
                f"{', '.join(requested)} cannot be returned when tokens are drafted: leave it out"
            )
    if generation_config.cache_implementation == "quantized":
        raise ValueError(
            "outpace keeps its own cache, which is not quantized: leave out cache_implementation"
        )
    if synced_gpus:
        raise ValueError("outpace does not keep several GPU processes in step: leave out synced_gpus")
    if streamer is not None and num_rows > 1:
        raise ValueError(
            f"a streamer follows one text, but there are {num_rows}: give one prompt or no streamer"
        )
    _processors(logits_processor, num_rows)
    _criteria(stopping_criteria, num_rows)
    _inputs(kwargs)


def lengths(input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> list[int]:
    """(B,) number of tokens of each row without its padding. ValueError for an empty row, for a mask that
    hides tokens other than left padding, and for position ids other than 0, 1, 2, ..."""
    width = input_ids.shape[1]
    if attention_mask is None:
        mask = torch.ones_like(input_ids)
    else:
        mask = attention_mask.to(torch.int64)
    counts = mask.sum(-1).tolist()
    for row, count in enumerate(counts):
        if count == 0:
            raise ValueError(f"row {row} of the batch is empty: give it at least one token")
        if not bool(mask[row, width - count :].all()):
            raise ValueError(
                "attention_mask hides tokens other than padding on the left: "
                "set tokenizer.padding_side = 'left' and pass the tokenizer's own mask"
            )
        if position_ids is not None:
            given = position_ids[row if position_ids.shape[0] > 1 else 0, width - count :].tolist()
            if given != list(range(count)):
                raise ValueError("position_ids other than 0, 1, 2, ... are not supported: leave them out")
    return counts


def _processors(logits_processor: Sequence[Any], num_rows: int) -> None:
    for processor in logits_processor:
        name = type(processor).__name__
        if isinstance(processor, STATEFUL) or type(processor).__module__.startswith("xgrammar."):
            raise ValueError(f"{name} cannot be applied to drafted tokens: leave out what asks for it")
        if num_rows > 1 and isinstance(processor, BY_ROW):
            raise ValueError(f"{name} is supported for one prompt at a time: call generate once per prompt")


def _criteria(stopping_criteria: Sequence[Any], num_rows: int) -> None:
    ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    others = [
        c
        for c in stopping_criteria
        if not isinstance(c, criteria.MaxLengthCriteria | criteria.MaxTimeCriteria)
    ]
    if num_rows > 1 and others and not ends:
        name = type(others[0]).__name__
        raise ValueError(
            f"{name} on a batch needs an eos_token_id and a pad_token_id to fill up rows that end early"
        )


def _inputs(kwargs: Mapping[str, Any]) -> None:
    for name in CACHE_ARGUMENTS:
        cache = kwargs.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
            raise ValueError(
                f"{name} cannot be continued: leave it out and pass the whole prompt as input_ids"
            )
    if unknown := sorted(
        name for name, value in kwargs.items() if name not in UNDERSTOOD and value is not None
    ):
        raise ValueError(f"{', '.join(unknown)} cannot be passed on to the model by outpace: leave it out")
