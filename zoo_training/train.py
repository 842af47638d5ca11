"""Resumable training loop; learning rates warm up, stay constant, and decay linearly to zero."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from zoo_training.data import Batch
from zoo_training.models import deepen, make_model
from zoo_training.optimizer import make_optimizers

Loss = Callable[[LlamaForCausalLM, Batch], Tensor]


class Source(Protocol):
    """Interface of a resumable source of training batches."""

    def batch(self, rows: int, length: int) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of a run, which ends after `steps` or `minutes` of training, whichever comes first."""

    steps: int
    minutes: float | None = None
    batch_tokens: int = 2048  # tokens per step; small, because with few tokens many noisy steps are better
    short: int = 256  # initial row length in tokens: cheaper, and more documents per step
    long: int = 512  # row length after the share `lengthen` of the run
    lengthen: float = 0.85
    shallow: float = 0.0  # share of the run trained with half the layers
    bfloat16: bool = False  # autocast to bfloat16; weights and optimizer states stay float32
    warm_up: int = 8  # number of steps
    decay: float = 0.8  # share of the run over which the learning rates fall to zero
    matrix_rate: float = 0.02  # learning rate of Muon
    vector_rate: float = 0.002  # learning rate of AdamW
    save_seconds: float = 120.0  # interval between checkpoints
    seed: int = 0


def next_token_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Weighted mean cross-entropy of the next tokens, in nats per token."""
    hidden = model.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    losses = functional.cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none")
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


class Trainer:
    """A model with its optimizers and data source; saves and resumes checkpoints in `folder`."""

    def __init__(
        self,
        config: LlamaConfig,
        source: Source,
        loss: Loss,
        settings: Settings,
        folder: Path,
        device: str = "cpu",
    ) -> None:
        self.config, self.source, self.loss, self.settings, self.folder = (
            config,
            source,
            loss,
            settings,
            folder,
        )
        self.device = torch.device(device)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0  # training time, over all resumed runs
        self.fresh_since = 0  # step at which the optimizers were created; the warm-up begins there
        layers = config.num_hidden_layers
        self.start(make_model(config, settings.seed, layers // 2 if settings.shallow else layers))

    def start(self, model: LlamaForCausalLM) -> None:
        """Replace the model that is trained, and create new optimizers for it."""
        torch.nn.Module.to(model, self.device)
        self.model = model.train()
        self.optimizers = make_optimizers(self.model, self.settings.matrix_rate, self.settings.vector_rate)

    @property
    def progress(self) -> float:
        """Completed share of the run, from 0 to 1: the larger one of those of steps and of minutes."""
        spent = self.seconds / (60 * self.settings.minutes) if self.settings.minutes else 0.0
        return min(1.0, max(self.step / self.settings.steps, spent))

    @property
    def rate(self) -> float:
        """Schedule factor of the learning rates: minimum of warm-up, decay and 1."""
        falling = (1 - self.progress) / self.settings.decay
        return min(1.0, falling, (self.step - self.fresh_since + 1) / self.settings.warm_up)

    @property
    def is_shallow(self) -> bool:
        """Whether the model still has half its layers."""
        return self.model.config.num_hidden_layers < self.config.num_hidden_layers

    def advance(self) -> float:
        """Run one optimizer step, deepening the model before it when due; returns the loss of the batch."""
        start = time.monotonic()
        if self.is_shallow and self.progress >= self.settings.shallow:
            self.start(deepen(self.model, self.config))
            self.fresh_since = self.step
        length = self.settings.long if self.progress >= self.settings.lengthen else self.settings.short
        rows = max(1, self.settings.batch_tokens // length)
        batch = self.source.batch(rows, length).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bfloat16):
            loss = self.loss(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["top"] * self.rate
            optimizer.step()
            optimizer.zero_grad()
        value = loss.item()
        self.step += 1
        self.tokens += rows * length
        self.seconds += time.monotonic() - start
        return value

    def save(self) -> None:
        """Write the checkpoint atomically: an interrupted call leaves the previous one intact."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "layers": self.model.config.num_hidden_layers,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "source": self.source.state(),
            "random": torch.get_rng_state(),
            "step": self.step,
            "fresh_since": self.fresh_since,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        partial = self.folder / "checkpoint.partial"
        torch.save(state, partial)
        os.replace(partial, self.folder / "checkpoint.pt")

    def resume(self) -> bool:
        """Load the checkpoint in `folder`; returns False if there is none."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["layers"] != self.model.config.num_hidden_layers:
            self.start(make_model(self.config, self.settings.seed, state["layers"]))
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.source.restore(state["source"])
        torch.set_rng_state(state["random"].cpu())
        self.step, self.fresh_since = state["step"], state["fresh_since"]
        self.tokens, self.seconds = state["tokens"], state["seconds"]
        return True

    def run(self, title: str = "training") -> LlamaForCausalLM:
        """Train to the end with periodic checkpoints and return the model in eval mode; each step appends a
        line to log.jsonl."""
        self.folder.mkdir(parents=True, exist_ok=True)
        share = TextColumn("{task.percentage:.0f}%")
        columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn())
        saved = time.monotonic()
        with Progress(*columns) as bar, (self.folder / "log.jsonl").open("a") as log:
            line = bar.add_task(title, total=1000, completed=round(1000 * self.progress))
            while self.progress < 1.0:
                loss = self.advance()
                entry = {
                    "step": self.step,
                    "tokens": self.tokens,
                    "seconds": self.seconds,
                    "loss": loss,
                    "rate": self.rate,
                }
                log.write(json.dumps({key: round(value, 4) for key, value in entry.items()}) + "\n")
                log.flush()
                bar.update(
                    line, completed=round(1000 * self.progress), description=f"{title}, loss {loss:.2f}"
                )
                if time.monotonic() - saved > self.settings.save_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        return self.model.eval()
