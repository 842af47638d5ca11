"""How far two texts agree, found without comparing all of both."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from outpace.core.common_length import FIRST, common_length

LENGTHS = (0, 1, FIRST - 1, FIRST, FIRST + 1, 8 * FIRST, 8 * FIRST + 1, 3000)


@pytest.mark.parametrize("size", LENGTHS)
def test_the_first_difference_is_found_wherever_it_is(size: int) -> None:
    text = torch.randint(100, (size,), generator=torch.Generator().manual_seed(size))
    assert common_length(text, text.clone()) == size
    longer = torch.cat((text, torch.tensor([7])))
    assert common_length(text, longer) == common_length(longer, text) == size
    for at in {*(each for each in LENGTHS if each < size), size // 2, size - 1} if size else ():
        other = text.clone()
        other[at:] += 1
        assert common_length(text, other) == common_length(other, text) == at


class Watched:
    """A text that notes how far it is read."""

    def __init__(self, size: int) -> None:
        self.tokens, self.read = numpy.arange(size), 0

    def __len__(self) -> int:
        return len(self.tokens)

    def numpy(self) -> Watched:
        return self

    def __getitem__(self, part: slice) -> Any:
        self.read = max(self.read, part.stop)
        return self.tokens[part]


def test_texts_that_differ_early_are_not_read_to_their_ends() -> None:
    text: Any = Watched(100_000)
    for at in (0, 5, 5000):
        text.read, other = 0, torch.arange(100_000)
        other[at:] += 1
        assert common_length(text, other) == at
        assert text.read <= max(FIRST, 8 * at)
