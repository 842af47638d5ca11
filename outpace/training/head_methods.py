"""The base classes of methods that train draft heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from outpace.api.engines import NUM_TOKENS, Drafting
from outpace.api.model import Model
from outpace.models.heads.draft_head import DraftHead, random_weights
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.formats.folder import load_head, method_in, save_head
from outpace.models.heads.kinds import Head, HeadKind, head_kind
from outpace.models.heads.position_head import PositionHead, random_parameters
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.lessons.feature_heads import FeatureHeadLesson
from outpace.training.lessons.feature_heads import Objective as FeatureObjective
from outpace.training.lessons.lesson import Lesson
from outpace.training.lessons.position_heads import Objective as PositionObjective
from outpace.training.lessons.position_heads import PositionHeadLesson
from outpace.training.method import NOTHING, STORED, Beside, TrainingMethod, frozen_head
from outpace.training.texts import Example


@dataclass(frozen=True, kw_only=True)
class HeadMethod(TrainingMethod):
    """Trains a draft head for the target."""

    head: str  # the method that drafts with it
    # a head for a target, in float32, given its draft vocabulary; None: all tokens
    new: Callable[[HFTarget, TrainConfig, Tensor | None], Head]
    check: Callable[[HFTarget], Any] = lambda target: None  # ValueError for an unsupported target
    optimizer: Optimizer = Optimizer()
    sizes: Mapping[str, float] = field(default_factory=dict[str, float])  # the paper's, for `config.Head`
    others: tuple[str, ...] = ()  # further methods that draft with its heads

    noun: ClassVar[str] = "a head"
    settings: ClassVar[tuple[str, ...]] = ("head",)
    takes: ClassVar[tuple[str, ...]] = ("head",)
    reads_texts: ClassVar[bool] = True

    def defaults(self) -> TrainConfig:
        config = TrainConfig(optimizer=self.optimizer)
        return replace(config, head=replace(config.head, **self.sizes))

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Head:
        self.check(model.target)
        if start is not None:
            return head_in(start, self.head, model.target)
        return self.new(
            model.target, config, draft_vocabulary(examples, model.target.vocab, config.head.draft_vocab)
        )

    def save(self, drafter: Head, folder: Path, model: Model) -> None:
        for parameter in drafter.own.values():
            parameter.data = parameter.data.to(STORED)
        save_head(drafter, folder, model.target, name=model.name)

    def described(self, target: str, start: str | None) -> str:
        return f"draft head for {target}"

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        methods = (self.name, *self.others)
        return [f"--target {target} --method {method} --head {folder}" for method in methods]

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        support = head_kind(self.head).engines.get("vllm")
        return None if support is None else Drafting(support.name, NUM_TOKENS, support.options)


@dataclass(frozen=True, kw_only=True)
class FeatureHeadMethod(HeadMethod):
    """Trains a head that continues the target's hidden states."""

    objective: FeatureObjective

    def lesson(
        self, drafter: DraftHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return FeatureHeadLesson(drafter, learning_head(drafter, target), self.objective, config.head)


@dataclass(frozen=True, kw_only=True)
class PositionHeadMethod(HeadMethod):
    """Trains a head without a KV cache."""

    objective: PositionObjective
    lesson_type: type[PositionHeadLesson] = PositionHeadLesson
    head_per_position: bool = False  # whether each position has weights of its own

    def defaults(self) -> TrainConfig:
        config = super().defaults()
        # engines that read these layouts expect the whole vocabulary
        return replace(config, head=replace(config.head, draft_vocab=0))

    def lesson(
        self, drafter: PositionHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        num_steps = drafter.max_depth or config.head.num_heads  # all steps of a given head
        return self.lesson_type(
            drafter, learning_head(drafter, target), self.objective, config.head, num_steps
        )

    def weights_read(self, config: Mapping[str, Any]) -> float:
        return 1 / config["head"]["num_heads"] if self.head_per_position else 1.0

    def in_vllm(self, config: Mapping[str, Any]) -> Drafting | None:
        found = super().in_vllm(config)
        if found is None or config["head"]["draft_vocab"]:
            return None
        return replace(found, num_tokens=min(found.num_tokens, config["head"]["num_heads"]))


def of_kind(kind: HeadKind) -> dict[str, Any]:
    """The fields of a `HeadMethod` that is named after the kind of head that it trains."""
    return {"name": kind.method, "title": kind.title, "paper": kind.paper, "head": kind.method}


def head_in(name: str, method: str, target: HFTarget) -> Head:
    """The head of this method in a folder, in float32."""
    folder = Path(resolve(name))
    head = load_head(method_in(folder, (method,)), folder, target)
    for parameter in head.own.values():
        parameter.data = parameter.data.float()
    return head


def learning_head(head: Head, target: HFTarget) -> nn.Module:
    """A copy of the target's LM head for the losses of a head; the head uses it if it has none of its own."""
    frozen = frozen_head(target)
    if getattr(head, "lm_head", None) is target.head:
        head.lm_head = frozen
    return frozen


def begun(head: DraftHead, own: Sequence[nn.Module], target: HFTarget, seed: int) -> DraftHead:
    """A head whose modules `own` have random weights in float32."""
    for module in (*own, head.rotary_emb):
        module.to(torch.float32).to(target.device)
    random_weights(seed, own)
    return head


def begun_as_eagle3(head: Eagle3Head, target: HFTarget, seed: int, ids: Tensor | None) -> DraftHead:
    """A head of EAGLE-3's form with random weights in float32. Its LM head begins as a copy of the target's,
    as in speculators; `ids`: its draft vocabulary."""
    begun(head, (head.fc, head.layers, head.norm, head.lm_head), target, seed)
    with torch.no_grad():
        next(head.lm_head.parameters()).copy_(lm_head_rows(target, ids))
    return head


def begun_as_target(head: PositionHead, target: HFTarget, seed: int, ids: Tensor | None) -> PositionHead:
    """A head whose logits are those of the target's LM head on the hidden state, in float32; `ids`: its draft
    vocabulary."""
    in_float32(random_parameters(head, seed))
    rows = lm_head_rows(target, ids)
    size = rows.shape[1]
    with torch.no_grad():
        for name, parameter in head.own.items():
            if not name.endswith("weight"):
                continue
            if name.startswith("lm_head"):
                parameter[:, size:].zero_()  # ReDrafter: the columns for its recurrent state
                parameter[:, :size] = rows
            elif name.startswith("blocks") or ".linear." in name:
                parameter.zero_()
            elif ".residual." in name:
                parameter.zero_()[:, :size] = torch.eye(size)
    return head


def in_float32(head: PositionHead) -> PositionHead:
    """The head with its own parameters in float32."""
    for parameter in head.own.values():
        parameter.data = parameter.data.float()
    return head


def lm_head_rows(target: HFTarget, ids: Tensor | None) -> Tensor:  # (K, D)
    """The weights of the target's LM head for the tokens of a draft vocabulary, with its scale of logits."""
    weight = next(target.head.parameters()).detach().float()
    if isinstance(target.head, ScaledHead):
        weight = weight * target.head.scale
    return weight if ids is None else weight[ids.to(weight.device)]


def draft_vocabulary(examples: Sequence[Example], vocab: int, size: int) -> Tensor | None:
    """The `size` most frequent tokens of the answers, in increasing order of ids; None (all tokens) if the
    vocabulary has no more or `size` is 0. Tokens that do not occur rank last, by their ids."""
    if not 0 < size < vocab:
        return None
    counts = Counter(token for example in examples for token in example.tokens[example.first :])
    frequent = [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][:size]
    chosen = set(frequent)
    rest = (token for token in range(vocab) if token not in chosen)
    return torch.tensor(sorted([*frequent, *(next(rest) for _ in range(size - len(frequent)))]))


def check_layer_size(method: str, target: HFTarget) -> None:
    """ConfigError for a target that projects between its hidden states and embeddings of another size: the
    method's heads read both without a projection."""
    size = target.model.config.get_text_config().hidden_size
    embedded = next(target.embed.parameters()).shape[1]
    if size != embedded:
        raise ConfigError(
            f"{method} cannot be trained for a target that projects hidden states of {size} numbers to "
            f"{embedded} before its LM head: use eagle, hass or a head such as medusa"
        )
