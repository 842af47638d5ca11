"""A compiled model gives the logits of the eager one for any input, and is compiled once."""

from __future__ import annotations

import ast
import copy
import gc
import random
import subprocess
import sys
import weakref

import numpy
import openvino
import pytest
import torch

import outpace
from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf import target as hf
from outpace.models.hf.target import HFTarget
from outpace.models.openvino import compiled
from outpace.models.openvino.infer_request import InferRequest, row_tokens_of
from outpace.models.openvino.request_inputs import RowTokens
from outpace.models.openvino.row_groups import group_rows
from outpace.models.openvino.size_policy import SizeTimes, policy_by_weights
from outpace.models.threads import num_cpus
from tests.tiers import slow

ROUNDING = 3e-5  # of logits of about 1, in float32
SLOTS = (4, 0, 2)
ROWS = [  # parents below the three roots
    [],
    [0, 0, 1, 3, 3, 2, 4, 5, 8, 8, 7],  # trees whose rows interleave
    [1, 0, 2, 2, 3, 3, 5, 6, 4],  # read in two calls
    [0, 3, 4, 2],  # after a gap
    [0, 3, 1, 5, 2, 4],  # chains
]
ALONE = [[], [0, 1, 2], [0, 0, 1, 1, 3], [0, 0, 1], [0]]


def some(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def made():
    """What was compiled so far: it takes a second each."""
    return {}


@pytest.fixture
def pair(made, tiny):
    """A model as it is and compiled, in float32."""

    def get(name):
        if name not in made:
            model = tiny(name).float()
            made[name] = HFTarget(copy.deepcopy(model)), HFTarget(model, compile=True)
            assert made[name][1].compiled is not None
        return made[name]

    return get


def same(pair, slots, lengths, below, monkeypatch, capacity=160):
    """Decode both ways side by side; what is scored and what is stored agree at every step."""
    monkeypatch.setattr(hf, "CHUNK", 16)
    choice, count = random.Random(1), len(slots)
    caches = [target.open(5, capacity) for target in pair]
    texts = [some(length, length) for length in lengths]

    def both(read):
        ours, theirs = (read(target, cache) for target, cache in zip(pair, caches, strict=True))
        assert ours.shape == theirs.shape and (ours - theirs).abs().max() < ROUNDING

    both(lambda target, cache: prefill(target, texts, slots, cache))
    for turn, parents in enumerate(below):
        forest = Forest.of([-1] * count + parents, count)
        gap = None
        if turn == 3:
            texts = [
                torch.cat((text, some(length, 7))) for text, length in zip(texts, (2, 40, 0), strict=False)
            ]
            gap = [text[caches[0].lengths[slot] : -1] for text, slot in zip(texts, slots, strict=True)]
        tokens = torch.cat((torch.stack([text[-1] for text in texts]), some(len(parents), turn)))
        tree = TokenTree(tokens, forest)
        if turn == 2:
            start = TokenTree(tokens[: count + 2], Forest.of(forest.parents[: count + 2], count))
            both(lambda target, cache, start=start: target.score(start, slots, cache).logits)
        both(lambda target, cache, tree=tree, gap=gap: target.score(tree, slots, cache, gap=gap).logits)
        leaves = [choice.choice(nodes) for nodes in forest.nodes]
        for cache in caches:
            cache.commit(tree, leaves, slots)
        texts = [
            torch.cat((text[:-1], tokens[forest.path(leaf)], some(1, turn)))
            for text, leaf in zip(texts, leaves, strict=True)
        ]
    assert caches[0].lengths == caches[1].lengths
    for slot in slots:
        views = (cache.views(slot, 0, cache.lengths[slot]) for cache in caches)
        assert all((ours - theirs).abs().max() < ROUNDING for ours, theirs in zip(*views, strict=True))


def prefill(target, texts, slots, cache):
    return target.prefill([Prompt(text) for text in texts], slots, cache, Want(prompt_logits=True))[1].logits


@pytest.mark.parametrize("name", ["llama", slow("mistral"), "gemma3_text", slow("gpt2")])
def test_scores_are_those_of_the_model_as_it_is_and_nothing_is_compiled_again(name, pair, monkeypatch):
    targets = pair(name)
    again = []
    monkeypatch.setattr(openvino.Core, "compile_model", lambda *_: again.append(1))
    same(targets, SLOTS, (13, 3, 90), ROWS, monkeypatch)
    same(targets, (3,), (70,), ALONE, monkeypatch)
    same(targets, SLOTS, (13, 3, 21), ROWS, monkeypatch, capacity=24)  # the caches move when they grow
    assert not again


@pytest.mark.parametrize("name", ["llama", slow("mistral")])
def test_every_forward_size_is_run_before_decoding_and_gives_the_same(name, pair, monkeypatch):
    """Long prompts in pieces, several rows in one forward, trees that no usual forward holds."""
    monkeypatch.setattr(hf, "CHUNK", 512)
    targets = pair(name)  # compiled before its inferences are recorded
    sizes = set()
    read = InferRequest.read
    monkeypatch.setattr(
        InferRequest,
        "read",
        lambda self, *rest: (found := read(self, *rest), sizes.add(found.computed))[0],
    )
    monkeypatch.setattr(targets[1].compiled, "policy", policy_by_weights(1_000))
    lengths_of_rows = (
        *[(size - 2,) for size in targets[1].sizes if size > 16],
        (300,),
        (140, 3, 150),
        (130, 129),
    )
    for lengths in ((2,), (6,), (10,), (14,), *lengths_of_rows):
        slots, texts = tuple(range(len(lengths))), [some(length, length) for length in lengths]
        caches = [target.open(len(slots), 512) for target in targets]
        found = [prefill(target, texts, slots, cache) for target, cache in zip(targets, caches, strict=True)]
        assert found[0].shape == found[1].shape and (found[0] - found[1]).abs().max() < ROUNDING
        for below in (3, 12, 150, 270)[: 4 if lengths == (2,) else 3]:
            parents = [random.Random(node).randrange(node + len(slots)) for node in range(below)]
            forest = Forest.of([-1] * len(slots) + parents, len(slots))
            tree = TokenTree(some(len(forest.parents), below), forest)
            scored = [
                target.score(tree, slots, cache).logits for target, cache in zip(targets, caches, strict=True)
            ]
            assert (scored[0] - scored[1]).abs().max() < ROUNDING
            for cache in caches:
                cache.commit(tree, [-1] * len(slots), slots)
    # trees in windows are read aside
    largest = max(compiled.FIXED_SIZES)
    assert sizes >= {size for size in targets[1].sizes if size > largest} and (
        name == "mistral" or max(sizes) > targets[1].sizes[-1]
    )


def test_scores_tell_how_many_tokens_were_computed(pair):
    eager, compiled = pair("llama")
    assert eager.sizes == () and compiled.sizes == compiled.compiled.policy.sizes
    tree = TokenTree(some(4, 1), Forest.chain((3,)))
    fit = next(size for size in compiled.sizes if size >= 4)
    for target, computed in ((eager, None), (compiled, fit)):
        assert target.score(tree, (0,), target.open(1, 64)).computed == computed


@pytest.mark.slow
def test_short_chains_of_one_row_have_graphs_of_fixed_sizes(tiny, monkeypatch):
    model = tiny("llama").float()
    for budget, sizes in ((1 << 28, {0, 1, 6, 11, 16}), (0, {0})):
        monkeypatch.setattr(compiled, "FIXED_BYTES", budget)
        target = HFTarget(copy.deepcopy(model), compile=True)
        assert set(target.compiled._models) == sizes
        cache = target.open(2, 64)
        prefill(target, [some(9)], [0], cache)
        used = []
        for length in (1, 2, 6, 7, 12, 17):
            cache.discard()
            cache.requests.clear()
            scores = target.score(TokenTree(some(length), Forest.chain((length - 1,))), [0], cache)
            used += cache.requests
            if length > 1:  # a single token keeps a larger size for a while
                assert scores.computed == next(size for size in target.chain_sizes if size >= length)
        assert used == ([1, 6, 6, 11, 16, 0] if budget else [0] * 6)
        cache.discard()
        cache.requests.clear()
        target.score(TokenTree(some(3), Forest.of([-1, 0, 0], 1)), [0], cache)  # not a chain
        cache.discard()
        target.score(TokenTree(some(2), Forest.chain((0, 0))), [0, 1], cache)  # two rows
        assert list(cache.requests) == [0]


@pytest.mark.slow
def test_attention_gets_the_longest_text_rounded_up(tiny):
    """OpenVINO generates kernels anew for new lengths. Around the powers of two, logits agree with eager."""
    model = tiny("llama", max_position_embeddings=2048).float()
    targets = HFTarget(copy.deepcopy(model)), HFTarget(model, compile=True)
    for lengths, given in (((9,), 512), ((500,), 512), ((510,), 1024), ((1030,), 2048), ((300, 700), 1024)):
        slots, texts = tuple(range(len(lengths))), [some(length, length) for length in lengths]
        caches = [target.open(len(slots), 1100) for target in targets]
        tree = TokenTree(some(6 * len(slots), 1), Forest.chain((5,) * len(slots)))
        scored = []
        for target, cache in zip(targets, caches, strict=True):
            prefill(target, [text[:-1] for text in texts], slots, cache)
            scored.append(target.score(tree, slots, cache).logits)
        assert (scored[0] - scored[1]).abs().max() < ROUNDING
        assert {int(each._inputs._longest.array) for each in caches[1].requests.values()} >= {given}


@pytest.mark.slow
def test_sizes_follow_the_times_that_were_measured(tiny, monkeypatch):
    """All are run at loading, and outputs of layers that are added later leave them as they are."""
    measured, run = [], []
    read = InferRequest.read

    def policy_of(times, num_weights):
        measured.append((times, num_weights))
        return policy_by_weights(200_000_000)

    monkeypatch.setattr("outpace.models.openvino.compiled.policy_of", policy_of)
    monkeypatch.setattr(
        InferRequest,
        "read",
        lambda self, *rest, size=None: (run.append(size), read(self, *rest, size=size))[1],
    )
    model = tiny("llama").float()
    eager, compiled = HFTarget(copy.deepcopy(model)), HFTarget(model, compile=True)
    ((times, num_weights),) = measured
    assert num_weights == compiled.compiled._num_weights
    assert all(isinstance(each, SizeTimes) and each.changed and each.repeated for each in times.values())
    assert compiled.sizes == policy_by_weights(200_000_000).sizes and set(run) - {None} == {*compiled.sizes}
    same((eager, compiled), SLOTS, (13, 3, 90), ROWS, monkeypatch)
    tree = TokenTree(some(4, 1), Forest.chain((3,)))
    compiled.score(tree, (0,), compiled.open(1, 64), Want(hidden=frozenset({-1})))
    assert len(measured) == 1 and len(compiled.sizes) == 24


@pytest.mark.slow
def test_the_memory_of_a_closed_cache_is_used_again(tiny, monkeypatch):
    target = HFTarget(tiny("llama").float(), compile=True)

    def decoded(cache):
        prefill(target, [some(40)], [0], cache)
        return target.score(TokenTree(some(5, 1), Forest.chain((4,))), (0,), cache).logits

    def place(cache):
        return cache.storages[0].data_ptr()

    first, second = target.open(1, 64), target.open(1, 64)
    assert place(first) != place(second)  # both are in use
    expected, kept = decoded(first), place(first)
    first.name(0, some(40))
    assert first.tables.pool.num_held > 0
    requests = list(first.requests.values())
    del first
    again = target.open(1, 48)
    assert place(again) == kept and again.lengths == [0] and again.capacity == 64
    assert again.tables.pool.num_held == again.tables.pool.num_retained == 0
    assert again.restore(0, some(40)) == 0  # texts of another request are not found
    again.release([0])
    assert torch.equal(decoded(again), expected) and list(again.requests.values()) == requests
    assert place(target.open(1, 64)) not in (kept, place(second))
    del again
    for slots, capacity in ((2, 64), (1, 65)):  # none that has room for these
        other = target.open(slots, capacity)
        assert len(other.lengths) == slots and other.capacity == capacity
        del other
    monkeypatch.setattr(compiled, "KEPT_BYTES", 0)
    target.compiled._closed.clear()
    del second
    assert not target.compiled._closed


@pytest.mark.slow
def test_sizes_whose_inferences_take_long_are_not_run_at_loading(tiny, monkeypatch):
    run = []
    read = InferRequest.read
    monkeypatch.setattr(
        InferRequest,
        "read",
        lambda self, *rest, size=None: (run.append(size), read(self, *rest, size=size))[1],
    )
    monkeypatch.setattr(compiled, "LONG", 0.0)
    made = HFTarget(tiny("llama").float(), compile=True)
    assert max(made.sizes) > 64 and set(run) - {None} <= {*made.sizes[: made.sizes.index(64) + 1]}


def test_rows_share_forwards_and_chains_alone_are_cut():
    def part(slot, size, num, tree=False):
        seen = numpy.ones((size, size), bool) if tree else None
        return RowTokens(slot, 10, numpy.arange(size), numpy.arange(10, 10 + size), seen, num)

    groups = group_rows(
        [part(0, 600, 2), part(1, 180, 180), part(2, 245, 3, tree=True), part(3, 280, 1, tree=True)]
    )
    assert [[(p.slot, p.start, len(p.tokens), p.num) for p in group] for group in groups] == [
        [(0, 10, 256, 0)],
        [(0, 266, 256, 0)],
        [(0, 522, 88, 2), (1, 10, 168, 168)],
        [(1, 178, 12, 12)],
        [(2, 10, 245, 3)],
        [(3, 10, 280, 1)],
    ]
    tokens = [token for group in groups[:3] for p in group if p.slot == 0 for token in p.tokens]
    assert tokens == list(range(600))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "qwen3",
        "mixtral",
        "gpt_neox",
        "gemma4_text",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "qwen2",
                "qwen3_moe",
                "phi3",
                "olmo2",
                "smollm3",
                "granite",
                "cohere2",
                "opt",
                "stablelm",
            )
        ),
    ],
)
def test_architectures_that_the_documentation_names_compile(name, tiny):
    """Each is compared with the model as it is before it is used."""
    assert HFTarget(tiny(name).float(), compile=True).compiled


@pytest.mark.slow
def test_attention_sinks(pair, monkeypatch):
    same(pair("gpt_oss"), SLOTS, (13, 3, 21), ROWS[1:3], monkeypatch)


@pytest.mark.slow
def test_bfloat16_is_as_near_to_float32_as_without_compiling(tiny):
    """Positions above 256 are not numbers of bfloat16."""
    model = tiny("llama", max_position_embeddings=1024).float()
    text = some(600, 3)
    chain = TokenTree(text[-9:], Forest.chain((8,)))
    scored = []
    for compile, dtype in ((False, torch.float32), (False, torch.bfloat16), (True, torch.bfloat16)):
        target = HFTarget(copy.deepcopy(model).to(dtype), compile=compile)
        cache = target.open(1, 640)
        target.prefill([Prompt(text[:-8])], (0,), cache, Want())
        scored.append(target.score(chain, (0,), cache).logits.float())
    exact, plain, compiled = scored
    assert 0 < (compiled - exact).norm() < 2 * (plain - exact).norm() < 0.2 * exact.norm()


@pytest.mark.slow
@pytest.mark.skipif(num_cpus() < 2, reason="there is one CPU")
def test_a_graph_with_further_outputs_has_the_threads_of_the_first(tiny):
    """It is compiled in a session, which leaves torch one thread: the forwards would take all others away."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        target = HFTarget(tiny("llama").float(), compile=True)
        first = target.compiled.model
        cache = target.open(1, 64)
        torch.set_num_threads(1)
        target.prefill([Prompt(some(9, 1))], (0,), cache, Want(hidden=frozenset({0})))
    finally:
        torch.set_num_threads(before)
    assert target.compiled.model is not first
    threads = [model.get_property("INFERENCE_NUM_THREADS") for model in (first, target.compiled.model)]
    assert threads == [2, 2]


@pytest.mark.slow
def test_hidden_states_are_outputs_of_the_graph(pair, monkeypatch):
    """Of prompts in chunks, of gaps and trees in a batch; the first request for a layer compiles once."""
    eager, compiled = pair("llama")
    monkeypatch.setattr(compiled.reader, "_read_eagerly", None)
    texts, slots = [some(150, 1), some(9, 2)], (0, 1)
    caches = [target.open(2, 256) for target in (eager, compiled)]
    builds = []
    compile_ = compiled.reader._compile
    monkeypatch.setattr(
        compiled.reader, "_compile", lambda *layers: (builds.append(layers), compile_(*layers))
    )
    for layers in ({-1}, {0, -1}, {0}, {1, 0}):
        want = Want(hidden=frozenset(layers))
        for cache in caches:
            cache.release(slots)
        read, scored = [], []
        for target, cache in zip((eager, compiled), caches, strict=True):
            read.append(target.prefill([Prompt(text) for text in texts], slots, cache, want)[1].hidden)
            tree = TokenTree(
                torch.cat((texts[0][-1:], texts[1][-1:], some(4))), Forest.of([-1, -1, 0, 0, 1, 3], 2)
            )
            gap = [some(3, 5), some(0)]
            scored.append(target.score(tree, slots, cache, want, gap=gap).hidden)
            cache.commit(tree, (-1, -1), slots)
        for layer in layers:
            assert read[0][layer].shape == read[1][layer].shape == (157, 32)
            assert (read[0][layer] - read[1][layer]).abs().max() < ROUNDING
            assert scored[0][layer].shape == scored[1][layer].shape == (6, 32)
            assert (scored[0][layer] - scored[1][layer]).abs().max() < ROUNDING
    assert builds == [((-1,),), ((-1, 0),), ((-1, 0, 1),)]
    with pytest.raises(ValueError, match="there is no layer 7"):
        compiled.score(tree, slots, caches[1], Want(hidden=frozenset({7})))


def test_what_the_graph_does_not_give_is_read_on_the_same_cache(pair):
    text, want = some(20, 1), Want(hidden=frozenset((0, -1)), attention=frozenset((1,)))
    found = []
    for target in pair("llama"):
        cache = target.open(1, 64)
        target.prefill([Prompt(text)], (0,), cache, Want())
        tree = TokenTree(torch.cat((text[-1:], some(3))), Forest.of([-1, 0, 0, 1], 1))
        found.append(target.score(tree, (0,), cache, want))
    for layer in (0, -1):
        assert (found[0].hidden[layer] - found[1].hidden[layer]).abs().max() < ROUNDING
    for ours, theirs in zip(found[0].attention[1], found[1].attention[1], strict=True):
        assert (ours - theirs).abs().max() < ROUNDING


@pytest.mark.slow
def test_a_cache_that_is_no_longer_used_is_freed(pair):
    target = pair("llama")[1]
    cache = target.open(2, 64)
    target.prefill([Prompt(some(5)), Prompt(some(9))], (0, 1), cache, Want())
    seen = weakref.ref(cache)
    del cache
    gc.collect()
    assert seen() is None


@pytest.mark.slow
def test_greedy_texts_are_those_of_plain_decoding():
    threads = torch.get_num_threads()
    target, draft = (
        outpace.load(name, dtype="float32", compile=True) for name in ("zoo:target", "zoo:draft")
    )
    assert (
        target.target.compiled and target.target.compiled.seconds > 0 and torch.get_num_threads() == threads
    )
    prompts = ["def read(path):\n    with open(path) as file:\n", "class", "for name, value in sorted("]
    options = {"max_tokens": 24, "temperature": 0}
    plain = [each.text for each in outpace.generate(target, prompts, "autoregressive", **options)]
    for method in ("speculative-sampling", "mcsd"):
        found = outpace.generate(target, prompts, method, draft=draft, **options)
        assert [each.text for each in found] == plain
        assert [
            each.text for each in outpace.generate(target, prompts[0], method, draft=draft, **options)
        ] == plain[:1]


@pytest.mark.slow
def test_one_thread_compiles_gated_layers_apart():
    # joined by the runtime, they end the process on processors with AMX
    script = """
import torch, outpace
torch.set_num_threads(1)
model = outpace.load("zoo:draft", compile=True)
nodes = model.target.compiled.model.get_runtime_model().get_ordered_ops()
print(sorted({str(node.get_rt_info()["layerType"].value) for node in nodes}))
print(outpace.generate(model, "class", "autoregressive", max_tokens=4, temperature=0)[0].tokens)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    kinds, tokens = map(ast.literal_eval, ended.stdout.splitlines())
    assert "FullyConnected" in kinds and "LLMMLP" not in kinds and len(tokens) == 4


def chain_of(row, *rest):
    parts = row_tokens_of(row, *rest)
    for part in parts:
        part.seen = None
    return parts


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bloom", "it takes no position ids"),
        ("gemma2", "its attention caps its scores"),
        ("deepseek_v3", "it attends to other keys and values than it stores"),
    ],
)
def test_a_model_that_cannot_be_compiled_warns_with_the_reason_and_runs(name, why, tiny):
    with pytest.warns(UserWarning, match=f"ForCausalLM cannot be compiled and runs eagerly: {why}"):
        target = HFTarget(tiny(name).float(), compile=True)
    cache = target.open(1, 32)
    assert target.compiled is None
    assert prefill(target, [some(9)], (0,), cache).shape == (8, target.vocab)


@pytest.mark.slow
def test_a_graph_that_computes_something_else_is_not_used(tiny, monkeypatch):
    # trees are read as chains
    monkeypatch.setattr("outpace.models.openvino.compiled.row_tokens_of", chain_of)
    with pytest.warns(UserWarning, match="its compiled logits differ from the eager ones"):
        assert HFTarget(tiny("llama").float(), compile=True).compiled is None


def test_float64_is_refused(tiny):
    with pytest.raises(
        ValueError, match="compiling does not support float64: load LlamaForCausalLM in float32 or bfloat16"
    ):
        HFTarget(tiny("llama"), compile=True)


def test_without_openvino_the_extra_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    model = tiny("llama").float()
    with pytest.raises(
        ModuleNotFoundError, match=r"openvino is not installed: pip install 'outpace\[compile\]'"
    ):
        HFTarget(model, compile=True)
    assert HFTarget(model).compiled is None
