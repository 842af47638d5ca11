"""Methods with a trained draft head, which continues the target's hidden states."""
