"""Edit tasks: the answer copies most of the text in the prompt with one change, and is a function of the
prompt."""

import re

from zoo_training.words import Words

FENCE = "```"


def make_code(words: Words) -> tuple[str, list[str]]:
    """A random small Python function, and the identifiers in it."""
    pick = words.random.choice
    number = words.random.randint
    function, first, second, third = words.several("identifier", 4)
    body = [
        pick([f"{third} = 0", f"{third} = []", f"{third} = {first} + {number(1, 9)}"]),
        pick(
            [
                f"for {second} in {first}:",
                f"for {second} in range({number(2, 90)}):",
                f"while {second} < {first}:",
            ]
        ),
        pick(
            [f"    {third} += {second}", f"    {third}.append({second})", f"    {third} = {third} * {second}"]
        ),
    ]
    if words.random.random() < 0.5:
        body.insert(2, f"    if {second} {pick(['>', '<', '==', '!='])} {number(0, 99)}:")
        body.insert(3, f"        {pick(['continue', 'break', f'{second} = {third}', f'print({second})'])}")
    if words.random.random() < 0.5:
        body.insert(0, f"if not {first}:")
        body.insert(1, f"    return {pick(['None', third, '0', f'[{second}]'])}")
    end = pick([f"return {third}", f"return {third}, {second}", f"return len({third}) - {second}"])
    lines = [f"def {function}({first}, {second}):", *(f"    {line}" for line in [*body, end])]
    return "\n".join(lines), [function, first, second, third]


def make_paragraph(words: Words) -> tuple[str, list[str]]:
    """A paragraph of three to five random sentences, and the nouns in it."""
    nouns = words.several("noun", 3)
    shapes = [
        "{name} put the {noun} next to the {adjective} {other}.",
        "The {noun} was {adjective}, but nobody looked at the {other}.",
        "Every morning {name} walks from the {noun} to the {other}.",
        "A {adjective} {noun} is worth more than a {other}.",
        "{name} told me that the {other} behind the {noun} is {adjective}.",
        "We sold the {noun} and kept the {adjective} {other}.",
    ]
    sentences = [
        shape.format(name=words.name(), adjective=words.adjective(), noun=noun, other=other)
        for shape, (noun, other) in zip(
            words.random.sample(shapes, words.random.randint(3, 5)),
            [words.random.sample(nouns, 2) for _ in range(5)],
            strict=False,
        )
    ]
    text = " ".join(sentences)
    return text, [noun for noun in nouns if f" {noun}" in text]


def make_config(words: Words) -> tuple[str, list[str]]:
    """A random INI file with one or two sections, and its keys."""
    keys = words.several("identifier", words.random.randint(4, 7))
    lines = [f"[{words.identifier()}]"]
    for number, key in enumerate(keys):
        if number == 3:
            lines += ["", f"[{words.identifier()}]"]
        value = words.random.choice([str(words.random.randint(0, 999)), words.noun(), "true", "false"])
        lines.append(f"{key} = {value}")
    return "\n".join(lines), keys


def make_record(words: Words) -> tuple[str, list[str]]:
    """A random flat JSON object with one key per line, and its keys."""
    keys = words.several("identifier", words.random.randint(3, 6))
    pairs = [f'  "{key}": "{words.noun()}"' for key in keys]
    return "{\n" + ",\n".join(pairs) + "\n}", keys


def make(words: Words) -> str:
    """A random editing instruction with the text to edit, with content words drawn from `words`."""
    pick = words.random.choice
    shape = pick(
        ["rename", "rename", "replace", "replace", "set", "set", "record", "number", "bullets", "delete"]
    )
    if shape == "rename":
        text, identifiers = make_code(words)
        old, new = pick(identifiers), fresh(words, identifiers)
        return f"Rename {old} to {new} in this code:\n{FENCE}\n{text}\n{FENCE}"
    if shape == "replace":
        text, nouns = make_paragraph(words)
        return f"Replace the word {pick(nouns)} with {words.noun()} in this text:\n{text}"
    if shape == "set":
        text, keys = make_config(words)
        return f"Set {pick(keys)} to {words.random.randint(0, 999)} in this file:\n{FENCE}\n{text}\n{FENCE}"
    if shape == "record":
        text, keys = make_record(words)
        return f"Change {pick(keys)} to {words.noun()} in this record:\n{FENCE}\n{text}\n{FENCE}"
    things = words.several("noun", words.random.randint(3, 7))
    described = [f"{words.adjective()} {thing}" if words.random.random() < 0.5 else thing for thing in things]
    if shape == "delete":
        gone = words.random.randint(1, len(things))
        listed = "\n".join(f"{number}. {thing}" for number, thing in enumerate(described, 1))
        return f"Delete line {gone} and number the rest again:\n{listed}"
    if shape == "number":
        return "Make this a numbered list:\n" + "\n".join(f"- {thing}" for thing in described)
    return "Make this a list with dashes:\n" + ", ".join(described)


def fresh(words: Words, taken: list[str]) -> str:
    """A random identifier that is not in `taken`."""
    while True:
        name = words.identifier()
        if name not in taken:
            return name


def solve(prompt: str) -> str:
    """The correct answer to a prompt generated by `make`: the complete edited text."""
    order, text = prompt.split("\n", 1)
    words = order.split()
    if order.startswith("Rename"):
        return re.sub(rf"\b{words[1]}\b", words[3], text)
    if order.startswith("Replace"):
        return re.sub(rf"\b{words[3]}\b", words[5], text)
    if order.startswith("Set"):
        return re.sub(rf"(?m)^{words[1]} = .*$", f"{words[1]} = {words[3]}", text)
    if order.startswith("Change"):
        return re.sub(rf'"{words[1]}": "[^"]*"', f'"{words[1]}": "{words[3]}"', text)
    if order.startswith("Delete"):
        lines = [line.split(". ", 1)[1] for line in text.splitlines()]
        del lines[int(words[2]) - 1]
        return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    if "numbered" in order:
        lines = [line.removeprefix("- ") for line in text.splitlines()]
        return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    return "\n".join(f"- {thing}" for thing in text.split(", "))


def check(prompt: str, answer: str) -> bool:
    """Whether an answer equals the correct one, up to surrounding whitespace."""
    return answer.strip() == solve(prompt).strip()
