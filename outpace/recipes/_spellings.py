"""Option names of transformers and vLLM: accepted where they mean the same as one of ours, else explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outpace.core.sampling_params import PARAMETERS
from outpace.recipes._options import RecipeError

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe
    from outpace.recipes._catalogue import RecipeSource

# vLLM's name of a method -> ours
VLLM_METHODS = {"ngram": "prompt-lookup", "draft_model": "speculative-sampling", "suffix": "suffix-decoding"}
ALIASES = {"num_speculative_tokens": "depth"}  # vLLM's option name -> ours; both are accepted
# options for one model; a recipe that takes several has the plural, and both are accepted
SINGULAR = ("draft", "head")
# option name in transformers or vLLM -> the outpace option to use, for the error message
SPELLINGS = {each.transformers: each.name for each in PARAMETERS if each.transformers not in ("", each.name)}
SPELLINGS |= {
    "max_length": "max_tokens, which counts new tokens only",
    "do_sample": "temperature: above 0 samples, 0 is greedy",
    "num_return_sequences": "n",
    "num_beams": "n for several samples; beam search is not supported",
    "best_of": "n, and choose among the results",
    "stop_strings": "stop",
    "stop_token_ids": "stop, with strings",
    "eos_token_id": "stop, with strings, or ignore_eos",
    "sequence_bias": "logit_bias",
    "suppress_tokens": "logit_bias, with -inf",
    "assistant_model": "draft",
    "draft_model": "draft",
    "speculative_model": "draft",
    "num_assistant_tokens": "depth (or num_speculative_tokens)",
    "prompt_lookup_num_tokens": "depth, with method prompt-lookup",
    "max_matching_ngram_size": "max_ngram",
    "prompt_lookup_max": "max_ngram",
    "prompt_lookup_min": "min_ngram",
    "assistant_confidence_threshold": "confidence_threshold",
    "sampling_params": "max_tokens, temperature, ... as keywords of their own",
    "guided_json": "json_schema",
    "guided_grammar": "grammar",
    "streamer": "outpace.stream, or a streamer given to outpace.hf",
    "batch_size": "batch",
    "num_samples": "n",
    "model": "target",
    "assistant": "draft",
}


def other_names(recipe: Recipe | RecipeSource) -> dict[str, str]:
    """Further name of an option -> the recipe's own name of it."""
    found = dict(ALIASES)
    for one in SINGULAR:
        several = f"{one}s"
        found |= {one: several} if several in recipe.options else {several: one}
    return {
        name: option
        for name, option in found.items()
        if option in recipe.options and name not in recipe.options
    }


def own_options(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the recipe's own names: `num_speculative_tokens` becomes `depth`.

    Raises RecipeError for an option that has another name in outpace, which the message gives, and for one
    given under two names.
    """
    found: dict[str, Any] = {}
    others = other_names(recipe)
    for given, value in options.items():
        name = given.replace("-", "_")
        if option := others.get(name):
            if option in options:
                raise RecipeError(f"{name} and {option} are the same option: give one of them")
            name = option
        elif name not in recipe.options and name in SPELLINGS:
            raise RecipeError(f"there is no option {name}: use {SPELLINGS[name]}")
        found[name] = value
    return found
