"""Forwards of a transformers model over rows of a KV cache: one for all rows if the model permits it, else
one per row.

Letters: N tokens, V vocabulary size, D hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.core.contracts import Cache
from outpace.models.cache_argument import CACHE_ARGUMENT, cache_argument
from outpace.models.eager.attention import EAGER, FUSED
from outpace.models.eager.cache_view import OWN_CACHE, EagerView
from outpace.models.eager.captures import OutputCapture, per_node
from outpace.models.eager.contiguous_cache import ContiguousCache
from outpace.models.eager.forward_inputs import ForwardInputs
from outpace.models.eager.private_copy import private_copy
from outpace.models.eager.probe import ProbeCache
from outpace.models.eager.skipped_modules import check_sharing, skip
from outpace.models.forward.backend import InTorch
from outpace.models.forward.kv_cache import EagerCache, Planes, SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.skip_set import SkipSet

# `logits_to_keep` for the logits of all tokens. In transformers 0 means the same, but with any number Gemma 4
# slices the attention masks before its layers that share keys and values, and the masks that outpace passes
# (`RowMasks`) cannot be sliced.
EVERY = slice(None)


class Forward(InTorch):
    """Runs a private copy of a model, with our attention functions, over rows of a KV cache."""

    # whether a layer's output is one vector per token; `probe` sets it
    one_state = True
    keeps_states = False  # whether layers are recurrent: no layer can be skipped
    scores_trees = True  # whether layers read siblings as they read chains; `probe` of recurrent ones sets it
    cache_type = ContiguousCache  # of the KV caches that forwards read and write
    begins_later = True

    def __init__(self, model: PreTrainedModel) -> None:
        self.original = model
        self.cache_in_8_bits = False  # of KV caches opened from now on
        self._after: dict[int, ForwardAfter] = {}  # layer -> forwards that begin after it
        switchable = getattr(model, "_supports_attention_backend", False)
        self.model = private_copy(model, {"eager": EAGER}, FUSED if switchable else EAGER)
        model = self.model
        self.device = next(model.get_input_embeddings().parameters()).device
        self.parameters = frozenset(inspect.signature(model.forward).parameters)
        self.cache_argument = cache_argument(self.parameters) or CACHE_ARGUMENT
        self.selects = "logits_to_keep" in self.parameters
        self.captures = OutputCapture(model, model.config.get_text_config().num_hidden_layers)

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which the model computes: that of its weights."""
        return self.model.dtype

    @property
    def shares_keys(self) -> bool:
        """Whether some layers store no keys and values and read those of earlier layers."""
        return len(self.planes.of_layer) < self.captures.num_layers

    @torch.no_grad()
    def probe(self) -> None:
        """Run one token through the model to determine the shapes of its keys and values and whether its
        layers call our attention function. ValueError if it stores nothing in the cache."""
        probe, token = self.trial_cache(), torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        with self.captures.capture(self.captures.first_layer, logits=True) as hidden:
            self.model(**self._arguments(token, token, probe))
        self.one_state = all(states.ndim == 3 for states in hidden.values())
        if not probe.shapes and not self.keeps_states:
            raise ValueError(
                f"{type(self.model).__name__} keeps no keys and values in the cache it is given: "
                "choose a model that transformers supports without remote code"
            )
        self.planes = Planes.of(probe.shapes)
        # without position ids as input, a model numbers all tokens consecutively: one row per forward
        self.packs = probe.packs and "position_ids" in self.parameters and self._takes_tuples(token)
        self.dense = not probe.takes_masks

    def _takes_tuples(self, token: Tensor) -> bool:
        """Whether the layers accept keys and values from the cache as tuples with one tensor per row."""
        try:
            self.model(**self._arguments(token, token, self.trial_cache(tuples=True)))
        except (AttributeError, TypeError):
            return False
        return True

    def one_token(self) -> dict[str, Any]:
        """The arguments of a forward of the model over one token that stores nothing."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self._arguments(token, token, self.trial_cache())

    def trial_cache(self, *, tuples: bool = False) -> ProbeCache:
        """A KV cache for one forward, which stores nothing."""
        return ProbeCache(tuples=tuples)

    def _arguments(self, ids: Tensor, positions: Tensor, cache: Any) -> dict[str, Any]:
        arguments = {"input_ids": ids, self.cache_argument: cache, "use_cache": True, "return_dict": True}
        if "position_ids" in self.parameters:
            arguments["position_ids"] = positions
        return arguments

    def _unusual_arguments(self, inputs: ForwardInputs, request: ForwardRequest) -> dict[str, Any]:
        """The arguments for embeddings, or for position ids that do not follow from cache positions.
        ValueError if the model does not take them."""
        name, config = type(self.model).__name__, self.model.config.get_text_config()
        ids = inputs.position_ids()
        sections = (getattr(config, "rope_parameters", None) or {}).get("mrope_section")
        if ids.ndim > 1 and len(ids) != len(sections or ()):
            raise ValueError(
                f"{name} has position ids of {len(sections or ' ')} axis or axes, not of {len(ids)}: use a "
                "model with multimodal rotary embeddings"
            )
        if "position_ids" not in self.parameters:
            raise ValueError(f"{name} takes no position ids: its tokens stand at their cache positions")
        tokens = request.tokens.to(self.device)
        arguments = self._arguments(tokens[None], ids[:, None] if ids.ndim > 1 else ids[None], inputs)
        if request.embeds is not None:
            if "inputs_embeds" not in self.parameters or getattr(config, "hidden_size_per_layer_input", 0):
                raise ValueError(f"{name} reads token ids: no embeddings can take their place")
            del arguments["input_ids"]
            arguments["inputs_embeds"] = request.embeds[None].to(self.device)
        return arguments

    def open(self, slots: int, capacity: int) -> EagerCache:
        """A new KV cache with `slots` slots of `capacity` cache positions each, draft nodes included. With
        capacity 0 a slot grows with its text."""
        return self.cache_type(self.planes, slots, capacity, self.device, in_8_bits=self.cache_in_8_bits)

    def view(self, cache: Cache, kept: Sequence[int]) -> EagerView:
        """A view of a target's KV cache for this model, which consists of layers of that target."""
        if isinstance(cache, EagerCache):
            return EagerView(cache)
        raise ValueError(OWN_CACHE)

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        """Run the request in one forward if possible, else in one forward for each row."""
        assert isinstance(cache, EagerCache)
        if request.after is not None:
            return self._layers_after(request.after).read(replace(request, after=None), cache)
        if len(request.rows) == 1 or self.packs:
            dense = self.dense and len(request.rows) == 1
            inputs = ForwardInputs(cache, request.rows, attention=request.want.attention, dense=dense)
            return self._run(inputs, request)
        return ForwardOutputs.joined([self.read(row, cache) for row in request.by_row()])

    def _layers_after(self, layer: int) -> Forward:
        if layer not in self._after:
            self._after[layer] = ForwardAfter(self, layer)
        return self._after[layer]

    def _run(self, inputs: ForwardInputs, request: ForwardRequest) -> ForwardOutputs:
        tokens, want, nodes, logits = request.tokens, request.want, request.nodes, request.logits
        if tokens.device != self.device:
            tokens = tokens.to(self.device)
        if not self.one_state and want.hidden - {-1}:
            raise ValueError(
                f"the layers of {type(self.model).__name__} have several states per token: choose a method "
                "that reads no outputs of layers"
            )
        if request.is_plain:
            arguments = self._arguments(tokens[None], inputs.positions()[None], inputs)
        else:
            arguments = self._unusual_arguments(inputs, request)
        if request.features is not None:
            arguments["features"] = request.features[None]
        keep = _kept(inputs.rows, nodes)
        if self.selects:
            arguments["logits_to_keep"] = EVERY if keep is None else keep
        if keep is None and logits and not want.hidden and not want.attention:
            return ForwardOutputs(self.model(**arguments).logits[0])
        if want.attention and inputs.dense:
            arguments["output_attentions"] = True
        with self.captures.capture(want.hidden, logits) as hidden:
            output = self.model(**arguments)
        selected = {
            layer: states[0] if keep is None or (layer == -1 and self.selects) else states[0, keep]
            for layer, states in hidden.items()
        }
        scores = output.logits[0] if logits else None
        if scores is not None and keep is not None and not self.selects:
            scores = scores[keep]
        attention: dict[int, list[Tensor]] = {}
        for layer in sorted(want.attention):
            weights = [output.attentions[layer][0]] if inputs.dense else inputs.weights[layer]
            rows = zip(weights, inputs.rows, nodes, strict=True)
            attention[layer] = [node for part, row, num in rows for node in per_node(part, row, num)]
        return ForwardOutputs(scores, selected, attention)


def _kept(rows: list[RowInputs], nodes: list[int]) -> Tensor | None:
    """Indices of the last `nodes[i]` tokens of each row i among the tokens of all rows; None: all tokens."""
    if len(rows) == 1:
        read, num = rows[0].end - rows[0].start, nodes[0]
        return None if read == num else torch.arange(read - num, read)
    if all(row.end - row.start == num for row, num in zip(rows, nodes, strict=True)):
        return None
    kept, end = [], 0
    for row, num in zip(rows, nodes, strict=True):
        end += row.end - row.start
        kept += range(end - num, end)
    return torch.tensor(kept)


class ForwardAfter(Forward):
    """The layers after `layer` and the LM head, which read `features`: the outputs of that layer."""

    def __init__(self, whole: Forward, layer: int) -> None:
        """`whole`: the forwards of the whole model, on the same KV cache."""
        skipped = SkipSet.of_layers(range(layer + 1))
        check_sharing(whole, skipped)
        super().__init__(whole.original)
        skip(self.model, skipped, self.one_token())
        self.planes, self.packs, self.dense = whole.planes, whole.packs, whole.dense
        self._layer = layer

    def _run(self, inputs: ForwardInputs, request: ForwardRequest) -> ForwardOutputs:
        features = request.features
        assert features is not None

        def replaced(module: nn.Module, arguments: Any, output: Any) -> Any:
            states = features[None]
            return (states, *output[1:]) if isinstance(output, tuple) else states

        hook = self.captures.layer(self._layer).register_forward_hook(replaced)
        try:
            return super()._run(inputs, replace(request, features=None))
        finally:
            hook.remove()
