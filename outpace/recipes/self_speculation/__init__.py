"""Drafts of the target itself, with fewer of its layers."""
