"""Methods that accept more than the target's distribution allows, and state what they give instead."""
