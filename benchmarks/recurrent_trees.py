"""Draft trees on targets with recurrent layers: `python -m benchmarks.recurrent_trees --json FILE`.

A small target of each family is trained briefly on the zoo's corpus, with the zoo's tokenizer, so that the
zoo's draft model is accepted. It tells how many tokens a chain and a tree give per step. How long a step
takes is measured with random weights of a larger shape, whose drafts are rejected: the tokens per second of
such a target are the quotient. Recurrent layers read chains and trees in one product (`stree`) and, for
comparison, chains by transformers' own code and trees level by level.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    Mamba2Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
)

import outpace
from outpace.api.model import as_model
from outpace.bench.measure.bootstrap import Interval, median_interval
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.workload import BUILT_IN, encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.console import progress
from outpace.tables import Table, print_tables
from zoo_training.corpus import read_corpus
from zoo_training.data import Stream, encode_documents

DRAFT = "zoo:draft"
CHAIN, TREE = "chain of five", "tree of 21"
BY_CODE, BY_LEVEL = "chain, transformers' code", "tree, level by level"
WITHOUT_PRODUCT = {BY_CODE: CHAIN, BY_LEVEL: TREE}
COMPARED = ((TREE, CHAIN), (CHAIN, "plain"), (TREE, "plain"), (TREE, BY_LEVEL), (CHAIN, BY_CODE))
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("autoregressive", {}),
    CHAIN: ("speculative-sampling", {"draft": DRAFT, "depth": 5}),
    TREE: ("stree", {"draft": DRAFT, "widths": (3, 2, 1, 1)}),
}


def mamba2(hidden_size: int, num_layers: int, vocab: int) -> PretrainedConfig:
    """Mamba 2."""
    return Mamba2Config(
        vocab_size=vocab,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_heads=hidden_size // 32,
        head_dim=64,
        state_size=64,
        n_groups=1,
        tie_word_embeddings=True,
    )


def qwen(hidden_size: int, num_layers: int, vocab: int) -> PretrainedConfig:
    """The layers of Qwen3.5: three with the gated delta rule, then one with attention."""
    heads = hidden_size // 64
    return Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        linear_num_key_heads=max(1, heads // 2),
        linear_num_value_heads=heads,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        tie_word_embeddings=True,
    )


FAMILIES: dict[str, Callable[[int, int, int], PretrainedConfig]] = {"Mamba 2": mamba2, "Qwen3.5": qwen}


@dataclass(frozen=True)
class Row:
    """What a way of drafting costs and brings on one family."""

    name: str
    family: str
    parameters: int  # of the target whose steps were timed
    tokens_per_step: float  # of the small target
    milliseconds: float  # of a step of the large one
    tokens_per_second: float  # of a target with the acceptance of the small one and the steps of the large


def train(
    config: PretrainedConfig, steps: int, tokenizer: Any, report: Callable[[], None]
) -> PreTrainedModel:
    """A model that has learned the next token in this number of steps of eight rows of 128 tokens."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    stream = Stream(encode_documents(read_corpus().train, tokenizer), tokenizer, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
        batch = stream.batch(8, 129)
        logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none")
        weights = batch.weights[:, 1:].flatten()
        ((loss * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report()
    return model.eval()


def run(
    model: outpace.Model, name: str, prompts: list[list[int]], max_tokens: int
) -> tuple[list[float], list[float]]:
    """Tokens per step and milliseconds per step of each prompt."""
    method, options = METHODS[name]
    lengths, times = list[float](), list[float]()
    for prompt in prompts:
        begin = time.perf_counter()
        [result] = outpace.generate(
            model, [prompt], method, max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **options
        )
        seconds = time.perf_counter() - begin
        lengths.append(result.statistics.num_tokens / result.statistics.num_steps)
        times.append(1000 * seconds / result.statistics.num_steps)
    return lengths, times


def times_of(model: outpace.Model, prompts: list[list[int]], max_tokens: int) -> dict[str, list[float]]:
    """Milliseconds per step of each contender and prompt; the contenders take turns at each prompt."""
    target: Any = model.target
    products = target.forward.products
    times: dict[str, list[float]] = {name: [] for name in (*METHODS, *WITHOUT_PRODUCT)}
    for number, prompt in enumerate((prompts[0], *prompts)):
        for name, known in times.items():
            target.forward.products = frozenset() if name in WITHOUT_PRODUCT else products
            method = WITHOUT_PRODUCT.get(name, name)
            _, found = run(model, method, [prompt], max_tokens if number else 4)
            known += found if number else []  # the first one warms up
    return times


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    families: Annotated[str, typer.Option(help=f"Of {', '.join(FAMILIES)}.")] = ",".join(FAMILIES),
    small: Annotated[int, typer.Option(help="Hidden size of the trained targets.")] = 256,
    large: Annotated[int, typer.Option(help="Hidden size of the timed targets.")] = 1024,
    num_layers: Annotated[int, typer.Option(help="Layers of both.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 400,
    prompts: Annotated[int, typer.Option(min=3, help="Prompts of each built-in set.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 48,
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 2,
) -> None:
    """Compare trees with chains on targets with recurrent layers."""
    names = families.split(",")
    if unknown := set(names) - set(FAMILIES):
        raise typer.BadParameter(f"there is no family {min(unknown)}: use {', '.join(FAMILIES)}")
    tokenizer = outpace.load("zoo:target").tokenizer
    vocab = outpace.load(DRAFT).target.vocab
    texts = [encode(tokenizer, item).tolist() for source in BUILT_IN for item in load_items(source, prompts)]
    rows, ratios = list[Row](), list[dict[str, Any]]()
    with threads(number), progress(len(names) * steps) as advance:
        for family in names:
            made = FAMILIES[family]
            trained = train(made(small, num_layers, vocab), steps, tokenizer, lambda: advance("training", 1))
            acceptance = as_model(trained, tokenizer)
            torch.manual_seed(0)
            wide = AutoModelForCausalLM.from_config(made(large, num_layers, vocab), dtype=torch.bfloat16)
            timed = as_model(wide.eval(), tokenizer)
            accepted = {name: run(acceptance, name, texts, max_tokens)[0] for name in METHODS}
            found = {
                name: (accepted[WITHOUT_PRODUCT.get(name, name)], times)
                for name, times in times_of(timed, texts, 12).items()
            }
            for name, (lengths, times) in found.items():
                rate = 1000 * fmean(lengths) / median(times)
                parameters = sum(each.numel() for each in wide.parameters())
                rows.append(Row(name, family, parameters, fmean(lengths), median(times), rate))
            for name, over in COMPARED:
                ratio = ratio_of(found[name], found[over])
                ratios.append({"name": name, "over": over, "family": family, "ratio": asdict(ratio)})
    print_tables([table(rows)])
    json.parent.mkdir(parents=True, exist_ok=True)
    settings = {"small": small, "large": large, "num_layers": num_layers, "steps": steps, "dtype": "bfloat16"}
    write_json(
        json,
        {
            "schema": "outpace-recurrent-trees/1",
            "provenance": provenance(num_threads=number),
            "settings": settings,
            "results": [asdict(each) for each in rows],
            "ratios": ratios,
        },
    )


def ratio_of(first: tuple[list[float], list[float]], second: tuple[list[float], list[float]]) -> Interval:
    """Tokens per second of the first over the second, paired by prompt."""
    speeds = [
        [length / milliseconds for length, milliseconds in zip(*each, strict=True)]
        for each in (first, second)
    ]
    return median_interval([[a / b] for a, b in zip(*speeds, strict=True)])


def table(rows: list[Row]) -> Table:
    """A table of all rows."""
    return Table(
        "Targets with recurrent layers",
        ("family", "drafts", "tokens per step", "ms per step", "tokens per second"),
        tuple(
            (
                each.family,
                each.name,
                f"{each.tokens_per_step:.2f}",
                f"{each.milliseconds:.0f}",
                f"{each.tokens_per_second:.1f}",
            )
            for each in rows
        ),
    )


if __name__ == "__main__":
    typer.run(main)
