"""Requests that are decoded together: what `generate`, `hf`, the server, measurements and proofs share."""
