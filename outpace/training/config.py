"""The settings of a training run, and changes to them by dotted names such as `optimizer.rate=1e-4`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A setting does not exist or has an unsuited value; the message is for users."""


@dataclass(frozen=True)
class Answers:
    """How the target answers the prompts of the data; a drafter learns from what the target itself writes."""

    generate: bool = True  # false: learn from the answers in the data
    max_tokens: int = 192  # of an answer
    temperatures: tuple[float, ...] = (0.0, 1.0)  # of the answers, in turn; 0 is greedy
    top_p: float = 1.0  # of sampled answers
    batch: int = 16  # prompts that are answered together
    seed: int = 0  # of the choice of prompts and of sampled answers


@dataclass(frozen=True)
class Capture:
    """Where the target's hidden states come from."""

    disk_gigabytes: float = 0.0  # most disk space for them; all others are computed anew in every step


# Values of `distillation.divergence`, the loss of a draft model, and of `head.token_loss`, a loss of a draft
# head: names of functions in outpace.training.losses.
DIVERGENCES = (
    "forward_kl",
    "reverse_kl",
    "jensen_shannon",
    "total_variation",
    "total_variation_plus",
    "negative_log_acceptance",
    "lk_hybrid",
)
TOKEN_LOSSES = ("soft_cross_entropy", "total_variation", "negative_log_acceptance", "lk_hybrid")


@dataclass(frozen=True)
class Head:
    """The head itself."""

    # number of most frequent tokens of the data, the draft vocabulary; 0: all tokens (eagle3, medusa, hydra,
    # redrafter)
    draft_vocab: int = 32_000
    norm_before_residual: bool = True  # add the attention's output to normed features (eagle3)
    unroll: int = 3  # training steps on the head's own outputs (eagle3, hass, gto, chimera, coral)
    # weight of each further step relative to the previous one (eagle3, gto, p-eagle, dart, medusa, s4c and
    # syntax-aligned-medusa)
    decay: float = 0.8
    # width of the uniform noise on features, divided by length / 512 (eagle, hass and heads made from
    # eagle's)
    noise: float = 0.2
    feature_weight: float = 1.0  # of the distance between features (eagle, hass and heads made from eagle's)
    token_weight: float = 0.1  # of the loss of token probabilities (eagle, hass and heads made from eagle's)
    # the latter loss: one of TOKEN_LOSSES (eagle, hass, eagle3, gto, chimera, dflash and heads made from
    # eagle's)
    token_loss: str = "soft_cross_entropy"
    top_k: int = 10  # tokens of the top-k loss (hass, coral)
    # of the top-k loss; 0 leaves it out, as the authors do in the first 40 of their 50 epochs (hass, coral)
    top_k_weight: float = 1.0
    # number of learned draft tokens (medusa, syntax-aligned-medusa, redrafter, s4c, parallelspec, p-eagle),
    # or MLPs (gumiho); by default 4 for hydra, 3 for mlp-speculator, 7 for dflash and dspark, 8 for dart
    num_heads: int = 5
    # decoder layers (eagle, hass, fspad, coral, p-eagle; by default 5 for dovetail, 2 for gumiho, dflash and
    # dspark), or blocks of each head: by default 1 (medusa), 2 (redrafter) or 4 (hydra)
    num_layers: int = 1
    markov_rank: int = 256  # of the biases of logits after each token (dspark)
    # of the loss that gives a token alike features in all unrolled steps (coral), and its temperature
    alignment_weight: float = 0.1
    alignment_temperature: float = 0.07
    # groups of the LM head's rows, among which a router chooses; 0: the head is trained, otherwise the router
    # of the head that is given, which is not changed (coral)
    groups: int = 0
    active_groups: int = 2  # of these, the most frequent tokens included (coral)
    # a second output of the experts for one token more; false: Jakiro*, with MLPs without a gate (jakiro)
    contrast: bool = True
    prefix: bool = True  # a decoder layer over the text before the heads, as in Hydra++ (hydra)
    inner_size: int = 0  # width of the state (mlp-speculator); 0: twice the target's
    tied: bool = False  # all steps share embedding, norm and LM head (mlp-speculator)
    scale_input: bool = False  # norm the target's hidden state and divide it by √2 (mlp-speculator)
    dropout: float = 0.0  # share of the inputs of blocks and LM heads set to 0, 0.2 by default (hydra)


@dataclass(frozen=True)
class GroupTrees:
    """Draft trees from which a head learns how much of them is accepted (gto)."""

    groups: int = 2  # of a text; 16 in the paper, whose runs take hundreds of hours on GPUs
    size: int = 4  # adjacent places of a group, each with a tree; 8 in the paper
    # of the trees, as the head drafts them later
    depth: int = 8
    width: int = 10
    num_nodes: int = 59
    weight: float = 0.5  # of the trees' loss beside that of tokens
    clip: float = 0.2  # largest change of a path's probability that counts; our choice, the paper states none


@dataclass(frozen=True)
class Distillation:
    """How a draft model learns from the target."""

    divergence: str = "forward_kl"  # one of DIVERGENCES (distillspec)
    # weight of the target's distribution in the Jensen-Shannon divergence; 0.5: both alike (distillspec)
    beta: float = 0.5
    on_policy: float = 0.5  # share of the batches with answers of the draft model (distillspec)
    on_policy_tokens: int = 64  # of these answers
    temperature: float = 1.0  # of both distributions
    keep: float = 0.4  # share of the tokens that are learned (adaspec)
    access: str = "logits"  # what is available of the target: its logits, or only its text (domain-drafter)
    text_weight: float = 0.1  # of next-token prediction of the prompts (direct-alignment)
    num_layers: int = 2  # of a draft that is made for the target (fastdraft)
    size: float = 0.25  # its width, as a share of the target's (fastdraft)
    # tokens of a draft that are drafted in masks (pard); by default 10 for specdiff, 16 for specdiff2 and
    # 32 for deer
    num_masks: int = 7
    # weight of a token of a window in proportion to the next one, 1.01 in the paper's second stage; 0: the
    # first stage (deer)
    refinement: float = 0.0


@dataclass(frozen=True)
class Fragments:
    """Fragments of programs, and the token that ends one (syntax-aligned-medusa)."""

    token: int = -1  # one that texts do not have otherwise, such as a reserved one; -1: the last of all
    weight: float = 0.2  # of the heads' loss beside that of the target


@dataclass(frozen=True)
class Growth:
    """How much of the data is used (domain-drafter)."""

    first: int = 64  # prompts of the first round; each further round has twice as many
    epochs: float = 3.0  # epochs of a round, which has at most `steps` steps
    least_gain: float = 0.01  # the rounds end when held-out acceptance rises by less than this


@dataclass(frozen=True)
class Predictor:
    """A predictor of the acceptance of draft tokens."""

    # at which draft tokens are drawn and verified; 0: the most probable tokens (specdec-pp, disco,
    # sprinter, specbranch, dultra)
    temperature: float = 1.0
    # residual blocks (specdec-pp, dultra); layers before the output (adaeagle); the target's last ones
    # (specbranch)
    num_layers: int = 3
    mix: float = 0.15  # share of the target's tokens in the text that the draft model reads (specdec-pp)
    # of a rejection in the loss; an acceptance has 1 (specdec-pp, and by default 1 for sprinter); of a mask
    # that is not revealed (dultra, by default 0.5)
    rejection_weight: float = 6.0
    # draft tokens of a step (disco, specbranch), a text (sprinter) or a window (dultra, by default 10), or
    # most draft tokens (adaeagle)
    depth: int = 20
    width: int = 32  # of the inner layer (disco, specee, dultra)
    shortfall_weight: float = 2.0  # weight in the loss of predictions below the label; others: 1 (adaeagle)


@dataclass(frozen=True)
class Reveals:
    """A planner of which masks of a window each forward reveals (dultra)."""

    confidence: float = 0.9  # draft probability from which the planner first learns to reveal a token
    windows: int = 2  # of a text in one step, on average
    group: int = 12  # drafts of a window that are compared
    cost: float = 0.25  # of a forward in the reward of a draft, in accepted tokens
    # in the reward: of the target's log probability of a token minus the draft model's, in the mean
    distillation: float = 0.1
    least_advantage: float = 0.0  # smaller advantages count as 0


# smallest values of settings that have one
LEAST = {
    "steps": 0,
    "batch": 1,
    "accumulate": 1,
    "length": 8,
    "texts": 2,
    "save_every": 1,
    "evaluate_every": 1,
    "keep": 1,
    "answers.max_tokens": 1,
    "answers.batch": 1,
    "capture.disk_gigabytes": 0,
    "head.draft_vocab": 0,
    "head.unroll": 1,
    "head.noise": 0,
    "head.top_k": 1,
    "head.top_k_weight": 0,
    "head.num_heads": 1,
    "head.num_layers": 1,
    "head.inner_size": 0,
    "head.markov_rank": 1,
    "fragments.token": -1,
    "fragments.weight": 0,
    "trees.groups": 1,
    "trees.size": 2,
    "trees.depth": 1,
    "trees.width": 1,
    "trees.num_nodes": 1,
    "trees.weight": 0,
    "trees.clip": 0,
    "head.groups": 0,
    "head.active_groups": 1,
    "head.alignment_weight": 0,
    "distillation.on_policy_tokens": 1,
    "distillation.num_layers": 1,
    "distillation.refinement": 0,
    "reveals.windows": 1,
    "reveals.group": 2,
    "reveals.cost": 0,
    "reveals.distillation": 0,
    "optimizer.warm_up": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip": 0,
}
WEIGHTINGS = ("sum", "uniform")  # of early exits
LABELS = ("text", "target")  # what exits learn
CLIPPED = ("norm", "value")  # of gradients
DECAYS = ("linear", "cosine")  # of the learning rate


@dataclass(frozen=True)
class EarlyExits:
    """Early exits of a model."""

    # number of layers before the exit that is evaluated (layerskip) or has the adapter (kangaroo); 0: a
    # quarter of the model's layers (layerskip), one in 14 (kangaroo)
    layer: int = 0
    # probability with which the last layer is dropped; smaller for earlier layers (layerskip)
    dropout: float = 0.1
    scale: float = 0.2  # of the losses of early exits (layerskip)
    # how the losses of early exits are weighted: "sum", the paper's, where later exits weigh more, or
    # "uniform", where each early exit has the weight `scale` and the last layer 1 (layerskip)
    weighting: str = "sum"
    # what all exits and the last layer learn at each token: "text", the paper's, the token itself, or
    # "target", the distribution that the target had before training (layerskip)
    labels: str = "text"
    rotation: int = 4  # one in `rotation` early exits is learned in a step (layerskip)
    # rank of changes to all linear layers (LoRA), learned in place of the weights; 0: no LoRA (layerskip)
    rank: int = 0
    # the early exits that are trained, in increasing order: 2 is the exit after the first two layers. Empty:
    # after half, three quarters and all of the model's layers (s2d), or after every layer (layerskip)
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """AdamW with warm-up and a decay of the learning rate."""

    rate: float = 1e-3
    warm_up: int = 50  # steps
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    # largest norm of the gradients, or with clip_by=value largest absolute value of each of their numbers
    clip: float = 0.5
    clip_by: str = "norm"  # norm or value; value by default of eagle, hass and heads made from eagle's
    # of the rate: linear or cosine; cosine by default of medusa, hydra, chimera and jakiro
    decay: str = "linear"
    last: float = 0.0  # last learning rate, relative to `rate`; 0.33 by default of hydra


@dataclass(frozen=True)
class TrainConfig:
    """All settings that the result of a run depends on, besides target, data and method."""

    steps: int = 1000
    batch: int = 8  # texts of a step and device
    accumulate: int = 1  # batches of an optimizer step
    length: int = 256  # tokens of a text; longer ones are cut into several
    texts: int = 2000  # most prompts taken from the data
    held_out: float = 0.05  # share of the texts that is kept for evaluation
    evaluate_every: int = 250  # steps
    save_every: int = 100  # steps
    keep: int = 2  # checkpoints
    bfloat16: bool = False  # compute in bfloat16; weights stay in float32
    seed: int = 0  # of new weights, the order of the texts and the noise
    answers: Answers = field(default_factory=Answers)
    capture: Capture = field(default_factory=Capture)
    head: Head = field(default_factory=Head)
    trees: GroupTrees = field(default_factory=GroupTrees)
    distillation: Distillation = field(default_factory=Distillation)
    growth: Growth = field(default_factory=Growth)
    fragments: Fragments = field(default_factory=Fragments)
    predictor: Predictor = field(default_factory=Predictor)
    reveals: Reveals = field(default_factory=Reveals)
    exits: EarlyExits = field(default_factory=EarlyExits)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        for name, value in settings(self).items():
            smallest = LEAST.get(name)
            if isinstance(value, float) and not isfinite(value):
                raise ConfigError(f"{name} is {value}: it is a number")
            if smallest is not None and value < smallest:
                raise ConfigError(f"{name} is {value}: it is at least {smallest}")
        if self.optimizer.rate <= 0:
            raise ConfigError(f"optimizer.rate is {self.optimizer.rate}: it is above 0")
        if self.optimizer.clip_by not in CLIPPED:
            raise ConfigError(f"optimizer.clip_by is {self.optimizer.clip_by}: use {' or '.join(CLIPPED)}")
        if self.optimizer.decay not in DECAYS:
            raise ConfigError(f"optimizer.decay is {self.optimizer.decay}: use {' or '.join(DECAYS)}")
        if not 0 <= self.optimizer.last <= 1:
            raise ConfigError(f"optimizer.last is {self.optimizer.last}: it is a share, up to 1")
        if not 0 <= self.head.dropout < 1:
            raise ConfigError(f"head.dropout is {self.head.dropout}: it is a share below 1")
        if self.head.alignment_temperature <= 0:
            raise ConfigError(
                f"head.alignment_temperature is {self.head.alignment_temperature}: it is above 0"
            )
        if not 0 < self.distillation.beta < 1:
            raise ConfigError(f"distillation.beta is {self.distillation.beta}: it is between 0 and 1")
        if not 0 < self.distillation.size <= 1:
            raise ConfigError(f"distillation.size is {self.distillation.size}: it is a share, up to 1")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}: it is a share between 0 and 1")
        if self.head.token_loss not in TOKEN_LOSSES:
            raise ConfigError(f"head.token_loss is {self.head.token_loss}: use {' or '.join(TOKEN_LOSSES)}")
        if self.distillation.divergence not in DIVERGENCES:
            divergence = self.distillation.divergence
            raise ConfigError(f"distillation.divergence is {divergence}: use {' or '.join(DIVERGENCES)}")
        if not self.answers.temperatures or min(self.answers.temperatures) < 0:
            raise ConfigError("answers.temperatures is a list of numbers of 0 or more, as in 0,0.7,1")
        for name in ("on_policy", "keep", "text_weight"):
            if not 0 <= getattr(self.distillation, name) <= 1:
                raise ConfigError(f"distillation.{name} is a share between 0 and 1")
        if self.distillation.access not in ("logits", "text"):
            raise ConfigError(f"distillation.access is logits or text, not {self.distillation.access}")
        if self.growth.first < 1 or self.growth.epochs <= 0:
            raise ConfigError("growth.first is 1 or more and growth.epochs above 0")
        predictor = self.predictor
        if predictor.num_layers < 0 or predictor.temperature < 0 or predictor.rejection_weight <= 0:
            raise ConfigError(
                "predictor.num_layers and predictor.temperature are 0 or more, predictor.rejection_weight is "
                "above 0"
            )
        if predictor.depth < 1 or predictor.width < 1:
            raise ConfigError("predictor.depth and predictor.width are 1 or more")
        if predictor.shortfall_weight <= 0:
            raise ConfigError("predictor.shortfall_weight is above 0")
        exits = self.exits
        if exits.weighting not in WEIGHTINGS:
            raise ConfigError(f"exits.weighting is {exits.weighting}: use {' or '.join(WEIGHTINGS)}")
        if exits.labels not in LABELS:
            raise ConfigError(f"exits.labels is {exits.labels}: use {' or '.join(LABELS)}")
        if exits.rank < 0:
            raise ConfigError(f"exits.rank is {exits.rank}: it is 0 or more")
        if exits.layer < 0 or exits.rotation < 1 or exits.scale <= 0 or not 0 <= exits.dropout < 1:
            raise ConfigError(
                "exits.layer is 0 or more, exits.rotation 1 or more, exits.scale above 0 and exits.dropout a "
                "share below 1"
            )
        if exits.layer and exits.layers and exits.layer not in exits.layers:
            trained = ",".join(map(str, exits.layers))
            raise ConfigError(
                f"exits.layer is {exits.layer}: use one of exits.layers={trained}, which are trained"
            )
        if not 0 <= predictor.mix < 1:
            raise ConfigError(f"predictor.mix is {predictor.mix}: it is a share below 1")
        if not self.distillation.temperature > 0:
            raise ConfigError("distillation.temperature is above 0: distributions at 0 have no gradient")


def changed(config: TrainConfig, changes: Iterable[str]) -> TrainConfig:
    """The configuration with changes such as `steps=500` or `optimizer.rate=1e-4`. ConfigError for an unknown
    name or a value of the wrong type."""
    for change in changes:
        name, is_given, value = change.partition("=")
        if not is_given:
            raise ConfigError(f"{change} is no setting: write NAME=VALUE, as in steps=500")
        config = _with(config, name.strip().split("."), value.strip(), name.strip())
    return config


def settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value of all settings."""
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(config):
        value = getattr(config, setting.name)
        name = f"{prefix}{setting.name}"
        values |= settings(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return values


def _with(part: Any, path: list[str], value: str, name: str) -> Any:
    hints = get_type_hints(type(part))
    if path[0] not in hints or dataclasses.is_dataclass(hints[path[0]]) != (len(path) > 1):
        known = list(settings(TrainConfig()))
        near = get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the settings are {', '.join(known)}"
        raise ConfigError(f"there is no setting {name}; {hint}")
    if len(path) > 1:
        return dataclasses.replace(part, **{path[0]: _with(getattr(part, path[0]), path[1:], value, name)})
    return dataclasses.replace(part, **{path[0]: _converted(value, hints[path[0]], name)})


def _converted(value: str, kind: Any, name: str) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is true or false, not {value}")
        return value.lower() == "true"
    is_list = get_origin(kind) is tuple
    try:
        return tuple(map(get_args(kind)[0], value.split(","))) if is_list else kind(value)
    except ValueError as error:
        what = "a list of numbers" if is_list else "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name} is {what}, not {value}") from error
