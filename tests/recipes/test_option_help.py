"""Every option of every recipe has one line of help."""

from __future__ import annotations

import pytest

from outpace import recipes
from outpace.core.recipe import help_of


@pytest.mark.parametrize("name", recipes.names())
def test_every_option_is_explained(name: str) -> None:
    recipe = recipes.get(name)
    assert list(recipe.option_help) == list(recipe.options)
    assert all(8 < len(line) < 120 and line[-1] != "." for line in recipe.option_help.values())


def test_args_of_a_docstring() -> None:
    text = """Build it.

    Args:
        depth: tokens drafted
            per step
        widths: children: of every node

    Returns:
        parts: nothing of this
    """
    assert help_of(text) == {"depth": "tokens drafted per step", "widths": "children: of every node"}
    assert help_of("") == help_of("No options.") == {}
