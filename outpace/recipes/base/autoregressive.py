"""Autoregressive decoding: one token per forward, the baseline of every comparison.

New here: nothing. Reuses: NoDraft, Match, Fixed. Exact by definition.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.verifiers.match import Match


@recipe(paper="the baseline", family="base")
def autoregressive(target: Target) -> Parts:
    """Plain decoding: no draft, one token per forward of the target."""
    return Parts(target, NoDraft(), Match(), Fixed(0))
