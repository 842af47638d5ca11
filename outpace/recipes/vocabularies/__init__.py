"""Methods for draft models whose vocabulary is not the target's."""
