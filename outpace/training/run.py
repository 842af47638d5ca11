"""Trains a draft head for a target: answers, hidden states, training, evaluation, a folder with the head."""

from __future__ import annotations

import copy
import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from outpace import __version__
from outpace.api.model import Model, as_model
from outpace.console import progress
from outpace.models.heads.draft_head import DraftHead, head_config, random_weights
from outpace.models.heads.eagle import EagleHead
from outpace.models.heads.eagle3 import Eagle3Head, default_taps
from outpace.models.heads.fingerprint import target_fingerprint
from outpace.models.heads.formats.folder import save_head
from outpace.models.hf.target import HFTarget
from outpace.training.answers import answered
from outpace.training.config import ConfigError, TrainConfig, changed
from outpace.training.features import FeatureSource
from outpace.training.lessons import LESSONS, HeadLesson
from outpace.training.texts import DataError, Example, fingerprint, read_prompts
from outpace.training.trainer import Evaluation, Trainer

RUN, PROVENANCE = "run.json", "training.json"


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    folder: Path
    evaluations: tuple[Evaluation, ...]
    num_texts: int
    num_tokens: int  # of the training texts


def train(
    method: str,
    *,
    target: str | Model,
    data: str,
    output: str | Path,
    config: TrainConfig | None = None,
    changes: Iterable[str] = (),
    dry_run: bool = False,
) -> Trained:
    """Train a head for a method ("eagle", "hass" or "eagle3") and write it to the folder `output`.

    `changes`: settings such as "steps=500". `dry_run`: write an untrained head, without reading the data. A
    run that was stopped continues when it is started again with the same arguments, to the same result.
    ValueError for unsuited settings, data or targets.
    """
    if method not in LESSONS:
        raise ConfigError(f"{method} has no head to train: use {', '.join(LESSONS)}")
    config, folder = changed(config or TrainConfig(), changes), Path(output)
    model = as_model(target)
    if dry_run:
        head = untrained(method, model.target, config)
        save_head(head, folder, model.target, name=model.name)
        return Trained(folder, (), 0, 0)
    prompts = read_prompts(data, model, config.texts, config.seed)
    identity = {
        "method": method,
        "target": target_fingerprint(model.target),
        "data": fingerprint(prompts),
        "config": asdict(config),
    }
    work = folder / "work"
    _begin(folder, identity)
    with progress(len(prompts)) as advance:
        examples = answered(model, prompts, config.answers, work / "answers", config.seed, advance)
    pieces = [piece for example in examples for piece in example.pieces(config.length)]
    held = max(1, round(len(pieces) * config.held_out))
    if len(pieces) <= held:
        raise DataError(f"{data} gives {len(pieces)} texts to learn from: give more or longer ones")
    learned = pieces[held:]
    head = untrained(method, model.target, config, learned)
    layers = sorted({-1, *head.taps})
    source = FeatureSource(model.target, learned, layers, work / "features")
    test = FeatureSource(model.target, pieces[:held], layers, work / "held-out")
    limit = int(config.capture.disk_gigabytes * 1e9)
    if limit:
        with progress(len(learned)) as advance:
            source.store(limit, advance)
    trainer = Trainer(lesson(method, head, model.target, config), source, test, config, work / "checkpoints")
    with progress(config.steps) as advance:
        trainer.run(advance)
    save_head(head, folder, model.target, name=model.name)
    found = Trained(
        folder, tuple(trainer.evaluations), len(learned), sum(len(each.tokens) for each in learned)
    )
    _finish(folder, identity, found, data, model)
    return found


def untrained(
    method: str, target: HFTarget, config: TrainConfig, examples: Sequence[Example] = ()
) -> DraftHead:
    """A head in float32 with random weights; that of eagle3 drafts the tokens that are most frequent in the
    texts, if the target's vocabulary is larger than `head.draft_vocab`."""
    embed = target.embed
    if method == "eagle3":
        ids = draft_vocabulary(examples, target.vocab, config.head.draft_vocab)
        size = target.vocab if ids is None else len(ids)
        head: DraftHead = Eagle3Head(
            head_config(target, size), embed, default_taps(target.num_layers), draft_ids=ids
        )
        own = [head.fc, head.layers, head.norm, head.lm_head]
    else:
        head = EagleHead(head_config(target, target.vocab), embed, target.head, bias=False)
        own = [head.fc, head.layers]
    for module in (*own, head.rotary_emb):
        module.to(torch.float32).to(target.device)
    random_weights(config.seed, own)
    return head


def lesson(method: str, head: DraftHead, target: HFTarget, config: TrainConfig) -> HeadLesson:
    """What the head learns. The target's embedding and LM head are used in float32 and never trained."""
    target_head = copy.deepcopy(target.head).float()
    if head.lm_head is target.head:
        head.lm_head = target_head
    return HeadLesson(head, target_head.requires_grad_(False), LESSONS[method], config.head)


def draft_vocabulary(examples: Sequence[Example], vocab: int, size: int) -> torch.Tensor | None:
    """The `size` most frequent tokens of the answers, in increasing order; None if the vocabulary has no
    more. Tokens that do not occur follow in the order of their ids."""
    if vocab <= size:
        return None
    counts = Counter(token for each in examples for token in each.tokens[each.first :])
    frequent = [token for token, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][:size]
    chosen = set(frequent)
    rest = (token for token in range(vocab) if token not in chosen)
    return torch.tensor(sorted([*frequent, *(next(rest) for _ in range(size - len(frequent)))]))


def _begin(folder: Path, identity: dict[str, Any]) -> None:
    """Note in the folder which run it holds. ConfigError if it holds another one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    different = [name for name in identity if before.get(name) != identity[name]]
    if different:
        raise ConfigError(
            f"{folder} holds a run with another {' and '.join(different)}: give another --output, or the "
            "same arguments to continue it"
        )


def _finish(folder: Path, identity: dict[str, Any], found: Trained, data: str, model: Model) -> None:
    """Write what the head was made of."""
    facts = identity | {
        "target_name": model.name,
        "data_name": data,
        "texts": found.num_texts,
        "tokens": found.num_tokens,
        "evaluations": [asdict(each) for each in found.evaluations],
        "versions": {
            "outpace": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
