"""Small networks that predict whether the target will accept the tokens of a draft model."""
