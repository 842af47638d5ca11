"""The engine: requests of several owners get the texts that they get alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.row_error import NoTokenLeft, RowError
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.proof.decode_all import texts
from outpace.proof.models import tables, transformers_models
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

MODELS = tables()
LONG = SamplingParams(temperature=1.0, max_tokens=12)


def parts() -> Parts:
    return Parts(MODELS.target, DraftModel(MODELS.drafts[0]), Rejection(), Fixed(3))


def prompt(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def decode(engine: Engine[str]) -> dict[str, list[int]]:
    """The tokens of each owner."""
    found: dict[str, list[int]] = {}
    while (step := engine.step()) is not None:
        for new in engine.new_tokens(step):
            found.setdefault(new.owner, []).extend(step.generated[new.row])
            assert new.text[-len(found[new.owner]) :].tolist() == found[new.owner]
            assert new.finished == (new.owner not in engine.running.values())
    return found


def test_requests_join_between_steps_and_are_told_apart_by_their_owners() -> None:
    engine = Engine[str](parts())
    engine.add("a", prompt(0, 1), LONG)
    engine.step()
    engine.add("b", prompt(2), SamplingParams(temperature=1.0, max_tokens=5, seed=3))
    found = decode(engine)
    assert found["b"] == texts(parts(), [[2]], [SamplingParams(temperature=1.0, max_tokens=5, seed=3)])[0]
    assert engine.output(0) == texts(parts(), [[0, 1]], [LONG])[0]
    assert not engine.running and engine.step() is None


def test_a_cancelled_request_goes_on_where_it_was() -> None:
    engine = Engine[str](parts())
    slot = engine.add("a", prompt(0, 1), LONG)
    engine.step()
    state = engine.session.request(slot)
    assert engine.cancel(slot) == "a" and not engine.running and not engine.session.rows
    engine.add("b", prompt(1, 1, 1), LONG)
    later = engine.rejoin("a", state)
    decode(engine)
    assert engine.output(later) == texts(parts(), [[0, 1]], [LONG])[0]


def test_an_owner_whose_tokens_nobody_asks_for_runs_no_more() -> None:
    engine = Engine.of(parts(), [prompt(0), prompt(1)], [LONG, SamplingParams(max_tokens=1)])
    for _ in engine.steps():
        assert set(engine.running) >= set(engine.session.rows)
    assert not engine.running


def test_the_caller_ends_a_request() -> None:
    def done(owner: str, text: Tensor) -> bool:
        return owner == "short" and len(text) > 4

    engine = Engine[str](Parts(MODELS.target, NGram(2), Match(), Fixed(0)), done=done)
    engine.add("short", prompt(0), LONG)
    engine.add("long", prompt(0), LONG)
    found = decode(engine)
    assert len(found["short"]) == 4 and len(found["long"]) == 12


def test_a_prediction_is_drafted_first() -> None:
    [expected] = texts(parts(), [[0, 1]], [SamplingParams(max_tokens=9)])
    engine = Engine[str](parts(), predicts=True)
    engine.add("a", prompt(0, 1), SamplingParams(max_tokens=9), expected)
    engine.add("b", prompt(0, 1), SamplingParams(max_tokens=9))
    step = engine.step()
    assert step is not None
    predicted = {new.owner: list(new.predicted) for new in engine.new_tokens(step)}
    assert predicted == {"a": expected[:8], "b": []}
    decode(engine)
    assert engine.output(0) == engine.output(1) == expected


def test_a_prediction_that_nothing_would_draft_is_refused() -> None:
    engine = Engine[str](parts())
    with pytest.raises(ValueError, match="predicts=True"):
        engine.add("a", prompt(0), LONG, [1])


class Nothing:
    """A grammar that allows no token."""

    def allowed(self, text: Tensor, paths: Any) -> Tensor:
        return torch.zeros(len(paths), 3, dtype=torch.bool)


def test_an_error_of_one_request_ends_it_alone_where_the_caller_takes_it() -> None:
    failed: list[tuple[str, RowError]] = []
    given = SamplingParams(temperature=1.0, max_tokens=12, grammar=Nothing())
    engine = Engine[str](parts(), on_row_error=lambda owner, error: failed.append((owner, error)))
    engine.add("wrong", prompt(0), given)
    greedy = SamplingParams(max_tokens=12)  # the step is made again, with other random numbers
    slot = engine.add("right", prompt(0, 1), greedy)
    decode(engine)
    assert [owner for owner, _ in failed] == ["wrong"] and isinstance(failed[0][1], NoTokenLeft)
    assert engine.output(slot) == texts(parts(), [[0, 1]], [greedy])[0]
    with pytest.raises(NoTokenLeft):
        list(Engine.of(parts(), [prompt(0)], [given]).steps())


def test_prefixes_are_shared_where_the_cache_can() -> None:
    engine = Engine[str](parts())
    assert engine.share_prefixes() == (engine.prefix_cache is not None)
    assert not engine.share_prefixes(False) and engine.prefix_cache is None


@pytest.mark.parametrize("is_told", [True, False])
def test_after_a_change_of_the_targets_weights_no_entries_from_before_are_used(is_told: bool) -> None:
    """Requests in flight, and a later one that begins as one that has ended."""
    models = transformers_models()
    target: Any = models.target
    engine = Engine[str](Parts(target, DraftModel(models.drafts[0]), Match(), Fixed(2)))
    assert engine.share_prefixes()
    ended = [0, 1, 2, 3, 1, 2]
    engine.add("ended", prompt(*ended), SamplingParams(max_tokens=2))
    decode(engine)
    for owner, begin in (("a", 2), ("b", 3)):
        engine.add(owner, prompt(begin, 1, 1, begin), SamplingParams(max_tokens=24))
    engine.step()
    before = {owner: engine.session.request(slot).text() for slot, owner in engine.running.items()}
    with torch.no_grad():
        for layer in target.model.model.layers:
            layer.self_attn.v_proj.weight.mul_(-2.0)
    if is_told:
        engine.target_changed()
    engine.add("c", prompt(*ended), SamplingParams(max_tokens=12))
    found = decode(engine)
    wrong = 0
    for owner, text in {**before, "c": prompt(*ended)}.items():
        tokens = text.tolist()
        for token in found[owner]:
            with torch.no_grad():
                wrong += token != int(target.model(torch.tensor([tokens])).logits[0, -1].argmax())
            tokens.append(token)
    assert {len(before[owner]) + len(found[owner]) for owner in before} == {28}
    assert (wrong == 0) == is_told
