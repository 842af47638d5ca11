"""What methods cost whose output has another distribution than the target's: answers that are right, the loss
of their texts under the target, and their distance from what the target would write."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outpace.bench.measure.contender import Contender
from outpace.bench.measure.means import Mean, Total, difference_of_means, mean_of_totals
from outpace.bench.measure.run import Run, params_of
from outpace.bench.measure.text_quality import TextQuality, is_right, text_quality
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class Quality:
    """The quality of a contender's texts for some prompts. Intervals are over prompts."""

    right: int  # texts with the known answer
    answered: int  # texts for whose prompts an answer is known
    loss: Mean  # nats per token of the texts under the target, at temperature 1
    # at temperature 0: share of the tokens that are not the target's most probable ones after the text before
    # them; None: no text is of temperature 0
    unlike: Mean | None
    # at temperatures above 0: loss less that of plain decoding's texts for the same prompts and seeds; None:
    # no text is of such a temperature, or the contender is plain decoding
    excess: Mean | None

    def to_json(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "answered": self.answered,
            "loss": self.loss.to_json(),
            "unlike": self.unlike.to_json() if self.unlike else None,
            "excess": self.excess.to_json() if self.excess else None,
        }


def measured(contenders: Sequence[Contender], temperatures: Sequence[float]) -> set[tuple[str, float]]:
    """(Contender, temperature) of which texts are measured: contenders that do not promise the target's
    distribution, and plain decoding, the first contender, to compare with. None if all promise it."""
    changed = {(each.name, heat) for heat in temperatures for each in contenders if not each.lossless(heat)}
    return changed | {(contenders[0].name, heat) for _, heat in changed}


def with_quality(
    runs: Sequence[Run],
    wanted: Container[tuple[str, float]],  # (contender, temperature)
    target: Target,
    sampling: SamplingParams,
    tokenizer: Any,  # None: no answers are checked
    *,
    seed: int = 0,
) -> Iterator[Run]:
    """The runs, those that are wanted with the quality of their texts."""
    known: dict[tuple[str, float, tuple[int, ...]], TextQuality] = {}  # texts that came before
    for run in runs:
        if (run.contender, run.trial.temperature) not in wanted:
            yield run
            continue
        found = list[TextQuality]()
        rows = zip(run.trial.cases, run.outputs, params_of(run.trial, sampling, seed), strict=True)
        for case, output, params in rows:
            name = case.id, run.trial.temperature, output
            if name not in known:
                right = _right(tokenizer, output, case.answer)
                known[name] = text_quality(target, case.tokens, output, params, right)
            found.append(known[name])
        yield replace(run, quality=tuple(found))


def _right(tokenizer: Any, output: Sequence[int], answer: str | None) -> bool | None:
    if tokenizer is None or answer is None:
        return None
    return is_right(str(tokenizer.decode(output, skip_special_tokens=True)), answer)


def quality_of(pairs: Sequence[tuple[Run, Run]], *, seed: int = 0) -> Quality | None:
    """The quality of the first runs of these pairs, the second of which are plain decoding's; None if it was
    not measured."""
    kept = [pair for pair in pairs if pair[0].quality and pair[1].quality]
    if not kept:
        return None
    greedy, sampled = _by_prompt(kept, lambda heat: heat == 0), _by_prompt(kept, lambda heat: heat > 0)
    texts = _texts([run for run, _ in kept])
    unlike = [_total(runs, lambda text: text.unlike) for runs, _ in greedy]
    losses = [(_total(runs, _loss), _total(plain, _loss)) for runs, plain in sampled]
    is_plain = all(run is plain for run, plain in kept)
    return Quality(
        sum(text.right is True for text in texts),
        sum(text.right is not None for text in texts),
        mean_of_totals([_total(runs, _loss) for runs, _ in _by_prompt(kept)], seed=seed),
        mean_of_totals(unlike, seed=seed) if greedy else None,
        difference_of_means(losses, seed=seed) if sampled and not is_plain else None,
    )


def _by_prompt(
    pairs: Sequence[tuple[Run, Run]], at: Callable[[float], bool] = lambda heat: True
) -> list[tuple[list[Run], list[Run]]]:
    """For each prompt (at a batch size over 1: batch) the first and the second runs at these temperatures."""
    groups: dict[int, tuple[list[Run], list[Run]]] = {}
    for run, plain in pairs:
        if at(run.trial.temperature):
            runs, others = groups.setdefault(run.trial.index, ([], []))
            runs.append(run)
            others.append(plain)
    return list(groups.values())


def _texts(runs: Sequence[Run]) -> list[TextQuality]:
    return [text for run in runs for text in run.quality or ()]


def _loss(text: TextQuality) -> float:
    return text.loss


def _total(runs: Sequence[Run], value: Callable[[TextQuality], float]) -> Total:
    texts = _texts(runs)
    return sum(map(value, texts)), sum(text.tokens for text in texts)
