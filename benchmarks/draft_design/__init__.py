"""Which draft model, and how many draft tokens (Yan et al. 2024): from measured times and acceptance."""
