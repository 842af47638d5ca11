"""Options of recipes that are models or files: one table of how each kind is opened and checked.

A recipe declares such an option by its annotation (`draft: Target`, `index: SuffixArrayFile | None`). `KINDS`
has one entry per annotation: how a value from the command line or from Python is opened, which Python values
are passed unchanged, which values are refused, and the small fixture with which proofs and tests run the
recipe. To support a new kind of option, add an entry.
"""

from __future__ import annotations

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
from outpace.models.heads.formats.folder import kind_of as kind_of_head
from outpace.models.heads.formats.position_heads import FORMATS as POSITION_HEADS
from outpace.models.heads.head_model import (
    AnyEagleModel,
    Eagle3Model,
    EagleModel,
    HeadModel,
    KangarooModel,
    untrained_eagle,
    untrained_eagle3,
    untrained_kangaroo,
)
from outpace.models.heads.hydra import untrained_hydra
from outpace.models.heads.medusa import untrained_medusa
from outpace.models.heads.mlp_speculator import untrained_mlp_speculator
from outpace.models.heads.opened_head import ChainHead, OpenedHead
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.position_model import (
    HydraModel,
    MedusaModel,
    MlpSpeculatorModel,
    PositionModel,
    ReDrafterModel,
)
from outpace.models.heads.redrafter import untrained_redrafter
from outpace.models.names import resolve
from outpace.models.predictors.draft_distribution_predictor import (
    DraftDistributionPredictor,
    untrained_draft_distribution_predictor,
)
from outpace.models.predictors.draft_length_predictor import (
    DraftLengthPredictor,
    untrained_draft_length_predictor,
)
from outpace.models.predictors.exit_predictor import (
    ExitPredictor,
    load_exit_predictor,
    untrained_exit_predictor,
)
from outpace.models.predictors.folder import load_predictor
from outpace.models.predictors.hidden_state_predictor import (
    HiddenStatePredictor,
    untrained_hidden_state_predictor,
)
from outpace.models.predictors.predictor import Predictor
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes._options import RecipeError


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

    def usual_head(self, method: str, /) -> str | None:
        """Name of the package's draft head for this method and the target; None if it has none."""
        ...

    def head(self, kinds: Sequence[str], value: Any, /) -> HeadModel | PositionModel:
        """The draft head in a folder, for the target; ValueError if it is of none of these kinds or does not
        fit the target."""
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

    def usual_head(self, method: str) -> str | None:
        return None

    def head(self, kinds: Sequence[str], value: Any) -> HeadModel | PositionModel:
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


def _head(
    annotation: Any,
    kinds: tuple[str, ...],
    opened_type: type[OpenedHead],
    fixture: Callable[[TargetWithLayers, int], HeadModel | PositionModel],
) -> OptionKind:
    """The kind of an option that is a folder with a draft head of one of `kinds`, opened as `opened_type`.
    `fixture`: an untrained one for a target, made from a seed."""

    def check(option: str, opened: HeadModel | PositionModel, target: Target, opener: Opener) -> None:
        if not isinstance(target, TargetWithLayers):
            raise RecipeError(
                f"a draft head needs a target with hidden states, not a {type(target).__name__}"
            )
        head = opened.head
        found = head.method if isinstance(head, PositionHead) else kind_of_head(head)
        if found not in kinds:
            raise RecipeError(f"the {option} is a head for the method {found}, not for {' or '.join(kinds)}")
        if not head.is_for(target):
            raise RecipeError(f"the {option} was opened for another target: give its folder")

    def made(fixtures: Fixtures, seed: int = 0) -> HeadModel | PositionModel:
        assert isinstance(fixtures.target, TargetWithLayers)
        return fixture(fixtures.target, seed)

    return OptionKind(
        annotation,
        "a folder with a draft head that was trained for the target; train one with "
        f"`outpace train {kinds[0]} --target TARGET --output FOLDER`",
        lambda value: isinstance(value, opened_type),
        lambda value, opener: opener.head(kinds, value),
        check,
        made,
        essential=False,  # optional in some recipes, which draft without it too
        several=lambda fixtures: (made(fixtures), made(fixtures, 1)),
    )


def _untrained(
    opened_type: Callable[[Any], HeadModel | PositionModel], made: Callable[[TargetWithLayers, int], Any]
) -> Callable[[TargetWithLayers, int], HeadModel | PositionModel]:
    return lambda target, seed: opened_type(made(target, seed))


def _predictor(annotation: type[Predictor], fixture: Callable[[Fixtures], Predictor]) -> OptionKind:
    """The kind of an option that is a folder with a predictor; the fixture is an untrained one. Recipes check
    that it fits their draft model or head."""
    return OptionKind(
        annotation,
        f"a folder with a predictor for the {annotation.drafter}; train one with "
        f"{annotation.training_command()}",
        lambda value: isinstance(value, annotation),
        lambda value, opener: load_predictor(annotation, value),
        lambda option, predictor, target, opener: None,
        fixture,
        essential=False,  # optional in some recipes, which draft without it too
    )


def _draft_length_predictor(fixtures: Fixtures) -> Predictor:
    assert isinstance(fixtures.target, TargetWithLayers)
    return untrained_draft_length_predictor(fixtures.target)


# Index classes are imported inside these functions, because compiling their loops takes a second.


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


def _token_counts(fixtures: Fixtures) -> store.Index:
    """Counts without the most frequent token, so that the tokens which a draft keeps lack one that is likely
    under the target."""
    from outpace.indexes.token_counts import TokenCounts

    most = int(TokenCounts.build(fixtures.texts).ids[0])
    return TokenCounts.build([[token for token in text if token != most] for text in fixtures.texts])


def _skip_sets(fixtures: Fixtures) -> store.Index:
    """Two domains with a set each, which is not searched for."""
    import torch

    from outpace.core.skip_set import SkipSet
    from outpace.drafters.model.skip_set_routes import alternate_layers, prompt_states
    from outpace.indexes.skip_set_anchors import SkipSetAnchors
    from outpace.models.slim.make import num_layers

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
    _index_file(SuffixArrayFile, "suffix-array", _suffix_array),
    _index_file(SuffixAutomatonFile, "suffix-automaton", _suffix_automaton),
    _index_file(TrigramFile, "trigrams", _trigrams),
    _index_file(HiddenStateFile, "hidden-states", _hidden_states),
    _index_file(TokenCountsFile, "token-counts", _token_counts),
    _index_file(SkipSetFile, "skip-sets", _skip_sets),
    _head(EagleModel, ("eagle",), HeadModel, _untrained(HeadModel, untrained_eagle)),
    _head(Eagle3Model, ("eagle3",), HeadModel, _untrained(HeadModel, untrained_eagle3)),
    _head(AnyEagleModel, ("eagle", "eagle3"), HeadModel, _untrained(HeadModel, untrained_eagle)),
    _head(KangarooModel, ("kangaroo",), HeadModel, _untrained(HeadModel, untrained_kangaroo)),
    _head(MedusaModel, ("medusa",), PositionModel, _untrained(PositionModel, untrained_medusa)),
    _head(HydraModel, ("hydra",), PositionModel, _untrained(PositionModel, untrained_hydra)),
    _head(
        MlpSpeculatorModel,
        ("mlp-speculator",),
        PositionModel,
        _untrained(PositionModel, untrained_mlp_speculator),
    ),
    _head(ReDrafterModel, ("redrafter",), PositionModel, _untrained(PositionModel, untrained_redrafter)),
    _head(
        ChainHead,
        ("eagle", "eagle3", *POSITION_HEADS),
        OpenedHead,
        _untrained(HeadModel, untrained_eagle),
    ),
    _predictor(HiddenStatePredictor, lambda fixtures: untrained_hidden_state_predictor(fixtures.drafts[0])),
    _predictor(
        DraftDistributionPredictor,
        lambda fixtures: untrained_draft_distribution_predictor(fixtures.drafts[0]),
    ),
    _predictor(DraftLengthPredictor, _draft_length_predictor),
    OptionKind(
        ExitPredictor,
        "a folder with a predictor of early exits for the target; train one with "
        "`outpace train specee --target TARGET --head HEAD --output FOLDER`",
        lambda value: isinstance(value, ExitPredictor),
        lambda value, opener: load_exit_predictor(value),
        lambda option, predictor, target, opener: predictor.check(target),
        lambda fixtures: untrained_exit_predictor(fixtures.target),
        essential=False,
    ),
)
