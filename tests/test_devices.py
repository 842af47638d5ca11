"""Models on another device than the host's tensors: every method gives the same text, and no operation mixes
devices.

The other device is simulated by tensors that report another device and raise when used with the host's, as an
accelerator's do, so that tensors created on the wrong device are found on a machine without one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import Models, recurrent_models, tables, transformers_models
from outpace.proof.option_values import choices, plain
from outpace.proof.sampling_cases import crossed
from outpace.recipes import find

AWAY, HOST = torch.device("meta"), torch.device("cpu")
# their answers are the host's
TAKES_DEVICE = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
PROMPTS = ((0, 1, 2, 0, 1, 2, 0), (2,), (1, 1, 0, 1, 1), (0, 2, 2))
MIXED = (
    SamplingParams(1.0, max_tokens=6, seed=1),
    SamplingParams(0.7, top_p=0.9, max_tokens=5, stop=(1,), seed=2),
    SamplingParams(0.0, max_tokens=7),
    SamplingParams(1.0, max_tokens=1, seed=9),
)


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
        return self.held.tolist()


def listless(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index and isinstance(index[0], bool) else torch.int64)
    return tuple(map(listless, index)) if isinstance(index, tuple) else index


class Elsewhere(TorchDispatchMode):
    """While it is on, a device named `AWAY` holds numbers."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


def run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [each for each in tensors if not isinstance(each, Away)]
    assert not any(each.device == AWAY for each in here), f"{name} was given a tensor without numbers"
    away = len(here) < len(tensors)
    if away and here and name not in ("aten::copy_", "aten::_to_copy"):
        if name in INDEXES and isinstance(args[0], Away):  # indices may be the host's
            here = [each for each in args[2:] if isinstance(each, Tensor) and not isinstance(each, Away)]
        assert not any(each.dim() for each in here), f"{name}: tensors on two devices"
    device = next((each for each in (*args, kwargs.get("device")) if isinstance(each, torch.device)), None)

    def held(value: Any) -> Any:
        return value.held if isinstance(value, Away) else HOST if isinstance(value, torch.device) else value

    found = operation(*tree_map(held, args), **tree_map(held, kwargs))
    if not (away if device is None else device == AWAY) or name in TAKES_DEVICE:
        return found
    if name.endswith("_"):
        return None if found is None else args[0]
    return tree_map(lambda value: Away(value) if isinstance(value, Tensor) else value, found)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
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


def same_texts(name: str, here: Models, row_params: Sequence[SamplingParams], elsewhere: Elsewhere) -> None:
    recipe = find()[name]
    # on an accelerator drafts go on behind tokens that end a text, so that other tokens are drawn
    row_params = [replace(params, stop=()) for params in row_params]
    cross_vocabulary = replace(here.cross_vocabulary, model=moved(here.cross_vocabulary.model))
    drafts = tuple(moved(draft) for draft in here.drafts)
    there = replace(here, target=moved(here.target), drafts=drafts, cross_vocabulary=cross_vocabulary)
    shapes = [(2,), (1, 2)]
    both = [choices(recipe, each, shapes) for each in (here, there)]
    for host, other in zip(*both, strict=True):
        if MAKES_A_MODEL_WITH.get(name, {}).items() & plain(recipe, host).items():
            continue
        for rows in (slice(0, 1), slice(2, 3), slice(0, None)):
            prompts = [PROMPTS[row % len(PROMPTS)] for row in range(len(row_params))][rows]

            def decoded(parts: Parts, prompts: Any = prompts, rows: slice = rows) -> list[list[int]]:
                return texts(parts, prompts, row_params[rows])

            expected = decoded(recipe.build(here.target, **host))
            options = {option: moved_head(value) for option, value in other.items()}
            with elsewhere:
                assert decoded(recipe.build(there.target, **options)) == expected


# one method of each kind of drafting and verification
QUICK = (
    "autoregressive speculative-sampling mcsd traversal spectr-kseq rsd-s block-verification token-recycling "
    "suffix-decoding stand omnidraft slem rasd eagle2 medusa hydra smartspec ems-sd "
    "specdec-pp disco"
).split()


# it makes a transformers model of the head when it is built, and these tensors cannot go through its trial
# forward
MAKES_A_MODEL = {"fr-spec"}
# the same with some values of an option
MAKES_A_MODEL_WITH = {"taps": {"routing": "average"}}


def test_the_quick_methods_exist() -> None:
    assert set(QUICK) | MAKES_A_MODEL <= set(find())


@pytest.mark.parametrize(
    "name",
    [
        each if each in QUICK else pytest.param(each, marks=pytest.mark.slow)
        for each in find()
        if each not in MAKES_A_MODEL
    ],
)
def test_parts_meet_tables_that_are_elsewhere(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, tables(), MIXED, elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_so_they_do_with_all_sampling_parameters(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, tables(), list(crossed(3, 3)), elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["speculative-sampling", "mcsd", "slem", "omnidraft"])
def test_models_may_be_elsewhere(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, transformers_models(3), MIXED, elsewhere)


@pytest.mark.slow
def test_models_with_recurrent_layers_may_be_elsewhere(elsewhere: Elsewhere) -> None:
    same_texts("speculative-sampling", recurrent_models(), MIXED, elsewhere)


def test_tensors_on_two_devices_do_not_meet(elsewhere: Elsewhere) -> None:
    with elsewhere:
        far = torch.arange(3, device=AWAY)
        assert (far + 1).tolist() == [1, 2, 3] and far[torch.tensor([2])].tolist() == [2]
        for meet in (torch.add, torch.equal, torch.maximum):
            with pytest.raises(AssertionError, match="two devices"):
                meet(far, torch.arange(3))
