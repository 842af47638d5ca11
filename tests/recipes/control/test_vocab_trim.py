"""VocabTrim: what is drafted are kept tokens, with q normalised over them; all kept is the whole draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.core.claim import Drawn
from outpace.core.contracts import Parts, Step, Target
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.model.kept_tokens import kept_tokens
from outpace.indexes import store
from outpace.indexes.token_counts import TokenCounts
from outpace.models.heads.trimmed_draft import TrimmedDraft
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.control.vocab_trim import vocab_trim
from outpace.sampling.warp import warp

VOCAB = 12
PROMPTS = [[1, 2, 3, 4, 5], [7, 7, 2], [9]]
SAMPLING = [SamplingParams(t, max_tokens=20, seed=3) for t in (1.0, 0.0, 0.7)]


def models() -> tuple[HFTarget, HFTarget]:
    made = transformers_models(vocab=VOCAB)
    assert isinstance(made.target, HFTarget) and isinstance(made.drafts[0], HFTarget)
    return made.target, made.drafts[0]


def steps(parts: Parts, sampling: Sequence[SamplingParams] = SAMPLING) -> list[Step]:
    found: list[Step] = []
    texts(parts, PROMPTS[: len(sampling)], sampling, observe=found.append)
    return found


def file_of(path: Path, ranked: Sequence[int], special: Sequence[int] = ()) -> str:
    """A file in which these tokens have falling counts."""
    documents = [[token] * (len(ranked) - rank) for rank, token in enumerate(ranked)]
    store.save(TokenCounts.build(documents, special), path)
    return str(path)


@pytest.mark.parametrize("sampled", [True, False])
def test_with_all_tokens_kept_it_is_the_whole_draft_node_for_node(sampled: bool) -> None:
    target, draft = models()
    whole = steps(speculative_sampling.build(target, draft=draft, sampled=sampled))
    # also with a head of which every row is copied, which `size` never asks for
    copied = TrimmedDraft(draft, torch.arange(VOCAB))
    for parts in (
        vocab_trim.build(target, draft=draft, size=VOCAB, sampled=sampled),
        vocab_trim.build(target, draft=draft, size=10 * VOCAB, sampled=sampled),
        speculative_sampling.build(target, draft=copied, sampled=sampled),
    ):
        for ours, theirs in zip(steps(parts), whole, strict=True):
            assert torch.equal(ours.draft.tree.tokens, theirs.draft.tree.tokens)
            assert ours.draft.tree.forest is theirs.draft.tree.forest
            assert ours.generated == theirs.generated
            one, other = ours.draft.tree.claim, theirs.draft.tree.claim
            assert type(one) is type(other)
            if isinstance(one, Drawn) and isinstance(other, Drawn):
                assert sampled and (one.q - other.q).abs().max() < 1e-12


def test_q_is_that_of_the_draft_normalised_over_the_kept_tokens(tmp_path: Path) -> None:
    target, draft = models()
    kept = [8, 1, 5, 2]
    counts = file_of(tmp_path / "counts", [*kept, 9, 0])
    params = [SamplingParams(0.7, max_tokens=40, seed=1)]
    nodes = 0
    for step in steps(vocab_trim.build(target, draft=draft, counts=counts, size=4), params):
        tree, claim = step.draft.tree, step.draft.tree.claim
        if len(tree) == 1:
            continue
        assert isinstance(claim, Drawn) and claim.ids is None and claim.q.shape[1] == VOCAB
        assert set(tree.tokens[1:].tolist()) <= set(kept)
        others = [token for token in range(VOCAB) if token not in kept]
        assert bool((claim.q[:, others] == 0).all())
        for node in range(1, len(tree)):
            text = torch.cat((step.ctx.tokens[0], tree.tokens[1:node]))
            with torch.inference_mode():
                logits = draft.model(text[None], use_cache=False).logits[:, -1]
            whole = warp(logits, params)[0]
            expected = whole[kept] / whole[kept].sum()
            assert (claim.q[claim.row[node], kept] - expected).abs().max() < 1e-9
            nodes += 1
    assert nodes > 30


def test_sampling_parameters_name_tokens_of_the_whole_vocabulary(tmp_path: Path) -> None:
    target, draft = models()
    counts = file_of(tmp_path / "counts", [8, 1, 5, 2])
    params = [SamplingParams(1.0, max_tokens=40, seed=1, logit_bias=((5, -100.0), (0, 5.0)), top_k=6)]
    drafted = {
        token
        for step in steps(vocab_trim.build(target, draft=draft, counts=counts, size=4), params)
        for token in step.draft.tree.tokens[1:].tolist()
    }
    assert drafted == {8, 1, 2}


def test_special_and_end_of_text_tokens_are_kept(tmp_path: Path) -> None:
    target, _ = models()
    counts = file_of(tmp_path / "counts", [8, 1, 5, 2], special=[10])
    assert kept(counts, target, 4) == [1, 5, 8, 10]
    target.model.generation_config.eos_token_id = [11, 8]
    assert kept(counts, target, 4) == [1, 8, 10, 11]  # 5, the rarest, gives way to 11
    target.model.generation_config.eos_token_id = None
    target.model.config.eos_token_id = 3
    assert kept(counts, target, 4) == [1, 3, 8, 10]
    with pytest.raises(ValueError, match="size is 1: use at least 2, the number of special tokens"):
        kept_tokens(counts, target, 1)


def kept(counts: str | None, target: Target, size: int | None) -> list[int]:
    found = kept_tokens(counts, target, size)
    assert found is not None
    return found.tolist()


def test_a_quarter_is_kept_by_default_and_the_lowest_ids_without_a_file() -> None:
    assert kept(None, TableTarget(16, order=1), None) == [0, 1, 2, 3]
    assert kept(None, TableTarget(3, order=1), None) == [0, 1]
    target = outpace.load("zoo:target").target
    found = kept(None, target, None)
    assert len(found) == 1024 and found[-1] == 1023


def test_files_that_do_not_fit_are_refused(tmp_path: Path, loaded: Any, tiny: Any) -> None:
    target, draft = models()
    large = file_of(tmp_path / "large", [3, VOCAB])
    with pytest.raises(ValueError, match="large was made for another tokenizer"):
        vocab_trim.build(target, draft=draft, counts=large)
    with pytest.raises(ValueError, match="there is no index file .*none"):
        vocab_trim.build(target, draft=draft, counts=str(tmp_path / "none"))
    other = store.fingerprint({"a": 0})
    store.save(TokenCounts.build([[3]]), tmp_path / "other", other)
    with pytest.raises(ValueError, match="other was made for another tokenizer"):
        outpace.generate(
            loaded[0],
            "def",
            method="vocab-trim",
            draft=loaded[1],
            counts=str(tmp_path / "other"),
            max_tokens=4,
        )


@pytest.mark.slow
def test_the_end_of_the_text_is_drafted_though_it_was_not_counted(tmp_path: Path) -> None:
    target, draft = (outpace.load(name, dtype="float32") for name in ("zoo:target", "zoo:draft"))
    prompt = [{"role": "user", "content": "Say hello to Noah."}]
    plain = outpace.generate(target, [prompt], method="autoregressive", max_tokens=48)[0]
    *answer, end = plain.tokens
    assert end == target.tokenizer.eos_token_id
    store.save(TokenCounts.build([answer]), tmp_path / "counts")
    counts, size = str(tmp_path / "counts"), len({*answer, end})
    assert kept(counts, target.target, size) == sorted({*answer, end})
    encoded = target.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    parts = vocab_trim.build(target.target, draft=draft.target, counts=counts, size=size)
    drafted: list[int] = []
    found = texts(
        parts,
        [encoded["input_ids"]],
        [SamplingParams(max_tokens=48, stop=(end,))],
        observe=lambda step: drafted.extend(step.draft.tree.tokens[1:].tolist()),
    )
    assert found == [plain.tokens] and end in drafted
