"""Control and routing: which drafter drafts, and how much."""
