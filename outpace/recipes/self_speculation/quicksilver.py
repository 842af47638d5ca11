"""QuickSilver (Khanna et al. 2025): tokens that no longer change leave out the target's later layers.

New here: a forward (models/slim) in which single tokens skip the target's later layers. After a layer a token
halts: it keeps its hidden state, if the layer hardly changed that state and the next token is nearly certain.
Halted tokens have no keys and values in later layers. A token whose hidden state is close to that of the
token before it takes that token's output (fusion). Activations can be rounded to fewer bits for tokens that
are more certain. Reuses: NoDraft, Match, Fixed; as a drafter DraftModel, SelfDraft, Rejection. LOSSY: the
output has the distribution of this approximation, which `Parts.reference` computes from its definition. EXACT
with `role` drafter: the approximation drafts on the target's KV cache, and the whole target verifies, at any
temperature.

The paper gives no thresholds. The defaults were chosen on the package's target and 22 pieces of Python's
standard library, whose perplexity rises from 18.94 to 19.10 with them; 1.3 % of the layers' work is left out,
less than the entropies cost: this model's tokens are certain late. `python -m benchmarks.quicksilver`
finds the thresholds of a target of your own. The paper reports 30 to 40 % with GPT-2 and Llama 2.

What differs from the paper: a fused token takes the outputs of the one before it, whereas the paper puts the
mean of both states in the place of both. While decoding, the token before has run through all layers when the
next one is known, so that a mean could neither save that run nor change what was generated from it; running
the mean saves nothing either. Tokens of the prompt halt too, and later tokens no longer find them in later
layers: all tokens are treated alike, so that the output does not depend on the parts in which a text is read,
nor on what was prompt in an earlier turn. The LM head tests the entropy only of tokens that passed the other
test. Bits are simulated by rounding, which saves nothing. Not for compiled targets.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.slim.make import num_layers, with_savings
from outpace.models.slim.savings import Savings
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2506.22396",
    family="self-speculation",
    guarantee=Guarantee.LOSSY,
    exact_with={"drift": 0.0, "fusion": 0.0, "quantize": False},
    proven_with={"drift": 100.0, "entropy": 0.9},
)
def quicksilver(
    target: Target,
    *,
    role: Literal["target", "drafter"] = "target",
    first_layer: int | None = None,
    drift: float = 0.2,
    entropy: float = 0.25,
    fusion: float = 0.2,
    skip_kv: bool = True,
    quantize: bool = False,
    depth: int = 4,
) -> Parts:
    """The target with fewer layers for tokens that do not need them.

    Args:
        role: target: the approximation is decoded, LOSSY; drafter: it drafts and the target verifies, EXACT
        first_layer: layers that compute every token; none: half of the target's
        drift: a token halts when a layer changed its state by less than this share; 0: none halts
        entropy: and when the entropy of its prediction there is below this, in nats
        fusion: a token is fused with the one before if their states differ by less than this share; 0: off
        skip_kv: no keys and values of halted and fused tokens in later layers; false computes them
        quantize: activations of later layers with 2, 4 or 8 bits by the entropy of the prediction
        depth: tokens drafted per step, with role drafter
    """
    layers = num_layers(target)
    first = max(1, layers // 2) if first_layer is None else first_layer
    savings = Savings(first, drift, entropy, fusion, skip_kv, quantize)
    model, reference = with_savings(target, savings)
    if role == "drafter":
        return Parts(target, SelfDraft(DraftModel(model)), Rejection(), Fixed(depth))
    return Parts(model, NoDraft(), Match(), Fixed(0), reference if savings.any else None)
