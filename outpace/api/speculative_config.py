"""Translation of vLLM's --speculative-config, a JSON object, to a method of outpace and its options."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.models.names import resolve
from outpace.recipes import VLLM_METHODS, get, identifier

OPTIONS = {  # vLLM's key -> names of the option in recipes; the first one that the recipe has is used
    "num_speculative_tokens": ("depth",),
    "prompt_lookup_max": ("max_ngram",),
    "prompt_lookup_min": ("min_ngram",),
    "model": ("draft", "head", "drafts"),
    "suffix_decoding_max_tree_depth": ("max_tree_depth", "depth"),
    "suffix_decoding_max_spec_factor": ("max_spec_factor",),
    "suffix_decoding_min_token_prob": ("min_token_prob",),
}
WITHOUT_EFFECT = {  # vLLM's keys that are ignored with a warning: they do not apply to this engine
    "draft_tensor_parallel_size",
    "tensor_parallel_size",
    "enforce_eager",
    "quantization",
    "moe_backend",
    "attention_backend",
    "kv_cache_dtype",
    "max_model_len",
    "code_revision",
    "index_share_for_mtp_iteration",
    "disable_by_batch_size",
    "disable_logprobs",
    "disable_padded_drafter_batch",
    "disable_eagle_block_drop",
    "use_local_argmax_reduction",
    "draft_load_config",
    "suffix_decoding_max_cached_requests",
    "num_speculative_tokens_per_batch_size",
    "parallel_drafting",
    "dspark_draft_topk",
    "enable_adaptive_verification",
}
DRAFT_MODEL = "draft_model"  # vLLM's name for drafts of a model of their own
# vLLM's rejection_sample_method -> the method that verifies a draft model's tokens so
RULES = {"standard": "speculative-sampling", "block": "block-verification"}
LOSSY_RULES = {"synthetic": "accepts draft tokens at random, which changes the output"}


def parse_speculative_config(config: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the method and its options, from JSON text or a mapping.

    A model without a method is a draft head if that is what its folder holds, else a draft model. Raises
    ValueError for unknown keys and unsupported values; warns about keys that have no effect.
    """
    given = _read(config)
    name = given.pop("method", None)
    if name is None:
        if "model" not in given:
            raise ValueError(
                'speculative_config has no method: add "method": "ngram", or a "model" to draft with'
            )
        name = _kind_of(given["model"])
    method = VLLM_METHODS.get(name, identifier(str(name)))
    rule, translates = _rule(given), _translates(given)
    has_draft_model = name == DRAFT_MODEL
    if has_draft_model:
        method = "tli" if translates else RULES[rule]
    if (translates and rule != "standard") or (not has_draft_model and (translates or rule != "standard")):
        key = "use_heterogeneous_vocab" if translates else f"rejection_sample_method {rule!r}"
        with_which = "the rejection_sample_method standard" if has_draft_model else "a draft model"
        raise ValueError(f"speculative_config: {key} is for {with_which} only: leave it out with {name}")
    options: dict[str, Any] = {}
    known, unused, key = get(method).options, list[str](), "draft_sample_method"
    is_given = key in given
    # vLLM's default differs from the paper's: draft tokens are the argmax unless set to "probabilistic"
    drawn = _choice(given, key, ("greedy", "probabilistic")) == "probabilistic"
    if has_draft_model and "sampled" in known:
        options["sampled"] = drawn
    elif is_given and not (has_draft_model and drawn):  # a method without the option draws its drafts
        unused.append(key)
    for key, value in given.items():
        if key in WITHOUT_EFFECT or (key == "revision" and value is None):
            unused.append(key)
        elif key in OPTIONS:
            option = next((option for option in OPTIONS[key] if option in known), None)
            if option is None:
                unused.append(key)
            else:
                options[option] = value
        elif key == "revision":
            raise ValueError(
                "speculative_config: the revision of a draft cannot be chosen: give the folder of a download"
            )
        else:
            raise ValueError(
                f"speculative_config has an unknown key {key!r}; the keys are {', '.join(sorted(_known()))}"
            )
    if name == "suffix" and "max_spec_factor" in options:
        options["max_spec_offset"] = 0.0  # vLLM drafts at most max_spec_factor * match length tokens
    if unused:
        warnings.warn(
            f"speculative_config: {', '.join(unused)} have no effect on {method} here", stacklevel=3
        )
    return method, options


def _read(config: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except json.JSONDecodeError as error:
            raise ValueError(f"speculative_config is not JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise ValueError(
            'speculative_config is a JSON object such as {"method": "ngram", "num_speculative_tokens": 5}'
        )
    return dict(config)


def _choice(given: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
    value = given.pop(key, choices[0])
    if value not in choices:
        raise ValueError(f"speculative_config: {key} is {' or '.join(choices)}, not {value!r}")
    return value


def _kind_of(model: Any) -> str:
    """The method of the draft head in a folder; draft_model for all else."""
    if not isinstance(model, str) or not (folder := Path(resolve(model))).is_dir():
        return DRAFT_MODEL
    # imports torch, which a configuration that names its method does not need
    from outpace.models.heads.formats.files import HeadFileError
    from outpace.models.heads.formats.folder import kind_in

    try:
        kind = kind_in(folder)
    except HeadFileError:  # such as an adapter, or a file that its own loader reads
        return DRAFT_MODEL
    return DRAFT_MODEL if kind is None else kind.method


def _rule(given: dict[str, Any]) -> str:
    rule = given.pop("rejection_sample_method", None) or "standard"
    if not isinstance(rule, str) or rule not in RULES:
        why = LOSSY_RULES.get(str(rule), "is not supported: choose the method that verifies that way instead")
        raise ValueError(f"speculative_config: rejection_sample_method {rule!r} {why}")
    return rule


def _translates(given: dict[str, Any]) -> bool:
    value = given.pop("use_heterogeneous_vocab", False)
    if not isinstance(value, bool):
        raise ValueError(f"speculative_config: use_heterogeneous_vocab is true or false, not {value!r}")
    return value


def _known() -> set[str]:
    return (
        WITHOUT_EFFECT
        | set(OPTIONS)
        | {"method", "revision", "draft_sample_method", "rejection_sample_method", "use_heterogeneous_vocab"}
    )
