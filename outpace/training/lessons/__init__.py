"""What each kind of drafter learns from a batch of texts."""
