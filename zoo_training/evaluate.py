"""Evaluation on held-out code and tasks: losses, task accuracy, repetition, overlap of draft and target."""

import random
from collections.abc import Iterator

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from zoo_training import tasks
from zoo_training.complete import complete, encode_prompt
from zoo_training.data import Batch, encode_documents, encode_task
from zoo_training.tokenizer import BYTES, PAD, token_id

DOMAINS = ("code", *tasks.KINDS)
NUM_TASKS = 100  # number of held-out tasks of each kind
CODE_ROWS, CODE_LENGTH = 100, 384  # number and length of rows of held-out code, spread evenly
ANSWER_LENGTH = 200  # maximum number of generated tokens; few correct answers are longer
BYTE_ANSWER_LENGTH = 600  # the same for the byte-level tokenizer
GRAM = 4  # n of the n-grams whose repetition within an output is measured


def held_out_batches(
    domain: str, documents: tuple[str, ...], tokenizer: PreTrainedTokenizerFast, rows: int = 8
) -> Iterator[Batch]:
    """Padded batches of held-out text of a domain ("code" or a kind of task).

    Weights are 1 for all tokens of code and for the answers of tasks, 0 for prompts and padding.
    """
    if domain == "code":
        text = [token for document in encode_documents(documents, tokenizer) for token in document]
        step = (len(text) - CODE_LENGTH - 1) // CODE_ROWS
        pieces = [text[i * step : i * step + CODE_LENGTH + 1] for i in range(CODE_ROWS)]
        examples = [(piece, [1.0] * len(piece)) for piece in pieces]
    else:
        coded = [encode_task(task, tokenizer) for task in tasks.held_out(domain, NUM_TASKS)]
        examples = [(ids, [float(weight == 1) for weight in weights]) for ids, weights in coded]
    examples.sort(key=lambda example: len(example[0]))
    pad = token_id(tokenizer, PAD)
    for start in range(0, len(examples), rows):
        group = examples[start : start + rows]
        width = max(len(ids) for ids, _ in group)
        tokens = [ids + [pad] * (width - len(ids)) for ids, _ in group]
        weights = [counts + [0.0] * (width - len(counts)) for _, counts in group]
        yield Batch(torch.tensor(tokens), torch.tensor(weights))


def bytes_per_token(documents: tuple[str, ...], tokenizer: PreTrainedTokenizerFast) -> float:
    """Mean number of bytes per token of the documents."""
    count = sum(len(ids) - 1 for ids in encode_documents(documents, tokenizer))  # minus the end token
    return sum(len(text.encode()) for text in documents) / count


@torch.inference_mode()
def losses(
    model: LlamaForCausalLM, documents: tuple[str, ...], tokenizer: PreTrainedTokenizerFast
) -> dict[str, float]:
    """Domain -> mean cross-entropy on held-out text, in nats per token."""
    found: dict[str, float] = {}
    for domain in DOMAINS:
        total, count = 0.0, 0.0
        for batch in held_out_batches(domain, documents, tokenizer):
            batch = batch.to(model.device)
            distribution = (
                model(input_ids=batch.tokens[:, :-1], use_cache=False).logits.float().log_softmax(-1)
            )
            right = distribution.gather(-1, batch.tokens[:, 1:, None])[..., 0]
            total -= float((right * batch.weights[:, 1:]).sum())
            count += float(batch.weights[:, 1:].sum())
        found[domain] = total / count
    return found


@torch.inference_mode()
def overlap(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    documents: tuple[str, ...],
    tokenizer: PreTrainedTokenizerFast,
) -> dict[str, dict[str, float]]:
    """Per domain, as means over held-out tokens: "sum_min", sum min(p, q) at temperature 1, and "argmax", the
    share of tokens where target and draft have the same argmax."""
    found: dict[str, dict[str, float]] = {}
    for domain in DOMAINS:
        shared, agreed, count = 0.0, 0.0, 0.0
        for batch in held_out_batches(domain, documents, tokenizer):
            batch = batch.to(target.device)
            weights = batch.weights[:, 1:]
            p = target(input_ids=batch.tokens[:, :-1], use_cache=False).logits.float().softmax(-1)
            q = draft(input_ids=batch.tokens[:, :-1], use_cache=False).logits.float().softmax(-1)
            shared += float((torch.minimum(p, q).sum(-1) * weights).sum())
            agreed += float(((p.argmax(-1) == q.argmax(-1)) * weights).sum())
            count += float(weights.sum())
        found[domain] = {"sum_min": shared / count, "argmax": agreed / count}
    return found


def accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = NUM_TASKS
) -> dict[str, float]:
    """Kind of task -> share of `count` held-out tasks answered correctly by greedy decoding."""
    found: dict[str, float] = {}
    most = ANSWER_LENGTH if len(tokenizer) > BYTES else BYTE_ANSWER_LENGTH
    for kind in tasks.KINDS:
        held_out = tasks.held_out(kind, count)
        right = 0
        for start in range(0, count, 50):
            group = held_out[start : start + 50]
            prompts = [encode_prompt(task, tokenizer) for task in group]
            answers = complete(model, tokenizer, prompts, most, temperature=0)
            texts = [str(tokenizer.decode(answer, skip_special_tokens=True)) for answer in answers]
            right += sum(task.check(text) for task, text in zip(group, texts, strict=True))
        found[kind] = right / count
    return found


def repeated_share(tokens: list[int]) -> float:
    """Share of an output's GRAM-grams that are repetitions of earlier ones."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(
    model: LlamaForCausalLM, documents: tuple[str, ...], tokenizer: PreTrainedTokenizerFast, length: int = 96
) -> dict[str, float]:
    """Mean of `repeated_share` over continuations of held-out code by `length` tokens: greedy, at temperature
    1, and the original code for comparison."""
    pick = random.Random(0)
    texts = [ids for ids in encode_documents(documents, tokenizer) if len(ids) > 512]
    starts = [(ids, pick.randrange(len(ids) - 256)) for ids in texts]
    prompts = [ids[start : start + 96] for ids, start in starts]
    rows = {
        "greedy": complete(model, tokenizer, prompts, length, temperature=0),
        "temperature 1": complete(model, tokenizer, prompts, length, temperature=1),
        "the code itself": [ids[start + 96 : start + 96 + length] for ids, start in starts],
    }
    return {name: sum(map(repeated_share, outputs)) / len(outputs) for name, outputs in rows.items()}
