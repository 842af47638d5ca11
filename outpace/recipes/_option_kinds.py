"""Options of recipes that are not plain data: models and files. One table says how each kind is opened and
tested.

A recipe names such an option by its annotation (`draft: Target`, `index: SuffixArrayFile | None`). `KINDS`
has one entry per annotation: how a value from the command line or from Python is opened, what Python may pass
as it is, which values are refused, and the small fixture with which proofs and tests run the recipe. To
support a new kind of option, add an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from outpace.core.contracts import Target
from outpace.indexes import store
from outpace.indexes.store import HiddenStateFile, SuffixArrayFile, SuffixAutomatonFile, TrigramFile
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes._options import RecipeError


class Opener(Protocol):
    """Opens the models among a recipe's options for one target."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer; None where it is unknown, and then index files are not compared with it."""
        ...

    def draft(self, value: Any, /) -> Target:
        """The model that `value` (a name, a folder, a loaded model) stands for; its tokens are the
        target's."""
        ...

    def cross_vocabulary(self, value: Any, /) -> CrossVocabularyDraft:
        """The same for a model whose vocabulary may differ from the target's."""
        ...


@dataclass(frozen=True)
class FunctionOpener:
    """An `Opener` made of functions, for callers that open models in a way of their own."""

    draft: Callable[[Any], Target]
    tokenizer: Any = None

    def cross_vocabulary(self, value: Any) -> CrossVocabularyDraft:
        """Raises: a translation needs the tokenizers of both models."""
        raise RecipeError(
            "a draft with another vocabulary needs the tokenizers of both models: use outpace.generate or "
            "the "
            "command line"
        )


class Fixtures(Protocol):
    """What proofs and tests have at hand to make a value of any kind from."""

    @property
    def target(self) -> Target: ...
    @property
    def drafts(self) -> Sequence[Target]: ...  # with the target's vocabulary
    @property
    def cross_vocabulary(self) -> CrossVocabularyDraft: ...
    @property
    def texts(self) -> Sequence[Sequence[int]]: ...  # token ids, sampled from the target
    @property
    def folder(self) -> Path: ...  # for files; empty at first and removed afterwards


@dataclass(frozen=True)
class OptionKind:
    """One kind of option that is not plain data."""

    annotation: Any
    phrase: str  # what to give: ends the sentence "METHOD needs OPTION: ..."
    accepts: Callable[[Any], bool]  # whether the recipe takes this value as it is
    open: Callable[[Any, Opener], Any]  # any other value -> what the recipe takes; raises ValueError
    check: Callable[
        [str, Any, Target, Opener], None
    ]  # (option, opened value, ...); raises where they do not fit
    fixture: Callable[[Fixtures], Any]  # a small value with which the recipe drafts
    essential: bool = True  # proofs always give a fixture: without one the method may draft nothing


def kinds_in(annotation: Any) -> list[OptionKind]:
    """The kinds named in an annotation: one for `Target`, `Target | None` or `tuple[Target, ...]`, none for
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
    """Nothing to refuse: the draft was opened together with both vocabularies."""


def _same_tokenizer(option: str, path: str, target: Target, opener: Opener) -> None:
    if opener.tokenizer is not None:
        store.check_tokenizer(path, store.fingerprint(opener.tokenizer.get_vocab()))


def _index_file(annotation: Any, kind: str, build: Callable[[Fixtures], store.Index]) -> OptionKind:
    """An option that is the path of an index; `build` makes a small one."""

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


# The classes of indexes are imported where one is built: they compile loops, which takes a second.


def _suffix_array(fixtures: Fixtures) -> store.Index:
    from outpace.indexes.suffix_array.array import SuffixArray

    return SuffixArray.build(fixtures.texts)


def _suffix_automaton(fixtures: Fixtures) -> store.Index:
    from outpace.indexes.automata.static import StaticAutomaton

    return StaticAutomaton.build(fixtures.texts)


def _trigrams(fixtures: Fixtures) -> store.Index:
    from outpace.indexes.tables.trigrams import TrigramTable

    return TrigramTable.build(fixtures.texts)


def _hidden_states(fixtures: Fixtures) -> store.Index:
    from outpace.drafters.lookup.hidden_state_search import indexed

    return indexed(fixtures.target, fixtures.texts)


KINDS = (
    OptionKind(
        Target,
        "a smaller model with the same vocabulary (or use prompt-lookup, which needs none)",
        lambda value: isinstance(value, Target),
        lambda value, opener: opener.draft(value),
        _same_size,
        lambda fixtures: fixtures.drafts[0],
        essential=False,  # where a recipe can do without: `fallback: Target | None`
    ),
    OptionKind(
        CrossVocabularyDraft,
        "a smaller model, whatever its vocabulary",
        lambda value: isinstance(value, CrossVocabularyDraft),
        lambda value, opener: opener.cross_vocabulary(value),
        _any_vocabulary,
        lambda fixtures: fixtures.cross_vocabulary,
    ),
    _index_file(SuffixArrayFile, "suffix-array", _suffix_array),
    _index_file(SuffixAutomatonFile, "suffix-automaton", _suffix_automaton),
    _index_file(TrigramFile, "trigrams", _trigrams),
    _index_file(HiddenStateFile, "hidden-states", _hidden_states),
)
