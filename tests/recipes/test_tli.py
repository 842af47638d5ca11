"""Token-level intersection: the overlap of p with the draft's law on shared tokens, and nothing lost of the others."""

from __future__ import annotations

import pytest
import torch

from outpace.core.context import Sampling
from outpace.law.acceptance import expected_accepted
from outpace.law.prove import BOUND, Case, enumerate_laws, largest_error
from outpace.law.reference import table_logits
from outpace.law.texts import texts
from outpace.models.toy import Table
from outpace.models.vocabulary import Foreign, Vocabulary
from outpace.recipes.slem import slem
from outpace.recipes.speculative_sampling import speculative_sampling
from outpace.recipes.tli import tli

LETTERS = [b"a", b"b", b"c", b"d"]


def flat(*law: float) -> Table:
    model = Table(len(law), order=1)
    model.logits = torch.tensor(law, dtype=torch.float64).log().expand(2 * len(law), -1).contiguous()
    return model


def pair(model: Table, theirs: list[bytes], ours: list[bytes]) -> Foreign:
    return Foreign(model, Vocabulary.longest_match(theirs), Vocabulary.longest_match(ours))


def test_acceptance_is_the_overlap_on_shared_tokens() -> None:
    # q of c and a is 0.2 and 0.3: renormalised 0.4 and 0.6; d is the draft's alone, b the target's
    target, model = flat(0.5, 0.4, 0.1), flat(0.2, 0.5, 0.3)
    foreign = pair(model, [b"c", b"d", b"a"], [b"a", b"b", b"c"])
    found = expected_accepted(lambda: tli.build(target, draft=foreign, depth=1), 1)
    assert found == pytest.approx(0.5 + 0.1, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_more_is_kept_than_of_drafts_that_may_hold_any_token(seed: int) -> None:
    target, model = Table(4, seed=seed, order=2), Table(4, seed=seed + 50, order=2)
    foreign = pair(model, [b"c", b"x", b"a", b"d"], LETTERS)
    p = target.logits[target.state((0,))].softmax(0)
    q = model.logits[model.state(foreign.translated(0))].softmax(0)
    own, twin = foreign.shared
    naive = float(torch.minimum(p[twin], q[own]).sum())  # a token that the target lacks is refused
    assert expected_accepted(lambda: tli.build(target, draft=foreign, depth=1), 1) > naive


def test_law_is_the_targets_when_two_tokens_spell_the_same() -> None:
    target = Table(3, seed=1, order=2)
    foreign = pair(Table(4, seed=2, order=2), [b"b", b"a", b"b", b"x"], LETTERS[:3])
    cases = [Case((0, 1), Sampling(temperature=1.0, max_tokens=3))]
    found = enumerate_laws(lambda: tli.build(target, draft=foreign, depth=2), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@pytest.mark.parametrize("seed", range(3))
def test_identical_vocabularies_give_speculative_sampling(seed: int) -> None:
    target, model = Table(4, seed=seed, order=2), Table(4, seed=seed + 50, order=2)
    foreign = pair(model, LETTERS, LETTERS)
    one = expected_accepted(lambda: tli.build(target, draft=foreign, depth=2), 2)
    other = expected_accepted(lambda: speculative_sampling.build(target, draft=model, depth=2), 2)
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_tokens_are_kept_more_often_than_drawn_text(seed: int) -> None:
    target, model = Table(4, seed=seed, order=2), Table(4, seed=seed + 50, order=2)
    foreign = pair(model, [b"c", b"x", b"a", b"d"], LETTERS)
    kept = expected_accepted(lambda: tli.build(target, draft=foreign, depth=2), 2)
    assert kept > expected_accepted(lambda: slem.build(target, draft=foreign, depth=2), 2)


def test_numbers_beyond_the_draft_tokenizer_are_never_drawn() -> None:
    model = flat(0.1, 0.1, 0.4, 0.4)  # the last two are rows without a token
    foreign = Foreign(
        model, Vocabulary((b"b", b"a", None, None), lambda text: []), Vocabulary.longest_match([b"a", b"b"])
    )
    found = expected_accepted(lambda: tli.build(flat(0.5, 0.5), draft=foreign, depth=1), 1)
    assert found == pytest.approx(1, abs=1e-12)


def test_single_precision_laws_that_nearly_agree_leave_no_negative_mass() -> None:
    torch.manual_seed(0)
    target, model = Table(64, seed=1, order=1), Table(64, order=1)
    target.logits = target.logits.bfloat16().float()
    model.logits = target.logits + 1e-6 * torch.randn_like(target.logits)
    letters = [bytes([33 + index]) for index in range(64)]
    sampling = [Sampling(temperature=1.0, max_tokens=30, seed=seed) for seed in range(16)]
    found = texts(tli.build(target, draft=pair(model, letters, letters)), [(1, 2)] * 16, sampling)
    assert all(len(text) == 30 for text in found)
