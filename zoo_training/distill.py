"""Distillation of a draft model: it learns the target's distribution on code, tasks and target samples.

The acceptance probability of a draft token is sum min(p, q) = 1 - TVD. The loss is the weighted sum of
forward KL, whose gradients are useful while the distributions are far apart, and of TVD, the actual
objective. Target samples are included because at inference the draft continues such text. The target's last
hidden states are computed once for the whole pool (float16, 2 * hidden bytes per token), so that an epoch
costs only the draft's forward and backward passes and one matrix product.
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

TEMPERATURES = (1.0, 1.0, 0.3)  # temperatures of target samples, used in turn
CODE_PROMPT = 4  # the first 1 / CODE_PROMPT of a row of sampled code is a prompt from the corpus
TVD_WEIGHT = 2.0
SAMPLE_ROWS = 24


@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A training batch with the target's last hidden states."""

    hidden: Tensor  # (rows, length, hidden) float16; the target's logits are computed from it

    def to(self, device: torch.device) -> "DistillationBatch":
        """The batch on another device."""
        return DistillationBatch(self.tokens.to(device), self.weights.to(device), self.hidden.to(device))


def own_text(
    target: LlamaForCausalLM,
    stream: Stream,
    tokenizer: PreTrainedTokenizerFast,
    rows: int,
    length: int,
    seed: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """Sample training rows from the target: continuations of code, and answers to training tasks.

    Returns `rows` lists of `length` token ids, concatenated samples with their prompts, and loss weights.
    """
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
    """Last hidden states of the target for rows of tokens, computed `rows` rows at a time."""
    parts = [
        target.model(input_ids=piece[:, :-1].to(target.device), use_cache=False)
        .last_hidden_state.half()
        .cpu()
        for piece in track(tokens.split(rows), "reading the pool")
    ]
    return torch.cat(parts)


class Pool:
    """The distillation data: batches of rows, each row once per epoch, in an order determined by the seed."""

    def __init__(self, tokens: Tensor, weights: Tensor, hidden: Tensor, seed: int) -> None:
        self.tokens, self.weights, self.hidden, self.seed = tokens, weights, hidden, seed
        self.taken = 0  # number of rows used so far, over all epochs
        self.epoch, self.order = -1, [0]

    def batch(self, rows: int, length: int) -> DistillationBatch:
        """The next batch of `rows` rows; `length` must be the row length of the pool."""
        count = len(self.tokens)
        assert length == self.hidden.shape[1], (
            f"the pool has rows of {self.hidden.shape[1]} tokens, not {length}"
        )
        indices: list[int] = []
        for _ in range(rows):
            epoch, within = divmod(self.taken, count)
            if epoch != self.epoch:
                self.epoch, self.order = (
                    epoch,
                    random.Random(f"{self.seed} {epoch}").sample(range(count), count),
                )
            indices.append(self.order[within])
            self.taken += 1
        return DistillationBatch(self.tokens[indices], self.weights[indices], self.hidden[indices])

    def state(self) -> dict[str, Any]:
        """The position in the pool, for a checkpoint."""
        return {"taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at a position saved by `state`."""
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
    """A pool of `own_rows` rows sampled from the target and `read_rows` rows of training text, each of
    `length` + 1 tokens, with the target's hidden states."""
    given = stream.batch(read_rows, length)
    rows, counts = own_text(target, stream, tokenizer, own_rows, length + 1, seed)
    tokens = torch.cat([given.tokens, torch.tensor(rows, dtype=torch.long).reshape(-1, length + 1)])
    # Prompt tokens have the same small weight as in the target's training: its distribution is poor there.
    weights = torch.cat([given.weights, torch.tensor(counts, dtype=torch.float).reshape(-1, length + 1)])
    return Pool(tokens, weights, read(target, tokens), seed)


class DistillationLoss:
    """Distillation loss of a draft model: forward KL plus weighted total variation, at temperature 1."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        self.head = target.lm_head.weight.detach()

    def __call__(self, draft: LlamaForCausalLM, batch: Batch) -> Tensor:
        """Weighted mean loss over the tokens of a `DistillationBatch`."""
        assert isinstance(batch, DistillationBatch)
        with torch.no_grad():
            p = (batch.hidden.to(self.head.dtype) @ self.head.mT).float().softmax(-1)
        hidden = draft.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
        log_q = draft.lm_head(hidden).float().log_softmax(-1)
        q = log_q.exp()
        surprise = -(p * log_q).sum(-1)  # forward KL plus the target's entropy, a constant
        distance = 1 - torch.minimum(p, q).sum(-1)
        weights = batch.weights[:, 1:]
        return ((surprise + TVD_WEIGHT * distance) * weights).sum() / weights.sum()
