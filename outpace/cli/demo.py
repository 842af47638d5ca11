"""`outpace demo`: see it work on the models in the package, offline and in under a minute."""

from __future__ import annotations

from outpace.cli.failures import Debug, plainly


@plainly
def demo(debug: Debug = False) -> None:
    """See it work on the models in the package."""
    raise ValueError("not yet")
