"""The configuration of one layer of a transformers model, where its layers differ."""

from __future__ import annotations

from typing import Any


def last_layer(config: Any) -> Any:
    """A text configuration as the last layer of the model has it.

    In some models, such as Gemma 4, sizes of attention heads or MLPs differ between layers, and transformers
    raises an error if they are read from the configuration of the whole model. Other configurations, and
    objects that are none, are returned unchanged."""
    if not getattr(config, "is_heterogeneous", False):
        return config
    return config.per_layer_config[config.num_hidden_layers - 1]
