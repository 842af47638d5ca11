"""Options of recipes that are models or files: one table of how each kind is opened and checked.

A recipe declares such an option by its annotation (`draft: Target`, `index: SuffixArrayFile | None`). `KINDS`
has one entry per annotation: how a value from the command line or from Python is opened, which Python values
are passed unchanged, which values are refused, and the small fixture with which proofs and tests run the
recipe. To support a new kind of option, add an entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from outpace.core.contracts import Target, TargetWithLayers
from outpace.drafters.compose.methods import Methods
from outpace.drafters.compose.specialists import Specialist, Specialists
from outpace.indexes import store
from outpace.indexes.prompt_profile import PromptProfile
from outpace.indexes.store import (
    HiddenStateFile,
    SkipSetFile,
    SuffixArrayFile,
    SuffixAutomatonFile,
    TokenCountsFile,
    TrigramFile,
)
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind, kinds_by_option
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.names import resolve
from outpace.models.predictors.folder import load_predictor
from outpace.models.predictors.kinds import PredictorKind, predictor_kinds
from outpace.models.slim.grouped_layers import DeepDraft
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes._options import RecipeError
from outpace.recipes.relaxed.reflective_verification.reflection import Reflection


class Opener(Protocol):
    """Opens the models among a recipe's options, for one target."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer; None if unknown: index files are then not checked for a matching
        tokenizer."""
        ...

    def draft(self, value: Any, /) -> Target:
        """The model for `value` (a name, a folder or a loaded model); it has the target's vocabulary."""
        ...

    def cross_vocabulary(self, value: Any, /) -> CrossVocabularyDraft:
        """Like `draft`, for a model whose vocabulary may differ from the target's: the model and both
        vocabularies."""
        ...

    def usual_heads(self, method: str, kinds: Sequence[str], /) -> list[str]:
        """Names of the package's draft heads for the target: the one named after the method, or without one
        those of the first kind that has any. `kinds`: methods for which the heads may have been made."""
        ...

    def head(self, methods: Sequence[str], value: Any, /) -> HeadModel | PositionModel:
        """The draft head in a folder, for the target; ValueError if it was made for none of these methods or
        does not fit the target."""
        ...


@dataclass(frozen=True)
class FunctionOpener:
    """An `Opener` made of a function that opens a model, for callers that load models by other means."""

    draft: Callable[[Any], Target]
    tokenizer: Any = None

    def cross_vocabulary(self, value: Any) -> CrossVocabularyDraft:
        """Raises RecipeError: translation between vocabularies needs the tokenizers of both models."""
        raise RecipeError(
            "a draft with another vocabulary needs the tokenizers of both models: use outpace.generate or "
            "the command line"
        )

    def usual_heads(self, method: str, kinds: Sequence[str]) -> list[str]:
        return []

    def head(self, methods: Sequence[str], value: Any) -> HeadModel | PositionModel:
        """Raises RecipeError: a draft head is opened for a target."""
        raise RecipeError(
            "a draft head needs the target's hidden states: use outpace.generate or the command line"
        )


class Fixtures(Protocol):
    """Small models, texts and a folder from which proofs and tests make a value of any option kind."""

    @property
    def target(self) -> Target: ...
    @property
    def drafts(self) -> Sequence[Target]: ...  # with the target's vocabulary
    @property
    def deep_draft(self) -> Target: ...  # the same, with at least four layers
    @property
    def cross_vocabulary(self) -> CrossVocabularyDraft: ...
    @property
    def texts(self) -> Sequence[Sequence[int]]: ...  # token ids, sampled from the target
    @property
    def folder(self) -> Path: ...  # for files; empty at first and removed afterwards


@dataclass(frozen=True)
class OptionKind:
    """How recipe options of one annotation, whose values are models or index files, are opened and
    checked."""

    annotation: Any
    phrase: str  # description of a suitable value, end of the error "METHOD needs OPTION: ..."
    accepts: Callable[[Any], bool]  # whether this value is passed to the recipe unchanged
    open: Callable[[Any, Opener], Any]  # any other value -> the recipe's argument; ValueError
    # (option, opened value, target, opener); RecipeError if the value does not suit the target
    check: Callable[[str, Any, Target, Opener], None]
    fixture: Callable[[Fixtures], Any]  # a small value, with which proofs run the recipe
    essential: bool = True  # proofs give it even if it is optional: else the method may draft nothing
    # values of an option that takes several, with which proofs run the recipe; None: `fixture` alone
    several: Callable[[Fixtures], tuple[Any, ...]] | None = None
    opens_default: bool = False  # the default of such an option is opened too, if no value is given
    heads: tuple[str, ...] = ()  # of an option with draft heads: the methods for which they may be made


def kinds_in(annotation: Any) -> list[OptionKind]:
    """The kinds in an annotation: one for `Target`, `Target | None` or `tuple[Target, ...]`, none for
    `int`."""
    found = [kind for kind in KINDS if kind.annotation is annotation]
    return found or [kind for part in get_args(annotation) for kind in kinds_in(part)]


def kind_of(annotation: Any) -> OptionKind | None:
    """The kind whose annotation is exactly this one."""
    return next((kind for kind in KINDS if kind.annotation is annotation), None)


def _same_size(option: str, draft: Target, target: Target, opener: Opener) -> None:
    if draft.vocab != target.vocab:
        raise RecipeError(
            f"the {option} model has a vocabulary of {draft.vocab} tokens and the target one of "
            f"{target.vocab}: "
            "use a smaller model of the target's own family, a method that translates such as tli, "
            "or one that needs no model such as prompt-lookup"
        )


def _any_vocabulary(option: str, draft: CrossVocabularyDraft, target: Target, opener: Opener) -> None:
    """Accept every draft model, since its vocabulary may differ from the target's."""


def _same_tokenizer(option: str, path: str, target: Target, opener: Opener) -> None:
    if opener.tokenizer is not None:
        store.check_tokenizer(path, store.fingerprint(opener.tokenizer.get_vocab()))


def _index_file(annotation: Any, kind: str, build: Callable[[Fixtures], store.Index]) -> OptionKind:
    """The kind of an option that is the path of an index file; `build` makes a small index as fixture."""

    def fixture(fixtures: Fixtures) -> str:
        path = fixtures.folder / kind
        if not path.exists():
            store.save(build(fixtures), path)
        return str(path)

    return OptionKind(
        annotation,
        f"a file made with `outpace index build --kind {kind}`",
        lambda value: isinstance(value, str),
        lambda value, opener: str(value),
        _same_tokenizer,
        fixture,
    )


def _head(annotation: Any, kinds: Sequence[HeadKind]) -> OptionKind:
    """The kind of an option that is a folder with a draft head of one of `kinds`. The fixture is an untrained
    one of the first."""
    methods = tuple(kind.method for kind in kinds)

    def check(option: str, opened: HeadModel | PositionModel, target: Target, opener: Opener) -> None:
        if not isinstance(target, TargetWithLayers):
            raise RecipeError(
                f"a draft head needs a target with hidden states, not a {type(target).__name__}"
            )
        found = opened.head.method
        if found not in methods:
            raise RecipeError(
                f"the {option} is a head for the method {found}, not for {' or '.join(methods)}"
            )
        if not opened.head.is_for(target):
            raise RecipeError(f"the {option} was opened for another target: give its folder")

    def made(fixtures: Fixtures, seed: int = 0) -> HeadModel | PositionModel:
        assert isinstance(fixtures.target, TargetWithLayers)
        head = kinds[0].untrained(fixtures.target, seed)
        return PositionModel(head) if isinstance(head, PositionHead) else HeadModel(head)

    return OptionKind(
        annotation,
        "a folder with a draft head that was trained for the target; train one with "
        f"`outpace train {methods[0]} --target TARGET --output FOLDER`",
        lambda value: isinstance(value, OpenedHead),
        lambda value, opener: opener.head(methods, value),
        check,
        made,
        essential=any(kind.native for kind in kinds),  # other recipes with an optional head draft without it
        several=lambda fixtures: (made(fixtures), made(fixtures, 1)),
        heads=methods,
    )


def _predictor(kind: PredictorKind) -> OptionKind:
    """The kind of an option that is a folder with a predictor; the fixture is an untrained one. Recipes check
    that it fits their models."""
    predictor = kind.predictor
    return OptionKind(
        predictor,
        f"a folder with a predictor for the {predictor.drafter}; train one with "
        f"{predictor.training_command()}",
        lambda value: isinstance(value, predictor),
        lambda value, opener: load_predictor(predictor, value),
        lambda option, value, target, opener: None,
        lambda fixtures: kind.untrained(fixtures.target, fixtures.drafts[0]),
        essential=False,  # optional in some recipes, which draft without it too
    )


# Index classes are imported inside these functions, because compiling their loops takes a second.


def _suffix_array(fixtures: Fixtures) -> store.Index:
    from outpace.indexes.suffix_array.array import SuffixArray

    return SuffixArray.build(fixtures.texts)


def _suffix_automaton(fixtures: Fixtures) -> store.Index:
    from outpace.indexes.automata.static import StaticAutomaton

    return StaticAutomaton.build(fixtures.texts)


def _trigrams(fixtures: Fixtures) -> store.Index:
    from outpace.recipes.training_free.aded.trigram_table import TrigramTable

    return TrigramTable.build(fixtures.texts)


def _hidden_states(fixtures: Fixtures) -> store.Index:
    from outpace.recipes.training_free.dresd.recipe import indexed

    return indexed(fixtures.target, fixtures.texts)


def _token_counts(fixtures: Fixtures) -> store.Index:
    """Counts without the most frequent token, so that the tokens which a draft keeps lack one that is likely
    under the target."""
    from outpace.indexes.token_counts import TokenCounts

    most = int(TokenCounts.build(fixtures.texts).ids[0])
    return TokenCounts.build([[token for token in text if token != most] for text in fixtures.texts])


def _skip_sets(fixtures: Fixtures) -> store.Index:
    """Two domains with a set each, which is not searched for."""
    import torch

    from outpace.models.skip_set import SkipSet
    from outpace.models.slim.make import num_layers
    from outpace.recipes.self_speculation.knn_ssd.recipe import alternate_layers, prompt_states
    from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors

    layers = num_layers(fixtures.target)
    texts = [torch.tensor(text) for text in fixtures.texts]
    states = [prompt_states(fixtures.target, part) for part in (texts[::2], texts[1::2])]
    sets = [alternate_layers(layers), SkipSet(mlp=frozenset({layers - 1}))]
    return SkipSetAnchors.build(states, sets, layers)


# The methods of an option are opened in a module that imports this one.


def _open_methods(value: Any, opener: Opener) -> Methods:
    from outpace.recipes._methods import open_methods

    return open_methods(value, opener)


def _few_methods(fixtures: Fixtures) -> Methods:
    """A lookup, a tree of chosen tokens and a drawn chain."""
    from outpace.recipes._method_names import Method
    from outpace.recipes._methods import methods_of

    draft = fixtures.drafts[0]
    methods = [
        Method("speculative-sampling", {"draft": draft, "depth": 2}),
        Method("prompt-lookup", {"max_ngram": 2, "depth": 3}),
        Method("token-recycling", {"nodes": 5}),
    ]
    return methods_of(methods, FunctionOpener(lambda value: draft))


def _any_methods(option: str, methods: Methods, target: Target, opener: Opener) -> None:
    """Accept all: each method's own options are checked when its parts are built."""


def _open_specialists(value: Any, opener: Opener) -> Specialists:
    text = value.strip("()[]") if isinstance(value, str) else value
    names = text.split(",") if isinstance(text, str) else text if isinstance(text, list | tuple) else [text]
    found: list[Specialist] = []
    for name in names:
        if not isinstance(name, str | Path):
            raise RecipeError(f"a specialist is the folder of a draft model, not a {type(name).__name__}")
        profile = PromptProfile.load(Path(resolve(str(name))))
        found.append(Specialist(opener.draft(str(name)), profile))
    return Specialists(tuple(found))


def _fitting_specialists(option: str, specialists: Specialists, target: Target, opener: Opener) -> None:
    for each in specialists.each:
        _same_size(option, each.model, target, opener)
        if each.profile.vocab != target.vocab:
            raise RecipeError(
                f"the prompts of one of the {option} were counted with {each.profile.vocab} tokens and the "
                f"target has {target.vocab}: train it for this target"
            )


def _few_specialists(fixtures: Fixtures) -> Specialists:
    """A draft model for texts that begin as the first of the fixtures do, and one for the others."""
    texts, vocab = [list(text[:6]) for text in fixtures.texts], fixtures.target.vocab
    kinds = [text for text in texts if text[0] == 0], [text for text in texts if text[0] != 0]
    models = fixtures.drafts[::-1]
    return Specialists(
        tuple(
            Specialist(models[index % len(models)], PromptProfile.learned(prompts, vocab))
            for index, prompts in enumerate(kinds)
        )
    )


def _open_reflection(value: Any, opener: Opener) -> Reflection:
    """From a text, or from token ids as a list or as a list in a text."""
    given = value.text if isinstance(value, Reflection) else value
    if isinstance(given, str) and re.fullmatch(r"\[[\d\s,]*\]", given):
        given = [int(number) for number in re.findall(r"\d+", given)]
    if isinstance(given, list | tuple):
        if not all(type(each) is int for each in given):
            raise RecipeError("the token ids of a reflection are whole numbers: give a text, or ids alone")
        return Reflection(str(list(given)), tuple(given))
    if not isinstance(given, str):
        raise RecipeError(f"a reflection is a text or a list of token ids, not a {type(given).__name__}")
    if opener.tokenizer is None:
        raise RecipeError("a reflection as a text needs the target's tokenizer: give token ids")
    return Reflection(given, tuple(opener.tokenizer(given, add_special_tokens=False)["input_ids"]))


def _fitting_reflection(option: str, reflection: Reflection, target: Target, opener: Opener) -> None:
    tokens, limit = reflection.tokens, target.max_length
    if not tokens:
        raise RecipeError(f"the {option} is empty: give a text or token ids")
    if max(tokens) >= target.vocab:
        raise RecipeError(
            f"the {option} has the token id {max(tokens)} and the target ids up to {target.vocab - 1}: use "
            "the target's tokenizer"
        )
    if limit is not None and limit < len(tokens) + 3:  # a text, a draft and its copy of one token each
        raise RecipeError(
            f"the {option} has {len(tokens)} tokens and the target reads at most {limit}, with a draft and "
            "its copy: shorten it"
        )


KINDS = (
    OptionKind(
        Target,
        "a smaller model with the same vocabulary (or use prompt-lookup, which needs none)",
        lambda value: isinstance(value, Target),
        lambda value, opener: opener.draft(value),
        _same_size,
        lambda fixtures: fixtures.drafts[0],
        essential=False,  # optional in some recipes, as `fallback: Target | None`
    ),
    OptionKind(
        DeepDraft,
        "a smaller model with the same vocabulary and at least four layers",
        lambda value: isinstance(value, Target),
        lambda value, opener: opener.draft(value),
        _same_size,
        lambda fixtures: fixtures.deep_draft,
    ),
    OptionKind(
        CrossVocabularyDraft,
        "a smaller model, whatever its vocabulary",
        lambda value: isinstance(value, CrossVocabularyDraft),
        lambda value, opener: opener.cross_vocabulary(value),
        _any_vocabulary,
        lambda fixtures: fixtures.cross_vocabulary,
    ),
    OptionKind(
        Methods,
        "names of methods, such as prompt-lookup,suffix-decoding",
        lambda value: isinstance(value, Methods) and value.builds is not None,
        _open_methods,
        _any_methods,
        _few_methods,
        essential=False,  # it has a default
        opens_default=True,
    ),
    OptionKind(
        Specialists,
        "folders of draft models that `outpace train multilingual-drafter` wrote",
        lambda value: isinstance(value, Specialists),
        _open_specialists,
        _fitting_specialists,
        _few_specialists,
        essential=False,  # a generic draft model drafts without
    ),
    OptionKind(
        Reflection,
        "a text that asks the target to check a draft, or its token ids",
        lambda value: isinstance(value, Reflection) and value.tokens is not None,
        _open_reflection,
        _fitting_reflection,
        lambda fixtures: Reflection("", (fixtures.target.vocab - 1, 0)),
        opens_default=True,
    ),
    _index_file(SuffixArrayFile, "suffix-array", _suffix_array),
    _index_file(SuffixAutomatonFile, "suffix-automaton", _suffix_automaton),
    _index_file(TrigramFile, "trigrams", _trigrams),
    _index_file(HiddenStateFile, "hidden-states", _hidden_states),
    _index_file(TokenCountsFile, "token-counts", _token_counts),
    _index_file(SkipSetFile, "skip-sets", _skip_sets),
    *(_head(annotation, kinds) for annotation, kinds in kinds_by_option().items()),
    *map(_predictor, predictor_kinds()),
)
