"""What one step of SPRINTER adds to a text, computed from the models' outputs after whole texts."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.core.context import longest_draft
from outpace.core.contracts import ReferenceRequest, Target
from outpace.drafters.model.plain_drafts import HIDDEN, scores_after
from outpace.models.predictors.predictor import StatePredictor

Path = tuple[int, ...]


class SprinterSteps:
    """Implementation of core.contracts.StepReference: every draft with its probability, and for each what
    the target's test of its last token gives."""

    description = "drafts of which the target tests the last token only (SPRINTER)"

    def __init__(self, draft: Target, predictor: StatePredictor, depth: int, threshold: float) -> None:
        self._draft, self._predictor, self._depth, self._threshold = draft, predictor, depth, threshold

    def step(self, text: Path, limit: int, request: ReferenceRequest) -> Iterator[tuple[float, Path]]:
        most = min(self._depth, limit - 1, longest_draft(self._draft.max_length, len(text)))
        if not most:
            yield from _each(request, text, (), 1.0)
        # drafts that go on, with their probabilities
        trusted: list[tuple[Path, float]] = [((), 1.0)] if most else []
        while trusted:
            path, weight = trusted.pop()
            before = (*text, *path)
            scores = scores_after(self._draft, before)
            assert scores.logits is not None
            q, p = request.probs_of(before, scores.logits[0]).tolist(), request.probs(before).tolist()
            left = [max(own - other, 0.0) for own, other in zip(p, q, strict=True)]
            for token, share in enumerate(q):
                if not share:
                    continue
                longer = (*path, token)
                is_last = len(longer) == most or token in request.sampling.stop
                if not is_last and self._trusts((*text, *longer)):
                    trusted.append((longer, weight * share))
                    continue
                accepted = min(1.0, p[token] / share)
                if accepted:
                    yield from _each(request, text, longer, weight * share * accepted)
                if accepted < 1:
                    rejected = weight * share * (1 - accepted) / sum(left)
                    yield from ((rejected * each, (*path, other)) for other, each in enumerate(left) if each)

    def _trusts(self, text: Path) -> bool:
        hidden = scores_after(self._draft, text, HIDDEN).hidden[-1]
        return self._predictor.probs(hidden)[0] > self._threshold


def _each(request: ReferenceRequest, text: Path, path: Path, weight: float) -> Iterator[tuple[float, Path]]:
    """The draft `path` with every token that the target may add to it."""
    for token, prob in enumerate(request.probs((*text, *path)).tolist()):
        if prob:
            yield weight * prob, (*path, token)
