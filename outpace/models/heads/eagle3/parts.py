"""What the two layouts of EAGLE-3 share: options, names of tensors, and the numbers of layers.

A head reads the outputs of some of the target's decoder layers, and its files name them by number. Layers
counted from 0, the number k means the output of layer k - 1 in vLLM and speculators (0: the embedding), and
the output of layer k in SGLang and in `DraftHead.taps`. A head whose numbers are read in the wrong convention
loads without an error, but fewer of its drafts are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.formats.decoder_layer import read_layer
from outpace.models.heads.formats.draft_vocabulary import take_draft_ids
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors

IDS = "eagle_aux_hidden_state_layer_ids"
TRAINING_ONLY = ("verifier_lm_head.", "verifier_norm.")  # copies of the target's weights for training


@dataclass(frozen=True)
class Variant:
    """A kind of head with the layouts of EAGLE-3."""

    type: str  # in `speculators_model_type`
    architecture: str  # in the layout of speculators
    head_type: Callable[..., Eagle3Head]
    max_layers: int | None  # decoder layers that it may have; None: any number


EAGLE3 = Variant("eagle3", "Eagle3Speculator", Eagle3Head, 1)


@dataclass(frozen=True)
class Eagle3Options:
    """Options of a head, as both layouts name them."""

    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @staticmethod
    def read(config: Mapping[str, Any], tensors: Tensors, *, norm_before_residual: bool) -> Eagle3Options:
        """The options of a configuration; `norm_before_residual`: its value where the key is absent, which
        differs between layouts."""

        def flag(name: str, default: bool) -> bool:
            value = config.get(name)
            return default if value is None else bool(value)

        return Eagle3Options(
            norm_before_residual=flag("norm_before_residual", norm_before_residual),
            # older configurations lack these keys: a head with the norm's weights was trained with it
            norm_before_fc=flag("norm_before_fc", "input_norm.weight" in tensors),
            fc_norm=flag("fc_norm", "fc_norm.0.weight" in tensors),
            # absent: vLLM and SGLang feed back the output before the norm, SpecForge the normed output
            norm_output=flag("norm_output", False),
        )

    @staticmethod
    def of(head: Eagle3Head) -> Eagle3Options:
        """The options of a head."""
        return Eagle3Options(
            norm_before_residual=layer_of(head).norm_before_residual,
            norm_before_fc=head.input_norm is not None,
            fc_norm=head.fc_norm is not None,
            norm_output=head.state_layer == -1,
        )


def layer_of(head: Eagle3Head) -> Any:
    """The head's decoder layer, an `Eagle3Layer`."""
    return head.layers[0]


def vllm_ids(taps: Sequence[int]) -> list[int]:
    """The numbers of these layers in vLLM and speculators."""
    return [layer + 1 for layer in taps]


def taps_of_vllm(ids: Sequence[int]) -> list[int]:
    """Layers of `DraftHead.taps` with these numbers in vLLM and speculators."""
    return [int(number) - 1 for number in ids]


def default_ids(num_layers: int) -> list[int]:
    """The layers of a configuration that names none, as vLLM numbers them."""
    return [2, num_layers // 2, num_layers - 3]


def build(
    config: Mapping[str, Any],
    layer: Mapping[str, Any],  # configuration of the decoder layer
    tensors: Tensors,
    target: TargetWithLayers,
    taps: Sequence[int],
    options: Eagle3Options,
    variant: Variant,
) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to. HeadFileError if parts of the
    files contradict each other."""
    stored = {name: tensor for name, tensor in tensors.items() if not name.startswith(TRAINING_ONLY)}
    tensors = {_renamed(name): tensor for name, tensor in stored.items()}
    num = int(config.get("draft_vocab_size") or target.vocab)
    size = {"target_hidden_size": config.get("target_hidden_size")}
    own = read_layer({**size, **layer}, num, target, max_layers=variant.max_layers)
    # servers keep hidden states in the order of layers, whatever the order of the numbers
    taps = sorted(taps)
    _check_taps(config, layer, tensors, target, taps)
    draft_ids = take_draft_ids(tensors, num, target.vocab)
    qk_norm = layer.get("model_type") == "qwen3" or "layers.0.self_attn.q_norm.weight" in tensors
    try:
        head = variant.head_type(
            own,
            target.embed,
            taps,
            draft_ids=draft_ids,
            qk_norm=qk_norm,
            **asdict(options),
        )
    except ValueError as error:
        raise HeadFileError(str(error)) from error
    if "lm_head.weight" not in tensors and num == target.vocab:
        head.lm_head = target.head  # as SGLang does without a draft vocabulary
        head.from_target = ("embed_tokens.", "lm_head.")
    return head, tensors


def _renamed(name: str) -> str:
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _check_taps(
    config: Mapping[str, Any],
    layer: Mapping[str, Any],
    tensors: Tensors,
    target: TargetWithLayers,
    taps: Sequence[int],
) -> None:
    if taps and not 0 <= taps[0] <= taps[-1] < target.num_layers:
        if taps[0] == -1:
            raise HeadFileError("it reads the target's embedding as a layer, which is not supported")
        raise HeadFileError(
            f"it reads the outputs of layers {', '.join(map(str, taps))}, and the target has layers 0 to "
            f"{target.num_layers - 1}: give the target it was trained for, or correct {IDS}"
        )
    # vLLM takes the width of fc from this key, with 3 as the default
    num = layer.get("num_aux_hidden_states", config.get("num_aux_hidden_states"))
    if num is not None and int(num) != len(taps):
        raise HeadFileError(
            f"its config.json names {len(taps)} layers, and num_aux_hidden_states is {num}: correct one"
        )
    size = next(target.embed.parameters()).shape[1]
    if "fc.weight" in tensors and tensors["fc.weight"].shape[1] != len(taps) * size:
        raise HeadFileError(
            f"its fc.weight reads {tensors['fc.weight'].shape[1] / size:g} layers and its config.json names "
            f"{len(taps)}: correct {IDS}"
        )


def describe(head: Eagle3Head) -> Config:
    """The configuration keys that both layouts have in common."""
    assert isinstance(head.config, LlamaConfig)
    return {
        "draft_vocab_size": head.config.vocab_size,
        "target_hidden_size": head.config.hidden_size,
        # vLLM's numbers; sorted, since servers keep hidden states in the order of layers
        IDS: vllm_ids(head.taps),
        **asdict(Eagle3Options.of(head)),
    }


def weights(head: Eagle3Head) -> Tensors:
    """All tensors of a head except its embedding; its LM head is included even if it is the target's."""
    own: dict[str, nn.Parameter] = dict(head.named_parameters(remove_duplicate=False))
    return {name: parameter for name, parameter in own.items() if not name.startswith("embed_tokens.")}
