"""Parsing of methods and their options on a command line."""

from __future__ import annotations

import pytest

from outpace.bench.measure.method_names import with_draft
from outpace.recipes import Method, get, parse_methods


def test_names_and_options_are_read() -> None:
    assert parse_methods("prompt_lookup:depth=8,max_ngram=2,mcsd:widths=(4,2):replace=true, specinfer") == [
        Method("prompt-lookup", {"depth": 8, "max_ngram": 2}),
        Method("mcsd", {"widths": (4, 2), "replace": True}),
        Method("specinfer", {}),
    ]


def test_the_colon_of_a_model_of_the_package_is_part_of_its_name() -> None:
    assert parse_methods("slrs:draft=zoo:draft-bytes:depth=2,tli") == [
        Method("slrs", {"draft": "zoo:draft-bytes", "depth": 2}),
        Method("tli"),
    ]


def test_a_label_names_the_options() -> None:
    (method,) = parse_methods("mcsd:widths=(4, 2)")
    assert method.label == "mcsd:widths=(4,2)"
    assert Method("mcsd").label == "mcsd"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("depth=3", "option without a method"),
        ("mcsd:deep", "is no option"),
        ("", "no method was named"),
        (":x=1", "name is missing"),
    ],
)
def test_unknown_methods_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_methods(text)


def test_the_draft_goes_where_a_recipe_wants_one_and_got_none() -> None:
    assert with_draft(Method("x"), get("prompt-lookup"), "small") == {}
    assert with_draft(Method("x"), get("speculative-sampling"), "small") == {"draft": "small"}
    assert with_draft(Method("x", {"draft": "own"}), get("speculative-sampling"), "small") == {"draft": "own"}
    assert with_draft(Method("x"), get("specinfer"), "small") == {"drafts": "small"}
    assert with_draft(Method("x"), get("rasd"), "small") == {"draft": "small"}
    assert with_draft(Method("x", {"head": "own"}), get("rasd"), "small") == {"head": "own"}
