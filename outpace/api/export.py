"""Write a draft head or draft model for another engine, and say how that engine is started with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from outpace.api.engines import ENGINES, NUM_TOKENS, TRANSFORMERS, Drafting
from outpace.api.model import Model, load
from outpace.api.opener import check_same_tokens
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.files import CONFIG, HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.kinds import HeadKind
from outpace.models.heads.position_head import PositionHead
from outpace.models.mask_token import KEY as PARD_TOKEN
from outpace.models.names import resolve
from outpace.models.permissions import share_weights
from outpace.models.predictors.folder import METHOD as PREDICTOR

HALVES = (torch.bfloat16, torch.float16)


def export(drafter: str, *, engine: str, target: Model, output: str | Path) -> str:
    """Write the head or the draft model `drafter`, a name or folder, into the folder `output` in the layout
    that `engine` (vllm, sglang or transformers) reads, and return the command, for transformers the program,
    that runs it with the target.

    ValueError if the engine does not run such a drafter, if the drafter does not fit the target, and if the
    folder is not empty. Weights are written in the target's dtype, in two bytes where that changes no value.
    """
    if engine not in ENGINES:
        raise ValueError(f"there is no engine {engine}: --engine takes {', '.join(ENGINES)}")
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: give another --output")
    source = Path(resolve(drafter))
    kind = _kind_of(source)
    if kind is not None:
        return _export_head(kind, source, engine, target, folder)
    draft = load(drafter, **target.draft_options)
    check_same_tokens(target, draft)
    if draft.target.vocab != target.target.vocab:
        raise ValueError(
            f"{drafter} has {draft.target.vocab} token ids and the target {target.target.vocab}, which "
            f"{ENGINES[engine].title} cannot pair: save the draft after "
            f"model.resize_token_embeddings({target.target.vocab})"
        )
    model = draft.target.model
    nn.Module.to(model, _dtype_of(model.parameters()))
    model.save_pretrained(folder)
    share_weights(folder)
    if target.tokenizer is not None:
        target.tokenizer.save_pretrained(folder)
    # a model that was trained to fill masks (`outpace train pard`)
    in_masks = engine == "vllm" and getattr(model.config, PARD_TOKEN, None) is not None
    options = {"parallel_drafting": True} if in_masks else {}
    drafting = Drafting(ENGINES[engine].draft_model, NUM_TOKENS, options)
    return ENGINES[engine].command(target.name, str(folder), drafting)


def _kind_of(folder: Path) -> HeadKind | None:
    """The kind of the head in a folder; None for a model's name or folder. ValueError for a predictor."""
    if not (folder / CONFIG).is_file():
        return None
    try:
        of = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get(PREDICTOR)
    except (ValueError, AttributeError) as error:
        raise HeadFileError(f"{folder / CONFIG} is no configuration: restore that file") from error
    if of is not None:
        raise ValueError(
            f"{folder} holds a predictor for {of}, which no other engine reads: export the draft model or "
            "head that it was made for"
        )
    return kind_in(folder)


def _export_head(kind: HeadKind, source: Path, engine: str, target: Model, folder: Path) -> str:
    support = kind.engines.get(engine)
    if support is None and engine != TRANSFORMERS:
        others = [name for name in ENGINES if name in kind.engines]
        raise ValueError(
            f"{ENGINES[engine].title} does not run heads of {kind.title}: export for "
            f"{' or '.join([*others, TRANSFORMERS])}, or use outpace serve"
        )
    head = load_head(kind.method, source, target.target)
    if support is not None and (reason := support.refuses(head)):
        raise ValueError(f"{ENGINES[engine].title} does not run this head of {kind.title}: {reason}")
    dtype = _dtype_of(head.own.values())
    for parameter in head.own.values():
        parameter.data = parameter.data.to(dtype)
    layout = None if support is None else support.layout
    save_head(head, folder, target.target, layout=layout, name=resolve(target.name))
    name = kind.method if support is None else support.name
    longest = head.max_depth if isinstance(head, PositionHead) else None
    num_tokens = min(NUM_TOKENS, longest or NUM_TOKENS)
    if isinstance(head, DraftHead) and head.two_way:
        num_tokens = head.block_levels  # blocks are filled as a whole
    drafting = Drafting(name, num_tokens, {} if support is None else support.options)
    return ENGINES[engine].command(target.name, str(folder), drafting)


def _dtype_of(parameters: Iterable[Tensor]) -> torch.dtype:
    """A dtype of two bytes that holds all of these values, else that of the first of them."""
    all_of_them = list(parameters)
    for half in HALVES:
        if all(torch.equal(each.to(half).to(each.dtype), each) for each in all_of_them):
            return half
    return all_of_them[0].dtype
