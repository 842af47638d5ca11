"""Benchmarks that compare decoding methods on the same prompts with the same seeds, their runs
interleaved."""
