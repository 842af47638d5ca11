"""A resumed training run ends with the weights of an uninterrupted one, and a model that was deepened with
new layers starts with the logits it had before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from zoo_training.data import MIXTURE, Stream
from zoo_training.distill import DistillationBatch, DistillationLoss, Pool, make_pool
from zoo_training.embedding import Layout, bigram_log_ratio, counted_embedding
from zoo_training.induction import install_induction
from zoo_training.models import SHAPES, VOCABULARIES, deepen, make_config, make_model, num_parameters
from zoo_training.tokenizer import train_tokenizer
from zoo_training.train import Settings, Trainer, next_token_loss

TOKENIZER = train_tokenizer(["def add(left, right):\n    return left + right\n"] * 3, vocabulary=300)
DOCUMENTS = [[5 + (7 * i + j) % 200 for j in range(60 + i)] for i in range(12)]


def tiny(vocabulary: int = 300, hidden: int = 32, layers: int = 2) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )


def trainer(folder: Path, shallow: float = 0.5) -> Trainer:
    settings = Settings(8, batch_tokens=64, short=16, long=32, shallow=shallow, warm_up=2, decay=0.5)
    return Trainer(tiny(), Stream(DOCUMENTS, TOKENIZER, seed=1), next_token_loss, settings, folder)


@pytest.mark.parametrize("stopped_at", [2, 6])
def test_an_interrupted_run_ends_bit_equal(tmp_path: Path, stopped_at: int) -> None:
    whole = trainer(tmp_path / "whole").run()
    first = trainer(tmp_path / "parts")
    for _ in range(stopped_at):
        first.advance()
    first.save()
    first.advance()  # lost with the process
    second = trainer(tmp_path / "parts")
    assert second.resume() and second.step == stopped_at
    continued = second.run()
    assert second.step == 8 and second.tokens == 8 * 64
    for (name, one), (_, other) in zip(whole.named_parameters(), continued.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_run_without_a_checkpoint_starts_anew(tmp_path: Path) -> None:
    assert not trainer(tmp_path).resume()


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    run = trainer(tmp_path, shallow=0.0)
    batch = run.source.batch(8, 32)
    before = next_token_loss(run.model, batch).item()
    assert next_token_loss(run.run(), batch).item() < before


def test_a_deeper_model_computes_the_same(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    for _ in range(3):
        run.advance()
    deep = deepen(run.model, tiny())
    ids = torch.randint(300, (2, 9))
    assert deep.config.num_hidden_layers == 2 * run.model.config.num_hidden_layers
    torch.testing.assert_close(deep(ids).logits, run.model(ids).logits)


def test_minutes_end_a_run_too(tmp_path: Path) -> None:
    settings = Settings(10**9, minutes=1e-9, batch_tokens=64, short=16, long=16)
    run = Trainer(tiny(), Stream(DOCUMENTS, TOKENIZER, seed=1), next_token_loss, settings, tmp_path)
    run.advance()
    assert run.progress == 1.0


def test_a_stream_continues_at_the_same_token() -> None:
    stream = Stream(DOCUMENTS, TOKENIZER, seed=5)
    for _ in range(7):
        stream.batch(4, 40)
    state = stream.state()
    expected = [stream.batch(4, 40).tokens for _ in range(5)]
    other = Stream(DOCUMENTS, TOKENIZER, seed=5)
    other.restore(state)
    assert all(torch.equal(other.batch(4, 40).tokens, tokens) for tokens in expected)
    assert sum(MIXTURE.values()) == pytest.approx(1)


def test_a_draft_learns_its_targets_distribution(tmp_path: Path) -> None:
    target = make_model(tiny(layers=1), seed=3).eval()
    with torch.no_grad():
        target.lm_head.weight.mul_(20)  # a distribution with something to learn in it
    stream = Stream(DOCUMENTS, TOKENIZER, seed=2)
    pool = make_pool(target, stream, TOKENIZER, own_rows=3, read_rows=6, length=16, seed=2)
    assert pool.tokens.shape == (9, 17) and pool.hidden.shape == (9, 16, 32)
    loss = DistillationLoss(target)
    settings = Settings(30, batch_tokens=64, short=16, long=16, warm_up=2)
    run = Trainer(tiny(hidden=16, layers=1), pool, loss, settings, tmp_path)
    batch = pool.batch(9, 16)
    before = loss(run.model, batch).item()
    assert loss(run.run(), batch).item() < before


def test_a_pool_shows_every_row_once_an_epoch() -> None:
    rows = torch.arange(6)[:, None].expand(6, 5)
    pool = Pool(rows, torch.ones(6, 5), torch.zeros(6, 4, 2), seed=0)
    seen = torch.cat([pool.batch(4, 4).tokens[:, 0] for _ in range(3)])
    assert sorted(seen[:6].tolist()) == sorted(seen[6:].tolist()) == list(range(6))
    assert isinstance(pool.batch(1, 4), DistillationBatch)


def test_shapes_keep_to_their_size() -> None:
    limits = {
        "target": 15_000_000,
        "draft": 1_200_000,
        "draft-undistilled": 1_200_000,
        "draft-2k": 1_000_000,
        "draft-bytes": 1_000_000,
    }
    for name in SHAPES:
        with torch.device("meta"):
            size = num_parameters(make_model(make_config(name, VOCABULARIES[name], end=0, pad=4), seed=0))
        assert size <= limits[name], (name, size)


def test_a_counted_embedding_knows_which_token_follows() -> None:
    ids = torch.tensor([1, 2, 3, 4] * 200 + [5, 6, 7, 8] * 200)
    table, layout = counted_embedding(ids, vocabulary=9, size=20, seed=0), Layout(20)
    assert torch.isfinite(table).all() and table.shape == (9, 20)
    ratio, total = bigram_log_ratio(ids, 9)
    assert ratio[1].argmax() == 2 and ratio[7].argmax() == 8 and total[3] == 200
    assert not table[:, layout.free].any() and len(set(table[:, layout.constant].tolist())) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_a_fresh_model_already_copies(name: str) -> None:
    torch.manual_seed(0)
    model = make_model(make_config(name, 500, end=0, pad=4), seed=0, num_layers=2)
    once = torch.randperm(500)[:60]
    with torch.no_grad():
        model.lm_head.weight.copy_(
            counted_embedding(torch.randint(500, (5000,)), 500, model.config.hidden_size, seed=0)
        )
        install_induction(model)
        logits = model(torch.cat([once, once])[None]).logits[0]
    losses = torch.nn.functional.cross_entropy(logits[:-1], torch.cat([once, once])[1:], reduction="none")
    assert losses[60:].mean() < losses[:59].mean() - 0.5
