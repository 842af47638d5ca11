"""Trains zoo models from scratch: corpus, tokenizers, target, drafts, cards. `python -m zoo_training --help`.

The output folder has `tokenizer/`, `tokenizer-SIZE/` for other vocabulary sizes, a folder for each finished
model, and under `runs/` checkpoints and draft training data for resuming.
"""

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from zoo_training import evaluate, tasks
from zoo_training.cards import make_card, read_card, write_card
from zoo_training.corpus import Corpus, read_corpus
from zoo_training.data import Stream, encode_documents, encode_task
from zoo_training.distill import DistillationLoss, Pool, make_pool
from zoo_training.embedding import counted_embedding
from zoo_training.induction import install_induction
from zoo_training.models import SHAPES, VOCABULARIES, make_config
from zoo_training.tokenizer import BYTES, END, PAD, VOCABULARY, token_id, train_tokenizer
from zoo_training.train import Settings, Trainer, next_token_loss

STEPS = 4000  # default if neither steps nor minutes are given
COUNTED_TASKS = 1500  # tasks of each kind, in addition to the corpus, for the bigram counts
TOKENIZER_TASKS = 2000  # tasks of each kind, in addition to the corpus, for training the tokenizer
POOL_LENGTH = 256  # tokens per row
OWN_ROWS, READ_ROWS = 2400, 2400  # rows of the draft's training pool: target samples, and training text
OVERRIDES: dict[str, Any] = {
    "target": {"shallow": 0.5},
    "draft-bytes": {
        "short": 512,
        "long": 1024,
        "batch_tokens": 4096,
    },  # longer rows: a byte-level token has at most a third of the text of a BPE token
}
DATA = {
    "target": "The standard library's source of the running Python, and generated arithmetic, edit and chat "
    "tasks.",
    "draft": "Distilled from zoo:target (forward KL and total variation, its whole distribution at every "
    "token) on training text and on text that the target itself wrote at temperatures 1 and 0.3.",
    "draft-undistilled": "The text that zoo:target was trained on. Not distilled from any target.",
    "draft-2k": "The text that zoo:target was trained on, in a vocabulary of its own. Not distilled from any "
    "target.",
    "draft-bytes": "The text that zoo:target was trained on, byte by byte. Not distilled from any target.",
}


def make_tokenizer(out: Path, corpus: Corpus, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The tokenizer with this vocabulary size in the folder `out`, trained and saved if it does not exist."""
    folder = out / ("tokenizer" if vocabulary == VOCABULARY else f"tokenizer-{vocabulary}")
    if not folder.exists():
        pick = random.Random(0)
        drawn = [tasks.make(kind, pick) for kind in tasks.KINDS for _ in range(TOKENIZER_TASKS)]
        texts = [*corpus.train, *("\n".join([*task.turns, task.answer]) for task in drawn)]
        train_tokenizer(texts, vocabulary).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def head_start(
    model: LlamaForCausalLM, documents: list[list[int]], tokenizer: PreTrainedTokenizerFast
) -> None:
    """Initialize a new model with bigram statistics and, unless it is byte-level, with induction heads."""
    pick = random.Random(1)
    drawn = [
        encode_task(tasks.make(kind, pick), tokenizer)[0]
        for kind in tasks.KINDS
        for _ in range(COUNTED_TASKS)
    ]
    ids = torch.tensor([token for document in [*documents, *drawn] for token in document])
    with torch.no_grad():
        table = model.lm_head.weight
        table.copy_(counted_embedding(ids, table.shape[0], table.shape[1], seed=0))
    if len(tokenizer) > BYTES:  # for single bytes, copying the last successor predicts nothing
        install_induction(model)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> LlamaForCausalLM:
    """Save a model and its tokenizer in bfloat16; returns the saved model, loaded in float32."""
    torch.nn.Module.to(model, torch.device("cpu"), torch.bfloat16)
    model.generation_config = GenerationConfig(
        eos_token_id=[token_id(tokenizer, END)], pad_token_id=token_id(tokenizer, PAD)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    without_spaces(folder / "tokenizer.json")
    return load(folder)


def without_spaces(file: Path) -> None:
    """Write a JSON file without indentation: the package has the tokenizer several times."""
    found = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def load(folder: Path, device: str = "cpu") -> LlamaForCausalLM:
    """Load a finished model in float32 and eval mode."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.nn.Module.to(model, torch.device(device))
    return model.eval()


def make_draft_pool(
    target: LlamaForCausalLM, stream: Stream, tokenizer: PreTrainedTokenizerFast, run: Path
) -> Pool:
    """The training pool of the distilled draft, loaded from run/pool.pt or created and saved there."""
    path = run / "pool.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        return Pool(saved["tokens"], saved["weights"], saved["hidden"], stream.seed)
    pool = make_pool(
        target,
        stream,
        tokenizer,
        own_rows=OWN_ROWS,
        read_rows=READ_ROWS,
        length=POOL_LENGTH,
        seed=stream.seed,
    )
    run.mkdir(parents=True, exist_ok=True)
    torch.save({"tokens": pool.tokens, "weights": pool.weights, "hidden": pool.hidden}, path)
    return pool


def build(
    name: str,
    out: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    device: str = "cpu",
    seed: int = 0,
    bfloat16: bool = False,
    resume: bool = False,
    note: str = "",
) -> Path:
    """Train one model, save it as `out/name` and return that folder; "draft" needs the target in
    `out/target`.

    Weights are saved as bfloat16 safetensors; `note` is added to the card. `bfloat16`: compute matrix
    products in bfloat16 while training, which is faster only on hardware with native support. Raises
    ValueError for an unknown name, or for an existing checkpoint without `resume`.
    """
    if name not in SHAPES:
        raise ValueError(f"The zoo has no model {name!r}; it can build {', '.join(SHAPES)}.")
    run = out / "runs" / name
    if (run / "checkpoint.pt").exists() and not resume:
        raise ValueError(f"{run} holds a started run: add --resume, or give another --out.")
    corpus = read_corpus()
    tokenizer = make_tokenizer(out, corpus, VOCABULARIES[name])
    stream = Stream(encode_documents(corpus.train, tokenizer), tokenizer, seed)
    config = make_config(name, len(tokenizer), token_id(tokenizer, END), token_id(tokenizer, PAD))
    length = steps or (10**9 if minutes else STEPS)
    if name != "draft":
        settings = Settings(length, minutes, seed=seed, bfloat16=bfloat16, **OVERRIDES.get(name, {}))
        trainer = Trainer(config, stream, next_token_loss, settings, run, device)
    else:
        target = load(out / "target", device)
        settings = Settings(
            length, minutes, seed=seed, short=POOL_LENGTH, long=POOL_LENGTH, bfloat16=bfloat16
        )
        trainer = Trainer(
            config,
            make_draft_pool(target, stream, tokenizer, run),
            DistillationLoss(target),
            settings,
            run,
            device,
        )
    if not trainer.resume():
        head_start(trainer.model, stream.documents, tokenizer)
    model = save_model(trainer.run(name), tokenizer, out / name)
    options = "".join(f" --{key} {value}" for key, value in (("steps", steps), ("minutes", minutes)) if value)
    command = f"python -m zoo_training {name}{options} --seed {seed} --device {device}"
    command += " --bfloat16" * bfloat16
    card = make_card(name, model, tokenizer, corpus, trainer, command=command, data=DATA[name], device=device)
    card["note"] = note
    if name == "draft":
        card["pair"] = evaluate.overlap(load(out / "target"), model, corpus.held_out, tokenizer)
        write_card(out / "target", {**read_card(out / "target"), "pair": card["pair"]})
    write_card(out / name, card)
    return out / name
