"""Texts that an audit sends."""

from __future__ import annotations

PROMPTS = (
    "def parse(line):\n",
    "Once upon a time there was a",
    "import os\n\n\ndef read(path):\n",
    "The three most important things to know about rivers are",
    "class Queue:\n    def __init__(self):\n",
    "What is 345 + 678?",
    "A recipe for bread. You need flour, water, salt and",
    "for line in open(path):\n    if not line:\n",
    "Dear Noah,\n\nthank you for your letter. I",
    "def area(width, height):\n    return width * height\n\n\ndef volume(",
    "The capital of France is Paris. The capital of Italy is",
    "1, 2, 4, 8, 16,",
)

_MIDDLE = """The water of a river moves because the ground is not level. It starts in the hills, where rain
and melting snow collect in small streams, and it ends in a lake or in the sea. On its way it carries sand
and stones, and where it slows down it leaves them behind. That is why the mouth of a large river is often
flat and wide, and why the land around it is good for farming.

def total(rows, name):
    # the sum of the numbers in one column
    return sum(float(row[name]) for row in rows if row[name])

"""

# Pairs that a prefix cache may mix up: equal but for their last tokens, and equal but for their first ones.
ALIKE = (
    (f"{_MIDDLE}\nclass Stack:\n    def ", f"{_MIDDLE}\nQuestion: What is 12 + 35?\nAnswer:"),
    (
        f'name = "marble wallet"\nprint("marble wallet")\n\n{_MIDDLE}\nname = "',
        f'name = "orange kitten"\nprint("orange kitten")\n\n{_MIDDLE}\nname = "',
    ),
)
