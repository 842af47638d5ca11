"""Every loss against a sum by hand, its gradient against finite differences, and what a mask does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from outpace.training import losses

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
K = 2  # of the top-k cross entropy
DECAY = 2.0
BETA = 0.3
BETWEEN: dict[str, Loss] = {
    "soft_cross_entropy": losses.soft_cross_entropy,
    "top_k_cross_entropy": partial(losses.top_k_cross_entropy, k=K),
    "forward_kl": losses.forward_kl,
    "reverse_kl": losses.reverse_kl,
    "jensen_shannon": losses.jensen_shannon,
    "jensen_shannon, beta": partial(losses.jensen_shannon, beta=BETA),
    "total_variation": losses.total_variation,
    "total_variation_plus": losses.total_variation_plus,
    "negative_log_acceptance": losses.negative_log_acceptance,
    "lk_hybrid": partial(losses.lk_hybrid, decay=DECAY),
}
DETACHED = {"total_variation_plus", "lk_hybrid"}  # with weights that finite differences would change


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(each) for each in row]
    return [each / sum(powers) for each in powers]


def kl(a: list[float], b: list[float]) -> float:
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


def mixed(p: list[float], q: list[float], beta: float) -> float:
    mixture = [beta * x + (1 - beta) * y for x, y in zip(p, q, strict=True)]
    return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)


def overlap(p: list[float], q: list[float]) -> float:
    return sum(map(min, p, q))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def by_hand(name: str, ps: list[list[float]], qs: list[list[float]]) -> float:
    """The same loss written as sums over plain numbers."""
    pairs = list(zip(ps, qs, strict=True))
    if name == "lk_hybrid":
        acceptance = mean([overlap(p, q) for p, q in pairs])
        weight = math.exp(-DECAY * acceptance)
        return weight * mean([kl(p, q) for p, q in pairs]) + (1 - weight) * (1 - acceptance)
    if name == "total_variation_plus":
        rewards = [(y, float(x > y)) for p, q in pairs for x, y in zip(p, q, strict=True)]
        centre = sum(y * reward for y, reward in rewards) / len(pairs)
        spread = math.sqrt(sum(y * (reward - centre) ** 2 for y, reward in rewards) / len(pairs))
        return -sum(y * (reward - centre) / spread * math.log(y) for y, reward in rewards) / len(pairs)
    single: dict[str, Callable[[list[float], list[float]], float]] = {
        "soft_cross_entropy": lambda p, q: -sum(x * math.log(y) for x, y in zip(p, q, strict=True)),
        "top_k_cross_entropy": lambda p, q: (
            -sum(x * math.log(y) for x, y in sorted(zip(p, q, strict=True), reverse=True)[:K])
        ),
        "forward_kl": kl,
        "reverse_kl": lambda p, q: kl(q, p),
        "jensen_shannon": lambda p, q: mixed(p, q, 0.5),
        "jensen_shannon, beta": lambda p, q: mixed(p, q, BETA),
        "total_variation": lambda p, q: sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2,
        "negative_log_acceptance": lambda p, q: -math.log(overlap(p, q)),
    }
    return mean([single[name](p, q) for p, q in pairs])


def random_logits(seed: int, *shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draft, target = (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for _ in range(2))
    return draft, target


def everywhere(logits: Tensor) -> Tensor:
    return torch.ones(logits.shape[:-1], dtype=torch.bool)


@pytest.mark.parametrize("name", BETWEEN)
def test_a_loss_is_the_sum_by_hand(name: str) -> None:
    draft, target = random_logits(0, 2, 3, 5)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    ps = [softmax(row) for row in target[mask].tolist()]
    qs = [softmax(row) for row in draft[mask].tolist()]
    assert BETWEEN[name](draft, target, mask).item() == pytest.approx(by_hand(name, ps, qs), rel=1e-12)


def test_the_jensen_shannon_divergence_goes_from_forward_to_reverse_kl() -> None:
    draft, target = random_logits(7, 6, 5)
    mask, small = everywhere(draft), 1e-6
    for beta, limit in ((small, losses.forward_kl), (1 - small, losses.reverse_kl)):
        found = losses.jensen_shannon(draft, target, mask, beta=beta) / small
        assert found.item() == pytest.approx(limit(draft, target, mask).item(), rel=1e-4)


def test_cross_entropy_by_hand() -> None:
    draft, _ = random_logits(1, 4, 5)
    labels, mask = torch.tensor([0, 4, 2, 99]), torch.tensor([True, True, True, False])
    qs = [softmax(row) for row in draft.tolist()]
    wanted = -mean([math.log(qs[row][label]) for row, label in enumerate([0, 4, 2])])
    # the label of a position that does not count may lie outside the vocabulary, as padding does
    assert losses.cross_entropy(draft, labels, mask).item() == pytest.approx(wanted, rel=1e-12)


def test_smooth_l1_by_hand() -> None:
    features = torch.tensor([[0.5, 3.0], [1.0, 1.0], [9.0, 9.0]])
    target = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([True, True, False])
    # below a distance of 1 half its square, above it the distance minus one half; two numbers per feature
    wanted = ((0.125 + 1.5) / 2 + 0) / 2
    assert losses.smooth_l1(features, target, mask).item() == pytest.approx(wanted)


@pytest.mark.parametrize("name", sorted(BETWEEN.keys() - DETACHED))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    draft, target = random_logits(2, 4, 5)
    mask = torch.tensor([True, False, True, True])
    assert torch.autograd.gradcheck(
        lambda logits: BETWEEN[name](logits, target, mask), draft.requires_grad_()
    )


def test_gradients_of_the_losses_without_a_target_distribution() -> None:
    draft, target = random_logits(3, 4, 5)
    mask = torch.tensor([True, False, True, True])
    labels = torch.tensor([1, 1, 4, 0])
    assert torch.autograd.gradcheck(
        lambda logits: losses.cross_entropy(logits, labels, mask), draft.requires_grad_()
    )
    assert torch.autograd.gradcheck(
        lambda features: losses.smooth_l1(features, target, mask), draft.requires_grad_()
    )


def gradient(loss: Loss, draft: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    logits = draft.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(logits, target, mask), logits)[0]


def test_the_gradient_of_tvd_plus_is_that_of_the_total_variation_by_the_deviation_of_rewards() -> None:
    draft, target = random_logits(4, 6, 5)
    mask = everywhere(draft)
    p, q = target.softmax(-1), draft.softmax(-1)
    share = (q * (p > q)).sum(-1).mean()  # rewards are 0 or 1: their mean says how they spread
    deviation = (share * (1 - share)).sqrt()
    plus = gradient(losses.total_variation_plus, draft, target, mask)
    torch.testing.assert_close(plus * deviation, gradient(losses.total_variation, draft, target, mask))


def test_the_weight_of_the_lk_hybrid_has_no_gradient() -> None:
    draft, target = random_logits(5, 6, 5)
    mask = everywhere(draft)
    acceptance = 1 - losses.total_variation(draft, target, mask)
    weight = torch.exp(-3.0 * acceptance)
    wanted = weight * gradient(losses.forward_kl, draft, target, mask)
    wanted = wanted + (1 - weight) * gradient(losses.total_variation, draft, target, mask)
    torch.testing.assert_close(gradient(losses.lk_hybrid, draft, target, mask), wanted)


@pytest.mark.parametrize("name", BETWEEN)
def test_no_gradient_reaches_the_target(name: str) -> None:
    draft, target = random_logits(6, 4, 5)
    target.requires_grad_()
    BETWEEN[name](draft.requires_grad_(), target, everywhere(draft)).backward()
    assert target.grad is None and draft.grad is not None


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
def test_positions_outside_the_mask_take_no_part(name: str, spoilt: float) -> None:
    draft, target = random_logits(7, 3, 5)
    mask = torch.tensor([1, 0, 1])  # numbers, as data loaders give them
    wanted = BETWEEN[name](draft[[0, 2]], target[[0, 2]], torch.tensor([True, True]))
    draft[1] = target[1] = spoilt
    loss = BETWEEN[name](draft.requires_grad_(), target, mask)
    assert loss.item() == wanted.item()
    loss.backward()
    assert draft.grad is not None
    assert draft.grad[1].eq(0).all() and draft.grad.isfinite().all() and draft.grad[0].ne(0).any()


@pytest.mark.parametrize("name", [*BETWEEN, "cross_entropy", "smooth_l1"])
def test_without_positions_a_loss_is_zero(name: str) -> None:
    draft, target = random_logits(8, 3, 5)
    draft[:] = math.nan
    loss: Loss = BETWEEN[name] if name in BETWEEN else getattr(losses, name)
    other = torch.zeros(3, dtype=torch.int64) if name == "cross_entropy" else target
    found = loss(draft.requires_grad_(), other, torch.zeros(3))
    found.backward()
    assert found.item() == 0 and draft.grad is not None and draft.grad.eq(0).all()


@pytest.mark.parametrize("name", [*BETWEEN, "cross_entropy", "smooth_l1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    draft, target = (each.to(dtype) for each in random_logits(9, 3, 50))
    loss: Loss = BETWEEN[name] if name in BETWEEN else getattr(losses, name)
    if name == "cross_entropy":
        target = torch.tensor([3, 4, 5])
        found = loss(draft, target, everywhere(draft)), loss(draft.float(), target, everywhere(draft))
    else:
        found = (
            loss(draft, target, everywhere(draft)),
            loss(draft.float(), target.float(), everywhere(draft)),
        )
    assert found[0].dtype == torch.float32 and found[0].item() == found[1].item()


# a target that allows two of five tokens, and a drafter that allows two or all of them
NARROW = torch.tensor([[1.0, 2.0, -math.inf, -math.inf, -math.inf]])
SHIFTED = torch.tensor([[2.0, 1.0, -math.inf, -math.inf, -math.inf]])


@pytest.mark.parametrize("name", BETWEEN)
def test_tokens_that_neither_allows_count_nothing(name: str) -> None:
    loss, mask = BETWEEN[name], torch.tensor([True])
    draft = SHIFTED.clone().requires_grad_()
    found = loss(draft, NARROW, mask)
    found.backward()
    assert found.item() == pytest.approx(loss(SHIFTED[:, :2], NARROW[:, :2], mask).item(), rel=1e-6)
    assert draft.grad is not None and draft.grad.isfinite().all()


def test_a_token_that_only_one_allows_makes_a_divergence_infinite_in_one_direction() -> None:
    wide, mask = torch.zeros(1, 5), torch.tensor([True])
    assert losses.forward_kl(wide, NARROW, mask).isfinite()
    assert losses.reverse_kl(wide, NARROW, mask).item() == math.inf
    assert losses.forward_kl(NARROW, wide, mask).item() == math.inf
    assert losses.reverse_kl(NARROW, wide, mask).isfinite()
    for loss in (losses.jensen_shannon, losses.total_variation, losses.negative_log_acceptance):
        assert loss(wide, NARROW, mask).isfinite() and loss(NARROW, wide, mask).isfinite()


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 20.0])
def test_how_the_divergences_are_ordered(scale: float) -> None:
    draft, target = random_logits(10, 40, 7, scale=scale)
    for row in range(len(draft)):
        pair = draft[row : row + 1], target[row : row + 1]
        mask = torch.tensor([True])
        tv, nla = losses.total_variation(*pair, mask), losses.negative_log_acceptance(*pair, mask)
        forward, reverse = losses.forward_kl(*pair, mask), losses.reverse_kl(*pair, mask)
        jsd = losses.jensen_shannon(*pair, mask)
        assert tv <= (forward / 2).sqrt() + 1e-12 and tv <= (reverse / 2).sqrt() + 1e-12  # Pinsker
        assert tv <= nla + 1e-12  # 1 - x <= -ln x
        torch.testing.assert_close(jsd, losses.jensen_shannon(pair[1], pair[0], mask))
        assert 0 <= jsd <= min(math.log(2), tv * math.log(2)) + 1e-12
        p, q = (each.softmax(-1) for each in (pair[1], pair[0]))
        torch.testing.assert_close(1 - tv, torch.minimum(p, q).sum())  # the acceptance
        torch.testing.assert_close(nla.neg().exp(), 1 - tv)
        hybrid = losses.lk_hybrid(*pair, mask)
        assert min(tv, forward) - 1e-12 <= hybrid <= max(tv, forward) + 1e-12


@pytest.mark.parametrize("name", BETWEEN)
def test_equal_distributions(name: str) -> None:
    _, target = random_logits(11, 3, 5)
    found = BETWEEN[name](target + 7.0, target, everywhere(target))  # the same after the softmax
    entropy = torch.distributions.Categorical(logits=target).entropy().mean()
    if name == "soft_cross_entropy":
        torch.testing.assert_close(found, entropy)
    elif name == "top_k_cross_entropy":
        assert 0 < found < entropy
    elif name != "total_variation_plus":
        assert found.item() == pytest.approx(0, abs=1e-12)


def test_all_rewards_equal_give_no_gradient() -> None:
    _, target = random_logits(12, 3, 5)
    found = gradient(losses.total_variation_plus, target, target, everywhere(target))
    assert found.eq(0).all()


def test_top_k_of_all_tokens_is_the_soft_cross_entropy() -> None:
    draft, target = random_logits(13, 3, 5)
    mask = everywhere(draft)
    wanted = losses.soft_cross_entropy(draft, target, mask)
    for k in (5, 10):
        torch.testing.assert_close(losses.top_k_cross_entropy(draft, target, mask, k=k), wanted)


def test_with_a_draft_vocabulary_the_acceptance_is_that_of_the_whole_one() -> None:
    """The drafter gives all other tokens probability 0, and verification uses the target's whole
    distribution."""
    draft, target = random_logits(14, 4, 8)
    ids, mask = torch.tensor([0, 3, 4, 6]), torch.ones(4, dtype=torch.bool)
    whole = torch.full_like(draft, -math.inf)
    whole[:, ids] = draft[:, ids]
    mass = target.softmax(-1)[:, ids].sum(-1)
    for loss in (losses.total_variation, losses.negative_log_acceptance):
        torch.testing.assert_close(
            loss(draft[:, ids], target[:, ids], mask, mass=mass), loss(whole, target, mask)
        )
        assert loss(draft[:, ids], target[:, ids], mask) < loss(whole, target, mask)
    rejected = losses.total_variation(whole, target, mask)
    weight = torch.exp(-3.0 * (1 - rejected))
    wanted = weight * losses.forward_kl(draft[:, ids], target[:, ids], mask) + (1 - weight) * rejected
    torch.testing.assert_close(losses.lk_hybrid(draft[:, ids], target[:, ids], mask, mass=mass), wanted)


def test_where_little_is_accepted_the_logarithm_keeps_its_gradient() -> None:
    target = torch.tensor([[12.0, 0.0, 0.0]], dtype=torch.float64)
    draft, mask = torch.tensor([[0.0, 12.0, 0.0]], dtype=torch.float64), torch.tensor([True])
    vanishing = gradient(losses.total_variation, draft, target, mask).norm()
    assert vanishing < 1e-4 < 0.1 < gradient(losses.negative_log_acceptance, draft, target, mask).norm()
