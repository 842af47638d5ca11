"""The types of the fields in the configurations of all kinds of draft heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from outpace.models.heads.formats.files import CONFIG, HeadFileError

LARGEST = 1 << 24  # largest size or number of layers or tokens


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _size(value: Any) -> bool:
    return _whole(value) and value > 0


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30 and isfinite(value) and value > 0


def _flag(value: Any) -> bool:
    return type(value) in (bool, int) and value in (0, 1)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _layers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


# (description of valid values, check of a value, names of the fields)
KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        f"a whole number from 1 to {LARGEST}",
        _size,
        "hidden_size target_hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings vocab_size draft_vocab_size emb_dim n_predict exit_dim hydra_num_heads "
        "hydra_num_layers num_aux_hidden_states num_masks num_mlps block_size num_target_layers",
    ),
    (
        f"a whole number from 0 to {LARGEST}",
        _whole,
        "num_hidden_layers num_draft_layers inner_dim mask_token_id num_groups num_active_groups markov_rank",
    ),
    ("a number above 0", _number, "rms_norm_eps rope_theta logit_scale factor partial_rotary_factor"),
    (
        "true or false",
        _flag,
        "attention_bias mlp_bias bias norm_before_residual norm_before_fc fc_norm norm_output rnn "
        "tie_weights scale_input grounded_heads causal sliding_window_non_causal sample_from_anchor "
        "dspark_bonus_anchor enable_confidence_head confidence_head_with_markov",
    ),
    (
        "an object",
        lambda value: isinstance(value, dict),
        "transformer_layer_config eagle_config dflash_config rope_scaling rope_parameters",
    ),
    (
        "a list of numbers of layers",
        _layers,
        "eagle_aux_hidden_state_layer_ids aux_hidden_state_layer_ids target_layer_ids",
    ),
    ("a list of names", _texts, "architectures"),
    (
        "a text",
        lambda value: isinstance(value, str),
        "model_type speculators_model_type hidden_act hydra_head_arch rope_type type markov_head_type",
    ),
)
FIELDS = {name: (phrase, accepts) for phrase, accepts, names in KINDS for name in names.split()}
NESTED = ("transformer_layer_config", "eagle_config", "dflash_config", "rope_scaling", "rope_parameters")


def check_fields(config: Mapping[str, Any], folder: Path, within: str = "") -> None:
    """HeadFileError, which names file and field, for a field of a wrong type or value. Fields that are null
    count as absent."""
    for name, value in config.items():
        if value is None or name not in FIELDS:
            continue
        phrase, accepts = FIELDS[name]
        if not accepts(value):
            raise HeadFileError(
                f"{folder / CONFIG} has {within}{name} {value!r:.40}, but it is {phrase}: restore that file"
            )
        if name in NESTED:
            check_fields(value, folder, f"{within}{name}.")
