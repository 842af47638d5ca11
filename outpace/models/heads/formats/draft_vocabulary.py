"""The tensors `d2t` and `t2d`, which state the target tokens of a draft vocabulary.

Letters: K tokens of the draft vocabulary, V of the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.formats.files import HeadFileError, Tensors


def take_draft_ids(tensors: Tensors, num: int, vocab: int) -> Tensor | None:
    """Remove both tensors and return the target token of each of the `num` logits; None if these are all
    `vocab` tokens. HeadFileError if the tensors contradict each other or the number of logits."""
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        if num == vocab:
            return None
        raise HeadFileError(
            f"it drafts {num} of {vocab} tokens and lacks d2t, which says which: download it again"
        )
    if offsets.shape != (num,):
        raise HeadFileError(
            f"d2t has {offsets.numel()} entries and draft_vocab_size is {num}: restore its config.json"
        )
    # d2t holds target id minus draft id. Target ids in its place load too, but nothing is accepted
    ids = offsets.long() + torch.arange(num)
    if not _fits(ids, mask, vocab):
        if _fits(offsets.long(), mask, vocab):
            raise HeadFileError(
                "d2t holds token ids instead of offsets: subtract each entry's index, "
                "d2t - torch.arange(len(d2t))"
            )
        raise HeadFileError(
            f"d2t does not name {num} different tokens of {vocab}"
            + (" that are those of t2d: download it again" if mask is not None else ": download it again")
        )
    return None if num == vocab and torch.equal(ids, torch.arange(num)) else ids


def _fits(ids: Tensor, mask: Tensor | None, vocab: int) -> bool:  # (K,), (V,)
    within = bool(((ids >= 0) & (ids < vocab)).all()) and len(ids.unique()) == len(ids)
    return within and (mask is None or torch.equal(ids.sort().values, mask.nonzero().flatten()))


def draft_vocabulary(ids: Tensor, vocab: int) -> Tensors:
    """Both tensors for a draft vocabulary of the tokens `ids`, of the target's `vocab`."""
    ids = ids.cpu()
    return {
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True),
    }
