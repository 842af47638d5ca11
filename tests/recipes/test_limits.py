"""What every method does with a target that reads chains only, and with a draft model that gives NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

from outpace import recipes
from outpace.core.context import SamplingParams
from outpace.core.contracts import NOTHING, Cache, Carry, Parts, Scores, Want
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.models import Models, tables
from outpace.recipes._option_kinds import kinds_in
from outpace.sampling.target_probs import LazyTargetProbs
from tests.needed_kinds import needed_kind
from tests.tiers import of_families

VOCAB = 4
OPENED = ("head", "arms", "predictor", "judge", "anchors", "reflection")
PIECES = [b"a", b"b", b"c", b"ab"]
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]


class ChainTarget(TableTarget):
    """A target that refuses trees."""

    chains_only = True

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        assert tree.forest.is_chain
        return super().score(tree, slots, cache, want, gap=gap)


FIXTURES: list[Models] = []


def draft_options(name: str, draft: TableTarget) -> dict[str, object]:
    """The draft model that this recipe requires, or may take."""
    options = recipes.get(name).options
    if "drafts" in options:
        return {"drafts": (draft, draft)}
    if "draft" not in options:
        return {}
    vocabulary = Vocabulary.longest_match(PIECES)
    crossed = recipes.wants_cross_vocabulary(recipes.get(name), "draft")
    found = {"draft": CrossVocabularyDraft(draft, vocabulary, vocabulary) if crossed else draft}
    return found | ({"middle": draft} if "middle" in options else {})


def opened_options(name: str, target: TableTarget, draft: TableTarget) -> dict[str, object]:
    """Untrained draft heads or a predictor, or a file, for this recipe, if it requires them; methods, if it
    chooses among several."""
    hints = get_type_hints(recipes.get(name).build)
    opened = {o: kind for o in OPENED if (kind := needed_kind(hints.get(o)))}
    models = replace(tables(), target=target, drafts=(draft,))
    FIXTURES.append(models)  # its files are removed with it
    found = {option: kind.fixture(models) for option, kind in opened.items()}
    if "heads" in hints:
        [kind] = kinds_in(hints["heads"])
        assert kind.several is not None
        found["heads"] = kind.several(models)
    return found


def decode(parts: Parts, temperature: float, generated: list[int] | None = None) -> list[int]:
    """The generated tokens; also appended to `generated`, which has those before an error."""
    params = SamplingParams(temperature, max_tokens=24, seed=5)
    session = Session(parts, [torch.tensor(PROMPT)], [params], LazyTargetProbs)
    generated = [] if generated is None else generated
    for step in session.steps():
        if step.scores.logits is not None:
            generated += step.generated[0]
    return generated


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", of_families(recipes.names()))
def test_a_target_that_reads_chains_gets_chains_or_the_method_refuses_at_once(
    name: str, temperature: float
) -> None:
    target = ChainTarget(VOCAB, seed=1)
    generated: list[int] = []
    draft = TableTarget(VOCAB, seed=2)
    options = draft_options(name, draft) | opened_options(name, target, draft)
    try:
        parts = recipes.get(name).build(target, **options, **recipes.get(name).exact_with)
        decode(parts, temperature, generated)
    except ValueError as error:
        assert not generated, "refused after tokens were generated"
        assert "chains" in str(error) and (temperature or name in ("lookahead", "stand"))
        return
    assert len(generated) == 24
    if temperature == 0:
        plain = decode(recipes.get("autoregressive").build(TableTarget(VOCAB, seed=1)), 0.0)
        assert generated == plain


@pytest.mark.parametrize("name", ["clasp", "del-decoding", "layerskip", "quicksilver", "swift"])
def test_methods_that_leave_out_layers_send_a_target_of_one_layer_to_a_draft_model(name: str) -> None:
    target = TableTarget(VOCAB)
    target.num_layers = 1
    with pytest.raises(ValueError, match="a target of one layer .*: use a draft model"):
        recipes.get(name).build(target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "name", of_families(name for name in recipes.names() if draft_options(name, TableTarget(VOCAB)))
)
def test_a_draft_model_that_gives_nan_is_named(name: str, temperature: float) -> None:
    draft = TableTarget(VOCAB, seed=2)
    draft.logits = torch.full_like(draft.logits, float("nan"))
    target = TableTarget(VOCAB, seed=1)
    options = draft_options(name, draft) | opened_options(name, target, draft)
    parts = recipes.get(name).build(target, **options)
    with pytest.raises(ValueError, match="the draft model gave NaN"):
        decode(parts, temperature)
