"""Plain decoding and speculative sampling."""
