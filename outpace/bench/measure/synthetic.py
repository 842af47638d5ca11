"""`synthetic:rate=0.6:depth=4` as a contender: a drafter without cost, each of whose tokens is correct with
probability `rate`.

It is not a decoding method, because it needs the output beforehand: it shows the engine's speed at a given
acceptance rate, and is never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outpace.bench.measure.contender import MethodContender, RunOutcome
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.no_draft import NoDraft
from outpace.drafters.synthetic import Synthetic
from outpace.recipes import Method
from outpace.verifiers.match import Match

NAME = "synthetic"
DEFAULTS = {"rate": 0.8, "depth": 4}


@dataclass
class SyntheticContender(MethodContender):
    """Decodes with drafts made from the output of plain decoding, which is generated first, untimed."""

    target: Target | None = None
    texts: dict[Any, list[list[int]]] = field(default_factory=dict[Any, "list[list[int]]"])

    @staticmethod
    def of(method: Method, target: Target) -> SyntheticContender:
        """The contender for a method named `synthetic`; ValueError for options other than rate and depth."""
        options = {**DEFAULTS, **method.options}
        if unknown := set(options) - set(DEFAULTS):
            raise ValueError(f"{NAME} has no option {min(unknown)}; it has rate and depth")
        nothing = Parts(target, NoDraft(), Match(), Fixed(0))
        return SyntheticContender(method.label, NAME, nothing, options, target=target)

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        assert self.target is not None
        name = tuple(
            (*prompt.tolist(), -1, repr(params)) for prompt, params in zip(prompts, sampling, strict=True)
        )
        if name not in self.texts:
            plain = MethodContender(self.name, self.method, self.parts).run(prompts, sampling)
            self.texts[name] = [
                [*prompt.tolist(), *text] for prompt, text in zip(prompts, plain.outputs, strict=True)
            ]
        drafter = Synthetic(self.texts[name], float(self.options["rate"]))
        parts = Parts(self.target, drafter, Match(), Fixed(int(self.options["depth"])))
        return MethodContender(self.name, self.method, parts).run(prompts, sampling)
