"""Loads the draft models among a recipe's options and checks that they fit the target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.api.model import Model, as_model, load
from outpace.api.prompts import encode
from outpace.drafters.compose.specialists import Specialists
from outpace.models.heads.compressed import weights_of_head
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.files import names_target
from outpace.models.heads.formats.folder import load_head, method_in
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import head_methods
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.self_check import SHORTEST, self_check
from outpace.models.hf.target import HFTarget
from outpace.models.names import ZOO, packaged_heads, resolve
from outpace.models.openvino.compressed_weights import CompressedWeights
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary

# most token ids by which checkpoints with one tokenizer are padded to different sizes
PADDING = 1024
OTHER_DRAFTS = (
    "use a smaller model of the target's own family, a method that translates such as tli, "
    "or one that needs no model such as prompt-lookup"
)
# text on which heads from elsewhere are checked, some hundred tokens
SAMPLE = """The water of a river moves because the ground is not level. It starts in the hills, where rain and
melting snow collect in small streams, and it ends in a lake or in the sea. On its way it carries sand and
stones, and where it slows down it leaves them behind. That is why the mouth of a large river is often flat
and wide, and why the land around it is good for farming.

import csv
from pathlib import Path


def read_rows(path: Path) -> list[dict[str, str]]:
    # one dictionary for each row of the table
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def total(rows: list[dict[str, str]], name: str) -> float:
    # the sum of the numbers in one column
    return sum(float(row[name]) for row in rows if row[name])


if __name__ == "__main__":
    for path in sorted(Path("tables").glob("*.csv")):
        rows = read_rows(path)
        print(path.name, len(rows), total(rows, "price"))
"""


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
        """The draft model of this name, adapted to the target's number of token ids. ValueError if its
        tokenizer is not the target's."""
        model = self._open(value)
        target = self.target.target
        if target not in model.as_draft:
            check_same_tokens(self.target, model)
            model.as_draft[target] = model.target.fitted(target.vocab)
        return model.as_draft[target]

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

    def usual_heads(self, method: str, kinds: Sequence[str]) -> list[str]:
        """Names of the package's draft heads for the target: the one named after the method, or without one
        those of the first kind that has any. `kinds`: methods for which the heads may have been made."""
        names = packaged_heads(self.target.name)
        if ZOO + method in names:
            return [ZOO + method]
        made_for = {name: method_in(Path(resolve(name)), head_methods()) for name in names}
        found = ([name for name in names if made_for[name] == kind] for kind in kinds)
        return next(filter(None, found), [])

    def head(self, methods: Sequence[str], value: Any) -> HeadModel | PositionModel:
        """The draft head in a folder or of the package that was made for one of these methods, compiled if
        the target is. With weights in the format for drafts, unless it has no KV cache. HeadFileError (a
        ValueError) if it was made for another method or does not fit the target."""
        if not isinstance(value, str | Path):
            raise ValueError(f"a draft head is a folder, not a {type(value).__name__}")
        model, folder = self.target, resolve(str(value))
        method = method_in(Path(folder), methods)
        if (found := model.heads.get((method, str(value)))) is None:
            compile = model.target.compiled is not None
            head = load_head(method, folder, model.target)
            if isinstance(head, PositionHead):
                weights = None if head.prefix is None else self._weights(head.prefix)
                found = PositionModel(head, compile=compile, weights=weights)
            else:
                self._warn_of_misreading(head, Path(folder))
                found = HeadModel(head, compile=compile, weights=self._weights(head))
            model.heads[method, str(value)] = found
        return found

    def _weights(self, head: DraftHead) -> CompressedWeights | None:
        target, format = self.target.target, self.target.draft_options.get("weights")
        return weights_of_head(head, format, target.model, target.compressed_weights)

    def _warn_of_misreading(self, head: DraftHead, folder: Path) -> None:
        """Warn if a head that outpace did not write drafts clearly better when its configuration is
        interpreted in another way, for example with layer numbers one higher: a wrong interpretation raises
        no error and only lowers acceptance."""
        model = self.target
        if model.tokenizer is None or names_target(folder):
            return
        # eagerly: a compiled forward would be compiled again for the layers that are compared
        target = model.target
        if target.compiled is not None:
            target = HFTarget(target.model, weights=target.compressed_weights)
        tokens = encode(model.tokenizer, SAMPLE, target.vocab)[: target.max_length]
        if len(tokens) < SHORTEST:
            return
        for finding in self_check(target, head, tokens).findings:
            warnings.warn(f"the head in {folder} may be misread: {finding.message}", stacklevel=2)

    def _open(self, value: Any) -> Model:
        if not isinstance(value, str | Path):
            return as_model(value)
        name = str(value)
        if name not in self.loaded:
            self.loaded[name] = self._load(name) if self._load else load(name, **self.target.draft_options)
        return self.loaded[name]


def check_same_tokens(target: Model, draft: Model) -> None:
    """Raise ValueError if draft and target have different tokenizers.

    Tokens that were added to one of them make no difference, unless the other uses their ids or strings.
    Without both tokenizers, equal numbers of token ids are taken for the same tokenizer, and so are numbers
    that differ by at most PADDING, with a warning.
    """
    sizes = draft.target.vocab, target.target.vocab
    if target.tokenizer is None or draft.tokenizer is None:
        if abs(sizes[0] - sizes[1]) > PADDING:
            raise ValueError(
                f"{draft.name} has a vocabulary of {sizes[0]} tokens and {target.name} one of {sizes[1]}, "
                f"and without both tokenizers they cannot be compared: {OTHER_DRAFTS}"
            )
        if sizes[0] != sizes[1]:
            warnings.warn(
                f"{draft.name} has {sizes[0]} token ids and {target.name} {sizes[1]}: without both "
                "tokenizers it is assumed that the ids which both have are the same tokens",
                stacklevel=2,
            )
        return
    if not (differing := _differing_tokens(target, draft)):
        return
    _, token = differing[-1]
    ids = [
        f"token {each.token_ids[token]}" if token in each.token_ids else "no token"
        for each in (draft, target)
    ]
    said = "one size" if sizes[0] == sizes[1] else f"{sizes[0]} and {sizes[1]} tokens"
    raise ValueError(
        f"{draft.name} and {target.name} have vocabularies of {said} but not the same tokens "
        f"({len(differing)} differ: {token!r} is {ids[0]} in the draft and {ids[1]} in the target): "
        f"{OTHER_DRAFTS}"
    )


def _differing_tokens(target: Model, draft: Model) -> list[tuple[int, str]]:
    """(Id in the target or -1, string) of the tokens in which two tokenizers differ, without those that were
    added to one of them under an id and a string of their own."""
    if target.token_ids == draft.token_ids:
        return []
    found: dict[str, int] = {}
    for one, other in ((target, draft), (draft, target)):
        added, taken = set(one.tokenizer.get_added_vocab()), set(other.token_ids.values())
        for token, id in one.token_ids.items() - other.token_ids.items():
            if token not in added or token in other.token_ids or id in taken:
                found[token] = target.token_ids.get(token, -1)
    return sorted((id, token) for token, id in found.items())


def draft_lengths(options: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(Name of the option, maximum length) of each draft model or head in `options` that has one. Drafts with
    a vocabulary of their own are not among them: they read the end of a text that is too long."""
    for name, value in options.items():
        if isinstance(value, Specialists):
            value = tuple(each.model for each in value.each)
        for each in value if isinstance(value, tuple) else (value,):
            model = each.model if isinstance(each, HeadModel | PositionModel) else each
            if isinstance(model, HFTarget) and model.max_length is not None:
                yield name, model.max_length


def short_drafts(options: Mapping[str, Any], needed: int) -> list[str]:
    """A sentence for each draft model or head in `options` whose maximum length is below `needed` tokens."""
    return [
        f"the {name} model reads at most {limit} tokens: longer texts, of up to {needed} here, go on without "
        "its drafts, or end with an error where the method needs it for every token"
        for name, limit in dict.fromkeys(draft_lengths(options))
        if limit < needed
    ]
