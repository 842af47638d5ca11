"""Tool calls in generated text, in the formats of several families of models."""
