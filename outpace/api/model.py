"""A loaded model: the target, its tokenizer and the defaults of its generation_config.json."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from outpace.console import progress
from outpace.core.sampling_params import whole_number
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.hf.target import load as load_target
from outpace.models.names import resolve
from outpace.models.native_dtypes import compiled_notice, warn_once
from outpace.models.openvino.compiled import STAGES


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A loaded target model and its tokenizer: returned by `load`, passed to `generate` and `stream`."""

    name: str
    target: HFTarget
    tokenizer: Any = None
    defaults: Any = None  # the checkpoint's transformers GenerationConfig
    # keyword arguments of `load` for drafts given by name
    draft_options: Mapping[str, Any] = field(default_factory=dict)
    # loaded drafts by name, so that each is loaded once
    drafts: dict[str, Model] = field(default_factory=dict, repr=False)
    # opened draft heads by kind and folder
    heads: dict[tuple[str, str], HeadModel | PositionModel] = field(default_factory=dict, repr=False)
    # as a draft: target -> this model over the target's token ids, once their tokenizers were compared
    as_draft: WeakKeyDictionary[HFTarget, HFTarget] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def __repr__(self) -> str:
        target = self.target
        facts = [
            type(target.model).__name__,
            str(target.model.dtype).removeprefix("torch."),
            str(target.device),
        ]
        if target.compiled is not None:
            facts.append("compiled")
        if target.compressed_weights is not None:
            facts.append(f"weights in {target.compressed_weights.format}")
        return f"<outpace.Model {self.name}: {', '.join(facts)}>"

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of prompt and generated text together; None if the model has no limit."""
        return self.target.max_length

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Token string -> id, from `tokenizer.get_vocab()`; cached, because 150,000 tokens take 0.1 s."""
        return self.tokenizer.get_vocab()


def load(
    target: str | Path,
    *,
    dtype: str = "auto",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    threads: int | None = None,
    compile: bool = False,
    weights: str | None = None,
    draft_weights: str | None = None,
    kv_cache: str | None = None,
) -> Model:
    """Load a causal language model for `generate` and `stream`.

    Args:
        target: a model of the package (`zoo:target`), a folder, or a name on the Hugging Face Hub.
        dtype: auto (bfloat16 where the CPU computes it natively, else float32 with a warning; on a GPU the
            checkpoint's), float32, bfloat16, float16 or float64.
        device: a torch device such as cpu or cuda:0; None: CUDA if there is one.
        revision: branch, tag or commit of a model on the hub.
        trust_remote_code: run Python code that comes with the model.
        allow_pickle: load pickled weights, which can run code; safetensors cannot.
        threads: number of CPU threads of torch, for the whole process.
        compile: compile the forward pass: with OpenVINO on a CPU, with CUDA graphs on a GPU.
        weights: int8 or int4: compress the weights, with `compile` on a CPU. The distribution is then that of
            the compressed model.
        draft_weights: the same for draft models, and draft heads with a KV cache, that this model is given by
            name.
        kv_cache: int8: round keys and values to 8 bits, with `compile` on a CPU. The distribution is then
            that of the model with rounded keys and values. Drafts keep whole ones.

    A draft that `generate` is given by name, with this model as its target, is loaded with the same dtype,
    device, compile, trust_remote_code and allow_pickle.
    Raises ValueError for a model that does not exist or is not supported.
    """
    if not isinstance(target, str | Path):
        raise ValueError(
            f"a model is loaded from a name or folder, not from a {type(target).__name__}: give one that is "
            "loaded already to generate"
        )
    if threads is not None and whole_number("threads", threads) < 1:
        raise ValueError(f"threads is {threads}; use at least one")
    if draft_weights is not None and not compile:
        raise ValueError(
            f"draft weights in {draft_weights} need compiled models: add compile=True (--compile)"
        )
    shared: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "compile": compile,
    }
    # the first stage is loading
    num_stages = 1 + len(STAGES) + (weights is not None) if compile else None
    with progress(num_stages, f"loading {target}") as advance:
        loaded, tokenizer = load_target(
            resolve(str(target)),
            revision=revision,
            threads=threads,
            weights=weights,
            kv_cache=kv_cache,
            on_stage=lambda stage: advance(f"{stage} {target}", 1),
            **shared,
        )
    if loaded.compiled is not None:
        found = compiled_notice(str(target), loaded.model.dtype, loaded.compiled.precision)
        if found:
            warn_once(found)
    shared |= {"device": str(loaded.device), "weights": draft_weights}
    return Model(str(target), loaded, tokenizer, _defaults(loaded.model), shared)


def as_model(target: Any, tokenizer: Any = None) -> Model:
    """A `Model` from a name or folder (loaded), a transformers model (wrapped) or a `Model` (unchanged); with
    this tokenizer, if one is given.

    Raises ValueError for any other type.
    """
    from transformers import PreTrainedModel

    if isinstance(target, str | Path):
        target = load(target)
    if isinstance(target, Model):
        return target if tokenizer is None else replace(target, tokenizer=tokenizer)
    if isinstance(target, PreTrainedModel):
        target = HFTarget(target)
    if isinstance(target, HFTarget):
        name, defaults = type(target.model).__name__, _defaults(target.model)
        return Model(name, target, tokenizer, defaults, {"device": str(target.device)})
    if hasattr(target, "get_base_model"):  # of the PEFT library
        raise ValueError(
            f"{type(target).__name__} wraps a model: give model.get_base_model(), which has its LoRA and "
            "other changes of weights; learnt prompts are not supported"
        )
    if hasattr(target, "_orig_mod"):  # of torch.compile
        raise ValueError(
            f"{type(target).__name__} wraps a model for torch.compile: give the model itself, "
            "model._orig_mod, or a name to outpace.load(name, compile=True)"
        )
    shown = " ".join(repr(target).split())  # that of a module has many lines
    raise ValueError(
        f"{shown:.60} ({type(target).__name__}) is not a model: give a name, a folder, what outpace.load "
        "returned, or a transformers causal language model"
    )


def _defaults(model: Any) -> Any:
    """The model's GenerationConfig, with the end-of-text tokens of its config if it names none itself."""
    found, ends = model.generation_config, getattr(model.config.get_text_config(), "eos_token_id", None)
    if found is None or found.eos_token_id is not None or ends is None:
        return found
    found = copy.copy(found)  # the model is not changed
    found.eos_token_id = ends
    return found
