"""The training loop: steps, learning rate, checkpoints; a run that is stopped continues with the same result.

The texts and the noise of a step follow from its number and the seed. A checkpoint therefore holds only
weights, the optimizer's state and the number of the step.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from outpace.console import progress
from outpace.models.hf.target import HFTarget
from outpace.recipes import described
from outpace.training.config import ConfigError, TrainConfig
from outpace.training.evaluation import Evaluation
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.lesson import Lesson
from outpace.training.texts import Example

STATE, LOG = "state.pt", "log.jsonl"
# Larger weights count as diverged: trained weights are of the order of 1. Squares of weights up to this one
# do not overflow in bfloat16, in which drafters are written.
LARGEST_WEIGHT = 1e18


class TrainingError(ValueError):
    """Training cannot go on; the message is for users."""


class Trainer:
    """A lesson with its optimizer; checkpoints are folders `step-N` in `folder`."""

    def __init__(
        self,
        lesson: Lesson,
        source: FeatureSource,
        held_out: FeatureSource,
        config: TrainConfig,
        folder: Path,
    ) -> None:
        from accelerate import Accelerator

        self.config, self.folder = config, folder
        self.step = 0
        self.evaluations: list[Evaluation] = []
        self._best: dict[str, Any] | None = None  # of the best evaluation, where the lesson keeps its weights
        self._source, self._held_out = source, held_out
        # its precision would apply to the whole process, where other runs may use another: see `_advance`
        self._accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")
        own = list(lesson.trained.values())
        # parameters of the target that a head uses in place get no gradient during the run
        ids = set(map(id, own))
        self._frozen = [
            other for other in lesson.parameters() if other.requires_grad and id(other) not in ids
        ]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        for parameter in own:
            parameter.requires_grad_(True)
        settings = config.optimizer
        optimizer = torch.optim.AdamW(
            own,
            lr=settings.rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.lesson, self._own = lesson, own
        self._prepared, self._optimizer = self._accelerator.prepare(lesson, optimizer)

    def run(self, advance: Callable[[str, int], None], evaluate: bool = True) -> None:
        """Train to the last step from the newest checkpoint. TrainingError if the loss is not a number: the
        last checkpoint stays."""
        try:
            self._run(advance, evaluate)
        finally:
            for parameter in self._frozen:
                parameter.requires_grad_(True)

    def _run(self, advance: Callable[[str, int], None], evaluate: bool) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.resume()
        self._shorten_log()
        advance("training", self.step)
        label = "training"
        while self.step < self.config.steps:
            loss = self._advance()
            self.step += 1
            if evaluate and (self.step % self.config.evaluate_every == 0 or self.step == self.config.steps):
                self._check_weights()
                self.evaluations.append(self.evaluate())
                self._compare()
            label = f"loss {loss:.3f}"
            if self.evaluations:
                label += f", {self.evaluations[-1].brief}"
            advance(label, 1)
            self._log({"step": self.step, "loss": loss})
            if self.step % self.config.save_every == 0 or self.step == self.config.steps:
                self._check_weights()
                self.save()
        self._use_best()

    def _compare(self) -> None:
        """Keep the weights of the evaluation that was just made, if it is the best one so far."""
        quality = self.lesson.quality(self.evaluations[-1])
        if quality is not None and (self._best is None or quality > self._best["quality"]):
            weights = {name: weight.detach().cpu().clone() for name, weight in self.lesson.trained.items()}
            self._best = {"quality": quality, "step": self.step, "weights": weights}

    def _use_best(self) -> None:
        """Set the weights of the best evaluation, which then is the last one."""
        if self._best is None or self._best["step"] == self.step:
            return
        with torch.no_grad():
            for name, value in self._best["weights"].items():
                self.lesson.trained[name].copy_(value)
        best = [each for each in self.evaluations if each.step == self._best["step"]]
        self.evaluations.append(best[0])

    def _advance(self) -> float:
        """One optimizer step; returns the mean loss of its batches."""
        config, total = self.config, 0.0
        for group in self._optimizer.param_groups:
            group["lr"] = config.optimizer.rate * rate_factor(self.step, config)
        for part in range(config.accumulate):
            seed = random.Random(f"{config.seed} noise {self.step} {part} {self._rank}").getrandbits(63)
            batch = self.lesson.batch(self._source, self._indices(part), seed).to(self._accelerator.device)
            noise = torch.Generator().manual_seed(seed)
            with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=config.bfloat16):
                loss = self._prepared(batch, noise).float() / config.accumulate
            total += self._checked(loss)
            self._accelerator.backward(loss)
        by_norm = config.optimizer.clip_by == "norm"
        clip = self._accelerator.clip_grad_norm_ if by_norm else self._accelerator.clip_grad_value_
        clip(self._own, config.optimizer.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _checked(self, loss: Tensor) -> float:
        gathered: Any = self._accelerator.gather(loss.detach()[None])
        mean = float(gathered.mean())
        if not math.isfinite(mean):
            raise self._diverged(f"the loss is {mean} at step {self.step + 1}")
        return mean

    def _check_weights(self) -> None:
        """TrainingError, before weights are written, if they have diverged."""
        largest = max(float(parameter.detach().abs().amax()) for parameter in self._own if parameter.numel())
        if not largest < LARGEST_WEIGHT:  # NaN too
            raise self._diverged(f"weights of up to {largest:.0e} after step {self.step}")

    def _diverged(self, what: str) -> TrainingError:
        last = max(self._saved(), default=0)
        kept = f"the checkpoint of step {last} is kept; " if last else ""
        return TrainingError(
            f"{what}: {kept}train again into another --output with a lower optimizer.rate, and with "
            f"--captured {self._source.folder.parent}, which has the answers"
        )

    @property
    def _rank(self) -> int:
        return self._accelerator.process_index

    def _indices(self, part: int) -> list[int]:
        """The texts of one batch: every text once per epoch, in an order that depends on the seed."""
        config, count = self.config, len(self._source.examples)
        size = config.batch * self._accelerator.num_processes
        first = (self.step * config.accumulate + part) * size + self._rank * config.batch
        indices: list[int] = []
        for place in range(first, first + config.batch):
            epoch, within = divmod(place, count)
            indices.append(_order(count, config.seed, epoch)[within])
        return indices

    def evaluate(self) -> Evaluation:
        """The lesson's measurements on the held-out texts."""
        return self.lesson.evaluation(self.step, self.held_out())

    def held_out(self) -> Iterator[Batch]:
        """All held-out texts."""
        for indices in _groups(len(self._held_out.examples), self.config.batch):
            yield self._held_out.batch(indices).to(self._accelerator.device)

    def save(self) -> None:
        """Write a checkpoint, then remove the oldest ones; an interrupted call leaves earlier ones intact."""
        self._accelerator.wait_for_everyone()
        if not self._accelerator.is_main_process:
            return
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        state = {
            "weights": {name: parameter.detach().cpu() for name, parameter in self.lesson.trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "best": self._best,
        }
        torch.save(state, partial / STATE)
        target = self.folder / f"step-{self.step:07d}"
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        for step in sorted(self._saved())[: -self.config.keep]:
            shutil.rmtree(self.folder / f"step-{step:07d}")

    def resume(self) -> bool:
        """Continue from the newest undamaged checkpoint; returns whether there is one. TrainingError if all
        are damaged."""
        saved = sorted(self._saved(), reverse=True)
        for step in saved:
            path = self.folder / f"step-{step:07d}" / STATE
            try:
                self._restore(torch.load(path, map_location="cpu", weights_only=True))
            except (
                OSError,
                RuntimeError,
                EOFError,
                KeyError,
                TypeError,
                ValueError,
                UnpicklingError,
            ) as error:
                warnings.warn(f"{path} is damaged and left out: {described(error)}", stacklevel=2)
            else:
                return True
        if saved:
            raise TrainingError(f"no checkpoint in {self.folder} is whole: remove that folder to train again")
        return False

    def _restore(self, state: dict[str, Any]) -> None:
        """Continue from this checkpoint. ValueError, before anything is changed, if its weights do not fit
        the lesson."""
        weights, own = state["weights"], self.lesson.trained
        shapes = [{name: tuple(weight.shape) for name, weight in part.items()} for part in (weights, own)]
        if shapes[0] != shapes[1]:
            different = sorted(dict(shapes[0].items() ^ shapes[1].items()))
            raise ValueError(f"missing, unknown or of another shape: {', '.join(different)}")
        evaluations = [self.lesson.evaluation_type(**fields) for fields in state["evaluations"]]
        best = state["best"]
        self._optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        self.step, self.evaluations, self._best = state["step"], evaluations, best

    def _saved(self) -> list[int]:
        return [int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")]

    def _shorten_log(self) -> None:
        """Remove from the log the lines of steps after the restored checkpoint: these steps are trained, and
        logged, again."""
        path = self.folder / LOG
        if not (self._accelerator.is_main_process and path.exists()):
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        partial = path.with_suffix(".partial")
        partial.write_text("".join(lines[: self.step]), encoding="utf-8")  # every step has a line
        os.replace(partial, path)

    def _log(self, entry: dict[str, float]) -> None:
        if self._accelerator.is_main_process:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def trained(
    lesson: Lesson,
    target: HFTarget,
    learned: Sequence[Example],
    held_out: Sequence[Example],
    config: TrainConfig,
    states: Path,  # folder of the hidden states
    checkpoints: Path,
) -> Trainer:
    """Train a lesson on texts and evaluate it on others."""
    source = FeatureSource(target, learned, lesson.layers, states / "features")
    test = FeatureSource(target, held_out, lesson.layers, states / "held-out")
    if limit := int(config.capture.disk_gigabytes * 1e9):
        num_texts = len(held_out) + len(learned)
        with processes().main_process_first(), progress(num_texts, "reading with the target") as advance:
            used = test.store(limit, advance)  # first, since every evaluation reads all of them
            source.store(limit - used, advance)
    trainer = Trainer(lesson, source, test, config, checkpoints)
    with progress(config.steps, "training") as advance:
        trainer.run(advance)
    return trainer


def processes() -> Any:
    """The processes that share the batches, as `torchrun` starts them. ConfigError without accelerate."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ConfigError("training needs accelerate: pip install 'outpace[train]'") from error
    return PartialState(cpu=not torch.cuda.is_available())


def rate_factor(step: int, config: TrainConfig) -> float:
    """Factor of the learning rate: linear warm-up, then linear or cosine decay to `last` after the last
    step."""
    settings = config.optimizer
    warm_up = min(1.0, (step + 1) / max(1, settings.warm_up))
    left = (config.steps - step) / max(1, config.steps)
    if settings.decay == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min(warm_up, settings.last + (1 - settings.last) * left)


def _order(count: int, seed: int, epoch: int) -> Sequence[int]:
    return random.Random(f"{seed} order {epoch}").sample(range(count), count)


def _groups(count: int, size: int) -> Iterator[list[int]]:
    for first in range(0, count, size):
        yield list(range(first, min(first + size, count)))
