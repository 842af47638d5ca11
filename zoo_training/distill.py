"""Distillation: a draft learns the target's distribution at every token of code, tasks and target samples.

The acceptance probability of a drafted token is the mean of sum min(p, q) = 1 - TVD. The loss is the weighted
sum of forward KL, whose gradients are useful while the distributions are far apart, and of TVD, which is the
objective itself. The target's own samples are included because drafts continue such text. The target reads
the pool once and its last hidden states are kept (float16, 2 * hidden bytes per token), so that an epoch
costs the draft's forwards and one matrix product.
"""

import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from zoo_training import tasks
from zoo_training.complete import complete, encode_prompt
from zoo_training.data import PROMPT_WEIGHT, Batch, Stream

TEMPERATURES = (1.0, 1.0, 0.3)  # of the target's own text, in turn: as it is sampled, and nearly greedy
CODE_PROMPT = 4  # the first of so many parts of a row is code to continue
TVD_WEIGHT = 2.0
SAMPLE_ROWS = 24


@dataclass(frozen=True)
class Lesson(Batch):
    """A batch with the target's hidden states."""

    hidden: Tensor  # (rows, length, hidden) float16, the target's last hidden state at each token

    def to(self, device: torch.device) -> "Lesson":
        """The same on another device."""
        return Lesson(self.tokens.to(device), self.weights.to(device), self.hidden.to(device))


def own_text(
    target: LlamaForCausalLM,
    stream: Stream,
    tokenizer: PreTrainedTokenizerFast,
    rows: int,
    length: int,
    seed: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """Rows of the target's own text with weights: code continued, and training tasks answered one behind the
    other."""
    pick = random.Random(seed)
    kinds = ["code", *tasks.KINDS, "edit"]
    ids: list[int] = []
    weights: list[float] = []
    needed = rows * length
    turns = itertools.takewhile(lambda _: len(ids) < needed, itertools.count())
    for turn in track(turns, "sampling from the target", total=None):
        kind = kinds[turn % len(kinds)]
        temperature = TEMPERATURES[turn % len(TEMPERATURES)]
        if kind == "code":
            given = length // CODE_PROMPT
            prompts = [stream.code_row(given)[0] for _ in range(SAMPLE_ROWS)]
            wanted = length - given
        else:
            prompts = [encode_prompt(tasks.make(kind, pick), tokenizer) for _ in range(SAMPLE_ROWS)]
            wanted = 150
        answers = complete(target, tokenizer, prompts, wanted, temperature=temperature, seed=seed + turn)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids += prompt + answer
            weights += [1.0 if kind == "code" else PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
    cuts = range(0, needed, length)
    return [ids[cut : cut + length] for cut in cuts], [weights[cut : cut + length] for cut in cuts]


@torch.inference_mode()
def read(
    target: LlamaForCausalLM, tokens: Tensor, rows: int = 16
) -> Tensor:  # (N, L + 1) -> (N, L, hidden) float16
    """The target's last hidden states over a pool of rows."""
    parts = [
        target.model(input_ids=piece[:, :-1].to(target.device), use_cache=False)
        .last_hidden_state.half()
        .cpu()
        for piece in track(tokens.split(rows), "reading the pool")
    ]
    return torch.cat(parts)


class Pool:
    """Lessons in an order that depends only on the seed; every epoch sees every row once."""

    def __init__(self, tokens: Tensor, weights: Tensor, hidden: Tensor, seed: int) -> None:
        self.tokens, self.weights, self.hidden, self.seed = tokens, weights, hidden, seed
        self.taken = 0  # rows
        self.epoch, self.order = -1, [0]

    def batch(self, rows: int, length: int) -> Lesson:
        """The next rows; their length is the pool's."""
        count = len(self.tokens)
        assert length == self.hidden.shape[1], (
            f"the pool has rows of {self.hidden.shape[1]} tokens, not {length}"
        )
        places: list[int] = []
        for _ in range(rows):
            epoch, within = divmod(self.taken, count)
            if epoch != self.epoch:
                self.epoch, self.order = (
                    epoch,
                    random.Random(f"{self.seed} {epoch}").sample(range(count), count),
                )
            places.append(self.order[within])
            self.taken += 1
        return Lesson(self.tokens[places], self.weights[places], self.hidden[places])

    def state(self) -> dict[str, Any]:
        """The position in the pool."""
        return {"taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at a saved position."""
        self.taken = state["taken"]


def make_pool(
    target: LlamaForCausalLM,
    stream: Stream,
    tokenizer: PreTrainedTokenizerFast,
    *,
    own_rows: int,
    read_rows: int,
    length: int,
    seed: int,
) -> Pool:
    """`own_rows` rows of the target's own text and `read_rows` of training text, with the target's hidden
    states."""
    given = stream.batch(read_rows, length)
    rows, counts = own_text(target, stream, tokenizer, own_rows, length + 1, seed)
    tokens = torch.cat([given.tokens, torch.tensor(rows, dtype=torch.long).reshape(-1, length + 1)])
    # A distribution is worth copying where the target was taught: prompts count as little here as they did
    # for the target.
    weights = torch.cat([given.weights, torch.tensor(counts, dtype=torch.float).reshape(-1, length + 1)])
    return Pool(tokens, weights, read(target, tokens), seed)


class Teaching:
    """The loss of a draft over lessons: forward KL plus weighted total variation, at temperature 1."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        self.head = target.lm_head.weight.detach()

    def __call__(self, draft: LlamaForCausalLM, batch: Batch) -> Tensor:
        """Weighted mean over the tokens of a lesson."""
        assert isinstance(batch, Lesson)
        with torch.no_grad():
            p = (batch.hidden.to(self.head.dtype) @ self.head.mT).float().softmax(-1)
        hidden = draft.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
        log_q = draft.lm_head(hidden).float().log_softmax(-1)
        q = log_q.exp()
        surprise = -(p * log_q).sum(-1)  # KL up to the target's own entropy, which has no gradient
        distance = 1 - torch.minimum(p, q).sum(-1)
        weights = batch.weights[:, 1:]
        return ((surprise + TVD_WEIGHT * distance) * weights).sum() / weights.sum()
