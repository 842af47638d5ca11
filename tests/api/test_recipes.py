"""Recipes are found by file name, and imported at their first use."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

import outpace.recipes
from outpace.api import generate_each
from outpace.models.table import TableTarget
from outpace.recipes import RecipeError, _options, entries, find, from_file, get, names, read_options
from outpace.recipes._option_kinds import FunctionOpener

OWN = '''"""My method (Me 2030): does nothing."""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.verifiers.match import Match


@recipe(paper="none", family="mine", guarantee=Guarantee.GREEDY)
def {name}(target: Target, *, depth: int = 3, shape: tuple[int, ...] = (2, 1), on: bool = True) -> Parts:
    return Parts(target, NoDraft(), Match(), Fixed(0))
'''


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_method.py"
    path.write_text(OWN.format(name="my_method"))
    return path


def test_exact_refuses_what_changes_the_distribution_and_takes_its_exact_limit(loaded):
    target, draft = loaded
    lossy = dict(method="scd", draft=draft, max_tokens=4)
    sentence = "scd is LOSSY with these options: give beta=0.0, alpha=0.0, which makes it EXACT, or choose an"
    for call in (outpace.generate, generate_each, outpace.stream):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            call(target, "def add", exact=True, **lossy)
        with pytest.raises(ValueError, match="beta=0.0, alpha=0.0"):
            call(target, "def add", exact=True, beta=0.0, **lossy)
    [plain] = outpace.generate(target, "def add", "autoregressive", max_tokens=4, exact=True)
    [limit] = outpace.generate(target, "def add", exact=True, beta=0.0, alpha=0.0, **lossy)
    assert limit.tokens == plain.tokens and limit.reference is None
    assert outpace.generate(target, "def add", **lossy)[0].reference is not None


def test_listing_imports_neither_torch_nor_transformers():
    program = (
        "import sys, outpace; entries = outpace.recipes(); assert entries; "
        "sys.exit(','.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_take_dashes_and_underscores():
    assert get("prompt-lookup") is get("prompt_lookup")
    assert {"autoregressive", "prompt-lookup", "speculative-sampling"} <= set(names())
    assert set(find()) == set(names())


def test_the_options_read_from_sources_equal_those_of_the_imported_recipes():
    sources = {name: source for name in names() if (source := read_options(name)) is not None}
    assert len(sources) > len(names()) - 10  # a few have defaults that are imported or computed
    for name, source in sources.items():
        recipe = get(name)
        assert source.name == recipe.name
        assert source.option_help == recipe.option_help
        assert list(source.options) == list(recipe.options)
        for option, parameter in recipe.options.items():
            assert source.options[option].default == parameter.default
            assert type(source.options[option].default) is type(parameter.default)


def test_options_that_only_an_import_tells(tmp_path, own):
    assert list(read_options(own).options) == ["depth", "shape", "on"]
    own.write_text(own.read_text().replace("depth: int = 3", "depth: int = len('abc')"))
    assert read_options(own) is None and read_options(tmp_path / "none.py") is None


def test_the_catalogue_read_from_sources_equals_the_imported_recipes():
    for entry in entries():
        recipe = get(entry.name)
        assert (entry.name, entry.paper, entry.summary, entry.family, entry.guarantee) == (
            recipe.name,
            recipe.paper,
            recipe.summary,
            recipe.family,
            recipe.guarantee.value,
        )


def test_a_file_of_ones_own(own):
    recipe = from_file(own)
    assert (recipe.name, recipe.summary) == ("my-method", "My method (Me 2030): does nothing.")
    assert find(own)["my-method"].name == "my-method"
    assert entries(own)[-1].guarantee == "greedy" == recipe.guarantee.value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\nraise RuntimeError('no luck')", "broken.py cannot be loaded: RuntimeError: no luck .line 2"),
        ("def half(:", "broken.py cannot be loaded: SyntaxError.*line 1"),
        ("import nowhere_at_all", "broken.py cannot be loaded: ModuleNotFoundError"),
        ("x = 1", "broken.py holds no recipe"),
        (OWN.format(name="one") + OWN.format(name="two"), "holds 2 recipes"),
    ],
)
def test_a_file_that_is_no_recipe_is_named_with_its_mistake(tmp_path, text, sentence):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(RecipeError, match=sentence):
        from_file(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = 1\x00", b"def half(:", None])
def test_a_file_that_cannot_be_listed_is_named(tmp_path, content):
    path = tmp_path / "broken.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        RecipeError, match="broken.py is no recipe file .*: .*; `outpace new my-method` writes"
    ):
        entries(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(RecipeError, match="there is no recipe file"):
        from_file(tmp_path / "missing.py")
    with pytest.raises(RecipeError, match="did you mean prompt-lookup"):
        get("promt-lookup")


def test_other_packages_add_recipes(own, monkeypatch):
    monkeypatch.syspath_prepend(own.parent)
    point = EntryPoint(name="my_method", value="my_method", group="outpace.recipes")
    monkeypatch.setattr(outpace.recipes, "plugins", lambda: {"my-method": point})
    assert get("my-method").family == "mine"
    assert "my-method" in names() and "my-method" in [entry.name for entry in entries()]


def test_the_path_of_a_recipe_file_stands_for_a_name():
    """Dashes replace underscores in names, not in paths."""
    own, other = outpace.recipes.parse_methods("my_files/my_method.py:my-depth=3,prompt_lookup")
    assert (own.name, own.options) == ("my_files/my_method.py", {"my_depth": 3})
    assert other.name == "prompt-lookup"


@pytest.mark.parametrize("asked", ["other", "my-method"])
def test_an_entry_point_has_the_name_of_its_recipe(own, monkeypatch, asked):
    """Else the method is listed under a name by which it is not found."""
    monkeypatch.syspath_prepend(own.parent)
    point = EntryPoint(name="other", value="my_method", group="outpace.recipes")
    monkeypatch.setattr(outpace.recipes, "plugins", lambda: {"other": point})
    with pytest.raises(RecipeError, match="entry point other of .* is the recipe my-method: give both one"):
        get(asked)


def model(vocab: int = 8) -> TableTarget:
    return TableTarget(vocab, order=1)


def configured(recipe, **options):
    return _options.configure(recipe, model(), options, FunctionOpener(lambda value: value))


def test_strings_are_converted_to_the_types_of_the_signature(own):
    recipe = from_file(own)
    assert configured(recipe, depth="4", shape="4,2,2", on="no") == {
        "depth": 4,
        "shape": (4, 2, 2),
        "on": False,
    }
    assert configured(recipe, shape=[3, 1]) == {"shape": (3, 1)}
    assert configured(recipe, shape=3) == {"shape": (3,)}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": "four"}, "my-method: depth is a whole number, not 'four'"),
        ({"depth": 2.5}, "whole number"),
        ({"depth": float("inf")}, "whole number, not inf"),
        ({"on": "maybe"}, "on is true or false, not 'maybe'"),
        ({"shape": "4,x"}, "shape is a whole number, not 'x'"),
        ({"dept": 3}, "no option of my-method called dept; did you mean depth?"),
        ({"zzz": 3}, "it has depth, shape, on"),
    ],
)
def test_options_of_the_wrong_type_are_refused(own, options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        configured(from_file(own), **options)


@pytest.mark.parametrize("value", ["nan", float("nan")])
def test_nan_is_no_number(value):
    with pytest.raises(RecipeError, match="swift: skip_ratio is a number, not '?nan"):
        configured(get("swift"), skip_ratio=value)


def test_models_are_opened_and_must_have_the_targets_vocabulary():
    assert isinstance(configured(get("speculative-sampling"), draft=model())["draft"], TableTarget)
    assert len(configured(get("specinfer"), drafts=(model(), model()))["drafts"]) == 2
    with pytest.raises(RecipeError, match="vocabulary of 9 tokens and the target one of 8"):
        configured(get("specinfer"), drafts=(model(), model(9)))
    with pytest.raises(RecipeError, match="needs draft"):
        configured(get("speculative-sampling"))


def test_a_choice_is_one_of_its_words():
    words = Literal["first", "last"]
    assert _options.convert("last", words, "mine: order", FunctionOpener(lambda value: value)) == "last"
    with pytest.raises(RecipeError, match="mine: order is first or last, not 'middle'"):
        _options.convert("middle", words, "mine: order", FunctionOpener(lambda value: value))
    assert _options.convert("none", words | None, "mine: order", FunctionOpener(lambda value: value)) is None
