"""Methods without a trained draft: lookup in texts, indexes and earlier requests."""
