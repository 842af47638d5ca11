"""Checks of sizes, and counts of tensors, for the formats of heads without a KV cache."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from outpace.core.contracts import TargetWithLayers
from outpace.models.fingerprint import KEY
from outpace.models.heads.formats.files import WEIGHTS, HeadFileError, Tensors

TOKEN_MAP = "token_map"  # tensor with the ids of a reduced draft vocabulary


def check_sizes(target: TargetWithLayers, hidden_size: int, vocab: int | None) -> None:
    """HeadFileError if the head was made for another hidden size or vocabulary size than the target's;
    `vocab` None: not checked."""
    size = int(next(target.embed.parameters()).shape[1])
    if hidden_size != size:
        raise HeadFileError(
            f"the head is for a target with hidden states of {hidden_size} numbers, and this target's have "
            f"{size}: give the model it was trained for"
        )
    if vocab is not None and vocab != target.vocab:
        raise HeadFileError(
            f"the head is for a target with {vocab} tokens, and this target has {target.vocab}: give the "
            "model it was trained for"
        )


def taken_token_map(
    tensors: Tensors, target: TargetWithLayers, config: Mapping[str, Any], num_rows: int
) -> Tensor | None:  # (K,)
    """Take the ids of the draft vocabulary out of the tensors; None if there are none, which means the whole
    vocabulary. HeadFileError for ids that the target lacks, and for missing ids if the configuration is for
    this target and the LM head's `num_rows` rows are not its whole vocabulary."""
    ids = tensors.pop(TOKEN_MAP, None)
    # a fingerprint was compared with the target's before
    is_for_target = config.get(KEY) is not None or config.get("vocab_size") == target.vocab
    if ids is None and num_rows < target.vocab and is_for_target:
        raise HeadFileError(
            f"{WEIGHTS} lacks {TOKEN_MAP}, which says which {num_rows} of the target's {target.vocab} tokens "
            "it drafts: restore that file"
        )
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab:
        raise HeadFileError(
            f"{TOKEN_MAP} names tokens beyond the target's {target.vocab}: give another target"
        )
    return ids


def taken(tensors: Tensors, name: str) -> Tensor:
    """The tensor of this name; HeadFileError if there is none."""
    if name not in tensors:
        raise HeadFileError(f"{WEIGHTS} lacks {name}: restore that file")
    return tensors[name]


def count(names: Iterable[str], pattern: str) -> int:
    """One more than the largest number that the first group of the pattern matches at the beginning of a
    name; 0 if it matches none."""
    matches = (re.match(pattern, name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)
