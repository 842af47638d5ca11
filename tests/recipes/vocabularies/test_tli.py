"""Token-level intersection: the overlap of p with the draft's distribution on shared tokens, and nothing lost
of the others."""

from __future__ import annotations

import pytest
import torch

from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.vocabularies.slem import slem
from outpace.recipes.vocabularies.tli import tli

LETTERS = [b"a", b"b", b"c", b"d"]


def flat(*distribution: float) -> TableTarget:
    model = TableTarget(len(distribution), order=1)
    model.logits = (
        torch.tensor(distribution, dtype=torch.float64).log().expand(2 * len(distribution), -1).contiguous()
    )
    return model


def pair(model: TableTarget, theirs: list[bytes], ours: list[bytes]) -> CrossVocabularyDraft:
    return CrossVocabularyDraft(model, Vocabulary.longest_match(theirs), Vocabulary.longest_match(ours))


def test_acceptance_is_the_overlap_on_shared_tokens() -> None:
    # q of c and a is 0.2 and 0.3: renormalised 0.4 and 0.6; d is the draft's alone, b the target's
    target, model = flat(0.5, 0.4, 0.1), flat(0.2, 0.5, 0.3)
    cross_vocabulary = pair(model, [b"c", b"d", b"a"], [b"a", b"b", b"c"])
    found = expected_accepted(lambda: tli.build(target, draft=cross_vocabulary, depth=1), 1)
    assert found == pytest.approx(0.5 + 0.1, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_more_is_accepted_than_of_drafts_that_may_contain_any_token(seed: int) -> None:
    target, model = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 50, order=2)
    cross_vocabulary = pair(model, [b"c", b"x", b"a", b"d"], LETTERS)
    p = target.logits[target.state((0,))].softmax(0)
    q = model.logits[model.state(cross_vocabulary.translated(0))].softmax(0)
    own, match = cross_vocabulary.shared
    naive = float(torch.minimum(p[match], q[own]).sum())  # a token that the target lacks is refused
    assert expected_accepted(lambda: tli.build(target, draft=cross_vocabulary, depth=1), 1) > naive


def test_distribution_is_the_targets_when_two_tokens_spell_the_same() -> None:
    target = TableTarget(3, seed=1, order=2)
    cross_vocabulary = pair(TableTarget(4, seed=2, order=2), [b"b", b"a", b"b", b"x"], LETTERS[:3])
    cases = [Case((0, 1), SamplingParams(temperature=1.0, max_tokens=3))]
    found = enumerate_distributions(lambda: tli.build(target, draft=cross_vocabulary, depth=2), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@pytest.mark.parametrize("seed", range(3))
def test_identical_vocabularies_give_speculative_sampling(seed: int) -> None:
    target, model = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 50, order=2)
    cross_vocabulary = pair(model, LETTERS, LETTERS)
    one = expected_accepted(lambda: tli.build(target, draft=cross_vocabulary, depth=2), 2)
    other = expected_accepted(lambda: speculative_sampling.build(target, draft=model, depth=2), 2)
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_tokens_are_accepted_more_often_than_drawn_text(seed: int) -> None:
    target, model = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 50, order=2)
    cross_vocabulary = pair(model, [b"c", b"x", b"a", b"d"], LETTERS)
    kept = expected_accepted(lambda: tli.build(target, draft=cross_vocabulary, depth=2), 2)
    assert kept > expected_accepted(lambda: slem.build(target, draft=cross_vocabulary, depth=2), 2)


def test_numbers_beyond_the_draft_tokenizer_are_never_drawn() -> None:
    model = flat(0.1, 0.1, 0.4, 0.4)  # the last two are rows without a token
    cross_vocabulary = CrossVocabularyDraft(
        model, Vocabulary((b"b", b"a", None, None), lambda text: []), Vocabulary.longest_match([b"a", b"b"])
    )
    found = expected_accepted(lambda: tli.build(flat(0.5, 0.5), draft=cross_vocabulary, depth=1), 1)
    assert found == pytest.approx(1, abs=1e-12)


def test_single_precision_distributions_that_nearly_agree_leave_no_negative_mass() -> None:
    torch.manual_seed(0)
    target, model = TableTarget(64, seed=1, order=1), TableTarget(64, order=1)
    target.logits = target.logits.bfloat16().float()
    model.logits = target.logits + 1e-6 * torch.randn_like(target.logits)
    letters = [bytes([33 + index]) for index in range(64)]
    sampling = [SamplingParams(temperature=1.0, max_tokens=30, seed=seed) for seed in range(16)]
    found = texts(tli.build(target, draft=pair(model, letters, letters)), [(1, 2)] * 16, sampling)
    assert all(len(text) == 30 for text in found)
