"""The commands of the command line on valid input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import outpace
from outpace.cli import options
from outpace.recipes import get

FEW = ("--max-tokens", 8, "--temperature", 0, "--ignore-eos")


def test_help_names_the_verbs_and_imports_nothing_heavy():
    program = (
        "import sys; from outpace.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(','.join({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    verbs = ("demo", "generate", "chat", "bench", "list", "show", "new", "zoo", "env")
    assert all(verb in done.stdout for verb in verbs)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("generate", "--method", "medussa"), "there is no method medussa; did you mean medusa?"),
        (("generate", "x", "--max-tokenz", "4"), "No such option: --max-tokenz"),
        (("generate", "x", "--method", "medusa", "--deep", "4"), "medusa has --head"),
        (("generate", "x", "--max-tokens", "many"), "Invalid value for '--max-tokens'"),
        (("generate", "x", "--temperature", "-1"), "temperature is -1.0"),
        (("generate", "x", "--logprobs", "2"), "--logprobs are written as JSON"),
        (("serve", "--methods", "nothing"), "there is no method nothing"),
        (("bench", "--methods", "medussa"), "there is no method medussa"),
        (("audit", "medussa"), "there is no method medussa"),
        (("show", "medussa"), "there is no method medussa"),
    ],
)
def test_wrong_arguments_are_reported_before_torch_is_imported(arguments, sentence):
    program = (
        "import sys; from outpace.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(','.join({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    words = " ".join(done.stderr.replace("│", " ").split())
    assert sentence in words and not words.endswith(("torch", "transformers"))


def test_help_shows_the_defaults_of_settings(outpace_):
    words = " ".join(outpace_("generate", "--help").stdout.split())
    assert "Maximum number of new tokens; default: the model's, or 256." in words
    assert (
        "Divide all logits by it; 0 is greedy decoding, without truncation; default: the model's, or 0."
        in words
    )


@pytest.mark.parametrize(
    ("method", "option"), [("specinfer", "--draft"), ("specinfer", "--drafts"), ("mcsd", "--drafts")]
)
def test_one_draft_model_is_given_under_both_names(outpace_, tiny, method, option):
    draft = outpace_(
        *("generate", "def", "--target", tiny.target, "--method", method, option, tiny.draft, *FEW, "--json")
    )
    assert draft.exit_code == 0, draft.output
    assert json.loads(draft.stdout)["results"][0]["statistics"]["num_draft_tokens"]


@pytest.mark.parametrize("name", ["weights", "draft_weights", "kv_cache"])
def test_options_of_compiled_models_compile_them(name, monkeypatch):
    given = []
    monkeypatch.setattr(options, "load_model", lambda target, **how: given.append((target, how)))
    options.LoadingOptions(**{name: "int8"}).load("zoo:target")
    options.LoadingOptions().load("zoo:target")
    options.LoadingOptions(compile=True).load("zoo:target")
    assert [how["compile"] for _, how in given] == [True, False, True]
    assert given[0][1][name] == "int8"


def test_version(outpace_):
    assert outpace_("--version").stdout.strip() == f"outpace {outpace.__version__}"


def test_list(outpace_):
    found = json.loads(outpace_("list", "--json").stdout)["recipes"]
    assert {"autoregressive", "prompt-lookup"} <= {each["name"] for each in found}
    assert all(set(each) == {"name", "paper", "guarantee", "summary", "family"} for each in found)
    table = outpace_("list").stdout
    assert "prompt-lookup" in table and "\x1b" not in table and "│" not in table


def test_show(outpace_):
    found = json.loads(outpace_("show", "mcsd", "--json").stdout)
    assert found["guarantee"] == "exact"
    widths = next(each for each in found["options"] if each["name"] == "widths")
    assert (widths["type"], widths["default"]) == ("tuple[int, ...]", "4,2,2") and widths["help"]
    assert "--widths" in outpace_("show", "mcsd").stdout
    assert outpace_("show", "nothing").exit_code == 2


def test_show_and_generate_say_that_an_output_is_not_the_target_s(outpace_):
    shown = outpace_("show", "quicksilver").stdout
    assert shown.startswith("quicksilver  (lossy, ") and "output  not the target's" in shown
    assert "exact   with --drift 0.0 --fusion 0.0 --no-quantize" in shown
    assert json.loads(outpace_("show", "quicksilver", "--json").stdout)["exact_with"]["drift"] == 0.0
    assert "not the target's" not in outpace_("show", "mcsd").stdout
    done = outpace_("generate", "--method", "quicksilver", *FEW, "def add(a, b):")
    assert "; LOSSY: the text is that of an approximation of the target" in done.stderr
    done = outpace_("generate", "--method", "quicksilver", "--role", "drafter", *FEW, "def add(a, b):")
    assert done.exit_code == 0 and "LOSSY" not in done.stderr


def test_an_exact_output_is_asked_for(outpace_):
    done = outpace_("generate", "--exact", "--method", "quicksilver", *FEW, "def add(a, b):")
    assert done.exit_code == 2 and not done.stdout
    assert "quicksilver is LOSSY with these options: give drift=0.0, fusion=0.0, quantize=" in done.stderr
    exact = ["--drift", "0", "--fusion", "0", "--no-quantize"]
    assert outpace_("generate", "--exact", "--method", "quicksilver", *exact, *FEW, "x").exit_code == 0
    for command in (["vote", "1 + 1 =", "--samples", 2], ["chat"]):
        done = outpace_(*command, "--exact", "--method", "quicksilver", "--max-tokens", 4, given="hi\n")
        assert done.exit_code == 2 and "quicksilver is LOSSY with these options" in done.stderr


def test_show_distinguishes_a_default_of_none_from_a_required_option(outpace_):
    lines = outpace_("show", "mcsd").stdout.splitlines()
    draft, parents = (line for line in lines if line.strip().startswith(("--draft", "--parents")))
    assert " needed " in draft and " none " in parents
    options = json.loads(outpace_("show", "mcsd", "--json").stdout)["options"]
    assert {each["name"]: each["default"] for each in options if each["name"] in ("draft", "parents")} == {
        "draft": None,
        "parents": "none",
    }
    assert "(default none)" in outpace_("generate", "--method", "mcsd", "--help").stdout
    table = outpace_("show", "sam-decoding").stdout
    assert "'token-recycling' | Target | None" in table and "SuffixAutomatonFile | None" in table


def test_presets_are_shown_and_taken_and_refused_where_there_are_none(outpace_, tiny):
    assert "--preset cpu stands for --nodes-per-depth 5,5,4,1" in outpace_("show", "token-recycling").stdout
    assert json.loads(outpace_("show", "stand", "--json").stdout)["presets"] == {"cpu": {"nodes": 24}}
    short = ("--max-tokens", "2", "a")
    result = outpace_("generate", "--target", tiny.target, "--method", "lookahead", "--preset", "cpu", *short)
    assert result.exit_code == 0, result.stderr
    result = outpace_(
        "generate", "--target", tiny.target, "--method", "prompt-lookup", "--preset", "cpu", *short
    )
    assert result.exit_code == 2 and "prompt-lookup has no presets: leave --preset out" in " ".join(
        result.stderr.replace("│", " ").split()
    )


def test_what_is_shown_can_be_typed(outpace_, tiny):
    given = ("--method", "mcsd", "--draft", tiny.draft, "--parents", "none", "--widths", "2,1")
    assert outpace_("generate", "def", "--target", tiny.target, *FEW, *given).exit_code == 0


def test_env(outpace_):
    found = json.loads(outpace_("env", "--json").stdout)
    assert found["versions"]["torch"] and found["cores"] and found["devices"]
    assert "torch" in outpace_("env").stdout
    assert {"float32", found["dtype auto on the CPU"]} <= set(found["native on the CPU"])


def test_generate_streams_one_prompt(outpace_, tiny):
    result = outpace_("generate", "def add", "--target", tiny.target, "--draft", tiny.draft, *FEW)
    assert result.exit_code == 0, result.output
    expected = outpace.generate(
        tiny.target, "def add", draft=outpace.load(tiny.draft), max_tokens=8, temperature=0, ignore_eos=True
    )[0]
    assert result.stdout == f"{expected.text}\n"
    assert "speculative-sampling: 8 tokens" in result.stderr and "seed" in result.stderr


def test_generate_drafts_what_a_file_predicts(outpace_, tiny, tmp_path):
    arguments = ("generate", "def add", "--target", tiny.target, "--method", "prompt-lookup", *FEW)
    text = json.loads(outpace_(*arguments, "--json").stdout)["results"][0]["text"]
    (tmp_path / "file.txt").write_text(text)
    result = outpace_(*arguments, "--prediction", "file.txt")
    assert result.stdout == f"{text}\n"
    assert "drafted prediction tokens accepted" in result.stderr
    assert "prediction" not in outpace_(*arguments).stderr
    statistics = json.loads(outpace_(*arguments, "--prediction", "file.txt", "--json").stdout)["results"][0][
        "statistics"
    ]
    assert statistics["num_accepted_prediction_tokens"] > 0
    result = outpace_(*arguments, "--prediction", "nothing.txt")
    assert result.exit_code == 2 and "nothing.txt cannot be read" in result.stderr


def test_generate_takes_several_prompts_and_prints_json(outpace_, tiny):
    result = outpace_("generate", "def", "for", "--target", tiny.target, *FEW, "--json")
    found = json.loads(result.stdout)["results"]
    assert [each["prompt"] for each in found] == ["def", "for"]
    assert all(each["method"] == "prompt-lookup" and each["statistics"]["num_tokens"] == 8 for each in found)


def test_generate_reads_standard_input(outpace_, tiny):
    result = outpace_("generate", "--target", tiny.target, "--method", "autoregressive", *FEW, given="def")
    assert result.stdout and result.exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "prompt-lookup", "--depth", 2, "--allow-shorter", "def"),
        ("--depth=2", "--allow-shorter", "def", "--method=prompt_lookup"),
        ("def", "--method", "prompt-lookup", "--no-allow-shorter", "--depth", 2),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}', "def"),
    ],
)
def test_options_of_a_method_stand_anywhere(outpace_, tiny, arguments):
    result = outpace_("generate", "--target", tiny.target, *FEW, "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["results"][0]
    assert found["prompt"] == "def" and found["method"] == "prompt-lookup"
    assert len(found["statistics"]["acceptance_histogram"]) <= 3


def test_keys_of_vllm_that_mean_nothing_here_are_named(outpace_, tiny):
    config = '{"method": "ngram", "num_speculative_tokens": 2, "enforce_eager": true}'
    result = outpace_("generate", "def", "--target", tiny.target, *FEW, "--speculative-config", config)
    assert (
        "outpace: speculative_config: enforce_eager have no effect on prompt-lookup here\n" in result.stderr
    )


def test_what_bench_recommends_can_be_used(outpace_, tiny, tmp_path):
    found = {"method": "mcsd", "options": {"widths": [2, 1]}, "draft": tiny.draft, "reason": "it is fast"}
    (tmp_path / "best.json").write_text(json.dumps(found))
    result = outpace_("generate", "def", "--method", "@best.json", "--target", tiny.target, *FEW, "--json")
    assert json.loads(result.stdout)["results"][0]["method"] == "mcsd"


def test_help_of_a_method_lists_its_options(outpace_):
    text = outpace_("generate", "--method", "mcsd", "--help").stdout
    text = " ".join(text.split())
    assert "--widths" in text and "(default 4,2,2)" in text and "(needed)" in text
    assert "--widths" not in outpace_("generate", "--help").stdout


def test_chat_remembers_the_conversation(outpace_, tiny):
    result = outpace_(
        "chat", "--target", tiny.target, "--system", "Be brief.", *FEW[:4], given="hello\nagain\n"
    )
    assert result.exit_code == 0, result.output
    messages = [{"role": "system", "content": "Be brief."}]
    model = outpace.load(tiny.target)
    for said in ("hello", "again"):
        messages.append({"role": "user", "content": said})
        answer = outpace.generate(model, messages, "prompt-lookup", max_tokens=8, temperature=0)[0]
        messages.append({"role": "assistant", "content": answer.text})
        assert answer.text in result.stdout


@pytest.mark.slow
def test_new_writes_a_recipe_and_a_test_that_pass(outpace_, tiny, tmp_path):
    assert outpace_("new", "my-method").exit_code == 0
    root = str(Path(outpace.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_method.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stdout
    result = outpace_("generate", "def", "--recipe", "my_method.py", "--target", tiny.target, *FEW)
    assert "my-method: 8 tokens" in result.stderr
    assert "my-method" in outpace_("list", "--recipe", "my_method.py").stdout
    assert "LastOccurrence" in outpace_("show", "my_method.py").stdout
    again = outpace_("new", "my-method")
    assert again.exit_code == 2 and "already exist" in again.stderr
    assert "cannot be a method's name" in outpace_("new", "3 methods").stderr
    assert "is a method of the package" in outpace_("new", "prompt_lookup").stderr


@pytest.mark.slow
def test_demo_works_on_any_pair(outpace_, tiny):
    result = outpace_("demo", "--target", tiny.target, "--draft", tiny.draft, "--max-tokens", 8)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert "autoregressive" in result.stdout and "1.00x" in result.stdout
    assert result.stdout.count("unchanged (") == 2


def test_generate_takes_sampling_settings(outpace_, tiny):
    settings = {
        "max_tokens": 8,
        "temperature": 1.0,
        "min_p": 0.01,
        "typical_p": 0.95,
        "repetition_penalty": 1.2,
    }
    settings |= {"presence_penalty": 0.3, "frequency_penalty": 0.2, "min_tokens": 8, "seed": 5}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    words += ["--logit-bias", "40=2.5", "--logit-bias", "41=-inf", "--bad-word", "self"]
    arguments = ("generate", "def add", "--target", tiny.target, "--method", "prompt-lookup", *words)
    result = outpace_(*arguments, "--n", 2, "--logprobs", 1, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["results"]
    expected = outpace.generate(
        tiny.target,
        "def add",
        "prompt-lookup",
        n=2,
        logit_bias={40: 2.5, 41: -float("inf")},
        bad_words="self",
        **settings,
    )
    assert [each["tokens"] for each in found] == [each.tokens for each in expected]
    assert all(each["prompt"] == "def add" and len(each["logprobs"]) == 8 for each in found)
    both = outpace_(*arguments, "--n", 2)
    assert both.stdout == "".join(
        f"--- sample {index} of 2: def add\n{each.text}\n\n" for index, each in enumerate(expected, 1)
    )


def test_chat_uses_auto_and_keeps_what_it_learned(outpace_, tiny, monkeypatch):
    built = []
    auto = get("auto")

    def build(*args, **options):
        built.append(auto.build(*args, **options))
        return built[-1]

    monkeypatch.setattr("outpace.recipes.get", {"auto": replace(auto, build=build)}.__getitem__)
    result = outpace_("chat", "--target", tiny.target, *FEW[:4], given="hello\nagain\n")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("auto: 8 tokens") == 2 and len(built) == 1


def test_chat_drafts_what_a_file_predicts(outpace_, tiny, tmp_path):
    (tmp_path / "file.txt").write_text("def add(a, b):\n    return a + b\n")
    arguments = ("chat", "--target", tiny.target, *FEW[:4])
    result = outpace_(*arguments, "--prediction", "file.txt", given="hello\n")
    assert result.exit_code == 0 and result.stdout == outpace_(*arguments, given="hello\n").stdout
    assert "drafted prediction tokens accepted" in result.stderr


def test_chat_takes_sampling_settings(outpace_, tiny):
    arguments = (
        "chat",
        "--target",
        tiny.target,
        *FEW[:4],
        "--repetition-penalty",
        1.5,
        "--logit-bias",
        "40=3",
    )
    result = outpace_(*arguments, given="hello\n")
    expected = outpace.generate(
        tiny.target,
        [{"role": "user", "content": "hello"}],
        "prompt-lookup",
        max_tokens=8,
        temperature=0,
        repetition_penalty=1.5,
        logit_bias={40: 3.0},
    )[0]
    assert result.stdout.strip() == expected.text.strip()


def test_generate_takes_a_json_schema_or_a_grammar(outpace_, tiny, tmp_path):
    (tmp_path / "kind.json").write_text('{"enum": ["ox", "owl"]}')
    (tmp_path / "kind.ebnf").write_text('root ::= "ox" | "owl"')
    arguments = (
        "generate",
        "def",
        "--target",
        tiny.target,
        "--temperature",
        1,
        "--method",
        "prompt-lookup",
        "--json",
    )
    for option, words in (("--json-schema", ('"ox"', '"owl"')), ("--grammar", ("ox", "owl"))):
        result = outpace_(*arguments, option, f"kind.{'json' if option == '--json-schema' else 'ebnf'}")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["results"][0]["text"] in words
    missing = outpace_(*arguments, "--grammar", "nothing.ebnf")
    assert missing.exit_code == 2 and "nothing.ebnf cannot be read: No such file" in missing.stderr


def test_python_dash_m_and_short_help():
    done = subprocess.run([sys.executable, "-m", "outpace", "-h"], capture_output=True, text=True)
    assert done.returncode == 0 and "generate" in done.stdout and "--install-completion" in done.stdout


def test_the_prompt_is_printed_only_with_echo(outpace_, tiny):
    arguments = ("generate", "def add", "--target", tiny.target, "--method", "prompt-lookup", *FEW)
    plain, echoed, quiet = (
        outpace_(*arguments),
        outpace_(*arguments, "--echo"),
        outpace_(*arguments, "--quiet"),
    )
    assert echoed.stdout == f"def add{plain.stdout}" and quiet.stdout == plain.stdout
    assert "tokens/s" in plain.stderr and not quiet.stderr


def test_a_prompt_may_look_like_an_option(outpace_, tiny):
    result = outpace_("generate", "--target", tiny.target, *FEW, "--json", "--", "--help")
    assert json.loads(result.stdout)["results"][0]["prompt"] == "--help"


def test_the_depth_has_vllms_name_too(outpace_, tiny):
    arguments = ("generate", "def", "--target", tiny.target, *FEW, "--json", "--method", "prompt-lookup")
    one, other = outpace_(*arguments, "--depth", 2), outpace_(*arguments, "--num-speculative-tokens", 2)
    drafted = [
        json.loads(each.stdout)["results"][0]["statistics"]["num_draft_tokens"] for each in (one, other)
    ]
    assert drafted[0] == drafted[1]


def test_a_file_of_prompts_and_a_file_of_results(outpace_, tiny, tmp_path):
    chat = [{"role": "user", "content": "hello"}]
    lines = [{"id": "a", "prompt": "def add"}, {"id": "b", "messages": chat}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = (
        "generate",
        "--target",
        tiny.target,
        *FEW,
        "--method",
        "prompt-lookup",
        "--prompt-file",
        "in.jsonl",
    )
    result = outpace_(*arguments, "--output", "out.jsonl")
    assert result.exit_code == 0 and not result.stdout, result.output
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["id"] for each in found] == ["a", "b"] and found[1]["prompt"] == chat
    outpace_(*arguments, "--output", "out.json")
    outpace_(*arguments, "--output", "out.txt")
    texts = [each["text"] for each in found]
    assert [each["text"] for each in json.loads((tmp_path / "out.json").read_text())["results"]] == texts
    assert (tmp_path / "out.txt").read_text() == "".join(f"{text}\n" for text in texts)


def test_a_prompt_through_the_chat_template(outpace_, tiny):
    result = outpace_("generate", "hello", "--chat", "--target", tiny.target, *FEW, "--json")
    found = json.loads(result.stdout)["results"][0]
    messages = [{"role": "user", "content": "hello"}]
    expected = outpace.generate(
        tiny.target, messages, "prompt-lookup", max_tokens=8, temperature=0, ignore_eos=True
    )[0]
    assert found["tokens"] == expected.tokens and found["prompt"] == messages


def test_log_probabilities_have_the_tokens_text(outpace_, tiny):
    result = outpace_("generate", "def", "--target", tiny.target, *FEW, "--logprobs", 2, "--json")
    found = json.loads(result.stdout)["results"][0]
    assert all(isinstance(each["text"], str) and len(each["top"]) == 2 for each in found["logprobs"])
    assert "text" in found["logprobs"][0]["top"][0]


def test_chat_has_commands_and_ignores_empty_lines(outpace_, tiny):
    arguments = ("chat", "--target", tiny.target, *FEW[:4])
    result = outpace_(*arguments, given="hello\n\n/help\n/reset\nhello\n/what\n/quit\nhello\n")
    assert result.exit_code == 0, result.output
    half = len(result.stdout) // 2
    assert result.stdout[:half] == result.stdout[half:]  # the second hello begins a new conversation
    assert "(new conversation)" in result.stderr and "there is no command /what" in result.stderr
    assert result.stderr.count("/reset starts") == 2


def test_chat_says_that_an_answer_was_cut_and_goes_on_with_it(outpace_, tiny, tmp_path):
    arguments = ("chat", "--target", tiny.target, "--temperature", 0, "--max-tokens")
    whole = outpace_(*arguments, 16, given="hello\n")
    assert "(the answer was cut after 16 tokens: /continue goes on" in whole.stderr
    parts = outpace_(*arguments, 8, given="hello\n/continue\n/save saved.json\n/reset\n/continue\n")
    assert parts.exit_code == 0, parts.output
    assert parts.stdout.replace("\n", "") == whole.stdout.replace("\n", "")
    assert "(there is no cut answer to go on with)" in parts.stderr
    messages = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant"]
    assert messages[1]["content"].replace("\n", "") == whole.stdout.replace("\n", "")


def test_chat_takes_messages_of_several_lines_and_another_system_message(outpace_, tiny, tmp_path):
    given = 'one\\\n two\n"""three\n\nfour"""\n/save a.json\n/system Be kind.\nhi\n/save b.json\n/save\n'
    result = outpace_("chat", "--target", tiny.target, *FEW[:4], given=given)
    assert result.exit_code == 0, result.output
    first, second = (json.loads((tmp_path / name).read_text())["messages"] for name in ("a.json", "b.json"))
    assert [each["content"] for each in first[::2]] == ["one\n two", "three\n\nfour"]
    assert [each["content"] for each in second[:2]] == ["Be kind.", "hi"]
    assert "(name a file: /save FILE)" in result.stderr


def test_chat_goes_on_after_a_line_that_is_not_text(outpace_, tiny):
    result = outpace_("chat", "--target", tiny.target, *FEW[:4], given=b"\xff\xfe\nhello\n")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("(this line is not utf-8 text: it was not sent)") == 1
    assert result.stdout == outpace_("chat", "--target", tiny.target, *FEW[:4], given="hello\n").stdout


def test_chat_drops_the_oldest_turns_when_the_context_is_full(outpace_, tiny):
    arguments = ("chat", "--target", tiny.target, *FEW[:4])
    long = "hello " * 20
    result = outpace_(*arguments, given=f"{long}\n" * 5 + "hello " * 300 + "\nhello\n")
    assert result.exit_code == 0, result.output
    assert "the context is full: the oldest" in result.stderr
    assert "this message is too long for the model's context" in result.stderr
    assert result.stderr.count("auto: ") == 6
