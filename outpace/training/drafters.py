"""What each method of `outpace train` trains: the drafter before training, what it learns, and its folder."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from outpace.api.model import Model, load
from outpace.api.opener import check_same_tokens
from outpace.models.adapter import EXIT_LAYER, has_adapter, save_adapter, with_low_rank_changes
from outpace.models.heads.draft_head import DraftHead, head_config, random_weights
from outpace.models.heads.eagle import EagleHead
from outpace.models.heads.eagle3 import Eagle3Head, default_taps
from outpace.models.heads.fingerprint import head_fingerprint, model_fingerprint, target_fingerprint
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.formats.kinds import kind_in
from outpace.models.heads.formats.position_heads import load_position_head, save_position_head
from outpace.models.heads.hydra import HydraHead, prefix_layer
from outpace.models.heads.kangaroo import KangarooHead, default_early_layers
from outpace.models.heads.medusa import MedusaHead
from outpace.models.heads.mlp_speculator import MlpSpeculatorHead
from outpace.models.heads.position_head import PositionHead, random_parameters
from outpace.models.heads.redrafter import ReDrafterHead
from outpace.models.hf.captures import OutputCapture
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.hf.reshaped import mlp_size, reshaped
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve
from outpace.models.predictors.draft_distribution_predictor import DraftDistributionPredictor
from outpace.models.predictors.draft_length_predictor import DraftLengthPredictor
from outpace.models.predictors.exit_predictor import ExitPredictor, save_exit_predictor
from outpace.models.predictors.folder import save_predictor
from outpace.models.predictors.hidden_state_predictor import HiddenStatePredictor
from outpace.models.predictors.predictor import AcceptancePredictor, Pair, Predictor
from outpace.models.slim.exits import CONFIG as EXITS
from outpace.models.slim.exits import check_exits, default_exits
from outpace.models.slim.make import num_layers
from outpace.models.slim.partial_forward import PartialForward
from outpace.models.slim.skipped_modules import check_attention
from outpace.training.config import ConfigError, TrainConfig
from outpace.training.lessons.acceptance import DraftDistributionLesson, HiddenStateLesson
from outpace.training.lessons.adapters import AdapterLesson
from outpace.training.lessons.draft_lengths import DraftLengthLesson
from outpace.training.lessons.draft_models import DraftModelLesson, FilteredLesson
from outpace.training.lessons.early_exits import EarlyExitLesson, SortedLesson, exit_layer
from outpace.training.lessons.exit_predictor import ExitLesson
from outpace.training.lessons.feature_heads import FeatureHeadLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.lessons.position_heads import PositionHeadLesson
from outpace.training.methods import (
    ADAPTERS,
    DRAFT_MODELS,
    EXIT_MODELS,
    EXIT_PREDICTORS,
    FEATURE_HEADS,
    LENGTH_PREDICTORS,
    POSITION_HEADS,
    PREDICTORS,
    TARGETS,
)
from outpace.training.texts import DataError, Example

STORED = torch.bfloat16  # dtype of the weights in a folder


@dataclass(frozen=True)
class PredictorOf:
    """A predictor with the draft model or head whose tokens it learns to judge."""

    predictor: Predictor
    draft: PreTrainedModel


@dataclass(frozen=True)
class ExitPredictorOf:
    """A predictor of early exits with the head that names candidates."""

    predictor: ExitPredictor
    head: DraftHead


Drafter = DraftHead | PositionHead | PreTrainedModel | PredictorOf | ExitPredictorOf


def untrained(
    method: str,
    model: Model,
    config: TrainConfig,
    examples: Sequence[Example] = (),
    start: str | None = None,
) -> Drafter:
    """A drafter in float32, as training begins. `examples`: texts whose most frequent tokens a head with a
    reduced draft vocabulary drafts. `start`: name or folder of a draft model, or folder of a head, to begin
    with. ValueError if it does not fit the target."""
    target = model.target
    if method in (*TARGETS, *ADAPTERS, *EXIT_PREDICTORS, "eagle3"):
        num_layers(target)  # refuses layers whose outputs cannot be read
    if method in (*TARGETS, *ADAPTERS):
        check_attention(target.forward)
    if method in TARGETS:
        check_exit(exit_layer(config.exits, target.num_layers), target)
        check_learned_exits(config.exits.layers, target)
        whole = copy.deepcopy(target.model).float()
        setattr(whole.config.get_text_config(), EXIT_LAYER, exit_layer(config.exits, target.num_layers))
        return with_low_rank_changes(whole, model.name, config.exits.rank) if config.exits.rank else whole
    if method in DRAFT_MODELS:
        return draft_model(model, config, start)
    if method in EXIT_MODELS:
        draft = draft_model(model, config, start)
        check_attention(HFTarget(draft).forward)
        return with_exits(draft, config.exits.layers)
    if method in PREDICTORS:
        return _predictor(method, draft_model(model, config, start), target, config)
    if method in LENGTH_PREDICTORS:
        assert start is not None
        return _length_predictor(_head_in(start, "eagle", target), target, config)
    if method in EXIT_PREDICTORS:
        PartialForward(target.forward, target.model)  # refuses models that no token can leave early
        assert start is not None
        head = _head_in(resolve(start), "eagle", target)
        assert isinstance(head, DraftHead)
        predictor = _exit_predictor(target, config)
        predictor.trained_with = head_fingerprint(head)
        return ExitPredictorOf(predictor, head)
    if start is not None:
        return _head_in(start, method, target)
    if method == "eagle3" or method in ADAPTERS:
        _check_layer_size(method, target)
    ids = draft_vocabulary(examples, target.vocab, config.head.draft_vocab)
    if method in POSITION_HEADS:
        return _position_head(method, target, config, ids)
    if method == "eagle3":
        size = target.vocab if ids is None else len(ids)
        head = Eagle3Head(
            head_config(target, size),
            target.embed,
            default_taps(target.num_layers),
            draft_ids=ids,
            norm_before_residual=config.head.norm_before_residual,
        )
        own = [head.fc, head.layers, head.norm, head.lm_head]
    elif method in ADAPTERS:
        early = config.exits.layer or default_early_layers(target.num_layers)
        check_exit(early, target)
        head = KangarooHead(head_config(target, target.vocab), target.embed, target.head, early)
        own = [head.layers, head.norm]
    else:
        layers = head_config(target, target.vocab, config.head.num_layers)
        head = EagleHead(layers, target.embed, target.head, bias=False)
        own = [head.fc, head.layers]
    for module in (*own, head.rotary_emb):
        module.to(torch.float32).to(target.device)
    random_weights(config.seed, own)
    if isinstance(head, Eagle3Head):  # its LM head as in speculators: the target's, then trained
        with torch.no_grad():
            next(head.lm_head.parameters()).copy_(_lm_head_rows(target, ids))
    return head


def lesson(
    method: str,
    drafter: Drafter,
    target: HFTarget,
    config: TrainConfig,
    reference: PreTrainedModel | None = None,  # of adaspec
    end_tokens: tuple[int, ...] = (),
) -> Lesson:
    """What the drafter learns. The target's LM head is used in float32 and never trained. `end_tokens`: those
    with which texts that a draft model continues itself end."""
    target_head = copy.deepcopy(target.head).float().requires_grad_(False)
    head = drafter.draft if isinstance(drafter, PredictorOf) else drafter
    if isinstance(head, DraftHead) and head.lm_head is target.head:
        head.lm_head = target_head
    if isinstance(drafter, DraftHead):
        if isinstance(drafter, KangarooHead):
            return AdapterLesson(drafter, target_head, _num_parameters(target, drafter.num_early_layers))
        return FeatureHeadLesson(drafter, target_head, FEATURE_HEADS[method], config.head)
    if isinstance(drafter, PositionHead):
        num_steps = drafter.max_depth or config.head.num_heads  # all of a head with which the run begins
        return PositionHeadLesson(drafter, target_head, POSITION_HEADS[method], config.head, num_steps)
    if isinstance(drafter, PredictorOf) and isinstance(drafter.predictor, DraftLengthPredictor):
        assert isinstance(drafter.draft, DraftHead)
        return DraftLengthLesson(
            drafter.predictor, drafter.draft, target.embed, target_head, config.predictor
        )
    if isinstance(drafter, PredictorOf):
        rest = drafter.draft, target_head, config.predictor
        if isinstance(drafter.predictor, DraftDistributionPredictor):
            return DraftDistributionLesson(drafter.predictor, *rest)
        assert isinstance(drafter.predictor, HiddenStatePredictor)
        return HiddenStateLesson(drafter.predictor, *rest)
    if isinstance(drafter, ExitPredictorOf):
        if drafter.head.lm_head is target.head:
            drafter.head.lm_head = target_head
        return ExitLesson(drafter.predictor, drafter.head, target.model, target_head)
    if method in TARGETS:
        return EarlyExitLesson(drafter, target_head, config.exits)
    if method in EXIT_MODELS:
        return SortedLesson(drafter, target_head, getattr(drafter.config.get_text_config(), EXITS))
    if method == "adaspec":
        assert reference is not None
        return FilteredLesson(drafter, reference, target_head, config.distillation)
    if method == "distillspec":
        return DraftModelLesson(drafter, target_head, config.distillation, end_tokens)
    made: Callable[..., Lesson] = DRAFT_MODELS[method]
    return made(drafter, target_head, config.distillation)


def with_exits(draft: PreTrainedModel, given: Sequence[int]) -> PreTrainedModel:
    """The draft model, with its exits in its configuration. ValueError for exits that it lacks."""
    config = draft.config.get_text_config()
    exits = tuple(given) or default_exits(config.num_hidden_layers)
    check_exits(exits, config.num_hidden_layers)
    setattr(config, EXITS, list(exits))
    return draft


def _check_layer_size(method: str, target: HFTarget) -> None:
    """ConfigError for a target whose layers have hidden states of another size than its embeddings, which it
    projects; the method's heads read both as they are."""
    size, embedded = (
        target.model.config.get_text_config().hidden_size,
        next(target.embed.parameters()).shape[1],
    )
    if size != embedded:
        raise ConfigError(
            f"{method} cannot be trained for a target that projects hidden states of {size} numbers to "
            f"{embedded} before its LM head: use eagle, hass or a head such as medusa"
        )


def check_exit(layer: int, target: HFTarget) -> None:
    """ConfigError if the target has no exit after so many layers."""
    most = target.num_layers - 1
    if layer > most:
        raise ConfigError(
            f"exits.layer is {layer}: a target of {target.num_layers} layers has exits 1 to {most}"
        )


def check_learned_exits(exits: Sequence[int], target: HFTarget) -> None:
    """ConfigError unless `exits` are increasing numbers of layers from 1 to the target's minus 1."""
    if list(exits) != sorted(set(exits) & set(range(1, target.num_layers))):
        raise ConfigError(
            f"exits.layers is {','.join(map(str, exits))}: give increasing numbers of layers, from 1 to "
            f"{target.num_layers - 1}"
        )


def check_answers(method: str, examples: Sequence[Example], config: TrainConfig) -> None:
    """DataError if no answer is long enough to learn from."""
    depth = config.predictor.depth
    if method in LENGTH_PREDICTORS and max(len(each.tokens) - each.first for each in examples) < depth:
        raise DataError(
            f"no answer has the {depth} tokens of a longest draft: give more prompts, a larger "
            "answers.max_tokens or a smaller predictor.depth"
        )


def _num_parameters(target: HFTarget, num_layers: int) -> int:
    """Those of the target's first layers."""
    layers = OutputCapture(target.model, target.num_layers).layers
    assert layers is not None
    return sum(each.numel() for layer in layers[:num_layers] for each in layer.parameters())


def save(drafter: Drafter, folder: Path, model: Model) -> None:
    """Write a drafter that was made for the model, in the layout that other engines read; its weights become
    bfloat16."""
    if isinstance(drafter, PredictorOf):
        save_predictor(drafter.predictor.to(STORED), folder)
        return
    if isinstance(drafter, ExitPredictorOf):
        save_exit_predictor(drafter.predictor.to(STORED), folder)
        return
    if not isinstance(drafter, DraftHead | PositionHead):
        nn.Module.to(drafter, STORED)
        if has_adapter(drafter):
            save_adapter(drafter, folder)
        else:
            drafter.save_pretrained(folder)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(folder)
        return
    for parameter in drafter.own.values():
        parameter.data = parameter.data.to(STORED)
    if isinstance(drafter, PositionHead):
        save_position_head(drafter, folder, model.target)
    else:
        save_head(drafter, folder, model.target, name=model.name)


def draft_vocabulary(examples: Sequence[Example], vocab: int, size: int) -> torch.Tensor | None:
    """The `size` most frequent tokens of the answers, in increasing order; None, which means all, if the
    vocabulary has no more or `size` is 0. Tokens that do not occur follow in the order of their ids."""
    if not 0 < size < vocab:
        return None
    counts = Counter(token for each in examples for token in each.tokens[each.first :])
    frequent = [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][:size]
    chosen = set(frequent)
    rest = (token for token in range(vocab) if token not in chosen)
    return torch.tensor(sorted([*frequent, *(next(rest) for _ in range(size - len(frequent)))]))


def _head_in(name: str, method: str, target: HFTarget) -> DraftHead | PositionHead:
    folder = Path(resolve(name))
    kind = kind_in(folder, (method if method in ("eagle3", *ADAPTERS, *POSITION_HEADS) else "eagle",))
    if method in POSITION_HEADS:
        head: DraftHead | PositionHead = load_position_head(kind, folder, target)
    else:
        head = load_head(kind, folder, target)
    for parameter in head.own.values():
        parameter.data = parameter.data.float()
    return head


def _position_head(
    method: str, target: HFTarget, config: TrainConfig, ids: torch.Tensor | None
) -> PositionHead:
    """Heads of Medusa and Hydra and a ReDrafter begin as the target's LM head on the hidden state."""
    settings = config.head
    count, layers = settings.num_heads, settings.num_layers
    if method == "mlp-speculator":
        inner = settings.inner_size or 2 * head_config(target, 1).hidden_size
        head: PositionHead = MlpSpeculatorHead(
            target, count, inner, tied=settings.tied, scale_input=settings.scale_input
        )
    elif method == "redrafter":
        head = ReDrafterHead(target, num_layers=layers, draft_ids=ids)
    elif method == "medusa":
        head = MedusaHead(target, count, num_layers=layers, draft_ids=ids)
    else:
        prefix = prefix_layer(target) if settings.prefix else None
        head = HydraHead(target, count, num_layers=layers, prefix=prefix, draft_ids=ids)
    random_parameters(head, config.seed)
    for parameter in head.own.values():
        parameter.data = parameter.data.float()
    with torch.no_grad():
        _begin_as_target(head, _lm_head_rows(target, ids))
    return head


def _predictor(method: str, draft: PreTrainedModel, target: HFTarget, config: TrainConfig) -> PredictorOf:
    """A predictor for a draft model; the residual blocks of SpecDec++ begin as the identity."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if method == DraftDistributionPredictor.method:
            predictor: AcceptancePredictor = DraftDistributionPredictor(config.predictor.width)
        else:
            size = int(next(draft.get_input_embeddings().parameters()).shape[1])
            predictor = HiddenStatePredictor(size, config.predictor.num_layers)
            for parameter in predictor.blocks.parameters():
                nn.init.zeros_(parameter)
    predictor.trained_for = Pair(model_fingerprint(draft), target_fingerprint(target))
    return PredictorOf(predictor.to(target.device), draft)


def _length_predictor(head: DraftHead | PositionHead, target: HFTarget, config: TrainConfig) -> PredictorOf:
    """A predictor for a head of EAGLE; its residual blocks begin as the identity."""
    assert isinstance(head, DraftHead)
    size, settings = int(next(target.embed.parameters()).shape[1]), config.predictor
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        predictor = DraftLengthPredictor(size, settings.depth, max(1, settings.num_layers))
    for parameter in predictor.blocks.parameters():
        nn.init.zeros_(parameter)
    predictor.trained_for = Pair(head_fingerprint(head), target_fingerprint(target))
    return PredictorOf(predictor.to(target.device), head)


def _exit_predictor(target: HFTarget, config: TrainConfig) -> ExitPredictor:
    predictor = ExitPredictor(target.num_layers - 1, config.predictor.width)
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for weight in (predictor.inner, predictor.output):
            size = predictor.inner.shape[1] if weight is predictor.inner else weight.shape[1]
            weight.copy_(torch.randn(weight.shape, generator=generator) * size**-0.5)
    predictor.trained_for = target_fingerprint(target)
    return predictor.to(target.device)


def _lm_head_rows(target: HFTarget, ids: torch.Tensor | None) -> torch.Tensor:  # (K, D)
    """The weights of the target's LM head for the tokens of a draft vocabulary, with its scale of logits."""
    weight = next(target.head.parameters()).detach().float()
    if isinstance(target.head, ScaledHead):
        weight = weight * target.head.scale
    return weight if ids is None else weight[ids.to(weight.device)]


def _begin_as_target(head: PositionHead, rows: torch.Tensor) -> None:  # (K, D) of the target's LM head
    size = rows.shape[1]
    for name, parameter in head.own.items():
        if isinstance(head, MlpSpeculatorHead) or not name.endswith("weight"):
            continue
        if name.startswith("lm_head"):
            parameter[:, size:].zero_()  # of ReDrafter: the columns for its recurrent state
            parameter[:, :size] = rows
        elif name.startswith("blocks") or ".linear." in name:
            parameter.zero_()
        elif ".residual." in name:
            parameter.zero_()[:, :size] = torch.eye(size)


def draft_model(model: Model, config: TrainConfig, draft: str | None) -> PreTrainedModel:
    """The draft model to train, in float32; without a name, a new one that is smaller than the target."""
    if draft is None:
        return smaller(model.target.model, config)
    loaded = load(draft, dtype="float32", device=str(model.target.device))
    check_same_tokens(model, loaded)
    if loaded.target.vocab != model.target.vocab:
        raise ConfigError(
            f"{draft} has {loaded.target.vocab} token ids and the target {model.target.vocab}, which "
            f"training cannot pair: save the draft after model.resize_token_embeddings({model.target.vocab})"
        )
    return loaded.target.model


def smaller(model: PreTrainedModel, config: TrainConfig) -> PreTrainedModel:
    """A model of the same architecture with fewer and narrower layers and random weights. ConfigError for an
    architecture of which no such model can be made."""
    try:
        return _smaller(model, config)
    except Exception as error:  # transformers raises errors of many types for numbers that do not fit
        problem = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"no smaller model can be made of {type(model).__name__} ({problem}): give a draft model with "
            "the target's tokenizer (--draft)"
        ) from error


def _smaller(model: PreTrainedModel, config: TrainConfig) -> PreTrainedModel:
    settings, own = config.distillation, model.config.get_text_config()
    heads = max(1, round(own.num_attention_heads * settings.size))
    width = heads * (getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads)
    inner = max(16, 16 * round(mlp_size(own) * settings.size / 16))
    made = reshaped(own, num_layers=settings.num_layers, width=width, num_heads=heads, inner_size=inner)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        found = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    return found.to(model.device).eval()
