"""Engines of other projects, in processes of their own, beside the methods of `outpace bench`."""
