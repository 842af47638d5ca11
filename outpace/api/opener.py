"""Loads the draft models among a recipe's options and checks that they fit the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outpace.api.model import Model, as_model, load
from outpace.models.heads.formats.folder import load_head
from outpace.models.heads.formats.position_heads import FORMATS, load_position_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary


class ModelOpener:
    """Implements the `Opener` of `recipes.configure`: loads drafts for one target.

    A draft is a name, a folder, an `outpace.Model`, or a transformers model. Each name or folder is loaded
    once per target, with the target's dtype, device and compile option, or with the function `load`.
    """

    def __init__(self, target: Model, load: Callable[[str], Model] | None = None) -> None:
        self.target, self._load = target, load
        self.loaded: dict[str, Model] = {} if load else target.drafts  # loaded drafts by name or folder

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer; None if the target was given without one."""
        return self.target.tokenizer

    def draft(self, value: Any) -> HFTarget:
        """A draft model with the same vocabulary as the target; ValueError if its token ids differ."""
        model = self._open(value)
        check_same_tokens(self.target, model)
        return model.target

    def cross_vocabulary(self, value: Any) -> CrossVocabularyDraft:
        """A draft model with any vocabulary, and both vocabularies; ValueError if either has no tokenizer."""
        draft = self._open(value)
        for model in (draft, self.target):
            if model.tokenizer is None:
                raise ValueError(
                    f"the tokenizer of {model.name} is unknown, but translating between vocabularies needs "
                    "both tokenizers: give models by name, as folders, or as outpace.load returns them"
                )
        own, drafts = (
            Vocabulary.of(each.tokenizer, each.target.vocab, each.name) for each in (self.target, draft)
        )
        return CrossVocabularyDraft(draft.target, drafts, own)

    def head(self, kind: str, value: Any) -> HeadModel | PositionModel:
        """The draft head of this kind in a folder, compiled if the target is; HeadFileError (a ValueError) if
        it does not fit the target."""
        if not isinstance(value, str | Path):
            raise ValueError(f"a draft head is a folder, not a {type(value).__name__}")
        model = self.target
        if (found := model.heads.get((kind, str(value)))) is None:
            compile = model.target.compiled is not None
            if kind in FORMATS:
                found = PositionModel(load_position_head(kind, value, model.target), compile=compile)
            else:
                found = HeadModel(load_head(kind, value, model.target), compile=compile)
            model.heads[kind, str(value)] = found
        return found

    def _open(self, value: Any) -> Model:
        if not isinstance(value, str | Path):
            return as_model(value)
        name = str(value)
        if name not in self.loaded:
            self.loaded[name] = self._load(name) if self._load else load(name, **self.target.draft_options)
        return self.loaded[name]


def check_same_tokens(target: Model, draft: Model) -> None:
    """Raise ValueError if draft and target map token strings to different ids.

    Not checked without both tokenizers, nor for vocabularies of different sizes: `recipes.configure` raises
    the error for those.
    """
    if target.tokenizer is None or draft.tokenizer is None or target.target.vocab != draft.target.vocab:
        return
    own, drafts = target.token_ids, draft.token_ids
    if own == drafts:
        return
    differing = sorted((own.get(token, -1), token) for token, _ in own.items() ^ drafts.items())
    _, token = differing[-1]
    ids = [f"token {each[token]}" if token in each else "no token" for each in (drafts, own)]
    raise ValueError(
        f"{draft.name} and {target.name} have vocabularies of one size but not the same tokens "
        f"({len(differing)} differ: {token!r} is {ids[0]} in the draft and {ids[1]} in the target): "
        "use a smaller model of the target's own family, a method that translates such as tli, "
        "or one that needs no model such as prompt-lookup"
    )


def check_draft_lengths(options: Mapping[str, Any], needed: int) -> None:
    """Raise ValueError if the maximum length of a draft model in `options` is below `needed` tokens."""
    for name, value in options.items():
        for each in value if isinstance(value, tuple) else (value,):
            limit = each.max_length if isinstance(each, HFTarget) else None
            if limit is not None and limit < needed:
                raise ValueError(
                    f"the {name} model reads at most {limit} tokens, but prompt and answer may have "
                    f"{needed}: ask for fewer tokens (max_tokens) or use another draft"
                )
