"""Endless training batches from code and tasks; a stream can be stopped and continued at the same token."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from zoo_training import tasks
from zoo_training.tokenizer import END, REPLY, USER, token_id

# Shares of the rows; a row holds code, or tasks of mixed kinds.
MIXTURE = {"code": 0.56, "edit": 0.20, "arithmetic": 0.11, "chat": 0.13}
PROMPT_WEIGHT = 0.1  # of a prompt's token in the loss: most of it is drawn at random and cannot be learned


@dataclass(frozen=True)
class Batch:
    """Rows of tokens; `weights` says how much a token counts in the loss when it is predicted."""

    tokens: Tensor  # (rows, length + 1) int64
    weights: Tensor  # (rows, length + 1) float32

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return Batch(self.tokens.to(device), self.weights.to(device))


def encode_task(task: tasks.Task, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[float]]:
    """Token ids and weights of a task with its answer, as the chat template renders it."""
    end, user, reply = (token_id(tokenizer, token) for token in (END, USER, REPLY))
    ids: list[int] = []
    weights: list[float] = []
    for place, turn in enumerate([*task.turns, task.answer]):
        words = tokenizer.backend_tokenizer.encode(turn, add_special_tokens=False).ids
        ids += [(user, reply)[place % 2], *words, end]
        weight = (PROMPT_WEIGHT, 1.0)[place % 2]
        weights += [0.0, *[weight] * len(words), weight]
    return ids, weights


def encode_documents(texts: tuple[str, ...], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Token ids of documents, each with its end token."""
    end = token_id(tokenizer, END)
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [[*encoding.ids, end] for encoding in encodings]


class Stream:
    """Batches in an order that depends only on the seed and on how many were taken."""

    def __init__(self, documents: list[list[int]], tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.documents = documents
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.seed = seed
        self.epoch = 0
        self.cursor = 0  # tokens of this epoch's text already used
        self.text = self.shuffled()

    def shuffled(self) -> list[int]:
        """All documents in this epoch's order."""
        order = list(range(len(self.documents)))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        return [token for place in order for token in self.documents[place]]

    def code_row(self, length: int) -> tuple[list[int], list[float]]:
        """The next `length` tokens of code."""
        if self.cursor + length > len(self.text):
            self.epoch += 1
            self.cursor = 0
            self.text = self.shuffled()
        row = self.text[self.cursor : self.cursor + length]
        self.cursor += length
        return row, [1.0] * length

    def task_row(self, length: int) -> tuple[list[int], list[float]]:
        """Tasks behind each other until the row is full; the last one is cut."""
        kinds = [kind for kind in MIXTURE if kind != "code"]
        shares = [MIXTURE[kind] for kind in kinds]
        ids: list[int] = []
        weights: list[float] = []
        kind = self.random.choices(kinds, shares)[0]  # one kind a row: shares hold in tokens, not in tasks
        while len(ids) < length:
            more, counts = encode_task(tasks.make(kind, self.random), self.tokenizer)
            ids += more
            weights += counts
        return ids[:length], weights[:length]

    def batch(self, rows: int, length: int) -> Batch:
        """The next batch."""
        taken = [
            self.code_row(length + 1) if self.random.random() < MIXTURE["code"] else self.task_row(length + 1)
            for _ in range(rows)
        ]
        return Batch(torch.tensor([ids for ids, _ in taken]), torch.tensor([weights for _, weights in taken]))

    def state(self) -> dict[str, Any]:
        """The position in the stream, as plain numbers."""
        return {"epoch": self.epoch, "cursor": self.cursor, "random": self.random.getstate()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at a saved position."""
        self.epoch, self.cursor = state["epoch"], state["cursor"]
        version, numbers, gauss = state["random"]
        self.random.setstate((version, tuple(numbers), gauss))
        self.text = self.shuffled()
