"""The reasoning that a model writes before its answer."""
