"""Trains drafters for the zoo's target: `python -m zoo_training.drafters --output DIR [NAME ...]`.

Most learn from the same prompts, answers and hidden states, which are made once and kept in
DIR/captured-3000. A run that was stopped goes on. With `--install` the files of a head, or of an adapter that
changes the target, are copied into the package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import outpace
from outpace.models import adapter
from outpace.models.heads.formats.files import read_files, write_files
from outpace.models.heads.formats.folder import EMBEDDING
from outpace.models.names import HEADS, ZOO
from outpace.training.run import train
from outpace.zoo import WEIGHTS
from zoo_training import evaluate
from zoo_training.cards import rounded
from zoo_training.corpus import read_corpus
from zoo_training.prompts import KINDS, write_prompts

PROMPTS = 3000
TARGET = "zoo:target"
COMMON = (
    f"texts={PROMPTS}",
    "batch=4",
    "answers.max_tokens=160",
    "capture.disk_gigabytes=8",
    "evaluate_every=500",
    "bfloat16=true",
    # one way of training for all, so that heads are compared after equal training
    "optimizer.clip_by=norm",
    "optimizer.decay=linear",
    "optimizer.last=0",
    "optimizer.weight_decay=0",
    "head.dropout=0",
)
ADAPTER_RANK = 56  # of adapters in the package: the repository stays below its limit
SIGNIFICANT_BITS = (
    6  # of the weights of heads in the package: compressed they are a sixth smaller than with 8
)
PROVENANCE, CARD = "training.json", "README.md"


@dataclass(frozen=True)
class Plan:
    """How a drafter is trained."""

    method: str
    changes: tuple[str, ...]  # of the method's settings
    draft: str | None = None  # the model to train
    head: str | None = None  # name of the drafter to begin with
    kinds: tuple[str, ...] | None = (
        None  # of its own prompts, where it does not learn from those of the others
    )
    prompts: int = PROMPTS  # number
    prompts_seed: int = 0
    compiled: bool = False  # the target answers compiled in bfloat16, in a quarter of the time
    installed: bool = True  # whether the package has it; others are only what further ones begin with


DRAFTERS = {
    "eagle": Plan("eagle", ("steps=5000",)),
    "medusa": Plan("medusa", ("steps=4000", "head.draft_vocab=1024", "head.num_heads=3")),
    "hydra": Plan(
        "hydra",
        ("steps=2000", "head.draft_vocab=768", "head.num_heads=3", "head.num_layers=1", "head.prefix=false"),
    ),
    "redrafter": Plan("redrafter", ("steps=2000", "head.draft_vocab=1024", "head.num_layers=1")),
    "mlp-speculator": Plan(
        "mlp-speculator", ("steps=2000", "head.inner_size=192", "head.tied=true", "head.num_heads=4")
    ),
    "eagle3": Plan("eagle3", ("steps=3000", "head.draft_vocab=2048")),
    "hass-first": Plan("hass", ("steps=3000",), head="eagle", installed=False),
    "hass-second": Plan(
        "hass",
        ("steps=6000", "answers.batch=64"),
        head="hass-first",
        prompts=12_000,
        compiled=True,
        installed=False,
    ),
    # A larger weight of the cross entropy, which a greedy draft does not need: drawn tokens are accepted more
    # often.
    "hass-third": Plan(
        "hass",
        ("steps=4000", "answers.batch=64", "head.token_weight=2"),
        head="hass-second",
        prompts=12_000,
        compiled=True,
        installed=False,
    ),
    "hass": Plan(
        "hass",
        ("steps=10000", "answers.batch=64", "head.token_weight=2"),
        head="hass-third",
        prompts=24_000,
        compiled=True,
        prompts_seed=1,  # other prompts than those of the runs before
    ),
    "p-eagle": Plan("p-eagle", ("steps=3000", "answers.batch=64", "head.draft_vocab=2048"), compiled=True),
    "draft": Plan("distillspec", ("steps=2000",), draft="zoo:draft"),
    "layerskip": Plan(
        "layerskip",
        (
            "steps=2400",
            "exits.rank=64",
            "exits.layer=3",
            "exits.layers=2,3",
            "exits.labels=target",
            "exits.weighting=uniform",
            "exits.scale=1.0",
            "exits.rotation=1",
            "optimizer.rate=0.001",
            "answers.max_tokens=128",
            "capture.disk_gigabytes=0",
            "bfloat16=false",
        ),
        # a third less code and twice as many edits as the heads have: copying is what its exits learn last
        kinds=("code", "edit", "arithmetic", "code", "edit", "chat"),
    ),
}


def train_drafter(name: str, output: Path, seed: int) -> Path:
    """Train a drafter of DRAFTERS in a folder of `output`, after the one that it begins with; returns its
    folder."""
    plan = DRAFTERS[name]
    folder = output / (name if seed == 0 else f"{name}-{seed}")
    if (folder / PROVENANCE).is_file():
        return folder
    head = None if plan.head is None else str(train_drafter(plan.head, output, seed))
    own = plan.kinds is not None
    number = plan.prompts
    prompts = output / f"prompts-{name if own else number}.jsonl"
    if not prompts.is_file():
        write_prompts(prompts, number, seed=plan.prompts_seed, kinds=plan.kinds or KINDS)
    shared = f"captured-{number}-compiled" if plan.compiled else f"captured-{number}"
    train(
        plan.method,
        target=outpace.load(TARGET, dtype="bfloat16" if plan.compiled else "float32", compile=plan.compiled),
        data=str(prompts),
        output=folder,
        draft=plan.draft,
        head=head,
        changes=(*COMMON, f"texts={number}", *plan.changes, f"seed={seed}"),
        captured=folder / "work" if own else output / shared,
    )
    return folder


def install_head(folder: Path, place: Path, begun_with: str | None) -> None:
    """Write a head's files without its copy of the target's embedding, which other engines need, with weights
    of SIGNIFICANT_BITS, and with the package's name of it in the card's commands. `begun_with`: name in
    DRAFTERS of the head that its training began with."""
    place.mkdir(parents=True, exist_ok=True)
    card_page = (folder / CARD).read_text(encoding="utf-8")
    rounding = f"Its weights were rounded to {SIGNIFICANT_BITS} significant bits after training"
    for before, after in (
        (f" --head {folder.name}\n", f" --head {ZOO}{place.name}\n"),
        (f"`{PROVENANCE}`", f"`{PROVENANCE}`. {rounding}"),
    ):
        card_page = card_page.replace(before, after)
    (place / CARD).write_text(card_page, encoding="utf-8")
    facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8")) | {"start": begun_with}
    (place / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    config, tensors = read_files(folder)
    kept = {name: each for name, each in tensors.items() if name != EMBEDDING}
    floating = {name: coarser(each) for name, each in kept.items() if each.is_floating_point()}
    write_files(place, config, kept | floating)


def coarser(weights: Tensor) -> Tensor:
    """The closest numbers of SIGNIFICANT_BITS, in the same dtype."""
    fraction, exponent = torch.frexp(weights.float())
    scale = 2**SIGNIFICANT_BITS
    return torch.ldexp((fraction * scale).round() / scale, exponent).to(weights.dtype)


def of_rank(rank: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Low-rank changes B A of weights, by the names that PEFT gives them, as the closest ones of a lower
    rank: by the largest singular values of each product."""
    found: dict[str, Tensor] = {}
    for name in weights:
        if ".lora_A." in name:
            other = name.replace(".lora_A.", ".lora_B.")
            left, values, right = torch.linalg.svd(weights[other].float() @ weights[name].float())
            root = values[:rank].sqrt()
            found[other] = (left[:, :rank] * root).to(weights[other].dtype).contiguous()
            found[name] = (root[:, None] * right[:rank]).to(weights[name].dtype).contiguous()
    return found


def install_adapter(folder: Path, place: Path) -> None:
    """Write an adapter that changes the target, reduced to ADAPTER_RANK, with a card of what the changed
    target knows."""
    place.mkdir(parents=True, exist_ok=True)
    card_page = (folder / CARD).read_text(encoding="utf-8")
    for before, after in (
        (f"--target {folder.name} ", f"--target {ZOO}{place.name} "),
        (f"`{PROVENANCE}`", f"`card.json`. The adapter was reduced to rank {ADAPTER_RANK} after training"),
    ):
        card_page = card_page.replace(before, after)
    (place / CARD).write_text(card_page, encoding="utf-8")
    config = json.loads((folder / adapter.CONFIG).read_text(encoding="utf-8"))
    rank = min(config["r"], ADAPTER_RANK)
    config |= {"r": rank, "lora_alpha": config["lora_alpha"] * rank / config["r"]}  # the scale is their ratio
    (place / adapter.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = of_rank(rank, load_file(folder / adapter.WEIGHTS))
    save_file(weights, place / adapter.WEIGHTS, metadata={"format": "pt"})
    facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    loaded = outpace.load(str(place), dtype="float32")
    model, tokenizer, held_out = loaded.target.model, loaded.tokenizer, read_corpus().held_out
    assert isinstance(model, LlamaForCausalLM) and isinstance(tokenizer, PreTrainedTokenizerFast)
    card = {
        "name": place.name,
        "parameters": sum(each.numel() for each in model.parameters()),
        "vocabulary": model.config.vocab_size,
        "held_out_loss": evaluate.losses(model, held_out, tokenizer),
        "held_out_tasks_of_a_kind": evaluate.NUM_TASKS,
        "held_out_accuracy": evaluate.accuracy(model, tokenizer),
        "training": facts,
    }
    (place / "card.json").write_text(json.dumps(rounded(card), indent=2) + "\n", encoding="utf-8")


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(DRAFTERS)}; default: all.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for drafters, prompts and hidden states.")] = Path(
        "zoo-build/drafters"
    ),
    seed: Annotated[int, typer.Option(help="Of new weights and the order of the texts.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    install: Annotated[bool, typer.Option("--install", help="Copy into the package.")] = False,
) -> None:
    """Train the zoo's drafters."""
    if unknown := set(names or ()) - set(DRAFTERS):
        raise typer.BadParameter(f"there is no drafter {min(unknown)}: use {', '.join(DRAFTERS)}")
    torch.set_num_threads(threads)
    output.mkdir(parents=True, exist_ok=True)
    for name in names or DRAFTERS:
        folder = train_drafter(name, output, seed)
        if install and (folder / adapter.CONFIG).is_file():
            install_adapter(folder, WEIGHTS / name)
        elif install and DRAFTERS[name].draft is None and DRAFTERS[name].installed:
            install_head(folder, HEADS / name, DRAFTERS[name].head)
        typer.echo(f"{folder} is ready")


if __name__ == "__main__":
    typer.run(main)
