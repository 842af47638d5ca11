"""The configuration of one layer of a transformers model, where its layers differ."""

from __future__ import annotations

from typing import Any


def last_layer(config: Any) -> Any:
    """The text configuration of the last layer.

    In some models, such as Gemma 4, sizes of attention heads or MLPs differ between layers, and transformers
    raises an error if they are read from the configuration of the whole model. Any other object is returned
    unchanged."""
    if not getattr(config, "is_heterogeneous", False):
        return config
    return config.per_layer_config[config.num_hidden_layers - 1]
