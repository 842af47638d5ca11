"""`outpace.integrations.vllm.Proposer` without vLLM: called as vLLM calls it, it drafts what outpace's own
loop drafts, whatever becomes of the rows. tests/vllm runs it in vLLM."""

from __future__ import annotations

import gc
import json
import random
import re
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from outpace import recipes
from outpace.core.contracts import Parts, Target
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.integrations.vllm import Proposer
from outpace.models.table import TableTarget
from outpace.recipes._option_kinds import FunctionOpener
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import only

VOCAB, DEPTH, LONGEST = 12, 5, 400
# drafts no longer than DEPTH, as the proposer's are; none of the bandit's arms learns from requests that have
# ended, which happens one step later in vLLM and would change what is accepted and so the bandit's choices
ARMS = f"prompt-lookup:depth={DEPTH},sam-decoding:standalone_depth={DEPTH},aded:depth={DEPTH}"
METHODS: dict[str, dict[str, Any]] = {
    "prompt-lookup": {"allow_shorter": True, "depth": DEPTH},
    "suffix-decoding": {"tree": False, "depth": DEPTH},
    "sam-decoding": {"standalone_depth": DEPTH},
    "rest": {"min_ngram": 1, "depth": DEPTH},
    "aded": {"depth": DEPTH},
    "ucb-spec": {"arms": ARMS, "reward": "tokens"},
}
WITHOUT_OPTIONS = (
    "aded",
    "auto",
    "autoregressive",
    "ems-sd",
    "latency-aware-tts",
    "prompt-lookup",
    "rest",
    "sam-decoding",
    "smartspec",
    "suffix-decoding",
)


def proposer(own: Any = None, **others: Any) -> Proposer:
    model = SimpleNamespace(max_model_len=LONGEST, get_vocab_size=lambda: VOCAB)
    return Proposer(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=DEPTH),
            model_config=SimpleNamespace(**vars(model), tokenizer="", trust_remote_code=False),
            additional_config=others if own is None else others | {"outpace": own},
        )
    )


@dataclass
class Rows:
    """The rows of vLLM's batch: its arrays, in which the last row moves to where a request ended."""

    ids: list[int] = field(default_factory=list)
    tokens: np.ndarray = field(default_factory=lambda: np.zeros((64, LONGEST), np.int32))
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int32))

    def begin(self, request: int, prompt: Sequence[int]) -> None:
        row = len(self.ids)
        self.ids.append(request)
        self.tokens[row, : len(prompt)], self.lengths[row] = prompt, len(prompt)

    def end(self, request: int) -> None:
        row, last = self.ids.index(request), len(self.ids) - 1
        self.tokens[row], self.lengths[row] = self.tokens[last].copy(), self.lengths[last]
        self.ids[row] = self.ids[last]
        self.ids.pop()

    def propose(self, drafter: Proposer, sampled: dict[int, list[int]]) -> dict[int, list[int]]:
        """Request -> its draft, after a step that sampled these tokens."""
        new = [sampled.get(request, []) for request in self.ids]
        for row, tokens in enumerate(new):
            self.tokens[row, self.lengths[row] : self.lengths[row] + len(tokens)] = tokens
            self.lengths[row] += len(tokens)
        drafts = drafter.propose(new, self.lengths, self.tokens, slot_mappings=None)
        return dict(zip(self.ids, drafts, strict=True))


def table() -> TableTarget:
    target = TableTarget(VOCAB, order=2, seed=3, spread=3.0)
    target.chains_only = True
    return target


def own_parts(target: Target, method: str, options: dict[str, Any]) -> Parts:
    recipe = recipes.get(method)
    return recipe(target, **recipes.configure(recipe, target, options, FunctionOpener(lambda value: target)))


@pytest.mark.parametrize("method", only(("prompt-lookup",), METHODS))
def test_drafts_are_those_of_the_own_loop(method: str) -> None:
    """Requests join, end, move to other rows and follow others in their rows. Our session begins with the
    first token of each, which vLLM samples when it has read the prompt. It learns from a request when it
    ends, and vLLM's proposer, which sees no more than that a row is gone, one step later: that step is left
    out."""
    choice, target = random.Random(1), table()
    ends: dict[int, int] = {}  # slot -> length of the text at which it ends
    parts = own_parts(target, method, METHODS[method])
    session = Session(parts, [], [], LazyTargetProbs, done=lambda slot, text: len(text) >= ends[slot])
    drafter, rows = proposer({"method": method, **METHODS[method]}), Rows()
    request_of: dict[int, int] = {}  # slot -> request
    num_begun = num_compared = num_accepted = 0
    just_ended = False

    def begin(prompt: list[int]) -> tuple[int, list[int]]:
        nonlocal num_begun
        request = RequestState(torch.tensor(prompt), SamplingParams(0.0, max_tokens=LONGEST - len(prompt)))
        request.append([choice.randrange(VOCAB)])
        slot = session.rejoin(request)
        ends[slot], request_of[slot] = request.length + choice.randint(1, 60), num_begun
        rows.begin(num_begun, prompt)
        num_begun += 1
        return num_begun - 1, request.output()

    drafts = rows.propose(drafter, dict([begin([1, 2, 3]), begin([4])]))
    for step in session.steps():
        tree, new = step.draft.tree, dict[int, list[int]]()
        tokens = tree.token_list()
        for row, slot in enumerate(step.ctx.slots):
            own = [tokens[node] for node in tree.forest.nodes[row][1:]]
            if not just_ended:
                assert drafts[request_of[slot]] == own[:DEPTH], (method, num_begun, num_compared)
                num_compared += bool(own)
                num_accepted += len(step.generated[row]) - 1
            new[request_of[slot]] = step.generated[row]
        text = session.request(step.ctx.slots[0]).text().tolist()
        ended = [request_of[step.ctx.slots[row]] for row in step.finished]
        if num_begun < 12 and (ended or choice.random() < 0.1):
            # a new text, the one before, or that with more, as the next turn of a chat has it
            random_text = [choice.randrange(VOCAB) for _ in range(20)]
            request, first = begin(choice.choice((random_text, text, [*text, 1, 2])))
            new[request] = first
        drafts = rows.propose(drafter, new)
        for request in ended:
            rows.end(request)
        just_ended = bool(ended)
    assert num_begun == 12 and num_compared > 40 and num_accepted > 40
    rows.propose(drafter, {})
    assert not drafter._requests


def held(part: Any) -> int:
    """Bytes of the arrays that a part holds, and 8 for each item of its other containers."""
    seen, size, left = set[int](), 0, [part]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            size += each.nbytes
        elif isinstance(each, dict | list | set | deque):
            size += 8 * len(each)
        if isinstance(each, FunctionType):  # what a part's function holds, but not its module
            left += [cell.cell_contents for cell in each.__closure__ or ()]
        else:
            left += gc.get_referents(each)
    return size


@pytest.mark.parametrize("method", ["suffix-decoding", "rest"])
def test_without_a_cache_nothing_of_earlier_requests_is_kept(method: str) -> None:
    drafter = proposer({"method": method, **METHODS[method], "max_cached_tokens": 0})
    rows = Rows()
    for request in range(3):
        rows.begin(request, [1, 2, 3])
        assert rows.propose(drafter, {request: [4, 5, 6, 7]})[request] == []
        rows.end(request)
    rows.begin(3, [1, 2, 3, 4, 5, 1])  # its own text is looked up all the same, by suffix-decoding
    drafts = rows.propose(drafter, {3: [2]})[3]
    assert drafts[:1] == ([3] if method == "suffix-decoding" else [])


@pytest.mark.parametrize("method", only((), METHODS))
def test_thousands_of_steps_leave_nothing_behind(method: str) -> None:
    """Requests end, are aborted and preempted, wait while they read their prompts, and are drafted for: what
    is kept is that of the requests in the batch, in as many slots."""
    choice = random.Random(2)
    limits = {"max_cached_tokens": 2000} if method in ("suffix-decoding", "rest") else {}
    drafter = proposer({"method": method, **METHODS[method], **limits})
    rows, waiting, num_begun, num_drafted, early = Rows(), dict[int, list[int]](), 0, 0, 0
    for number in range(3000):
        if number == 1500:
            early = held(drafter._parts.drafter)
        while len(rows.ids) < 6 and choice.random() < 0.5:
            if waiting and choice.random() < 0.5:
                request, text = waiting.popitem()  # was preempted
            else:
                request, num_begun = num_begun, num_begun + 1
                text = [choice.randrange(4) for _ in range(choice.randint(1, 40))]
            rows.begin(request, text)
        new = {each: [choice.randrange(4) for _ in range(choice.randint(1, 4))] for each in rows.ids}
        reading = {each for each in rows.ids if choice.random() < 0.05}
        drafts = rows.propose(drafter, {each: new[each] for each in rows.ids if each not in reading})
        assert len(drafter._requests) == len(rows.ids) - len(reading)
        assert all(slot < 12 for slot in drafter._requests)
        assert not any(drafts[each] for each in reading)
        assert all(len(draft) <= DEPTH for draft in drafts.values())
        num_drafted += sum(map(bool, drafts.values()))
        for request in list(rows.ids):
            length = rows.lengths[rows.ids.index(request)]
            if length > LONGEST - 20 or choice.random() < 0.05:
                if choice.random() < 0.3:
                    waiting[request] = rows.tokens[rows.ids.index(request), :length].tolist()
                rows.end(request)
    assert num_begun > 400 and num_drafted > 3000
    assert held(drafter._parts.drafter) < 1.5 * early + 10_000  # arrays double when they are full
    for request in list(rows.ids):
        rows.end(request)
    rows.propose(drafter, {})
    assert not drafter._requests and not drafter._rows and drafter._last is None


def test_a_request_in_the_row_of_another_is_a_new_one() -> None:
    """Also if its text begins with that of the other, as the next turn of a chat does: the tokens in between
    are a prompt, and not learnt as generated."""
    drafter, rows = proposer({"method": "suffix-decoding", "tree": False}), Rows()
    rows.begin(0, [1, 2, 3])
    rows.propose(drafter, {0: [4, 5, 6, 7]})
    rows.end(0)
    rows.begin(1, [1, 2, 3, 4, 5, 6, 7, 9, 9, 9])
    rows.propose(drafter, {1: [4]})
    [request] = drafter._requests.values()
    assert request.prompt_length == 10 and request.output() == [4]
    rows.end(1)
    rows.begin(2, [8])
    assert rows.propose(drafter, {2: [4]})[2] == [5], "as the first request went on"


def test_a_request_that_changes_its_row_keeps_its_state() -> None:
    drafter, rows = proposer({"method": "sam-decoding"}), Rows()
    for request in range(3):
        rows.begin(request, [request, 5, 6])
    rows.propose(drafter, {0: [7], 1: [7], 2: [7]})
    states = dict(drafter._rows)
    rows.end(0)
    rows.propose(drafter, {1: [2], 2: [5]})
    assert rows.ids == [2, 1] and [drafter._rows[row] for row in (0, 1)] == [states[2], states[1]]


def test_a_row_with_tokens_beyond_the_vocabulary_has_no_drafts() -> None:
    drafter, rows = proposer({"method": "prompt-lookup", "allow_shorter": True}), Rows()
    rows.begin(0, [1, 2, VOCAB, 1, 2])
    rows.begin(1, [1, 2, 3, 1, 2])
    assert rows.propose(drafter, {0: [VOCAB - 1], 1: [3]}) == {0: [], 1: [1, 2, 3]}


def test_drafts_end_with_the_longest_text() -> None:
    drafter, rows = proposer({"method": "prompt-lookup", "allow_shorter": True}), Rows()
    rows.begin(0, [1, 2] * (LONGEST // 2 - 2))
    assert rows.propose(drafter, {0: [1]}) == {0: [2, 1]}  # and the bonus token
    assert rows.propose(drafter, {0: [2, 1]}) == {0: []}
    assert rows.propose(drafter, {0: [2]}) == {0: []}


@pytest.mark.parametrize(("method", "kind"), [("rest", SuffixArray), ("sam-decoding", StaticAutomaton)])
def test_an_index_of_the_tokenizer_drafts_for_the_first_request(
    method: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, index = {"a": 0}, kind.build([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *args, **kwargs: tokenizer)
    store.save(index, tmp_path / "other", store.fingerprint({"b": 0}))
    with pytest.raises(ValueError, match="was made for another tokenizer"):
        proposer({"method": method, "index": str(tmp_path / "other")})
    store.save(index, tmp_path / "mine", store.fingerprint(vocabulary))
    drafter, rows = proposer({"method": method, "index": str(tmp_path / "mine")}), Rows()
    rows.begin(0, [1, 2, 3])
    assert rows.propose(drafter, {0: [4]})[0] == [5, 6, 7, 8, 9]


def test_prompt_lookup_is_the_default_and_the_keys_of_others_are_left_alone() -> None:
    for drafter in (proposer(), proposer({}), proposer(gdn_prefill_backend="triton")):
        rows = Rows()
        rows.begin(0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1])
        assert rows.propose(drafter, {0: [2]})[0] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("method", only(WITHOUT_OPTIONS[:1], sorted(recipes.names())))
def test_a_method_drafts_from_tokens_or_is_refused_in_a_sentence(method: str) -> None:
    if method in WITHOUT_OPTIONS:
        proposer({"method": method})
        return
    with pytest.raises(
        ValueError, match=rf"^{method}.*(vLLM passes a proposer nothing but token ids|verifies them itself)"
    ) as error:
        proposer({"method": method})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"method": "sufix-decoding"}, "did you mean suffix-decoding"),
        ({"method": "ngram"}, "vLLM's method ngram is prompt-lookup here"),
        ({"method": "prompt-lookup", "dept": 3}, "did you mean depth"),
        ({"method": "prompt-lookup", "depth": "many"}, "depth is a whole number"),
        ({"method": "prompt-lookup", "max_ngram": 0}, "an n-gram has at least one token"),
        ({"method": "auto", "draft": "some/model"}, "auto cannot draft with some/model"),
        ({"method": "sam-decoding", "head": "folder"}, "a draft head needs the target's hidden states"),
        ({"method": "sam-decoding", "auxiliary": "token-recycling"}, "needs the target's logits"),
        ({"method": "exp3-spec"}, "needs the target's logits"),
        ({"method": "speculative-sampling"}, "speculative-sampling needs draft, but vLLM"),
        ("suffix-decoding", "is an object of a method and its options"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(own: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        proposer(own)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("installed", "warns"), [("0.32.0", False), ("0.33.1", True), (None, False)])
def test_another_version_of_vllm_is_named(
    installed: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if installed is None or package == "vllm":
            raise PackageNotFoundError(package)
        return installed

    monkeypatch.setattr("outpace.integrations.vllm.version", version)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        proposer()
    texts = [str(each.message) for each in found if "outpace" in str(each.message)]
    assert bool(texts) is warns
    assert not warns or "tested with vLLM 0.32, and this is 0.33.1" in texts[0]


def test_the_objects_in_the_documentation_are_accepted() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "vllm.md").read_text(encoding="utf-8")
    objects = [json.loads(found) for found in re.findall(r'\{"method": "(?!custom)[^{}]*\}', text)]
    assert len(objects) > 1
    for own in objects:
        proposer(own)
