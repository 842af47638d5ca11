"""Prompts: built-in sets, public files, files of one's own."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outpace.bench.measure.run import encode_prompts
from outpace.bench.measure.text_quality import is_right
from outpace.bench.measure.workload import BUILT_IN, FOLDER, WorkloadItem, encode, load_items
from outpace.core.sampling_params import SamplingParams
from zoo_training.tasks import check

ROOT = Path(__file__).resolve().parents[2]


def rows(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_set_has_forty_different_prompts(name: str) -> None:
    items = load_items(name)
    assert len(items) == 40
    assert len({item.turns for item in items}) == 40
    assert all(item.workload == name and item.chat == (name != "code") for item in items)


def test_the_generated_sets_are_what_the_script_writes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "make_bench_prompts", ROOT / "scripts" / "make_bench_prompts.py"
    )
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text(encoding="utf-8") == (FOLDER / path.name).read_text(encoding="utf-8")


def test_a_file_of_questions_with_turns(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorter."]},
        {"question_id": 82, "category": "qa", "turns": ["Why?"], "reference": ["Because."]},
    )
    assert load_items(str(path)) == [
        WorkloadItem("81", "question", ("Write.", "Shorter."), True),
        WorkloadItem("82", "question", ("Why?",), True),
    ]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_of_functions_to_complete(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / ("HumanEval.jsonl.gz" if zipped else "HumanEval.jsonl")
    text = (
        json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass"})
        + "\n"
    )
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert load_items(str(path)) == [WorkloadItem("HumanEval/0", "HumanEval", ("def f():\n",), False)]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = rows(tmp_path / "mine.jsonl", {"prompt": "one"}, {"prompt": "two", "chat": True})
    assert load_items(str(path)) == [
        WorkloadItem("mine/0", "mine", ("one",), False),
        WorkloadItem("mine/1", "mine", ("two",), True),
    ]
    text = tmp_path / "mine.txt"
    text.write_text("one\n\ntwo\n", encoding="utf-8")
    assert [item.turns[0] for item in load_items(str(text))] == ["one", "two"]
    text.write_text("one\n\nmore\n---\ntwo\n", encoding="utf-8")
    assert [item.turns[0] for item in load_items(str(text))] == ["one\n\nmore", "two"]


def test_answers_are_those_of_the_last_turn(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "sums.jsonl",
        {"prompt": "1 + 1 =", "answer": 2},
        {"turns": ["What is 1 + 1?", "And 2 + 2?"], "answer": "4"},
        {"messages": [{"role": "user", "content": "Why?"}], "answer": None},
    )
    items = load_items(str(path))
    assert [item.answer for item in items] == ["2", "4", None]
    plain: Any = SimpleNamespace(run=lambda prompts, sampling: SimpleNamespace(outputs=[[65]]))
    cases, _ = encode_prompts(items, Readable(), plain, SamplingParams(max_tokens=4))
    assert [(case.id, case.answer) for case in cases] == [
        ("sums/0", "2"),
        ("sums/1#1", None),
        ("sums/1#2", "4"),
        ("sums/2", None),
    ]
    for kind in ("arithmetic", "edit"):
        for item in load_items(kind):
            assert item.answer and check(kind, item.turns, item.answer)
            # the check of the zoo's tasks and that of the benchmark say the same
            for text in (item.answer, f"{item.answer} 7", f"\n{item.answer}\n", "7"):
                assert is_right(text, item.answer) == check(kind, item.turns, text)


def test_fewer_prompts_are_spread_over_the_file(tmp_path: Path) -> None:
    path = rows(tmp_path / "many.jsonl", *({"prompt": str(number)} for number in range(10)))
    assert [item.turns[0] for item in load_items(str(path), 5)] == ["0", "2", "4", "6", "8"]
    assert len(load_items(str(path), 99)) == 10


def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no prompts called 'nothing'"):
        load_items("nothing")
    with pytest.raises(ValueError, match="line 2: a prompt is an object"):
        load_items(str(rows(tmp_path / "bad.jsonl", {"prompt": "x"}, {"text": "y"})))
    (tmp_path / "worse.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: not JSON"):
        load_items(str(tmp_path / "worse.jsonl"))
    (tmp_path / "binary.jsonl").write_bytes(b"{}\n\xff")
    with pytest.raises(ValueError, match="binary.jsonl is not UTF-8 text .at byte 3.: convert it"):
        load_items(str(tmp_path / "binary.jsonl"))
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no prompts"):
        load_items(str(tmp_path / "empty.txt"))


class Letters:
    """A tokenizer of letters; its chat template writes roles in brackets."""

    chat_template = "yes"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        return "".join(f"[{message['role'][0]}]{message['content']}" for message in messages) + "[a]"


class Readable(Letters):
    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def test_conversations_give_the_turns_of_their_user(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    conversation = [("user", "Hi."), ("assistant", "Hello."), ("user", "Bye.")]
    messages = [{"role": role, "content": content} for role, content in conversation]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    (item,) = load_items(str(path))
    assert item.turns == ("Hi.", "Bye.") and item.chat
    for wrong, sentence in (
        ([{"role": "system", "content": "Be brief."}, *messages], "here is a message of system"),
        ([{"role": "assistant", "content": "Hello."}], "no message of the user"),
        ([{"role": "user", "content": [{"type": "text"}]}], "no message of the user"),
        ("Hi.", "is a list of objects"),
        (["Hi."], "is a list of objects"),
    ):
        path.write_text(json.dumps({"messages": wrong}) + "\n")
        with pytest.raises(ValueError, match=f"chats.jsonl, line 1: .*{sentence}"):
            load_items(str(path))


def test_turns_go_through_the_chat_template_and_texts_do_not() -> None:
    letters = Letters()
    chat, text = WorkloadItem("0", "w", ("hi", "so"), True), WorkloadItem("1", "w", ("hi",), False)
    assert encode(letters, text).tolist() == [1, *map(ord, "hi")]
    assert encode(letters, chat).tolist() == [*map(ord, "[u]hi[a]")]
    assert encode(letters, chat, ["yo"]).tolist() == [*map(ord, "[u]hi[a]yo[u]so[a]")]
    letters.chat_template = ""
    assert encode(letters, chat, ["yo"]).tolist() == [1, *map(ord, "hi\n\nyo\n\nso\n\n")]
