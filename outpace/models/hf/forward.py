"""Forwards of a transformers model over rows of a KV cache: one for all rows if the model permits it, else
one per row.

Letters: N tokens, V vocabulary size, D hidden size.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.core.contracts import Want
from outpace.models.cache_argument import CACHE_ARGUMENT, cache_argument
from outpace.models.hf.attention import EAGER, FUSED
from outpace.models.hf.captures import OutputCapture, per_node
from outpace.models.hf.contiguous_cache import ContiguousCache
from outpace.models.hf.forward_inputs import ForwardInputs, RowInputs
from outpace.models.hf.forward_outputs import ForwardOutputs
from outpace.models.hf.kv_cache import EagerCache, Planes, SlotCache
from outpace.models.hf.private_copy import private_copy
from outpace.models.hf.probe import ProbeCache

# `logits_to_keep` for the logits of all tokens. 0 means the same to transformers, but given a number Gemma 4
# slices the attention masks before its layers that share keys and values, and the masks that outpace passes
# (`RowMasks`) cannot be sliced.
EVERY = slice(None)


class Forward:
    """Runs a private copy of a model, with our attention functions, over rows of a KV cache."""

    # whether a layer's output is one vector per token; found by `probe`
    one_state = True
    keeps_states = False  # whether layers are recurrent: drafts are chains, and no layer can be skipped
    cache_type = ContiguousCache  # of the KV caches that forwards read and write

    def __init__(self, model: PreTrainedModel) -> None:
        switchable = getattr(model, "_supports_attention_backend", False)
        self.model = private_copy(model, {"eager": EAGER}, FUSED if switchable else EAGER)
        model = self.model
        self.device = next(model.get_input_embeddings().parameters()).device
        self.parameters = frozenset(inspect.signature(model.forward).parameters)
        self.cache_argument = cache_argument(self.parameters) or CACHE_ARGUMENT
        self.selects = "logits_to_keep" in self.parameters
        self.captures = OutputCapture(model, model.config.get_text_config().num_hidden_layers)

    @property
    def shares_keys(self) -> bool:
        """Whether some layers read the keys and values of layers before them and store none."""
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
        """The arguments of a forward of the model over one token, which stores nothing."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self._arguments(token, token, self.trial_cache())

    def trial_cache(self, *, tuples: bool = False) -> ProbeCache:
        """A KV cache for one forward, which stores nothing."""
        return ProbeCache(tuples=tuples)

    def _arguments(
        self, ids: Tensor, positions: Tensor, cache: Any, features: Tensor | None = None
    ) -> dict[str, Any]:
        arguments = {"input_ids": ids, self.cache_argument: cache, "use_cache": True, "return_dict": True}
        if "position_ids" in self.parameters:
            arguments["position_ids"] = positions
        if features is not None:
            arguments["features"] = features
        return arguments

    def read(
        self,
        rows: list[RowInputs],
        nodes: list[int],
        tokens: Tensor,
        cache: SlotCache,
        want: Want,
        *,
        logits: bool,
        features: Tensor | None = None,
    ) -> ForwardOutputs:
        """Run the rows' tokens, concatenated in `tokens`, through the model, in one forward if possible;
        returns the outputs of the last `nodes[i]` tokens of row i. `features`: (N, D) of a draft head."""
        assert isinstance(cache, EagerCache)
        if len(rows) == 1:
            return self._read_row(rows[0], nodes[0], tokens, cache, want, logits, features)
        if self.packs:
            inputs = ForwardInputs(cache, rows, attention=want.attention)
            return self._run(inputs, nodes, tokens, want, logits, features)
        sizes = [row.end - row.start for row in rows]
        split = [None] * len(rows) if features is None else features.split(sizes)
        parts = zip(rows, nodes, tokens.split(sizes), split, strict=True)
        return ForwardOutputs.joined(
            [self._read_row(row, num, part, cache, want, logits, own) for row, num, part, own in parts]
        )

    def _read_row(
        self,
        row: RowInputs,
        num: int,
        tokens: Tensor,
        cache: EagerCache,
        want: Want,
        logits: bool,
        features: Tensor | None,
    ) -> ForwardOutputs:
        inputs = ForwardInputs(cache, [row], attention=want.attention, dense=self.dense)
        return self._run(inputs, [num], tokens, want, logits, features)

    def _run(
        self,
        inputs: ForwardInputs,
        nodes: list[int],
        tokens: Tensor,
        want: Want,
        logits: bool,
        features: Tensor | None,
    ) -> ForwardOutputs:
        if tokens.device != self.device:
            tokens = tokens.to(self.device)
        if not self.one_state and want.hidden - {-1}:
            raise ValueError(
                f"the layers of {type(self.model).__name__} have several states per token: choose a method "
                "that reads no outputs of layers"
            )
        states = None if features is None else features[None]
        arguments = self._arguments(tokens[None], inputs.positions()[None], inputs, states)
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
