"""Presets: named sets of option values, in Python, on the command line and in a method's spelling."""

from __future__ import annotations

import pytest

import outpace
from outpace.bench.measure.line_up import method_contenders
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.recipes import RecipeError, configure, find, get, parse_methods, read_options
from outpace.recipes._option_kinds import FunctionOpener
from outpace.verifiers.match import Match

TARGET = TableTarget(6, seed=1)
OPENER = FunctionOpener(lambda name: TARGET)
WITH_PRESETS = ("diffuspec", "lookahead", "sam-decoding", "stand", "suffix-decoding", "token-recycling")


def test_the_values_of_a_preset_are_the_options_that_are_not_given() -> None:
    suffix = get("suffix-decoding")
    assert configure(suffix, TARGET, {"preset": "cpu"}, OPENER) == suffix.presets["cpu"]
    given = configure(suffix, TARGET, {"preset": "cpu", "max-spec-factor": "2"}, OPENER)
    assert given == {**suffix.presets["cpu"], "max_spec_factor": 2.0}
    assert configure(suffix, TARGET, {"preset": None}, OPENER) == {}


def test_a_preset_that_there_is_not_is_refused() -> None:
    with pytest.raises(RecipeError, match="suffix-decoding called gpu; it has cpu"):
        configure(get("suffix-decoding"), TARGET, {"preset": "gpu"}, OPENER)
    with pytest.raises(RecipeError, match="prompt-lookup has no presets: leave preset out"):
        configure(get("prompt-lookup"), TARGET, {"preset": "cpu"}, OPENER)


@pytest.mark.parametrize(
    ("name", "papers"),
    [
        ("token-recycling", {"nodes": None, "nodes_per_depth": (8, 21, 25, 15, 8, 3), "top_k": 8}),
        (
            "suffix-decoding",
            {"depth": 64, "max_spec_factor": 1.0, "max_spec_offset": 0.0, "min_token_prob": 0.1},
        ),
        ("sam-decoding", {"standalone_depth": 60, "length_offset": 1, "nodes": None, "depth": 40, "bias": 5}),
        ("stand", {"nodes": 80, "max_ngram": 4, "top_k": 10}),
        ("lookahead", {"window": 15, "ngram": 5, "guesses": 15}),
        ("rest", {"nodes": 64, "depth": 10, "max_ngram": 16, "min_ngram": 2}),
    ],
)
def test_defaults_are_those_of_the_paper(name: str, papers: dict[str, object]) -> None:
    assert {option: get(name).options[option].default for option in papers} == papers


def test_presets_name_options_and_build() -> None:
    named = {name: each for name, each in find().items() if each.presets}
    assert sorted(named) == sorted(WITH_PRESETS)
    for each in named.values():
        needed = {option: TARGET for option, *_ in each.needs}
        for preset in each.presets:
            each(TARGET, **configure(each, TARGET, {"preset": preset, **needed}, OPENER))
    with pytest.raises(TypeError, match="no option width, which exact_with, proven_with or presets name"):

        @recipe(paper="none", family="test", presets={"cpu": {"width": 3}})
        def wrong(target: Target) -> Parts:
            return Parts(target, NoDraft(), Match(), Fixed(0))


def test_the_benchmark_takes_a_preset_and_records_its_values() -> None:
    methods = parse_methods("token-recycling:preset=cpu,token-recycling")
    found, _ = method_contenders(methods, TARGET, None, OPENER)
    by_name = {each.name: each for each in found}
    assert by_name["token-recycling:preset=cpu"].options["nodes_per_depth"] == (5, 5, 4, 1)
    assert by_name["token-recycling"].options["nodes_per_depth"] == (8, 21, 25, 15, 8, 3)


def test_python_takes_a_preset() -> None:
    target = outpace.load("zoo:target", dtype="float32")
    [found] = outpace.generate(target, ["def"], method="suffix-decoding", preset="cpu", max_tokens=4)
    [plain] = outpace.generate(target, ["def"], method="autoregressive", max_tokens=4)
    assert found.text == plain.text


def test_presets_are_read_from_the_source_as_they_are() -> None:
    for name, each in find().items():
        source = read_options(name)
        assert source is None or source.presets == each.presets, name
    source = read_options("lookahead")
    assert source and source.presets["cpu"]
