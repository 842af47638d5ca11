"""outpace's lookups in vLLM: the greedy text of its plain decoding, our acceptance length and that of
`outpace replay`, also for requests that join, are aborted and preempted; and the command of docs/vllm.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outpace.bench.measure.replay import RecordedText, build, replay
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.recipes import get
from tests.vllm.compared import check, in_vllm, model, needs_vllm, num_accepted, prompts

pytestmark = needs_vllm
DEPTH, MAX_TOKENS = 5, 320  # vLLM also counts draft tokens beyond the last that was asked for, at most DEPTH
CONFIG = {
    "method": "custom_class",
    "model": "outpace.integrations.vllm.Proposer",
    "num_speculative_tokens": DEPTH,
}
ARMS = f"prompt-lookup:depth={DEPTH},sam-decoding:standalone_depth={DEPTH}"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"
# per prompt: the step at which its request joins, and after how many tokens it is aborted
SCHEDULE = [(0, None), (0, None), (3, None), (5, 20), (9, None), (30, None)]
# 8 blocks of 32 tokens, of which vLLM keeps one, for six requests of up to 120
LITTLE_MEMORY = {"num_gpu_blocks_override": 8, "block_size": 32, "max_model_len": 192}


@pytest.mark.parametrize(
    "own",
    [
        {"method": "prompt-lookup", "depth": DEPTH},
        {"method": "suffix-decoding", "depth": DEPTH, "tree": False},
        {"method": "ucb-spec", "arms": ARMS, "reward": "tokens"},
    ],
    ids=lambda own: own["method"],
)
def test_a_lookup_drafts_as_it_does_here(own: dict[str, Any]) -> None:
    check(CONFIG, max_tokens=MAX_TOKENS, additional={"outpace": own}, **own)


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        ({"method": "rest", "nodes": DEPTH, "depth": DEPTH, "max_cached_tokens": 0}, SuffixArray),
        ({"method": "sam-decoding", "standalone_depth": DEPTH, "bias": 0}, StaticAutomaton),
    ],
    ids=["rest", "sam-decoding"],
)
def test_an_index_drafts_as_it_does_here(own: dict[str, Any], kind: Any, tmp_path: Path) -> None:
    """An index of the answers to half of the prompts: their drafts begin at the first token."""
    plain = in_vllm("null", max_tokens=MAX_TOKENS)["tokens"]
    texts = [[*prompt, *tokens] for prompt, tokens in zip(prompts(), plain, strict=True)][::2]
    store.save(kind.build(texts), tmp_path / "index", store.fingerprint(model().tokenizer.get_vocab()))
    own |= {"index": str(tmp_path / "index")}
    check(CONFIG, max_tokens=MAX_TOKENS, additional={"outpace": own}, **own)


@pytest.mark.parametrize(
    "own",
    [
        {"method": "prompt-lookup", "depth": DEPTH},
        {"method": "suffix-decoding", "depth": DEPTH, "tree": False},
        {"method": "rest", "depth": DEPTH, "nodes": DEPTH, "max_cached_tokens": 100_000},
    ],
    ids=lambda own: own["method"],
)
def test_one_request_after_the_other_is_accepted_as_replay_says(own: dict[str, Any]) -> None:
    found = in_vllm(
        json.dumps(CONFIG), json.dumps({"outpace": own}), MAX_TOKENS, json.dumps({"max_num_seqs": 1})
    )
    texts = [RecordedText(*both) for both in zip(prompts(), found["tokens"], strict=True)]
    options = {name: value for name, value in own.items() if name != "method"}
    parts = build(get(own["method"]), options, model().target.vocab)
    counts = replay(own["method"], parts, texts).counts
    assert found["accepted"] == pytest.approx(counts.accepted, rel=0.05) and counts.accepted > 100


def test_requests_that_join_and_are_aborted_and_preempted_keep_their_texts() -> None:
    plain = in_vllm("null", max_tokens=96)["tokens"]
    own = {"method": "suffix-decoding", "depth": DEPTH, "tree": False}
    found = in_vllm(
        json.dumps(CONFIG),
        json.dumps({"outpace": own}),
        96,
        json.dumps(LITTLE_MEMORY),
        json.dumps(SCHEDULE),
    )
    assert found["preemptions"] > 0 and found["accepted"] > 0
    for tokens, alone, (_, limit) in zip(found["tokens"], plain, SCHEDULE, strict=True):
        assert tokens == (alone if limit is None else alone[: len(tokens)])
        assert limit is None or limit <= len(tokens) < len(alone)
    assert found["held"] == [0, 0]


def test_the_command_of_the_page_starts_a_server_that_drafts(tmp_path: Path) -> None:
    [command] = re.findall(r"^(vllm serve .*?[^\\])$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert num_accepted(command, tmp_path) > 0


def test_two_ranks_that_share_the_model_keep_the_texts() -> None:
    own = {"method": "suffix-decoding", "depth": DEPTH, "tree": False}
    ranks = json.dumps({"tensor_parallel_size": 2})
    found = in_vllm(json.dumps(CONFIG), json.dumps({"outpace": own}), 96, ranks)
    assert found["tokens"] == in_vllm("null", max_tokens=96)["tokens"]
    assert found["accepted"] > 0 and found["held"] == [0, 0]
