"""Decoding through the Python interface."""

from __future__ import annotations

import copy
import gc
import inspect
import re

import pytest
import torch

import outpace
from outpace import api
from outpace.api.call import prepare
from outpace.core.sampling_params import PARAMETERS
from tests.tiers import slow

PROMPTS = ["def add(a, b):", "class Stack:\n    def push", "for"]
METHODS = ["autoregressive", "prompt-lookup", "speculative-sampling", "mcsd", "specinfer"]


@pytest.fixture(scope="module")
def plain(tiny):
    """What transformers itself writes, greedily, in float64."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64)
    words = AutoTokenizer.from_pretrained(tiny.target)

    def write(prompt, **options):
        inputs = words(prompt, return_tensors="pt")
        out = model.generate(**inputs, do_sample=False, **options)
        return out[0, inputs["input_ids"].shape[1] :].tolist()

    return write


def options(method, draft):
    return {"draft": {"draft": draft}, "drafts": {"drafts": (draft,)}}.get(
        next((name for name in outpace.recipes.get(method).options if name.startswith("draft")), ""), {}
    )


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_of_transformers(loaded, plain, method):
    target, draft = loaded
    found = outpace.generate(target, PROMPTS, method, max_tokens=24, temperature=0, **options(method, draft))
    assert [result.tokens for result in found] == [plain(prompt, max_new_tokens=24) for prompt in PROMPTS]


@pytest.mark.parametrize("method", ["prompt-lookup", "speculative-sampling"])
def test_a_row_alone_is_the_row_in_a_batch(loaded, method):
    target, draft = loaded
    settings = {"max_tokens": 16, "temperature": 0.9, "seed": 5, **options(method, draft)}
    together = outpace.generate(target, PROMPTS, method, **settings)
    assert [result.tokens for result in together] == [
        outpace.generate(target, prompt, method, **settings)[0].tokens for prompt in PROMPTS
    ]
    assert [result.tokens for result in together] == [
        result.tokens for result in outpace.generate(target, PROMPTS, method, batch=2, **settings)
    ]


def test_a_seed_makes_sampling_repeatable_and_is_reported(loaded):
    target, draft = loaded
    first = outpace.generate(target, "def", draft=draft, max_tokens=16, temperature=1)[0]
    again = outpace.generate(
        target, "def", draft=draft, max_tokens=16, temperature=1, seed=first.statistics.seed
    )[0]
    assert again.tokens == first.tokens
    one, two = outpace.generate(
        target, ["def", "def"], draft=draft, max_tokens=16, temperature=1, seed=[1, 2]
    )
    assert (one.statistics.seed, two.statistics.seed) == (1, 2) and one.tokens != two.tokens
    with pytest.raises(ValueError, match="1 prompts and 2 seeds"):
        outpace.generate(target, "def", draft=draft, seed=[1, 2])


def test_statistics_add_up(loaded):
    target, draft = loaded
    result = outpace.generate(target, "def add(a, b):", draft=draft, depth=3, max_tokens=30, temperature=0)[0]
    statistics = result.statistics.as_dict()
    histogram = statistics["acceptance_histogram"]
    assert statistics["num_tokens"] == len(result.tokens) == 30
    assert sum(histogram) == statistics["num_spec_steps"] <= statistics["num_steps"]
    assert sum(n * count for n, count in enumerate(histogram)) == statistics["num_accepted_draft_tokens"] > 0
    assert (
        statistics["mean_acceptance_length"]
        == 1 + statistics["num_accepted_draft_tokens"] / statistics["num_spec_steps"]
    )
    assert (
        statistics["draft_acceptance_rate"]
        == statistics["num_accepted_draft_tokens"] / statistics["num_draft_tokens"]
    )
    assert statistics["num_accepted_draft_tokens"] + statistics["num_steps"] == 30  # nothing was cut off
    assert statistics["tokens_per_second"] > 0 and statistics["seconds"] > 0


def test_plain_decoding_has_no_speculative_steps(loaded):
    statistics = outpace.generate(loaded[0], "def", "autoregressive", max_tokens=4)[0].statistics
    assert (
        statistics.num_spec_steps,
        statistics.mean_acceptance_length,
        statistics.draft_acceptance_rate,
    ) == (0, 1.0, 0.0)


def test_the_end_of_text_ends_it(loaded, plain):
    target, draft = loaded
    usual = plain("def add(a, b):", max_new_tokens=24)
    target.defaults.eos_token_id = [0, usual[9]]  # several ids may end a text
    try:
        result = outpace.generate(target, "def add(a, b):", draft=draft, max_tokens=24, temperature=0)[0]
        on = outpace.generate(
            target, "def add(a, b):", draft=draft, max_tokens=24, temperature=0, ignore_eos=True
        )[0]
    finally:
        target.defaults.eos_token_id = 0
    first = usual.index(usual[9])
    assert result.tokens == usual[: first + 1]
    assert (result.finish_reason, result.stop_reason) == ("stop", usual[9])
    assert on.tokens == usual and (on.finish_reason, on.stop_reason) == ("length", None)


@pytest.mark.parametrize("method", ["autoregressive", "prompt-lookup", "speculative-sampling"])
def test_a_stop_string_ends_it_where_plain_decoding_would(loaded, method):
    target, draft = loaded
    settings = {"max_tokens": 24, "temperature": 0, **options(method, draft)}
    whole = outpace.generate(target, "def add(a, b):", method, **settings)[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    result = outpace.generate(target, "def add(a, b):", method, stop=stop, **settings)[0]
    assert result.text == whole.text[: whole.text.index(stop)]
    assert (result.finish_reason, result.stop_reason) == ("stop", stop)
    assert result.tokens == whole.tokens[: len(result.tokens)]
    assert stop not in target.tokenizer.decode(result.tokens[:-1])


def test_the_checkpoints_repetition_penalty_is_applied_along_each_draft(loaded, plain):
    target, draft = loaded
    target.defaults.repetition_penalty = 1.6
    try:
        result = outpace.generate(target, "def add(a, b):", draft=draft, max_tokens=24)[0]
        without = outpace.generate(target, "def add(a, b):", draft=draft, max_tokens=24, defaults=False)[0]
    finally:
        target.defaults.repetition_penalty = None
    assert result.tokens == plain("def add(a, b):", max_new_tokens=24, repetition_penalty=1.6)
    assert without.tokens == plain("def add(a, b):", max_new_tokens=24) != result.tokens


def test_prompts_of_every_kind(loaded):
    target, draft = loaded
    messages = [{"role": "user", "content": "hello"}]
    text, tokens, chat = (
        outpace.generate(target, prompt, draft=draft, max_tokens=5)[0]
        for prompt in (
            "<user>hello\n<assistant>",
            target.tokenizer("<user>hello\n<assistant>")["input_ids"],
            messages,
        )
    )
    assert text.tokens == tokens.tokens == chat.tokens


def test_an_answer_ends_where_the_model_does(loaded):
    target, draft = loaded
    result = outpace.generate(target, [5] * 250, draft=draft, max_tokens=50, ignore_eos=True)[0]
    assert len(result.tokens) == 6 and result.finish_reason == "length"
    with pytest.raises(ValueError, match="has 256 tokens, but .* reads at most 256"):
        outpace.generate(target, [5] * 256, draft=draft)


def test_a_transformers_model_is_given_back_as_it_was(tiny):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64).train()
    before = model.config._attn_implementation
    outpace.generate(model, [1, 2, 3], "prompt-lookup", max_tokens=4)
    with outpace.stream(model, [1, 2, 3], "prompt-lookup", max_tokens=4) as pieces:
        list(pieces)
    with pytest.raises(ValueError, match="without a tokenizer"):
        outpace.generate(model, "text", "prompt-lookup")
    assert model.config._attn_implementation == before and model.training


def test_speculative_config_names_method_and_options(loaded, tiny):
    config = {"method": "draft_model", "model": tiny.draft, "num_speculative_tokens": 2}
    result = outpace.generate(loaded[0], "def", speculative_config=config, max_tokens=8)[0]
    assert len(result.statistics.acceptance_histogram) <= 3 and result.statistics.num_spec_steps
    with pytest.raises(ValueError, match="has the method and its options"):
        outpace.generate(loaded[0], "def", speculative_config=config, depth=2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "speculative-samplign"}, "did you mean speculative-sampling"),
        ({"method": "prompt-lookup", "depht": 3}, "did you mean depth"),
        ({"method": "prompt-lookup", "max_gram": 3}, "called max_gram; did you mean max_ngram"),
        ({"method": "prompt-lookup", "max_token": 3}, "called max_token; did you mean max_tokens"),
        ({"method": "prompt-lookup", "wide": 3}, "called wide; it has max_ngram, "),
        ({"method": "prompt-lookup", "depth": "three"}, "depth is a whole number, not 'three'"),
        ({"method": "speculative-sampling"}, "needs draft: a smaller model with the same vocabulary"),
        ({"method": "prompt-lookup", "batch": 0}, "batch is 0"),
        ({"method": 7}, "a method is a name"),
        ({"method": "vispec"}, "vispec is a published method that outpace does not have yet"),
        ({"max_new_tokens": 4}, "there is no option max_new_tokens: use max_tokens"),
        ({"do_sample": True}, "do_sample: use temperature: above 0 samples"),
        ({"num_return_sequences": 2}, "use n"),
        ({"depth": 2, "num_speculative_tokens": 2}, "num_speculative_tokens and depth are the same option"),
    ],
)
def test_mistakes_are_explained(loaded, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        outpace.generate(loaded[0], "def", **change)


def test_a_model_is_shown_in_one_line(loaded):
    model = loaded[0]
    assert re.fullmatch(rf"<outpace.Model {model.name}: LlamaForCausalLM, float\d\d, cpu>", repr(model))


def test_a_draft_with_another_vocabulary_is_refused(loaded, tiny):
    with pytest.raises(ValueError, match="vocabularies of 304 and 320 tokens but not .*prompt-lookup"):
        outpace.generate(loaded[0], "def", draft=tiny.stranger)
    with pytest.raises(ValueError, match="one size but not the same tokens"):
        outpace.generate(loaded[0], "def", draft=tiny.lookalike)


def test_a_vocabulary_is_read_once(loaded, monkeypatch):
    target, draft = loaded
    read = []
    get_vocab = type(target.tokenizer).get_vocab
    monkeypatch.setattr(
        type(target.tokenizer), "get_vocab", lambda self: read.append(self) or get_vocab(self)
    )
    for _ in range(2):
        outpace.generate(target, "def", draft=draft, max_tokens=1)
    assert len(read) <= 2


def test_a_draft_that_reads_less_far_is_named_once_where_it_matters(loaded, monkeypatch, recwarn):
    target, draft = loaded
    monkeypatch.setattr(draft.target, "max_length", 20)
    outpace.generate(target, [5] * 10, draft=draft, max_tokens=10)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="reads at most 20 tokens: longer texts, of up to 21 here, go on"):
        found = outpace.generate(target, [5] * 10, draft=draft, max_tokens=11, temperature=0)[0]
    assert found.tokens == outpace.generate(target, [5] * 10, "autoregressive", max_tokens=11)[0].tokens


def test_no_model_at_all():
    with pytest.raises(ValueError, match=r"3 \(int\) is not a model"):
        outpace.generate(3, "def", "prompt-lookup")


def test_the_tokens_of_each_step_are_reported(loaded):
    target, draft = loaded
    pieces = []
    results = list(
        api.generate_each(
            target, ["def a", "x = 1"], draft=draft, max_tokens=9, ignore_eos=True, on_piece=pieces.append
        )
    )
    for row, result in enumerate(results):
        assert [token for piece in pieces if piece.row == row for token in piece.tokens] == result.tokens


def test_a_draft_that_is_named_is_loaded_where_the_target_is(loaded, tiny, monkeypatch):
    monkeypatch.setattr("outpace.models.checkpoint.torch.cuda.is_available", lambda: True)
    settings = {"max_tokens": 8, "temperature": 0}
    drafted = outpace.generate(loaded[0], "def", draft=tiny.draft, **settings)[0]
    assert drafted.tokens == outpace.generate(loaded[0], "def", "autoregressive", **settings)[0].tokens


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n": "2"}, "n is '2'; use a whole number"),
        ({"batch": 2.5}, "batch is 2.5; use a whole number"),
        ({"seed": "7"}, "there are 1 prompts|seed is '7'; use a whole number"),
        ({"logprobs": 1.0}, "logprobs is 1.0; use a whole number"),
        ({"max_tokens": "4"}, "max_tokens is '4'; use a whole number"),
    ],
)
def test_values_of_a_wrong_type_are_refused(loaded, change, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        outpace.generate(loaded[0], "def", "prompt-lookup", **change)


@pytest.mark.parametrize("prompt", [None, b"def", 7, [1.5], [b"def"]])
def test_prompts_of_a_wrong_type_are_refused(loaded, prompt):
    with pytest.raises(ValueError, match="prompt (cannot be|has)"):
        outpace.generate(loaded[0], prompt, "prompt-lookup")


def test_vllms_name_of_the_depth_is_accepted(loaded):
    target, draft = loaded
    settings = {"draft": draft, "max_tokens": 12, "temperature": 0}
    ours, theirs = (
        outpace.generate(target, "def", **settings, **{name: 2})[0]
        for name in ("depth", "num_speculative_tokens")
    )
    assert ours.statistics.acceptance_histogram == theirs.statistics.acceptance_histogram
    assert len(ours.statistics.acceptance_histogram) <= 3


def test_the_default_method_needs_no_draft(loaded, tiny):
    for target in (loaded[0], tiny.target):
        request = prepare(target, "def", max_tokens=4)
        assert request.recipe.name == "prompt-lookup"
    request = prepare(loaded[0], "def", draft=loaded[1])
    assert request.recipe.name == "speculative-sampling"


def test_a_draft_given_by_name_is_loaded_once_and_as_the_target(tiny):
    target = outpace.load(tiny.target, dtype="float64")
    for _ in range(2):
        outpace.generate(target, "def", draft=tiny.draft, max_tokens=1)
    (draft,) = target.drafts.values()
    assert next(draft.target.model.parameters()).dtype == torch.float64


def test_signatures_and_help_name_every_setting():
    for function in (outpace.generate, outpace.stream, api.generate_each):
        parameters = inspect.signature(function).parameters
        described = inspect.getdoc(function)
        for parameter in PARAMETERS:
            assert parameter.name in parameters, parameter.name
        assert all(f"    {name}: " in described for name in parameters if name != "options")


def test_a_special_token_given_as_stop_string_ends_the_text(loaded, plain):
    target, draft = loaded
    usual = plain("def add(a, b):", max_new_tokens=24)
    words = copy.deepcopy(target.tokenizer)
    added = words.convert_ids_to_tokens(usual[9])
    words.add_special_tokens({"additional_special_tokens": [added]})
    result = outpace.generate(
        target,
        target.tokenizer("def add(a, b):")["input_ids"],
        draft=draft,
        max_tokens=24,
        stop=added,
        tokenizer=words,
    )[0]
    assert result.tokens == usual[: usual.index(usual[9]) + 1]
    assert result.finish_reason == "stop" and added not in result.text


def test_a_stop_string_with_a_special_token_ends_the_text(loaded, plain):
    target, draft = loaded
    prompt = target.tokenizer("def add(a, b):")["input_ids"]
    usual = plain("def add(a, b):", max_new_tokens=24)
    words = copy.deepcopy(target.tokenizer)
    words.add_special_tokens({"additional_special_tokens": [words.decode(usual[17])]})
    stop = words.decode(usual[16:19])
    result = outpace.generate(target, prompt, draft=draft, max_tokens=24, stop=stop, tokenizer=words)[0]
    assert result.tokens == usual[:19] and result.stop_reason == stop == "Zbw"
    assert result.text == words.decode(usual[:16], skip_special_tokens=True)


def test_a_tokenizer_that_is_given_replaces_the_models_own(loaded, tokenizers):
    target, words = loaded[0], tokenizers.byte_level(300)
    assert prepare(target, "def", "prompt-lookup", tokenizer=words).prompts == [words("def")["input_ids"]]
    assert prepare(target, "def", "prompt-lookup").prompts == [target.tokenizer("def")["input_ids"]]


def test_each_checks_its_arguments_at_once(loaded):
    with pytest.raises(ValueError, match="empty"):
        api.generate_each(loaded[0], "", "prompt-lookup")


def test_log_probabilities_name_tokens_as_they_are_within_a_text(tokenizers):
    words = tokenizers.sentence_piece()
    tokens = words(" add é", add_special_tokens=False)["input_ids"]
    texts = [api.Logprob(token, 0.0, 0.0).as_dict(words)["text"] for token in tokens]
    assert "".join(texts[:-2]) == " add " and texts[-2:] == ["\ufffd"] * 2
    assert api.Logprob(words.eos_token_id, 0.0, 0.0).as_dict(words)["text"] == "</s>"


def test_models_that_are_no_name_and_wrapped_models(tiny):
    with pytest.raises(ValueError, match="loaded from a name or folder, not from a int"):
        outpace.load(3)
    with pytest.raises(TypeError, match="threads is '2'; use a whole number"):
        outpace.load(tiny.target, threads="2")
    with pytest.raises(ValueError, match="5 is not a dtype"):
        outpace.load(tiny.target, dtype=5)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^Sequential\( \(0\): Linear.* \(Sequential\) is not a model"):
        outpace.generate(module, "def", "prompt-lookup")
    wrapped = torch.nn.Module()
    wrapped._orig_mod = module  # as torch.compile does, which takes two seconds to import
    with pytest.raises(ValueError, match=r"for torch.compile: give .* model._orig_mod, or .* compile=True"):
        outpace.generate(wrapped, "def", "prompt-lookup")


def test_another_default_device_is_refused(loaded):
    """Token ids are on the CPU."""
    with (
        torch.device("meta"),
        pytest.raises(ValueError, match="torch's default device is meta.*set_default_device"),
    ):
        outpace.generate(loaded[0], "def", "prompt-lookup", max_tokens=2)
    assert outpace.generate(loaded[0], "def", "prompt-lookup", max_tokens=2)[0].tokens


@pytest.mark.parametrize("stop", [slow(None), "-never-"])
@pytest.mark.parametrize("method", ["auto", slow("smartspec"), "speculative-sampling"])
def test_the_kv_caches_of_a_run_are_freed_with_it(loaded, method, stop):
    """Not by the garbage collector some time later, nor with the method's parts, which serve other runs."""
    target, draft = loaded
    request = prepare(target, PROMPTS[0], method, max_tokens=12, stop=stop, **options(method, draft))
    parts = request.parts()
    gc.collect()
    gc.disable()
    try:
        assert len(list(request.decode(parts))) > 1
        assert not target.target.caches and not draft.target.caches
    finally:
        gc.enable()
