"""outpace inside model.generate: the same tokens; every option is applied or refused."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    MaxTimeCriteria,
    StopStringCriteria,
    TextStreamer,
)

import outpace
from outpace.models.cache_argument import CACHE_ARGUMENT

PROMPTS = ["def add(a, b):", "for", "class Stack:\n    def push"]


@pytest.fixture(scope="module")
def words(tiny):
    return AutoTokenizer.from_pretrained(tiny.target, padding_side="left")


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64)


@pytest.fixture(scope="module")
def draft(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.draft, dtype=torch.float64)


@pytest.fixture
def batch(words):
    return words(PROMPTS, return_tensors="pt", padding=True)


@pytest.fixture
def one(words):
    return words(PROMPTS[:1], return_tensors="pt")


class Collected:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


class AtWord:
    """A stopping criterion of one's own: stops after this token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids, scores, **_):
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[75], [212, 75]]},
        {"min_new_tokens": 12, "eos_token_id": [0, 75, 212]},
        {"suppress_tokens": [75, 212]},
        {"encoder_repetition_penalty": 1.3},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_padded_batch_gets_plain_decodings_tokens(model, draft, batch, options):
    settings = {**batch, "max_new_tokens": 20, "do_sample": False, **options}
    plain = model.generate(**settings)
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf("speculative-sampling", draft=draft)), plain
    )


def test_statistics_are_those_of_generate(model, draft, batch, words, tiny):
    decoder = outpace.hf("speculative-sampling", draft=draft)
    assert decoder.statistics == []
    found = model.generate(**batch, max_new_tokens=12, do_sample=False, custom_generate=decoder)
    target = outpace.load(tiny.target, dtype="float64")
    results = outpace.generate(
        target, PROMPTS, "speculative-sampling", draft=draft, max_tokens=12, temperature=0.0
    )
    for row, each, ours in zip(found, decoder.statistics, results, strict=True):
        start = batch["input_ids"].shape[1]
        assert row[start : start + each.num_tokens].tolist() == ours.tokens
        for name in ("num_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_prompt_tokens"):
            assert getattr(each, name) == getattr(ours.statistics, name)
        assert each.seconds > 0


@pytest.mark.parametrize("method", ["prompt-lookup", "mcsd"])
def test_processors_follow_every_branch(model, draft, one, method):
    settings = {**one, "max_new_tokens": 20, "do_sample": False, "repetition_penalty": 1.5}
    drafts = {"draft": draft} if method == "mcsd" else {}
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf(method, **drafts)), model.generate(**settings)
    )


def test_processors_may_write_where_they_read(model, one):
    def harsh(input_ids, scores):
        scores[:, input_ids[0, -1]] = -float("inf")
        return scores

    settings = {**one, "max_new_tokens": 12, "do_sample": False, "logits_processor": [harsh]}
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf("prompt-lookup")), model.generate(**settings)
    )


def test_a_streamer_gets_the_same_tokens(model, draft, one):
    plain, ours = Collected(), Collected()
    settings = {**one, "max_new_tokens": 12, "do_sample": False}
    model.generate(**settings, streamer=plain)
    model.generate(**settings, streamer=ours, custom_generate=outpace.hf("speculative-sampling", draft=draft))
    assert ours.values == plain.values and ours.ended
    given = Collected()
    model.generate(
        **settings, custom_generate=outpace.hf("speculative-sampling", draft=draft, streamer=given)
    )
    assert given.values == plain.values[1:]


def test_a_text_streamer_prints_the_text(model, words, one, capsys):
    out = model.generate(
        **one,
        max_new_tokens=12,
        do_sample=False,
        streamer=TextStreamer(words, skip_prompt=True),
        custom_generate=outpace.hf("prompt-lookup"),
    )
    assert capsys.readouterr().out.strip("\n") == words.decode(out[0, one["input_ids"].shape[1] :]).strip(
        "\n"
    )


@pytest.mark.parametrize("inputs", ["one", "batch"])
def test_text_is_cut_where_a_criterion_says_stop(model, draft, words, inputs, request):
    tokens = request.getfixturevalue(inputs)
    width = tokens["input_ids"].shape[1]
    plain = model.generate(**tokens, max_new_tokens=20, do_sample=False)
    text = words.decode(plain[0, width:])
    criteria = [StopStringCriteria(words, text[len(text) // 2 :][:2]), AtWord(int(plain[-1, width + 7]))]
    settings = {**tokens, "max_new_tokens": 20, "do_sample": False, "stopping_criteria": criteria}
    cut = model.generate(**settings)
    assert cut.shape[1] <= plain.shape[1]
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf("speculative-sampling", draft=draft)), cut
    )


def test_time_can_run_out(model, one):
    criteria = [MaxTimeCriteria(max_time=0.0)]
    out = model.generate(
        **one, max_new_tokens=50, stopping_criteria=criteria, custom_generate=outpace.hf("prompt-lookup")
    )
    assert out.shape[1] == one["input_ids"].shape[1] + 1


def test_sampling_follows_torchs_seed(model, draft, one):
    settings = {
        **one,
        "max_new_tokens": 16,
        "do_sample": True,
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 0.95,
    }
    decode = outpace.hf("speculative-sampling", draft=draft)
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(**settings, custom_generate=decode, num_return_sequences=2))
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0][0], texts[0][1])


def test_processors_become_settings_that_drafters_follow():
    from transformers.generation import logits_process as t

    from outpace.integrations.processors import ConvertedProcessors

    heat, few, least = t.TemperatureLogitsWarper(0.5), t.TopKLogitsWarper(5), t.MinPLogitsWarper(0.1)
    typical, again = t.TypicalLogitsWarper(0.9), t.RepetitionPenaltyLogitsProcessor(1.2)
    bias, words = t.SequenceBiasLogitsProcessor([[[3], 1.5]]), t.NoBadWordsLogitsProcessor([[4], [5, 6]])
    once = t.NoRepeatNGramLogitsProcessor(3)
    pairs = t.SequenceBiasLogitsProcessor([[[3, 4], 1.5]])

    def found(*processors, **options):
        converted = ConvertedProcessors.of(processors, 1, sampled=True, **options)
        return converted.params, converted.processors

    params, left = found(bias, again, once, words, heat, few, least, typical)
    assert (params.temperature, params.top_k, params.min_p, params.typical_p, left) == (0.5, 5, 0.1, 0.9, ())
    assert (params.logit_bias, params.repetition_penalty) == (((3, 1.5),), 1.2)
    assert (params.bad_words, params.no_repeat_ngram_size) == (((4,), (5, 6)), 3)
    params, left = found(few, heat)  # another order is another distribution
    assert (params.temperature, params.top_k, left) == (0.5, 0, (few,))
    assert found(again, bias)[1] == (again, bias)
    assert found(pairs)[1] == (pairs,)  # no sampling parameter for this
    assert found(again, heat, padded=True)[1] == (again,)  # transformers decides what it makes of padding


@pytest.mark.parametrize("method", ["prompt-lookup", "mcsd"])
def test_settings_give_plain_decodings_tokens(model, draft, one, method):
    settings = {
        **one,
        "max_new_tokens": 20,
        "do_sample": False,
        "repetition_penalty": 1.4,
        "bad_words_ids": [[75], [9, 212]],
    }
    settings["sequence_bias"] = [[[212], 1.5], [[300], -2.0]]
    drafts = {"draft": draft} if method == "mcsd" else {}
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf(method, **drafts)), model.generate(**settings)
    )


@pytest.mark.parametrize("inputs", ["one", "batch"])
@pytest.mark.parametrize("others", [{}, {"no_repeat_ngram_size": 3}, {"repetition_penalty": 1.2}], ids=str)
def test_penalties_that_generate_does_not_have(model, draft, inputs, others, request):
    tokens = request.getfixturevalue(inputs)
    width = tokens["input_ids"].shape[1]

    def penalised(input_ids, scores):
        new = input_ids[:, width:]
        counts = torch.zeros_like(scores).scatter_add_(1, new, torch.ones_like(new, dtype=scores.dtype))
        return scores - 0.75 * counts - 0.5 * (counts > 0)

    settings = {**tokens, "max_new_tokens": 20, "do_sample": False, **others}
    decode = outpace.hf("mcsd", draft=draft, presence_penalty=0.5, frequency_penalty=0.75)
    assert torch.equal(
        model.generate(**settings, custom_generate=decode),
        model.generate(**settings, logits_processor=[penalised]),
    )


def test_the_model_is_given_back_as_it_was(tiny, one):
    mine = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64).train()
    before = mine.config._attn_implementation

    def broken(input_ids, scores):
        raise RuntimeError("broken")

    mine.generate(**one, max_new_tokens=4, custom_generate=outpace.hf("prompt-lookup"))
    with pytest.raises(RuntimeError, match="broken"):
        mine.generate(
            **one, max_new_tokens=4, logits_processor=[broken], custom_generate=outpace.hf("prompt-lookup")
        )
    assert mine.config._attn_implementation == before and mine.training


def test_a_dict_holds_the_sequences(model, one):
    out = model.generate(
        **one, max_new_tokens=4, return_dict_in_generate=True, custom_generate=outpace.hf("prompt-lookup")
    )
    assert out.sequences.shape[1] == one["input_ids"].shape[1] + 4


def test_drafts_may_be_folders(model, tiny, one, monkeypatch):
    # they are loaded where the model is, not where there is most to be had
    monkeypatch.setattr("outpace.models.checkpoint.torch.cuda.is_available", lambda: True)
    decode = outpace.hf("specinfer", drafts=f"{tiny.draft},{tiny.draft}", widths="2,1")
    settings = {**one, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(**settings, custom_generate=decode), model.generate(**settings))


@pytest.mark.filterwarnings("error")
def test_a_draft_that_reads_less_far_drafts_up_to_its_limit(model):
    """GPT-2 has learnt position embeddings: there are none beyond its maximum length."""
    config = GPT2Config(vocab_size=320, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    short = GPT2LMHeadModel(config).to(torch.float64).eval()
    decode = outpace.hf("speculative-sampling", draft=short)
    settings = {"input_ids": torch.arange(5, 15)[None], "do_sample": False}
    for given in ({"max_new_tokens": 6}, {"max_new_tokens": 24}):
        plain = model.generate(**settings, **given)
        if given["max_new_tokens"] == 6:
            text = model.generate(**settings, **given, custom_generate=decode)
        else:
            with pytest.warns(UserWarning, match="reads at most 16 tokens: longer texts, of up to 34 here"):
                text = model.generate(**settings, **given, custom_generate=decode)
        assert torch.equal(text, plain)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_beams": 2}, "not by beam_search"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores cannot be returned"),
        (
            {"return_dict_in_generate": True, "output_hidden_states": True},
            "output_hidden_states cannot be returned",
        ),
        ({"prompt_lookup_num_tokens": 3}, "drafts by itself"),
        ({"assistant_model": "draft"}, "drafts by itself"),
        ({CACHE_ARGUMENT: DynamicCache()}, f"{CACHE_ARGUMENT} cannot be continued"),
        ({"guidance_scale": 2.0}, "cannot be applied to drafted tokens"),
        ({"synced_gpus": True}, "synced_gpus"),
        ({"inputs_embeds": torch.zeros(1, 3, 32, dtype=torch.float64)}, "inputs_embeds cannot be passed on"),
        ({"position_ids": torch.tensor([[5, 6, 7]])}, "position_ids"),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, "padding on the left"),
    ],
)
def test_what_cannot_be_honoured_is_refused(model, draft, settings, sentence):
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), **settings}
    if inputs.get("assistant_model") == "draft":
        inputs["assistant_model"] = draft
    with pytest.raises(ValueError, match=sentence):
        model.generate(**inputs, max_new_tokens=4, custom_generate=outpace.hf("prompt-lookup"))


def test_what_cannot_be_honoured_for_a_batch_is_refused(model, batch):
    with pytest.raises(ValueError, match="one text, but there are 3"):
        model.generate(
            **batch, max_new_tokens=4, streamer=Collected(), custom_generate=outpace.hf("prompt-lookup")
        )
    with pytest.raises(ValueError, match="PrefixConstrained.* one prompt at a time"):
        model.generate(
            **batch,
            max_new_tokens=4,
            prefix_allowed_tokens_fn=lambda row, ids: [5],
            custom_generate=outpace.hf("prompt-lookup"),
        )


def test_one_prompt_may_be_constrained(model, one):
    settings = {
        **one,
        "max_new_tokens": 6,
        "do_sample": False,
        "prefix_allowed_tokens_fn": lambda row, ids: [5, len(ids)],
    }
    assert torch.equal(
        model.generate(**settings, custom_generate=outpace.hf("prompt-lookup")), model.generate(**settings)
    )


def test_unknown_methods_and_options_are_refused_at_once():
    with pytest.raises(ValueError, match="did you mean prompt-lookup"):
        outpace.hf("prompt-lookpu")
    with pytest.raises(ValueError, match="has no option dept; it has max_ngram, depth"):
        outpace.hf("prompt-lookup", dept=3)
