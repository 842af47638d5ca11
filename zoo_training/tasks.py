"""Generated tasks with checkable answers (arithmetic, edits, chats), in a training and a held-out split."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from zoo_training import arithmetic, chats, edits
from zoo_training.words import Words

KINDS = ("arithmetic", "edit", "chat")
HELD_OUT_SEED = 20_000


@dataclass(frozen=True)
class Task:
    """A question and its correct answer; `turns` alternate between user and assistant, ending with the
    question."""

    kind: str
    turns: tuple[str, ...]
    answer: str

    @property
    def prompt(self) -> str:
        """The last user turn."""
        return self.turns[-1]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns as chat messages with role and content, without the answer."""
        return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(self.turns)]

    def check(self, answer: str) -> bool:
        """Whether an answer to this task is correct."""
        return check(self.kind, self.turns, answer)


def check(kind: str, prompt: str | Sequence[str], answer: str) -> bool:
    """Whether an answer to a task of this kind is correct; prompt: the question, or all turns up to it."""
    turns = (prompt,) if isinstance(prompt, str) else tuple(prompt)
    if kind == "arithmetic":
        return arithmetic.check(turns[-1], answer)
    if kind == "edit":
        return edits.check(turns[-1], answer)
    return chats.check(turns, answer)


def make(kind: str, generator: random.Random, *, held_out: bool = False) -> Task:
    """A random task of one kind from the training or held-out split; ValueError for an unknown kind."""
    if kind == "arithmetic":
        prompt = arithmetic.make(generator, held_out)
        return Task(kind, (prompt,), arithmetic.solve(prompt))
    words = Words(generator, held_out)
    if kind == "edit":
        prompt = edits.make(words)
        return Task(kind, (prompt,), edits.solve(prompt))
    if kind == "chat":
        turns = chats.make(words)
        return Task(kind, turns, chats.solve(turns))
    raise ValueError(f"unknown kind of task {kind!r}: use one of {', '.join(KINDS)}")


def held_out(kind: str, count: int) -> list[Task]:
    """The first `count` distinct held-out tasks of a kind, generated with a fixed seed."""
    # a string seed: independent of PYTHONHASHSEED, and different for each kind
    generator = random.Random(f"{HELD_OUT_SEED} {kind}")
    found: dict[tuple[str, ...], Task] = {}
    while len(found) < count:
        task = make(kind, generator, held_out=True)
        found.setdefault(task.turns, task)
    return list(found.values())
