"""Batched generation with a zoo model, for distillation data and for evaluation."""

import torch
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from outpace.models.cache_argument import CACHE_ARGUMENT
from zoo_training.tasks import Task
from zoo_training.tokenizer import END, PAD, REPLY, USER, token_id


def encode_prompt(task: Task, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Token ids of a task's turns in the chat template, generation prompt included."""
    end, user, reply = (token_id(tokenizer, token) for token in (END, USER, REPLY))
    ids: list[int] = []
    for index, turn in enumerate(task.turns):
        ids += [
            (user, reply)[index % 2],
            *tokenizer.backend_tokenizer.encode(turn, add_special_tokens=False).ids,
            end,
        ]
    return [*ids, reply]


@torch.inference_mode()
def complete(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    length: int,
    *,
    temperature: float,
    seed: int = 0,
) -> list[list[int]]:
    """Generate at most `length` tokens after each prompt; temperature 0 is greedy.

    Returns the new token ids of each row, up to and including the end token.
    """
    pad, end = token_id(tokenizer, PAD), token_id(tokenizer, END)
    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = (ids != pad).long()
    cache, feed = DynamicCache(config=model.config), ids
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    taken: list[torch.Tensor] = []
    for _ in range(length):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -feed.shape[1] :]
        out = model.model(
            input_ids=feed,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{CACHE_ARGUMENT: cache},
        )
        logits = model.lm_head(out.last_hidden_state[:, -1]).float()
        if temperature > 0:
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            drawn = logits.argmax(-1, keepdim=True)
        feed = drawn.masked_fill(done[:, None], pad)
        taken.append(feed)
        done |= feed[:, 0] == end
        mask = torch.cat([mask, torch.ones_like(feed)], dim=1)
        if bool(done.all()):
            break
    rows = torch.cat(taken, dim=1).tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]
