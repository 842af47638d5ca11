"""A model to decode with: the target, its tokenizer and what its checkpoint says about generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from outpace.console import progress
from outpace.core.contracts import Target
from outpace.models.hf.target import HFTarget
from outpace.models.hf.target import load as load_target
from outpace.models.names import resolve
from outpace.models.openvino.compiled import STAGES
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary

# drafts' tokenizers that were compared, with whose and at what sizes: vocabularies of 150,000 words take 0.2 s a call
_agreed: WeakKeyDictionary[Any, tuple[ref[Any], int, int]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Model:
    """What `load` returns; give it to `generate` and `stream`."""

    name: str
    target: HFTarget
    tokenizer: Any = None
    defaults: Any = None  # the checkpoint's transformers GenerationConfig

    @property
    def max_length(self) -> int | None:
        """Most tokens of prompt and answer together; None: no limit known."""
        return self.target.max_length


def load(
    target: str | Path,
    *,
    dtype: str = "auto",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    threads: int | None = None,
    compile: bool = False,  # run it through OpenVINO (extra `compile`): seconds now, for faster steps on a CPU
) -> Model:
    """Load a model of the zoo (`zoo:target`), of a folder, or of the Hugging Face Hub."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; use at least one")
    with progress(len(STAGES) if compile else 0) as tell:
        loaded, tokenizer = load_target(
            resolve(str(target)),
            dtype=dtype,
            device=device,
            revision=revision,
            trust_remote_code=trust_remote_code,
            threads=threads,
            compile=compile,
            tell=lambda stage: tell(f"{stage} {target}", 1),
        )
    return Model(str(target), loaded, tokenizer, loaded.model.generation_config)


def wrap(target: Any, stack: ExitStack, tokenizer: Any = None, device: str | None = None) -> Model:
    """The model that a caller means; a transformers model is given back as it was when the stack closes."""
    from transformers import PreTrainedModel

    if isinstance(target, Model):
        return target
    if isinstance(target, str | Path):
        return load(target, device=device)
    if isinstance(target, HFTarget):
        return Model(type(target.model).__name__, target, tokenizer, target.model.generation_config)
    if isinstance(target, PreTrainedModel):
        wrapped = HFTarget(target)
        return Model(type(target).__name__, wrapped, tokenizer, target.generation_config)
    raise ValueError(
        f"a {type(target).__name__} is no model: give a name, a folder, what outpace.load returned, "
        "or a transformers causal language model"
    )


@dataclass(frozen=True)
class ModelOpener:
    """outpace.recipes.Opener for a loaded target: names and folders are loaded on the target's device."""

    target: Model
    stack: ExitStack  # closing it gives transformers models back as they were

    @property
    def tokenizer(self) -> Any:
        """The target's; None where it is unknown."""
        return self.target.tokenizer

    def draft(self, value: Any) -> Target:
        """The model that `value` names or is; ValueError where its tokens are not the target's."""
        model = wrap(value, self.stack, device=str(self.target.target.device))
        same_tokens(self.target, model)
        return model.target

    def cross_vocabulary(self, value: Any) -> CrossVocabularyDraft:
        """The same for a model whose tokens may differ from the target's, with both vocabularies."""
        return cross_vocabulary(self.target, wrap(value, self.stack, device=str(self.target.target.device)))


def cross_vocabulary(target: Model, draft: Model) -> CrossVocabularyDraft:
    """A draft and what its tokens and the target's spell."""
    for model in (draft, target):
        if model.tokenizer is None:
            raise ValueError(
                f"{model.name} came without a tokenizer, but translating its tokens needs one: "
                "give a name, a folder, or what outpace.load returned"
            )
    ours, theirs = (Vocabulary.of(each.tokenizer, each.target.vocab, each.name) for each in (target, draft))
    return CrossVocabularyDraft(draft.target, theirs, ours)


def same_tokens(target: Model, draft: Model) -> None:
    """Refuse a draft whose token ids stand for other strings."""
    if target.tokenizer is None or draft.tokenizer is None or target.target.vocab != draft.target.vocab:
        return  # sizes are compared where the parts are built
    pair = ref(target.tokenizer), len(target.tokenizer), len(draft.tokenizer)
    if _agreed.get(draft.tokenizer) == pair:
        return
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if ours == theirs:
        _agreed[draft.tokenizer] = pair
        return
    differing = sorted((ours.get(word, -1), word) for word, _ in ours.items() ^ theirs.items())
    _, word = differing[-1]
    places = [f"token {ids[word]}" if word in ids else "no token" for ids in (theirs, ours)]
    raise ValueError(
        f"{draft.name} and {target.name} have vocabularies of one size but not the same tokens "
        f"({len(differing)} differ: {word!r} is {places[0]} in the draft and {places[1]} in the target): "
        "use a smaller model of the target's own family, a method that translates such as tli, "
        "or one that needs no model such as prompt-lookup"
    )


def drafts_reach(values: Mapping[str, Any], needed: int) -> None:
    """Refuse a draft model that cannot read as far as the text will go."""
    for name, value in values.items():
        for each in value if isinstance(value, tuple) else (value,):
            limit = each.max_length if isinstance(each, Target) else None
            if limit is not None and limit < needed:
                raise ValueError(
                    f"the {name} model reads at most {limit} tokens, but prompt and answer may have {needed}: "
                    "ask for fewer tokens (max_tokens) or use another draft"
                )


def room(model: Model, prompts: Sequence[Sequence[int]]) -> list[int]:
    """How many tokens fit behind each prompt; a prompt that leaves none is an error."""
    limit = model.max_length
    if limit is None:
        return [2**31] * len(prompts)
    for index, prompt in enumerate(prompts, 1):
        if len(prompt) >= limit:
            which = "the prompt" if len(prompts) == 1 else f"prompt {index}"
            raise ValueError(
                f"{which} has {len(prompt)} tokens, but {model.name} reads at most {limit}: shorten it"
            )
    return [limit - len(prompt) for prompt in prompts]
