"""Checks of a loaded model: its logits must not depend on how a text is divided into forwards, nor on the
rows that are read in the same forward.

Letters: N tokens, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outpace.models.forward.kv_cache import EagerCache
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs

if TYPE_CHECKING:
    from outpace.models.eager.forward import Forward

# relative differences of logits that are attributed to rounding, in 16 bits and in more: in 16 bits the
# rounding of many layers adds up, and other experts may be chosen
ROUNDING_16, ROUNDING = 0.5, 1e-2
TINY = 1e-6  # of logits that are all 0
CAPACITY = 8  # cache positions of a slot

Part = tuple[int, int, Tensor]  # (slot, number of tokens that the slot holds, next tokens)


def _read(forward: Forward, cache: EagerCache, parts: Sequence[Part]) -> Tensor:  # (N, V)
    """The logits at the tokens of these parts, which are read in one forward if the model permits it."""
    rows = list[RowInputs]()
    for slot, start, tokens in parts:
        end = start + len(tokens)
        cache.reserve(slot, end)
        cache.lengths[slot] = start
        rows.append(RowInputs(slot, start, end, start, top=end - 1))
    sizes = [len(tokens) for _, _, tokens in parts]
    together = torch.cat([tokens for _, _, tokens in parts])
    logits = forward.read(ForwardRequest(rows, sizes, together), cache).logits
    assert logits is not None
    # some models in 16 bits give logits in 32, with the rounding of 16
    return logits.clone().to(forward.model.dtype)


@torch.no_grad()
def check_reading(forward: Forward) -> None:
    """Set `packs` of the forwards to False if rows in one forward change one another's logits, as where
    layers mix neighbouring tokens outside of attention, or if such a forward fails. ValueError if reading a
    text in parts changes its logits."""
    name, cache = type(forward.model).__name__, _cache(forward)
    text, other = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 0, 1])
    try:
        whole = _read(forward, cache, [(0, 0, text)])
        parts = [_read(forward, cache, [(1, at, text[at : at + 2])]) for at in (0, 2)]
    except (AttributeError, IndexError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} cannot read a text in parts ({reason}): choose another model") from error
    if not _alike(whole, torch.cat(parts)):
        raise ValueError(
            f"{name} computes something else when a text is read in parts, as if its tokens saw those after "
            "them: choose a causal language model, or set is_decoder in the model's config if it has that"
        )
    if forward.packs:
        forward.packs = _packs(forward, whole, text, other)


def _cache(forward: Forward) -> EagerCache:
    return forward.cache_type(forward.planes, 2, CAPACITY, forward.device)


def _packs(forward: Forward, whole: Tensor, text: Tensor, other: Tensor) -> bool:
    """Whether two texts that are read in one forward have the logits that they have alone."""
    alone = _read(forward, _cache(forward), [(1, 0, other)])
    try:
        together = _read(forward, _cache(forward), [(0, 0, text), (1, 0, other)])
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    return all(map(_alike, together.split([len(text), len(other)]), (whole, alone)))


def _alike(logits: Tensor, other: Tensor) -> bool:
    """Whether these logits differ by rounding only, at each token. Logits that are not finite are ignored:
    decoding reports them."""
    rounding = ROUNDING_16 if logits.dtype.itemsize == 2 else ROUNDING
    wide, others = (values.double().nan_to_num(0, 0, 0) for values in (logits, other))
    return bool(((wide - others).norm(dim=-1) <= rounding * (wide.norm(dim=-1) + TINY)).all())
