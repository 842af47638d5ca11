"""Entropy adaptive decoding (Simonds 2025): a small model writes while its distributions are sure enough, and
the target where they are not; nothing is verified.

New here: Routing, the target of two models and the logits that it states. Reuses: NoDraft, Match, Fixed.
Each model has a KV cache of its own, and reads what the other has written in the forward in which it goes on.
The entropies are those of the model in use, before temperature, truncation and other sampling parameters, in
bits; the window is not emptied at a switch. The small model reads the prompt and writes at least `min_stay`
tokens.

Which model writes a token follows from prompt and text alone. It is kept with the KV caches; where a text is
read again after a preemption it is computed again, at the cost of a forward of each model over its stretches.
Requests share no KV entries of common prefixes. The log probability of a token is that of the model that
wrote it; those of prompt tokens are the small model's. With `tau` below 0 the target writes everything, and
the output has its distribution; with `tau` inf the small model does.

The paper sweeps `tau` from about 0.1 to 2; its other two values are not known for certain."""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.recipes.relaxed.ead.routed_target import RoutedTarget
from outpace.recipes.relaxed.ead.routing import Routing
from outpace.recipes.relaxed.ead.stated import RoutedLogits
from outpace.verifiers.match import Match


@recipe(
    paper="arXiv:2502.06833",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"tau": -1.0},
    proven_with={"window": 2, "min_stay": 1},
)
def ead(target: Target, *, draft: Target, tau: float = 1.0, window: int = 5, min_stay: int = 10) -> Parts:
    """A small model writes where it is sure, the target elsewhere.

    Args:
        draft: the small model; it has the same vocabulary
        tau: mean entropy in bits above which the target writes: -1 it writes all, inf the small model does
        window: tokens over whose entropies the mean is taken
        min_stay: least number of tokens that a model writes before the other one goes on
    """
    routing = Routing(tau, window, min_stay)
    if routing.is_exact:
        return Parts(target, NoDraft(), Match(), Fixed(0))
    model = RoutedTarget(draft, target, routing)
    return Parts(model, NoDraft(), Match(), Fixed(0), RoutedLogits(draft, target, tau, window, min_stay))
