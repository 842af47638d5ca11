"""How often draft tokens are accepted, by request."""

from __future__ import annotations

from collections.abc import Sequence

PRIOR_RATE, PRIOR_TOKENS = 0.7, 4.0  # assumed before anything was measured, and its weight in tested tokens
SHARED_TOKENS = 8.0  # weight of the rate of all requests in that of one, in tested tokens
KEEP_ALL = 0.998  # share of the evidence of all requests that is kept per step of a request
KEEP_OWN = 0.95  # share of the evidence of a request that is kept per step with a draft
KEEP_UNUSED = 0.99  # the same per step without a draft


class AcceptanceRates:
    """Per request the probability that a draft token is accepted if those before it in the draft were.

    Its estimate is accepted tokens over tested tokens. The tokens after a rejected one, and the siblings
    after an accepted one, were not tested: nothing is known of them. A request begins with the rate of all
    requests, and returns to it slowly while nothing is drafted for it, so that it is tried again.
    """

    def __init__(self) -> None:
        self._accepted, self._tested = PRIOR_RATE * PRIOR_TOKENS, PRIOR_TOKENS
        self._own: dict[int, tuple[float, float, float]] = {}  # slot -> accepted, tested, share drafted

    def rate(self, slot: int) -> float:
        """The acceptance rate of the request in this slot."""
        accepted, tested, _ = self._own.get(slot, (0.0, 0.0, 1.0))
        shared = self._accepted / self._tested
        return (accepted + SHARED_TOKENS * shared) / (tested + SHARED_TOKENS)

    def share_drafted(self, slot: int) -> float:
        """Draft tokens per planned draft token: a drafter may find nothing to draft."""
        return self._own[slot][2] if slot in self._own else 1.0

    def record(self, slot: int, planned: int, drafted: int, tested: int, accepted: int) -> None:
        """Add a step of a request: number of draft tokens planned (at least 1), drafted, tested and
        accepted."""
        own_accepted, own_tested, share = self._own.get(slot, (0.0, 0.0, 1.0))
        share = KEEP_OWN * share + (1 - KEEP_OWN) * min(1.0, drafted / planned)
        if drafted:
            own_accepted, own_tested = own_accepted * KEEP_OWN + accepted, own_tested * KEEP_OWN + tested
            self._accepted = self._accepted * KEEP_ALL + accepted
            self._tested = self._tested * KEEP_ALL + tested
        self._own[slot] = own_accepted, own_tested, share

    def skip(self, slot: int) -> None:
        """Add a step of a request for which no draft was planned."""
        if slot in self._own:
            accepted, tested, share = self._own[slot]
            share = 1 - KEEP_UNUSED * (1 - share)
            self._own[slot] = accepted * KEEP_UNUSED, tested * KEEP_UNUSED, share

    def release(self, slots: Sequence[int]) -> None:
        """Forget these requests; what they taught about all requests stays."""
        for slot in slots:
            self._own.pop(slot, None)
