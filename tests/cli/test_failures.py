"""Bad input and failed runs: one sentence that names the fix, an exit code, and finished results are kept."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
import torch

from outpace.cli import main

PLAIN = ("--method", "autoregressive")


def error_message(result, code: int) -> str:
    """The one line on the error stream."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("outpace: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--method", "speculative-samplng", "def"),
            "there is no method speculative-samplng; did you mean speculative-",
        ),
        (("--method", "zzzz", "def"), "`outpace list` shows them all"),
        (("--method", "ngrm", "def"), "`outpace list` shows them all"),
        (("--method", "suffix-d", "def"), "did you mean suffix-decoding?"),
        (("--method", "ngram", "def"), "vLLM's method ngram is prompt-lookup here"),
        (("--method", "draft_model", "def"), "vLLM's method draft_model is speculative-sampling here"),
        (
            ("--method", "fast-draft", "def"),
            "use `outpace train fastdraft`, then the method speculative-sampling",
        ),
        (("--method", "vispec", "def"), "vispec is a published method that outpace does not have yet"),
        ((*PLAIN, "--model", "x", "def"), "there is no option --model: use --target"),
        ((*PLAIN, "--max-new-tokens=4", "def"), "there is no option --max-new-tokens: use --max-tokens"),
        ((*PLAIN, "--stream", "def"), "one text is always streamed"),
        (
            (*PLAIN, "--prompt-file", "x.txt", "def"),
            "give prompts as arguments or with --prompt-file, not both",
        ),
        ((*PLAIN, "--prompt-file", "x.txt"), "x.txt cannot be read: No such file"),
        ((*PLAIN, "--output", "/nowhere/x.json", "def"), "/nowhere/x.json cannot be written"),
        (
            ("--method", "prompt-lookup", "--max-ngram", "three", "def"),
            "max_ngram is a whole number, not 'three'",
        ),
        (
            ("--method", "speculative-sampling", "def"),
            "needs draft: a smaller model with the same vocabulary",
        ),
        ((*PLAIN, ""), "the prompt is empty: give it some text"),
        ((*PLAIN, "--max-tokens", "0", "def"), "max_tokens is 0; ask for at least one token"),
        ((*PLAIN, "--temperature", "-1", "def"), "temperature is -1.0; use 0 for greedy decoding"),
        ((*PLAIN, "--top-p", "2", "--temperature", "1", "def"), "top_p is 2.0"),
        ((*PLAIN, "--min-p", "2", "--temperature", "1", "def"), "min_p is 2.0; use a number from 0 to 1"),
        (
            (*PLAIN, "--min-tokens", "9", "--max-tokens", "8", "def"),
            "min_tokens is 9 and max_tokens 8; ask for 0 to 8",
        ),
        ((*PLAIN, "--logit-bias", "abc", "def"), "--logit-bias takes TOKEN=BIAS, as in 42=-5, not abc"),
        (
            (*PLAIN, "--logit-bias", "320=1", "def"),
            "logit_bias names token 320, but the model's tokens are 0 to 319",
        ),
        ((*PLAIN, "--frequency-penalty", "3", "def"), "frequency_penalty is 3.0; use a number from -2 to 2"),
        ((*PLAIN, "--n", "0", "def"), "n is 0; use at least 1"),
        ((*PLAIN, "--logprobs", "2", "def"), "--logprobs are written as JSON: add --json"),
        ((*PLAIN, "--threads", "0", "def"), "threads is 0"),
        ((*PLAIN, "--dtype", "float8", "def"), "float8 is not a dtype"),
        (
            (*PLAIN, "--dtype", "int8", "def"),
            "weights of 8 or 4 bits are weights='int8' or 'int4' of a compiled",
        ),
        ((*PLAIN, "def " * 300), "reads at most 256: shorten it"),
        ((*PLAIN, "--recipe", "x.py", "def"), "give one of --method, --recipe and --speculative-config"),
        (("--recipe", "x.py", "def"), "there is no recipe file x.py; `outpace new my-method` writes one"),
        (("--method", "@best.json", "def"), "best.json cannot be read"),
        (("--speculative-config", "{", "def"), "speculative_config is not JSON"),
        (("--speculative-config", '{"method": "ngram", "x": 1}', "def"), "unknown key 'x'"),
    ],
)
def test_bad_input_gives_one_sentence_and_exit_code_2(outpace_, tiny, arguments, sentence):
    assert sentence in error_message(outpace_("generate", "--target", tiny.target, *arguments), 2)


def test_a_draft_with_another_vocabulary(outpace_, tiny):
    arguments = ("generate", "def", "--target", tiny.target, "--draft")
    sentence = error_message(outpace_(*arguments, tiny.stranger), 2)
    assert (
        "have vocabularies of 304 and 320 tokens but not the same tokens" in sentence
        and "prompt-lookup" in sentence
    )
    assert "one size but not the same tokens" in error_message(outpace_(*arguments, tiny.lookalike), 2)


def test_a_recipe_file_that_raises(outpace_, tiny, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("\n1 / 0\n")
    sentence = error_message(outpace_("generate", "def", "--target", tiny.target, "--recipe", path), 2)
    assert "mine.py cannot be loaded: ZeroDivisionError: division by zero (line 2)" in sentence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("./nothing-here", "there is no checkpoint folder ./nothing-here"),
        ("zoo:nothing", "there is no zoo:nothing; the package has the models zoo:draft, "),
        ("zoo:medusa", "medusa is a draft head, not a model: give it as head (--head)"),
    ],
)
def test_a_model_that_is_not_there(outpace_, name, sentence):
    assert sentence in error_message(outpace_("generate", "def", *PLAIN, "--target", name), 2)


@pytest.mark.parametrize(("option", "other"), [("--draft", "speculative-sampling"), ("--head", "eagle2")])
def test_a_drafter_for_a_method_without_one(outpace_, option, other):
    result = outpace_("generate", "def", "--method", "prompt-lookup", option, "zoo:draft")
    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert f"prompt-lookup has no option {option}: leave it out" in words and f"--method {other}" in words


def test_a_truncated_checkpoint(outpace_, damaged):
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    sentence = error_message(outpace_("generate", "def", *PLAIN, "--target", damaged), 2)
    assert str(damaged) in sentence


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_an_incomplete_checkpoint(outpace_, damaged, missing):
    (damaged / missing).unlink()
    assert str(damaged) in error_message(outpace_("generate", "def", *PLAIN, "--target", damaged), 2)


def test_a_checkpoint_that_lacks_a_weight(outpace_, damaged):
    from safetensors.torch import load_file, save_file

    weights = load_file(damaged / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    sentence = error_message(outpace_("generate", "def", *PLAIN, "--target", damaged), 2)
    assert "lacks 1 of its weights, model.layers.1.mlp.down_proj.weight" in sentence


def test_weights_that_give_nan(outpace_, damaged):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(damaged)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.save_pretrained(damaged)
    sentence = error_message(outpace_("generate", "def", *PLAIN, "--target", damaged), 1)
    assert "NaN logits" in sentence and "--dtype float32" in sentence


def test_a_gated_model(outpace_, monkeypatch):
    from transformers import AutoConfig

    def gated(*_, **__):
        raise OSError("You are trying to access a gated repo. 401 Client Error")

    monkeypatch.setattr(AutoConfig, "from_pretrained", gated)
    monkeypatch.setattr("outpace.models.checkpoint.hub_is_away", lambda name: False)
    sentence = error_message(outpace_("generate", "def", *PLAIN, "--target", "some/model"), 2)
    assert "some/model is gated" in sentence and "log in" in sentence


@pytest.mark.slow
def test_a_hub_that_is_away():
    program = "from outpace.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", "def", *PLAIN, "--target", "some/model"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert (
        done.stderr.count("\n") == 1
        and "some/model is not on this machine and the hub cannot be" in done.stderr
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory(outpace_, tiny, monkeypatch, error):
    from outpace.models.hf.target import HFTarget

    def score(*_, **__):
        raise error

    monkeypatch.setattr(HFTarget, "score", score)
    sentence = error_message(outpace_("generate", "def", *PLAIN, "--target", tiny.target), 1)
    assert "ran out of memory" in sentence and "--max-tokens" in sentence


def test_a_failed_run_keeps_what_was_finished(outpace_, tiny, monkeypatch):
    from outpace.models.hf.target import HFTarget

    score, calls = HFTarget.score, []

    def later(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 6:
            raise RuntimeError("gone")
        return score(self, *arguments, **options)

    monkeypatch.setattr(HFTarget, "score", later)
    arguments = (
        "generate",
        "def",
        "for",
        *PLAIN,
        "--target",
        tiny.target,
        "--max-tokens",
        4,
        "--ignore-eos",
        "--batch",
        1,
    )
    result = outpace_(*arguments, "--json")
    message = error_message(result, 1)
    # the error is raised in this file
    assert "the run failed with RuntimeError: gone (test_failures.py, line " in message
    assert message.endswith("; --debug shows more)")
    assert [each["prompt"] for each in json.loads(result.stdout)["results"]] == ["def"]


def test_a_missing_extra_is_named(monkeypatch):
    from outpace.cli import failures

    lines = ["torch>=2", 'matplotlib>=3.9 ; extra == "report"', 'faiss-cpu>=1 ; extra == "retrieval"']
    monkeypatch.setattr(failures, "requires", lambda package: lines)
    for module, extra in (("matplotlib.pyplot", "report"), ("faiss", "retrieval")):
        sentence, code = failures.failure_message(
            ModuleNotFoundError(f"No module named {module!r}", name=module)
        )
        assert (f"pip install 'outpace[{extra}]'" in sentence, code) == (True, 1)
    assert "pip install antigravity" in failures.missing_package(ModuleNotFoundError(name="antigravity"))


def test_a_model_without_a_chat_template_is_refused_before_the_first_question(outpace_, damaged):
    (damaged / "chat_template.jinja").unlink()
    assert "no chat template" in error_message(outpace_("chat", "--target", damaged, given="hello"), 2)


def test_debug_shows_the_traceback(outpace_, tiny):
    result = outpace_("generate", "def", *PLAIN, "--target", "./nothing-here", "--debug")
    assert isinstance(result.exception, ValueError)


def test_ctrl_c_keeps_the_text(outpace_, tiny, monkeypatch):
    from outpace.models.hf.target import HFTarget

    score, calls = HFTarget.score, []

    def interrupted(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return score(self, *arguments, **options)

    monkeypatch.setattr(HFTarget, "score", interrupted)
    result = outpace_("generate", "def", *PLAIN, "--target", tiny.target, "--ignore-eos", "--temperature", 0)
    assert "interrupted after 6 tokens" in error_message(result, 130)
    assert len(result.stdout) > 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--method", "prompt-lookup", "--max-ngrm", "3", "def"), "--max-ngram"),
        (("--method", "prompt-lookup", "--temprature", "1", "def"), "--temperature"),
        (
            ("--method", "prompt-lookup", "--deep", "x", "def"),
            "(prompt-lookup has --max-ngram, --depth, --allow-shorter)",
        ),
        (("--method", "prompt-lookup", "--max-ngram"), "requires an argument"),
        ((*PLAIN, "--batch", "0", "def"), "--batch"),
    ],
)
def test_arguments_that_cannot_be_parsed(outpace_, arguments, sentence):
    result = outpace_("generate", *arguments)
    assert result.exit_code == 2 and "Error: " in result.stderr and sentence in result.stderr, result.stderr


def test_text_that_is_not_utf8(outpace_, tiny, tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    arguments = ("generate", *PLAIN, "--target", tiny.target, "--max-tokens", 2)
    assert "latin.txt is not UTF-8 text (at byte 3)" in error_message(
        outpace_(*arguments, "--prompt-file", "latin.txt"), 2
    )
    assert "latin.txt is not UTF-8" in error_message(
        outpace_(*arguments, "def", "--prediction", "latin.txt"), 2
    )
    assert "latin.txt is not JSON: 'utf-8' codec" in error_message(
        outpace_("generate", "def", "--target", tiny.target, "--method", "@latin.txt"), 2
    )
    assert "standard input is not UTF-8" in error_message(outpace_(*arguments, given=b"caf\xe9"), 2)
    assert "the prompt is not UTF-8 text (at character 3)" in error_message(
        outpace_(*arguments, "caf\udce9"), 2
    )


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("{", "line 1, is not JSON"),
        ('{"prompt": "a"}\n{"text": "b"}', 'line 2, has no prompt: each line is an object with "prompt"'),
        ("\n", "has no prompts"),
    ],
)
def test_a_prompt_file_that_cannot_be_used(outpace_, tiny, tmp_path, lines, sentence):
    (tmp_path / "in.jsonl").write_text(lines)
    assert sentence in error_message(outpace_("generate", *PLAIN, "--prompt-file", "in.jsonl"), 2)


def test_a_family_that_does_not_exist(outpace_):
    assert "there is no method of the family foo; the families are" in error_message(
        outpace_("list", "--family", "foo"), 2
    )


def test_a_closed_pipe_is_no_failure():
    program = "from outpace.cli import main; main()"
    command = f"{sys.executable} -c '{program}' list | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert not done.stderr and done.stdout.count("\n") == 1


def test_an_option_of_the_verb_that_does_not_exist(outpace_):
    assert outpace_("list", "--jsn").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bench", "--methods", "nope"), "there is no method nope"),
        (("serve", "--methods", "nope"), "there is no method nope"),
        (("audit", "prompt-lookup", "--target", "gone", "--samples", "0"), "too few to test"),
        (("audit", "--false-alarms", "2"), "--false-alarms is a probability between 0 and 1, not 2"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_what_cannot_be_run_is_refused_before_anything_is_loaded(
    outpace_, arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr("outpace.models.hf.target.load_checkpoint", lambda *given, **_: loaded.append(given))
    result = outpace_(*arguments)
    assert result.exit_code == 2 and sentence in result.stderr and not loaded


def test_negative_numbers_of_a_method_are_refused(outpace_) -> None:
    result = outpace_("generate", "x", "--target", "zoo:target", "--method", "sam-decoding", "--depth", "-1")
    assert result.exit_code == 2 and "sam-decoding: depth is -1: it is 0 or more" in result.stderr


@pytest.mark.parametrize(
    ("method", "option", "sentence"),
    [
        ("layerskip", "--exit-layer", "no exit after -1 of them: use 1 to 7"),
        ("clasp", "--num-skipped", "cannot skip -1 of them: use 1 to 7"),
        ("quicksilver", "--first-layer", "can save after layers 1 to 7"),
    ],
)
def test_negative_numbers_of_layers_are_refused_with_the_target_s_range(
    outpace_, method: str, option: str, sentence: str
) -> None:
    result = outpace_("generate", "x", "--target", "zoo:target", "--method", method, option, "-1")
    assert result.exit_code == 2 and sentence in result.stderr


def test_characters_that_the_terminal_has_not_do_not_end_a_command(tiny, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1"))
    options = ["--target", tiny.target, "--method", "autoregressive", "--max-tokens", "1", "--echo"]
    monkeypatch.setattr(sys, "argv", ["outpace", "generate", *options, "日本"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert not ended.value.code and written.getvalue().startswith(b"??")
