"""Makes models from a target's own layers: draft models, and targets that approximate it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor

from outpace.core.contracts import Cache, ReadsTargetCache, Reference, Target
from outpace.models.adapter import EXIT_LAYER
from outpace.models.eager.skipped_modules import weights_without
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.predictor import ExitPredictor
from outpace.models.skip_set import SkipSet
from outpace.models.slim.closest_layers import ClosestLayers, ClosestTables
from outpace.models.slim.exit_forward import ExitForward, ExitRule
from outpace.models.slim.exit_head import ExitHead
from outpace.models.slim.exit_reference import ExitReference
from outpace.models.slim.exit_target import ExitTarget
from outpace.models.slim.partial_target import SavingTarget, check_eager
from outpace.models.slim.saving_forward import SavingForward
from outpace.models.slim.saving_reference import SavingReference
from outpace.models.slim.savings import Savings
from outpace.models.slim.slim_table import SlimTable, TableReference
from outpace.models.slim.slim_target import SlimTarget
from outpace.models.slim.switched_target import SwitchedLayers, SwitchedTarget
from outpace.models.table import TableTarget


def num_layers(target: Target) -> int:
    """Number of layers of a target, for methods that draft with some of them or read their outputs.
    ValueError for a target without layers, and for one whose layers return more than one vector per token."""
    if isinstance(target, HFTarget) and not target.forward.one_state:
        raise ValueError(
            f"the layers of {type(target.model).__name__} return several vectors per token, which early "
            "exits and heads over layers cannot read: use a method that reads the last hidden state, such as "
            "eagle, or one without a head"
        )
    if isinstance(target, HFTarget | TableTarget):
        return target.num_layers
    raise ValueError(f"{type(target).__name__} has no layers to skip: use a transformers model as target")


def trained_exit(target: Target) -> int | None:
    """Number of first layers after which a target was trained to draft (`outpace train layerskip`); None for
    other targets."""
    config = target.model.config.get_text_config() if isinstance(target, HFTarget) else None
    return getattr(config, EXIT_LAYER, None)


def drafting_layers(target: Target) -> int:
    """Number of first layers of a target to draft with: its trained exit, or a quarter of all layers.
    ValueError for a target without layers."""
    layers = num_layers(target)
    return trained_exit(target) or max(1, layers // 4)


# (cache of the target, slot, last token of the slot in the cache, L × (D,) outputs of the layers at it) ->
# layers to skip
ChooseLayers = Callable[[Cache, int, int, Sequence[Tensor]], SkipSet]


def closest_layers(target: Target, num_skipped: int) -> ChooseLayers:
    """A function that finds `num_skipped` layers without which the target's last output at one token changes
    little. ValueError unless `num_skipped` is 1 to L - 1, and for a target whose layers cannot be tried."""
    layers = num_layers(target)
    if layers < 2:
        raise ValueError("a target of one layer cannot skip any: use a draft model")
    if not 0 < num_skipped < layers:
        raise ValueError(
            f"a model of {layers} layers cannot skip {num_skipped} of them: use 1 to {layers - 1}"
        )
    if isinstance(target, HFTarget):
        return ClosestLayers(target, num_skipped)
    assert isinstance(target, TableTarget)
    return ClosestTables(target, num_skipped)


# cached, as compiling takes seconds and finding what a layer returns 60 ms, and methods may be built often
_MADE: WeakKeyDictionary[HFTarget, dict[SkipSet, SlimTarget]] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[HFTarget, ExitHead] = WeakKeyDictionary()


def exit_logits(target: Target) -> Callable[[Tensor], Tensor]:
    """(M, D) outputs of any layer of the target -> (M, V) its logits if it ended there. ValueError for a
    target without layers."""
    num_layers(target)
    if isinstance(target, HFTarget):
        if target not in _HEADS:
            _HEADS[target] = ExitHead(target.model)
        head, dtype = _HEADS[target], target.model.dtype
        return lambda states: target.over_vocabulary(head(states[None].to(dtype))[0])
    return lambda states: states  # table model: outputs of layers are logits


def without(target: Target, skip_set: SkipSet) -> SlimTarget | SlimTable:
    """The target without these sub-layers, on its own KV cache. ValueError if they cannot be skipped."""
    if isinstance(target, HFTarget):
        made = _MADE.setdefault(target, {})
        if skip_set not in made:
            made[skip_set] = SlimTarget(target, skip_set)
        return made[skip_set]
    if isinstance(target, TableTarget):
        return SlimTable(target, skip_set)
    raise ValueError(f"{type(target).__name__} has no layers to skip: use a transformers model as target")


def switching(target: Target) -> Callable[[SkipSet], SwitchedTarget | SlimTable]:
    """Like `without`, for skip sets that change while decoding: all skip sets of a transformers model share
    one copy of its modules. The returned function raises ValueError for sub-layers that cannot be skipped.
    ValueError for a target that is compiled with OpenVINO or has no layers."""
    if isinstance(target, HFTarget):
        layers = SwitchedLayers(target)
        return lambda skip_set: SwitchedTarget(target, layers, skip_set)
    if isinstance(target, TableTarget):
        return lambda skip_set: SlimTable(target, skip_set)
    raise ValueError(f"{type(target).__name__} has no layers to skip: use a transformers model as target")


def with_savings(target: Target, savings: Savings) -> tuple[ReadsTargetCache, Reference]:
    """The target with QuickSilver's savings, and a plain implementation as its reference. ValueError for a
    target without layers, a compiled one, or values that do not suit it."""
    savings.check(num_layers(target))
    logits = exit_logits(target)
    if isinstance(target, HFTarget):
        check_eager(target, "quicksilver")
        forward = SavingForward(target.forward, target.model, savings, logits)
        # a fused token follows the one before it in the cache
        model = SavingTarget(target, forward, chains_only=bool(savings.fusion))
        return model, SavingReference(target, savings, logits)
    assert isinstance(target, TableTarget)
    table = SlimTable(target, SkipSet.of_layers(range(savings.first_layer, target.num_layers)))
    if not savings.any:
        table.logits = target.logits
    return table, TableReference(table)


def with_exits(
    target: Target, head: HeadModel, predictor: ExitPredictor, threshold: float, *, scheduled: bool
) -> tuple[Target, Reference]:
    """The target with SpecEE's early exits, and a plain implementation as its reference. ValueError for a
    target without layers, a compiled one, a target or head for which the predictor was not made, or a
    threshold that is no probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
    layers = num_layers(target)
    predictor.check(head.head, target)
    if isinstance(target, HFTarget):
        check_eager(target, "specee")
        chosen = predictor.layers if scheduled else None
        rule = ExitRule(predictor.to(target.device), threshold, chosen, ExitHead(target.model))
        model = ExitTarget(target, ExitForward(target.forward, target.model, rule), head)
        return model, ExitReference(target, rule, head)
    assert isinstance(target, TableTarget)
    table = copy.copy(target)  # opens its own caches, as the transformers model does
    table._caches = []
    if threshold < 1:
        table.logits = SlimTable(target, SkipSet.of_layers(range(layers // 2, layers))).logits
    return table, TableReference(table)


def cost_without(target: Target, skip_set: SkipSet) -> float:
    """Share of the target's weights that a forward without these sub-layers reads; the input embedding does
    not count. ValueError for a target without layers."""
    layers = num_layers(target)
    if isinstance(target, HFTarget):
        return weights_without(target.model, skip_set)
    return 1 - len(skip_set) / (2 * layers)
