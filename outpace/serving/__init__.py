"""Serving: requests from many clients, decoded in one continuous session."""
