"""Draft heads: networks with one or a few layers that draft from the target's hidden states.

The entry of a head's KV cache at position t belongs to token t + 1 of the text: the head reads this token
together with the target's hidden states at token t, and its logits are for token t + 2. With a `feature_lag`
of 0 it belongs to token t, which is read together with the target's hidden states at itself.

Letters: R texts, N tokens, A nodes of one depth, D hidden size of the target, F size of a feature, K tokens
of the draft vocabulary, V vocabulary size of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outpace.core.contracts import TargetWithLayers
from outpace.models.cache_argument import CACHE_ARGUMENT
from outpace.models.layer_config import last_layer

MAX_POSITIONS = 1 << 20  # limit of a head where neither its configuration nor the target has one


class DraftHead(PreTrainedModel):
    """A head as a transformers model with one more input, `features`, so that it runs like a draft model.

    Subclasses set `layers`, `norm` and `lm_head` and combine features with embeddings. The target's embedding
    and, without weights of its own, its LM head are used in place, never changed or saved."""

    method: ClassVar[str]  # the method that drafts with the head
    # how many places the target's hidden states that a token is read with are before that token
    feature_lag: ClassVar[int] = 1
    # draft nodes attend to all nodes of their tree, also to those after them: a block is read in one forward
    two_way: ClassVar[bool] = False

    config_class = LlamaConfig
    _supports_attention_backend = True
    _supports_sdpa = True

    from_target: tuple[str, ...] = ("embed_tokens.",)  # prefixes of the names of the target's parameters
    before_forward: tuple[str, ...] = ()  # prefixes of the names of parameters that only `fuse` uses
    knows_tokens: ClassVar[bool] = False  # whether features depend on tokens too, by `with_tokens`
    layers: nn.ModuleList
    norm: nn.Module  # before the LM head
    lm_head: nn.Module
    draft_ids: Tensor | None

    def __init__(self, config: LlamaConfig, embed: nn.Module, taps: Iterable[int]) -> None:
        super().__init__(config)
        self.embed_tokens = embed
        self._target_embed = ref(embed)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        # layers of the target whose outputs at a token make its feature; -1: the input of the LM head
        self.taps = tuple(taps)
        # the head's own output that is the next token's feature while drafting, numbered as in `Want.hidden`
        self.state_layer = -1
        self.feature_size: int = config.hidden_size
        # of the slots that `mask_inputs` can fill; None: any number, or it has none
        self.num_masks: int | None = None
        # the first token of a two-way block gives logits too: those of the token after it
        self.drafts_at_root = False
        self.predicts_acceptance = False  # whether it has `acceptance`
        # the last levels that `tail` can draft without a forward, the nodes of a path that it reads, and the
        # output of the head that it reads at their parents
        self.tail_levels, self.tail_reads, self.tail_layer = 0, 1, -1
        self.apart_layer: int | None = None  # the output of the head that `apart` reads; None: it has none
        # (K,) token of each logit; None: all V tokens. A buffer, so that it is where the weights are
        self.register_buffer("draft_ids", None, persistent=False)
        # of the weights in the file, see models.heads.fingerprint; None: the head is from no file
        self.fingerprint: str | None = None

    def is_for(self, target: TargetWithLayers) -> bool:
        """Whether the head was made for this target."""
        return self._target_embed() is target.embed

    @property
    def own(self) -> dict[str, nn.Parameter]:
        """The parameters that are the head's own."""
        parameters = self.named_parameters()
        return {name: parameter for name, parameter in parameters if not name.startswith(self.from_target)}

    @property
    def logits_follow(self) -> bool:
        """Whether forwards return the LM head's input in place of logits, for `draft_logits`."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def fuse(self, hidden: Tensor) -> Tensor:  # (N, taps × D) -> (N, F)
        """The features of tokens from their concatenated hidden states in the target's layers `taps`. With
        `knows_tokens`, the part of them that follows from these (N, D)."""
        return hidden

    def embedded(self, ids: Tensor) -> Tensor:  # (...) -> (..., D)
        """The embeddings of tokens."""
        return self.embed_tokens(ids)

    def mask_inputs(self, count: int) -> tuple[Tensor, Tensor]:  # (count,), (F,)
        """What stands in `count` mask slots behind a token, in which a head that drafts several tokens in one
        forward gives their logits: token ids, and the feature of each slot. Drafted tokens, and with a lag of
        0 the root, whose hidden states are not known have this feature too."""
        raise NotImplementedError

    @property
    def drafts_in_masks(self) -> bool:
        """Whether the head drafts in mask slots, with `mask_inputs`."""
        return type(self).mask_inputs is not DraftHead.mask_inputs

    @property
    def block_levels(self) -> int:
        """The number of tokens that one two-way block drafts."""
        return (self.num_masks or 0) + self.drafts_at_root

    def given_tokens(self, logits: Tensor, tokens: Tensor) -> Tensor:  # (N, K), (N,) -> (N, K)
        """The logits after nodes of a block, from those that the forward gave for the level below each and
        from the nodes' own tokens, which the forward did not read."""
        return logits

    def acceptance(self, outputs: Tensor, tokens: Tensor) -> Tensor:  # (N, D), (N,) -> (N,)
        """The logarithm of the odds with which the token drafted after each node of a block is accepted if
        those before it are, from the input of the LM head for that token and from the node's own token. For
        heads with `predicts_acceptance`."""
        raise NotImplementedError

    def with_tokens(self, fused: Tensor, tokens: Tensor, before: Tensor) -> Tensor:  # (..., D) -> (..., F)
        """The features of tokens from what `fuse` returns for them, these tokens (...), and those before
        them; a text's first token stands before itself. For heads with `knows_tokens`."""
        return fused

    def tail(self, embedded: Tensor, states: Tensor, count: int) -> Tensor:
        """The inputs of the LM head (A, count, D) for the tokens 1, 2, ... `count` places behind A nodes,
        without a forward. `embedded` (A, n, D): the embeddings of the last n = `tail_reads` tokens up to each
        node; `states` (A, n, D): the head's outputs in layer `tail_layer` at the parents of these."""
        raise NotImplementedError

    def apart(self, states: Tensor) -> Tensor:  # (A, D) -> (E, A, D)
        """The inputs of the LM head of each of E experts alone, from the head's outputs in layer
        `apart_layer` at A nodes; the expert that counts most at a node comes first. For heads with
        experts."""
        raise NotImplementedError

    def levels_with_forwards(self, depth: int) -> int:
        """The number of levels of a draft of `depth` levels that are not drafted by `tail`."""
        return max(min(depth, self.tail_reads), depth - self.tail_levels)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:  # (R, N, D), (R, N, F)
        """The arguments of the head's decoder layers; one of them is `hidden_states`."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,  # (1, N)
        position_ids: Tensor,  # (1, N)
        cache: Any = None,
        features: Tensor | None = None,  # (1, N, F); None: zeros
        logits_to_keep: int | Tensor = 0,
        use_cache: bool = True,
        return_dict: bool = True,
    ) -> CausalLMOutputWithPast:
        embedded = self.embedded(input_ids)
        zeros = embedded.new_zeros(*input_ids.shape, self.feature_size)
        given = zeros if features is None else features.to(embedded.dtype)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embedded,
            attention_mask=None,
            position_ids=position_ids,
            **{CACHE_ARGUMENT: cache},
        )
        states = self.states(embedded, given, position_ids, mask, cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        normed = self.norm(states)[:, kept]
        return CausalLMOutputWithPast(logits=normed if self.logits_follow else self.lm_head(normed))

    def draft_logits(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:  # (N, ...) -> (N, K), (K,)
        """The logits from what a forward returned as such, and the token of each; None: all V tokens."""
        return outputs, self.draft_ids

    def states(
        self,
        embedded: Tensor,  # (R, N, D), the target's embeddings of the tokens of R texts
        features: Tensor,  # (R, N, F)
        position_ids: Tensor,  # (R or 1, N)
        mask: Any,  # attention mask, as transformers passes it to layers
        cache: Any,
    ) -> Tensor:  # (R, N, D)
        """The output of the last layer, before `norm`."""
        arguments = self.combined(embedded, features)
        states = arguments.pop("hidden_states")
        angles = self.rotary_emb(states, position_ids=position_ids)
        for layer in self.layers:
            states = layer(
                states,
                attention_mask=mask,
                position_ids=position_ids,
                position_embeddings=angles,
                **{CACHE_ARGUMENT: cache},
                **arguments,
            )
        return states


def head_config(target: TargetWithLayers, vocab: int, num_layers: int = 1) -> LlamaConfig:
    """The configuration of the decoder layers of a head with `vocab` logits: the widths in the configuration
    of the target's last layer, and the target's rotary frequencies without scaling."""
    size = int(next(target.embed.parameters()).shape[1])
    shape: dict[str, Any] = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4}
    model = getattr(target, "model", None)  # of transformers; table models have none
    own = last_layer(model.config.get_text_config()) if isinstance(model, PreTrainedModel) else None
    for name in (*shape, "intermediate_size", "rms_norm_eps", "max_position_embeddings"):
        value = getattr(own, name, None)
        if value is not None:
            # Gemma 3n has a list of the sizes of its layers
            shape[name] = value[-1] if isinstance(value, list | tuple) else value
    shape.setdefault("intermediate_size", 2 * size)
    shape.setdefault("max_position_embeddings", target.max_length or MAX_POSITIONS)
    if own is not None and getattr(own, "head_dim", None) is None:
        shape["head_dim"] = size // shape["num_attention_heads"]
    if rope := getattr(own, "rope_parameters", None):
        kinds = getattr(own, "layer_types", None) or ["full_attention"]
        # some targets have other frequencies in layers with a sliding window, but heads have no window
        rope = rope.get("full_attention") or rope.get(kinds[-1]) or rope
        shape["rope_parameters"] = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=size,
        num_hidden_layers=num_layers,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **shape,
    )


def make_ready(head: nn.Module, own: Mapping[str, nn.Parameter], weight: Tensor) -> None:
    """Bring a draft head into evaluation mode and to the device of `weight`, and its own parameters to the
    dtype of `weight`."""
    nn.Module.to(head, weight.device)  # buffers keep their dtype: rotary frequencies need float32
    for parameter in own.values():
        parameter.data = parameter.data.to(weight.dtype)
    head.eval()


def untrained(head: DraftHead, target: TargetWithLayers, seed: int, own: Iterable[nn.Module]) -> DraftHead:
    """The head with random weights in its modules `own`, with the dtype and on the device of the target's
    embedding."""
    weight, own = next(target.embed.parameters()), tuple(own)
    for module in own:
        module.to(weight)
    for module in (head.norm, head.rotary_emb):
        module.to(weight.device)
    head.norm.to(weight)
    if head.draft_ids is not None:
        head.draft_ids = head.draft_ids.to(weight.device)
    random_weights(seed, own)
    return head.eval()


def random_weights(seed: int, modules: Iterable[nn.Module]) -> None:
    """Draw the weights of the linear layers in `modules` from a seed, normally distributed with standard
    deviation 1 / sqrt(inputs); biases are zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for linear in (
            part for module in modules for part in module.modules() if isinstance(part, nn.Linear)
        ):
            linear.weight.copy_(
                torch.randn(linear.weight.shape, generator=generator) * linear.in_features**-0.5
            )
            if linear.bias is not None:
                linear.bias.zero_()
