"""Verifiers that accept more than the target's distribution allows, and the laws of their steps."""
