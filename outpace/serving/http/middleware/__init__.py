"""Checks that every HTTP request passes before its route: key, rate, shutdown and size."""
