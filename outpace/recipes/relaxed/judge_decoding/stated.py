"""What one step of Judge Decoding adds to a text, computed from the models' outputs after whole texts."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.core.contracts import ReferenceRequest, Target
from outpace.drafters.model.plain_drafts import PlainChains, hidden_after
from outpace.models.predictors.judge.predictor import JudgePredictor

Path = tuple[int, ...]


class JudgedSteps:
    """Implementation of core.contracts.StepReference: along the draft, the probability that the target
    chooses another token than one that the judge does not find right."""

    description = "the draft model wherever a trained judge finds its tokens right (Judge Decoding)"

    def __init__(self, target: Target, draft: PlainChains, judge: JudgePredictor, threshold: float) -> None:
        self._target, self._draft, self._judge, self._threshold = target, draft, judge, threshold

    def step(self, text: Path, limit: int, request: ReferenceRequest) -> Iterator[tuple[float, Path]]:
        weight, accepted = 1.0, Path()
        for path in self._draft(text, limit - 1, request):
            [right] = self._judge.right(hidden_after(self._target, (*text, *path))[None])
            if not right > self._threshold:
                probs = request.probs((*text, *accepted)).tolist()
                for token, prob in enumerate(probs):
                    if prob and token != path[-1]:
                        yield weight * prob, (*accepted, token)
                weight *= probs[path[-1]]
                if not weight:
                    return
            accepted = path
        for token, prob in enumerate(request.probs((*text, *accepted)).tolist()):
            if prob:
                yield weight * prob, (*accepted, token)
