"""A target with fewer sub-layers as its own draft model, on the target's KV cache."""
