"""Generated chats of one or more turns whose last answer is a function of the turns before it."""

import re

from zoo_training.words import Words

Turns = tuple[str, ...]  # user, assistant, user, ...; ends with the user's question

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LETTER = (
    "Dear {to},\n\nThank you for the {adjective} {thing}. I keep it next to the {other}, and everyone who "
    "sees the {thing} asks about you.\nPlease come and visit me when the {other} is ready.\n\n"
    "Yours,\n{sender}"
)


def remember(words: Words) -> Turns:
    """Chat: the user states facts in the first turn and asks for them in later turns."""
    name, thing, adjective = words.name(), words.noun(), words.adjective()
    number = str(words.random.randint(1, 99))
    facts = {"name": name, "favourite thing": f"the {adjective} {thing}", "lucky number": number}
    requested = words.random.sample(sorted(facts), words.random.randint(1, 3))
    hello = (
        f"Hello, my name is {name}. My favourite thing is the {adjective} {thing}. "
        f"My lucky number is {number}."
    )
    turns = [hello, f"Hello {name}, nice to meet you. I will remember that."]
    for fact in requested[:-1]:
        turns += [f"What is my {fact}?", f"Your {fact} is {facts[fact]}."]
    return (*turns, f"What is my {requested[-1]}?")


def table(words: Words) -> Turns:
    """Chat of one turn: a request to put the facts of some sentences into a Markdown table."""
    owners = words.several("name", words.random.randint(2, 5))
    facts = " ".join(f"{owner} has {words.random.randint(2, 99)} {words.noun()}s." for owner in owners)
    return (f"Put this into a table. {facts}",)


def letter(words: Words) -> Turns:
    """Chat of one turn: a request for a letter, which follows a template with words of the request."""
    to, sender = words.several("name", 2)
    thing, other = words.several("noun", 2)
    return (f"Write a letter from {sender} to {to} about the {words.adjective()} {thing} and the {other}.",)


def listing(words: Words) -> Turns:
    """Chat of one turn: a list of things and a question about it."""
    things = words.several("noun", words.random.randint(3, 7))
    listed = ", ".join(things)
    question = words.random.choice(
        [
            "How many things are in this list?",
            "Which thing is first?",
            "Which thing is last?",
            "Say it backwards.",
        ]
    )
    return (f"Here is a list: {listed}. {question}",)


def repeat(words: Words) -> Turns:
    """Chat of one turn: a request to repeat a phrase a given number of times."""
    line = f"the {words.adjective()} {words.noun()} of {words.name()}"
    return (f"Say this {words.random.choice(NUMBERS[1:6])} times: {line}",)


def make(words: Words) -> Turns:
    """The turns of a random chat up to its last question, with content words drawn from `words`."""
    return words.random.choice([remember, remember, table, letter, listing, repeat])(words)


def solve(turns: Turns) -> str:
    """The correct reply to the last turn."""
    first, last = turns[0], turns[-1]
    if len(turns) > 1:
        fact = last.removeprefix("What is my ").removesuffix("?")
        found = re.search(rf"[Mm]y {fact} is ([^.]*)\.", first)
        return f"Your {fact} is {found[1] if found else ''}."
    if last.startswith("Put this"):
        rows = re.findall(r"(\w+) has (\d+) (\w+)\.", last)
        return "\n".join(
            ["| who | number | what |", "| - | - | - |", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
        )
    if last.startswith("Write a letter"):
        found = re.fullmatch(
            r"Write a letter from (\w+) to (\w+) about the (\w+) (\w+) and the (\w+)\.", last
        )
        sender, to, adjective, thing, other = found.groups() if found else [""] * 5
        return LETTER.format(to=to, sender=sender, adjective=adjective, thing=thing, other=other)
    if last.startswith("Say this"):
        count = NUMBERS.index(last.split()[2]) + 1
        return "\n".join([last.split(": ", 1)[1]] * count)
    listed, question = last.removeprefix("Here is a list: ").split(". ")
    things = listed.split(", ")
    if question.startswith("How many"):
        return f"There are {NUMBERS[len(things) - 1]} things in the list."
    if question.startswith("Say it"):
        return ", ".join(things[::-1])
    return f"The first thing is {things[0]}." if "first" in question else f"The last thing is {things[-1]}."


def check(turns: Turns, answer: str) -> bool:
    """Whether a reply equals the correct one, up to surrounding whitespace."""
    return answer.strip() == solve(turns).strip()
