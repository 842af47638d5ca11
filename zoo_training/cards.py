"""Model cards: training data, settings and measurements, as card.json and as README.md."""

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from zoo_training import evaluate
from zoo_training.corpus import HELD_OUT, Corpus
from zoo_training.data import MIXTURE
from zoo_training.models import num_parameters
from zoo_training.train import Trainer


def device_name(device: str) -> str:
    """Name of the GPU, or number of cores and architecture of the CPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} CPU"


def rounded(value: Any) -> Any:
    """A value with floats rounded to four decimals, also in nested dicts."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def make_card(
    name: str,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    trainer: Trainer,
    *,
    command: str,
    data: str,
    device: str,
) -> dict[str, Any]:
    """The card of a trained model as JSON values, without the overlap of target and draft ("pair")."""
    return {
        "name": name,
        "parameters": num_parameters(model),
        "vocabulary": model.config.vocab_size,
        "data": data,
        "mixture": MIXTURE,
        "corpus_sha256": corpus.sha256,
        "corpus_files": len(corpus.train),
        "held_out_files": sorted(HELD_OUT),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "steps": trainer.step,
        "tokens_seen": trainer.tokens,
        "training_minutes": trainer.seconds / 60,
        "device": device_name(device),
        "seed": trainer.settings.seed,
        "command": command,
        "held_out_loss": evaluate.losses(model, corpus.held_out, tokenizer),
        "bytes_a_token": evaluate.bytes_per_token(corpus.held_out, tokenizer),
        "held_out_tasks_of_a_kind": evaluate.NUM_TASKS,
        "held_out_accuracy": evaluate.accuracy(model, tokenizer),
        "repetition": evaluate.repetition(model, corpus.held_out, tokenizer),
    }


def table(title: str, rows: dict[str, float]) -> str:
    """Markdown table with one row per name and number."""
    lines = [f"| {title} | |", "|---|---|", *(f"| {key} | {value:.3f} |" for key, value in rows.items())]
    return "\n".join(lines)


def page(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    tokens, minutes = card["tokens_seen"] / 1e6, card["training_minutes"]
    spelt = "A token of held-out code spells {:.2f} bytes on average; losses a byte compare vocabularies."
    parts = [
        f"# zoo:{card['name']}",
        f"{card['parameters'] / 1e6:.2f}M parameters, Llama-style, byte-level BPE with {card['vocabulary']} "
        "tokens, bfloat16 safetensors. A small stand-in for a real model: good enough to show what a method "
        "does, not to be asked for facts.",
        f"**Data.** {card['data']} Held out: {', '.join(card['held_out_files'])}, and tasks over words and "
        "numbers that training never sees.",
        f"**Training.** {card['steps']} steps, {tokens:.2f}M tokens, {minutes:.0f} minutes on a "
        f"{card['device']}, Python {card['python']}, torch {card['torch']}, seed {card['seed']}. "
        f"Corpus of {card['corpus_files']} files, sha256 `{card['corpus_sha256']}`.",
        f"```\n{card['command']}\n```",
        *([card["note"]] if card.get("note") else []),
        "All numbers below are measured on the weights in this folder, computing in float32.",
        table("held-out loss, nats a token", card["held_out_loss"]),
        *([spelt.format(card["bytes_a_token"])] if "bytes_a_token" in card else []),
        table(
            f"held-out tasks answered rightly, greedy, of {card['held_out_tasks_of_a_kind']} each",
            card["held_out_accuracy"],
        ),
        table(f"share of repeated {evaluate.GRAM}-grams on held-out code", card["repetition"]),
    ]
    if "pair" in card:
        shared = {domain: values["sum_min"] for domain, values in card["pair"].items()}
        agreed = {domain: values["argmax"] for domain, values in card["pair"].items()}
        parts += [
            "With its partner (target and draft), at temperature 1, over held-out tokens:",
            table("mean of sum min(p, q)", shared),
            table("same most probable token", agreed),
        ]
    return "\n\n".join(parts) + "\n"


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write a card as card.json and README.md into a model's folder, with rounded numbers."""
    card = rounded(card)
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page(card), encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """Read card.json of a model's folder."""
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))
