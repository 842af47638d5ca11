"""Endless stream of training batches from code and tasks, which can be resumed at the same token."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from zoo_training import tasks
from zoo_training.tokenizer import END, REPLY, USER, token_id

# Kind of text -> expected share of the rows; each row has code only or tasks of one kind.
MIXTURE = {"code": 0.56, "edit": 0.20, "arithmetic": 0.11, "chat": 0.13}
PROMPT_WEIGHT = 0.1  # loss weight of prompt tokens; small, because most of a prompt is random


@dataclass(frozen=True)
class Batch:
    """Training rows: token ids, and the weight of each token in the loss."""

    tokens: Tensor  # (rows, length + 1) int64
    weights: Tensor  # (rows, length + 1) float32, weight of each token as a prediction target

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return Batch(self.tokens.to(device), self.weights.to(device))


def encode_task(task: tasks.Task, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of a task with its answer, in the chat template."""
    end, user, reply = (token_id(tokenizer, token) for token in (END, USER, REPLY))
    ids: list[int] = []
    weights: list[float] = []
    for index, turn in enumerate([*task.turns, task.answer]):
        words = tokenizer.backend_tokenizer.encode(turn, add_special_tokens=False).ids
        ids += [(user, reply)[index % 2], *words, end]
        weight = (PROMPT_WEIGHT, 1.0)[index % 2]
        weights += [0.0, *[weight] * len(words), weight]
    return ids, weights


def encode_documents(texts: tuple[str, ...], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Token ids of documents, each followed by the end token."""
    end = token_id(tokenizer, END)
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [[*encoding.ids, end] for encoding in encodings]


class Stream:
    """Endless batches of code and tasks; a function of the seed and the sequence of calls."""

    def __init__(self, documents: list[list[int]], tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.documents = documents
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.seed = seed
        self.epoch = 0
        self.cursor = 0  # number of tokens of this epoch's text already used
        self.text = self.shuffled()

    def shuffled(self) -> list[int]:
        """The concatenated documents in this epoch's random order."""
        order = list(range(len(self.documents)))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        return [token for index in order for token in self.documents[index]]

    def code_row(self, length: int) -> tuple[list[int], list[float]]:
        """The next `length` tokens of code and their loss weights; starts a new epoch if too few are left."""
        if self.cursor + length > len(self.text):
            self.epoch += 1
            self.cursor = 0
            self.text = self.shuffled()
        row = self.text[self.cursor : self.cursor + length]
        self.cursor += length
        return row, [1.0] * length

    def task_row(self, length: int) -> tuple[list[int], list[float]]:
        """`length` tokens of concatenated tasks of one kind, the last one cut, and their loss weights."""
        kinds = [kind for kind in MIXTURE if kind != "code"]
        shares = [MIXTURE[kind] for kind in kinds]
        ids: list[int] = []
        weights: list[float] = []
        kind = self.random.choices(kinds, shares)[0]  # one kind per row, so that shares are in tokens
        while len(ids) < length:
            more, counts = encode_task(tasks.make(kind, self.random), self.tokenizer)
            ids += more
            weights += counts
        return ids[:length], weights[:length]

    def batch(self, rows: int, length: int) -> Batch:
        """The next batch: `rows` rows of `length` + 1 tokens, inputs and shifted labels."""
        taken = [
            self.code_row(length + 1) if self.random.random() < MIXTURE["code"] else self.task_row(length + 1)
            for _ in range(rows)
        ]
        return Batch(torch.tensor([ids for ids, _ in taken]), torch.tensor([weights for _, weights in taken]))

    def state(self) -> dict[str, Any]:
        """The position in the stream, for a checkpoint."""
        return {"epoch": self.epoch, "cursor": self.cursor, "random": self.random.getstate()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at a position saved by `state`."""
        self.epoch, self.cursor = state["epoch"], state["cursor"]
        version, numbers, gauss = state["random"]
        self.random.setstate((version, tuple(numbers), gauss))
        self.text = self.shuffled()
