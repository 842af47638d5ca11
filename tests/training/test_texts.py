"""Prompts of a data file, the answers beside them, and which texts are held out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import outpace
from outpace.api.model import Model
from outpace.training import answers
from outpace.training.config import Answers
from outpace.training.features import FeatureSource
from outpace.training.texts import Example, Prompt, fingerprint, read_prompts, split_texts

TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}assistant:"


def read(rows: list[Mapping[str, Any]], model: Model, folder: Path) -> list[Prompt]:
    path = folder / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return read_prompts(str(path), model, 10, seed=0)


def test_the_last_message_of_the_assistant_is_the_answer_and_not_in_the_prompt(
    model: Model, tmp_path: Path
) -> None:
    model.tokenizer.chat_template = TEMPLATE
    question = [{"role": "user", "content": "def f("}]
    answered = {"messages": [*question, {"role": "assistant", "content": "return"}]}
    found = read([answered, {"messages": question}], model, tmp_path)
    [own] = [each for each in found if each.answer is not None]
    assert model.tokenizer.decode(own.answer) == "return"
    assert all(model.tokenizer.decode(each.tokens) == "user: def f(\nassistant:" for each in found)


def test_data_with_other_answers_is_other_data() -> None:
    prompts = [Prompt((1, 2), (3,)), Prompt((4,))]
    assert fingerprint(prompts) == fingerprint(list(prompts))
    for other in (Prompt((1, 2), (9,)), Prompt((1, 2)), Prompt((1,), (3,))):
        assert fingerprint([other, prompts[1]]) != fingerprint(prompts)


def test_so_many_pieces_are_held_out_as_were_asked_for() -> None:
    texts = [Example((first, 2, 3, 4), 1) for first in range(10)]
    learned, evaluated = split_texts(texts, 8, 0.2)
    assert evaluated == texts[:2] and learned == texts[2:]
    assert len(split_texts(texts, 8, 0.0)[1]) == 1


def test_of_a_long_prompt_the_end_is_answered(model: Model, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(answers, "MAX_PROMPT", 3)
    prompt, settings = Prompt((5, 6, 7, 8, 9)), replace(Answers(), max_tokens=4, temperatures=(0.0,))
    [made] = answers.answered(model, [prompt], settings, tmp_path, lambda *_: None)
    [expected] = outpace.generate(model, [[7, 8, 9]], "autoregressive", max_tokens=4)
    assert made == Example((7, 8, 9, *expected.tokens), 3)


def test_files_of_hidden_states_keep_the_layers_of_earlier_runs(model: Model, tmp_path: Path) -> None:
    texts = [Example((5, 6, 7), 1)]
    for layers in ((0,), (1,)):
        FeatureSource(model.target, texts, layers, tmp_path).store(10**6, lambda *_: None)
    [file] = tmp_path.glob("*.safetensors")
    assert load_file(file).keys() == {"0", "1"}
