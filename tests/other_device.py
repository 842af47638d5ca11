"""A device other than the host's that a machine without an accelerator has: tensors that report another
device, raise when used with the host's, and count how often the host waits for them.

What reads a number of such a tensor, or copies it to the host, waits on an accelerator until all work that
was launched before is done. What copies a tensor of the host there waits as well, as torch does unless it is
told not to.
"""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget

AWAY, HOST = torch.device("meta"), torch.device("cpu")
# their answers are the host's
TAKES_DEVICE = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")
# the host waits for the size of their result
SIZES = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount")
COPIES = ("aten::copy_", "aten::_to_copy")
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


# how often the host waited since these were cleared, by the place in the package
reads = Counter[str]()  # for numbers of that device
uploads = Counter[str]()  # while it copied a tensor there
sent = Counter[str]()  # bytes copied since it was cleared: "there" to that device, "here" from it


def note(waits: Counter[str]) -> None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and f"{os.sep}outpace{os.sep}" not in frame.f_code.co_filename:
        frame = frame.f_back
    code = None if frame is None else frame.f_code
    waits["the test" if code is None else f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1


class Away(Tensor):
    """A tensor elsewhere: one of the host's that is only reached by operations on that device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Away:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=AWAY
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})

    # torch would make these tensors elsewhere by ways of its own
    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(listless(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(listless(index), value)

    def new_tensor(self, data: Any, dtype: Any = None) -> Tensor:
        return Away(self.held.new_tensor(data, dtype=dtype))

    def tolist(self) -> Any:
        note(reads)
        return self.held.tolist()


def listless(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index and isinstance(index[0], bool) else torch.int64)
    return tuple(map(listless, index)) if isinstance(index, tuple) else index


class Elsewhere(TorchDispatchMode):
    """While it is on, a device named `AWAY` holds numbers."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


def copies_here(args: Any, kwargs: Any) -> bool:
    """Whether this copy is from that device to the host."""
    if kwargs.get("device") is not None:
        return isinstance(args[0], Away) and kwargs["device"] == HOST
    return len(args) > 1 and isinstance(args[1], Away) and not isinstance(args[0], Away)


def copies_there(args: Any, kwargs: Any) -> bool:
    """Whether this copy is from the host to that device, and waits for it."""
    if kwargs.get("non_blocking") or (len(args) > 2 and args[2]):
        return False
    if kwargs.get("device") is not None:
        return not isinstance(args[0], Away) and kwargs["device"] == AWAY
    return len(args) > 1 and isinstance(args[0], Away) and not isinstance(args[1], Away)


def note_bytes(name: str, args: Any, kwargs: Any) -> None:
    """Count the bytes that this operation copies between the devices."""
    if name in TAKES_DEVICE:
        sent["here"] += args[0].element_size()
    elif name in COPIES:
        source = args[1] if name == "aten::copy_" else args[0]
        target = args[0].device if name == "aten::copy_" else kwargs.get("device") or source.device
        if source.device != target:
            sent["there" if target == AWAY else "here"] += source.numel() * source.element_size()
    elif name in INDEXES and isinstance(args[0], Away):
        here = [each for each in args[1] if isinstance(each, Tensor) and not isinstance(each, Away)]
        sent["there"] += sum(each.numel() * each.element_size() for each in here)


def run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [each for each in tensors if not isinstance(each, Away)]
    assert not any(each.device == AWAY for each in here), f"{name} was given a tensor without numbers"
    away = len(here) < len(tensors)
    if away and here and name not in COPIES:
        if name in INDEXES and isinstance(args[0], Away):  # indices may be the host's
            here = [each for each in args[2:] if isinstance(each, Tensor) and not isinstance(each, Away)]
        assert not any(each.dim() for each in here), f"{name}: tensors on two devices"
    device = next((each for each in (*args, kwargs.get("device")) if isinstance(each, torch.device)), None)

    if away:
        masks = [each for each in tensors[1:] if name in INDEXES and each.dtype == torch.bool]
        if name in TAKES_DEVICE or name in SIZES or masks or (name in COPIES and copies_here(args, kwargs)):
            note(reads)
    if name in COPIES and copies_there(args, kwargs):
        note(uploads)
    note_bytes(name, args, kwargs)
    if name in INDEXES and isinstance(args[0], Away):  # torch copies the host's indices there
        for index in args[1]:
            if isinstance(index, Tensor) and not isinstance(index, Away):
                note(uploads)

    def held(value: Any) -> Any:
        return value.held if isinstance(value, Away) else HOST if isinstance(value, torch.device) else value

    found = operation(*tree_map(held, args), **tree_map(held, kwargs))
    if not (away if device is None else device == AWAY) or name in TAKES_DEVICE:
        return found
    if name.endswith("_"):
        return None if found is None else args[0]
    return tree_map(lambda value: Away(value) if isinstance(value, Tensor) else value, found)


def simulated(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """The mode in which the other device exists; torch is changed until the end of the test."""
    made = torch.tensor

    def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return made(data, dtype=dtype) if device is None else made(data, dtype=dtype).to(device)

    monkeypatch.setattr(torch, "tensor", tensor)
    # views of tensors elsewhere cannot be made in inference mode, which is no device's doing
    off = torch.inference_mode
    monkeypatch.setattr(off, "__init__", lambda self, mode=True: setattr(self, "off", torch.no_grad()))
    monkeypatch.setattr(off, "__enter__", lambda self: self.off.__enter__())
    monkeypatch.setattr(off, "__exit__", lambda self, *_: self.off.__exit__(None, None, None))
    monkeypatch.setattr(off, "clone", lambda self: off())
    return Elsewhere()


def take_away(model: nn.Module) -> None:
    """Move the model's weights and buffers elsewhere."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(Away(weight.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else Away(buffer)


def moved(target: Any) -> Any:
    """The same model elsewhere."""
    if isinstance(target, TableTarget):
        there = copy.copy(target)
        there.logits = Away(target.logits)
        return there
    there = HFTarget(copy.deepcopy(target.model))
    take_away(there.forward.model)
    planes = there.forward.planes
    there.forward.device = AWAY
    there.forward.planes = replace(
        planes, shapes=tuple(replace(shape, device=AWAY) for shape in planes.shapes)
    )
    return there


def moved_head(value: Any) -> Any:
    """The same option value; a head's copy elsewhere."""
    if isinstance(value, tuple):
        return tuple(map(moved_head, value))
    if isinstance(value, PositionModel):
        copied = PositionModel(copy.deepcopy(value.head))
        copied.prefix = moved_head(copied.prefix)
        take_away(copied.head)
        return copied
    if not isinstance(value, HeadModel):
        return value
    there = HeadModel(copy.deepcopy(value.head))
    there.model = moved(there.model)
    made = there.model.forward.model
    assert isinstance(made, DraftHead)
    there.head = made
    return there
