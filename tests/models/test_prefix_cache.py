"""KV entries that a text takes over from another one are those that reading it would give."""

from __future__ import annotations

import pytest
import torch

from outpace.core.contracts import PrefixCache, Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.eager import contiguous_cache
from outpace.models.hf.target import HFTarget
from outpace.models.openvino import paged_cache
from outpace.models.openvino.paged_attention import BLOCK_SIZE


def some(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


def after(text, length, seed):
    """The first tokens of a text, followed by others."""
    return torch.cat((text[:length], (text[length : length + 1] - 2) % 58 + 3, some(40, seed)))


@pytest.fixture(scope="module")
def made():
    """What was compiled so far."""
    return {}


@pytest.fixture
def target_of(made, tiny):
    """By kind a target, and how far its logits may be from others of the same text."""

    def get(kind):
        if kind not in made:
            model = tiny("llama")
            made[kind] = (
                (HFTarget(model.float(), compile=True), 1e-4)
                if kind == "compiled"
                else (HFTarget(model), 1e-6)
            )
            assert (made[kind][0].compiled is not None) == (kind == "compiled")
        return made[kind]

    return get


@pytest.fixture(params=("eager", "compiled"))
def opened(request, target_of):
    target, error = target_of(request.param)
    cache = target.open(3, 128)
    assert isinstance(cache, PrefixCache)
    return target, cache, error


def begin(target, cache, slot, text):
    """Let a text begin with what is known of it and read the rest; returns the number of known tokens."""
    known = cache.restore(slot, text[:-1])
    assert cache.lengths[slot] == known < len(text)
    if known < len(text) - 1:
        target.prefill([Prompt(text[known:])], [slot], cache, Want())
    return known


def end(cache, slot, text):
    cache.name(slot, text[: cache.lengths[slot]])
    cache.release([slot])


def check(target, cache, slot, text, error, seed=1):
    """The logits of a tree after a text are those in a cache of its own."""
    fresh = target.open(1, 128)
    target.prefill([Prompt(text)], [0], fresh, Want())
    tree = TokenTree(torch.cat((text[-1:], some(6, seed))), Forest.of([-1, 0, 0, 1, 1, 2, 4], 1))
    here, there = target.score(tree, (slot,), cache).logits, target.score(tree, (0,), fresh).logits
    assert (here - there).abs().max() < error
    cache.commit(tree, [-1], (slot,))


def expected(target, common):
    """Number of common tokens that are taken over: of compiled models those of full blocks."""
    return common if target.compiled is None else common // BLOCK_SIZE * BLOCK_SIZE


def test_texts_take_over_the_beginning_of_running_and_ended_texts(opened):
    target, cache, error = opened
    first = some(100, 1)
    assert begin(target, cache, 0, first) == 0
    cache.name(0, first[: cache.lengths[0]])
    second = after(first, 70, 2)
    assert begin(target, cache, 1, second) == expected(target, 70)
    for slot, text in ((0, first), (1, second)):
        check(target, cache, slot, text, error)
    end(cache, 0, first)
    check(target, cache, 1, second, error)  # what it shares is still there
    third = torch.cat((first[:90], some(30, 3)))  # 90 tokens of a text that has ended
    assert begin(target, cache, 0, third) == expected(target, 90)
    end(cache, 1, second)
    same = second.clone()
    assert begin(target, cache, 1, same) == expected(target, len(second) - 1)
    for slot, text in ((0, third), (1, same)):
        check(target, cache, slot, text, error)
    assert begin(target, cache, 2, some(50, 9)) == 0


def test_a_draft_is_never_taken_over(opened):
    """Entries of rejected nodes are in memory after those of a text; another text may go on with their
    tokens."""
    target, cache, error = opened
    text, draft = some(40, 1), some(30, 2)
    begin(target, cache, 0, text)
    tree = TokenTree(torch.cat((text[-1:], draft)), Forest.chain((len(draft),)))
    target.score(tree, (0,), cache)
    cache.commit(tree, [3], (0,))
    kept = torch.cat((text, draft[:3]))
    end(cache, 0, torch.cat((kept, some(1))))
    other = torch.cat((text, draft, some(5, 3)))
    assert begin(target, cache, 1, other) == expected(target, len(kept))
    check(target, cache, 1, other, error)


def test_writing_to_one_text_leaves_the_others_as_they_are(opened):
    target, cache, error = opened
    text = some(75, 1)
    begin(target, cache, 0, text)
    cache.name(0, text[: cache.lengths[0]])
    texts = [text, after(text, 74, 2), text.clone()]
    for slot in (1, 2):
        begin(target, cache, slot, texts[slot])
    for turn in range(3):
        for slot in range(3):
            new = some(20, 10 * turn + slot)
            tree = TokenTree(torch.cat((texts[slot][-1:], new)), Forest.chain((len(new),)))
            target.score(tree, (slot,), cache)
            cache.commit(tree, [len(new) - 1], (slot,))
            texts[slot] = torch.cat((texts[slot], new))
    for slot in range(3):
        check(target, cache, slot, texts[slot], error)


def test_retained_texts_stay_within_the_limit_and_the_newest_are_kept(opened):
    target, cache, error = opened
    texts = [some(90, seed) for seed in range(6)]
    one = cache.bytes_for({0: 90})
    cache.limit(3 * one)
    for text in texts:
        begin(target, cache, 0, text)
        assert cache.num_bytes + cache.retained_bytes <= 3 * one
        end(cache, 0, text)
    assert cache.num_bytes == 0 and 2 * one <= cache.retained_bytes <= 3 * one
    assert begin(target, cache, 0, texts[0]) == 0
    assert begin(target, cache, 1, texts[-1]) == expected(target, 89)
    assert cache.num_bytes + cache.retained_bytes <= 3 * one
    for slot, text in ((0, texts[0]), (1, texts[-1])):
        check(target, cache, slot, text, error)
    cache.release([0, 1])
    cache.limit(0)
    assert cache.num_bytes == cache.retained_bytes == 0
    assert begin(target, cache, 0, texts[-1]) == 0


def test_of_two_limits_the_lower_holds(opened):
    target, cache, _ = opened
    text, one = some(90), cache.bytes_for({0: 90})
    for first, second in ((4 * one, one), (one, 4 * one)):
        cache.limit(first)
        cache.limit(second, by="method")
        for seed in range(3):
            begin(target, cache, 0, text := some(90, seed))
            assert cache.num_bytes + cache.retained_bytes <= one
            end(cache, 0, text)


def test_a_retained_text_holds_no_memory_that_it_did_not_use(target_of, monkeypatch):
    """Nor are more texts retained than a new request can be compared with."""
    monkeypatch.setattr(contiguous_cache, "MAX_RETAINED", 3)
    target, _ = target_of("eager")
    cache = target.open(1, 128)
    lengths = (9, 30, 12, 50, 7)
    for seed, length in enumerate(lengths):
        text = some(length, seed)
        begin(target, cache, 0, text)
        assert cache.slot_bytes(0, 0) == 128 * target.token_bytes
        end(cache, 0, text)
    held = sum(lengths[-3:]) - 3  # the last token of each was not read
    assert cache.retained_bytes == held * target.token_bytes
    assert [cache.restore(0, some(length, seed)) > 0 for seed, length in enumerate(lengths)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_nothing_is_retained_of_texts_that_are_not_named(opened):
    target, cache, _ = opened
    begin(target, cache, 0, some(90))
    cache.release([0])
    assert cache.num_bytes == cache.retained_bytes == 0


def test_a_text_that_goes_on_needs_no_memory_beside_that_of_the_text_before_it(opened):
    """As the next message of a conversation does."""
    target, cache, error = opened
    cache.limit(cache.bytes_for({0: 128}))
    text = some(70, 1)
    begin(target, cache, 0, text)
    for turn in range(4):
        end(cache, 0, text)
        text = torch.cat((text, some(10, turn)))
        assert begin(target, cache, 0, text) == expected(target, len(text) - 11)
        check(target, cache, 0, text, error)


def test_without_memory_for_both_the_retained_text_is_evicted(opened):
    target, cache, error = opened
    cache.limit(cache.bytes_for({0: 128}))
    text = some(100, 1)
    begin(target, cache, 0, text)
    end(cache, 0, text)
    other = after(text, 70, 2)
    assert begin(target, cache, 0, other) == expected(target, 70)
    assert cache.num_bytes + cache.retained_bytes <= cache.bytes_for({0: 128})
    check(target, cache, 0, other, error)


def test_a_block_that_is_not_full_must_not_be_shared(target_of, monkeypatch):
    """The mistake is found by the tests above."""
    target, error = target_of("compiled")

    def all_blocks(tokens):
        numbers = tokens.numpy()
        starts = range(0, len(numbers), BLOCK_SIZE)
        return [numbers[start : start + BLOCK_SIZE].tobytes() for start in starts]

    monkeypatch.setattr(paged_cache, "_full_blocks", all_blocks)
    with pytest.raises(AssertionError):
        test_writing_to_one_text_leaves_the_others_as_they_are((target, target.open(3, 128), error))


def test_what_a_step_asks_of_retained_texts_does_not_read_their_tensors(target_of, monkeypatch):
    """A server asks for their memory in every step, and there may be hundreds of them."""
    target, _ = target_of("eager")
    cache = target.open(1, 128)
    for seed in range(6):
        text = some(20, seed)
        begin(target, cache, 0, text)
        end(cache, 0, text)
    held, looked, num_positions = cache.retained_bytes, [], contiguous_cache._num_positions

    def watched(storages):
        looked.append(1)
        return num_positions(storages)

    monkeypatch.setattr(contiguous_cache, "_num_positions", watched)
    cache.limit(1 << 30)
    assert held == cache.retained_bytes > 0 and len(looked) == 1  # that of the slot
