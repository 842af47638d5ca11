"""Arithmetic tasks with written steps; the split is by the numbers, so a held-out sum is never seen in
training."""

import random
import re
import zlib

HELD_OUT_SHARE = 8  # one set of numbers in eight


def is_held_out(numbers: tuple[int, ...]) -> bool:
    """Whether a set of numbers is kept out of training, in any order."""
    return zlib.crc32(",".join(map(str, sorted(numbers))).encode()) % HELD_OUT_SHARE == 0


def add_steps(left: int, right: int) -> str:
    """Column addition from the right."""
    lines: list[str] = []
    carry, a, b = 0, left, right
    while a or b:
        x, y = a % 10, b % 10
        total = x + y + carry
        lines.append(f"{x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        carry, a, b = total // 10, a // 10, b // 10
    return "\n".join([*lines, f"{left} + {right} = {left + right}"])


def subtract_steps(left: int, right: int) -> str:
    """Column subtraction from the right; `left` is not smaller."""
    lines: list[str] = []
    borrow, a, b = 0, left, right
    while a or b:
        x, y = a % 10, b % 10 + borrow
        borrow = int(x < y)
        lines.append(f"{x + 10 * borrow} - {y} = {x + 10 * borrow - y}, borrow {borrow}")
        a, b = a // 10, b // 10
    return "\n".join([*lines, f"{left} - {right} = {left - right}"])


def multiply_steps(left: int, right: int) -> str:
    """A number times one digit: tens and ones apart, then their sum."""
    tens, ones = left // 10 * 10, left % 10
    return (
        f"{tens} * {right} = {tens * right}\n{ones} * {right} = {ones * right}\n"
        f"{tens * right} + {ones * right} = {left * right}\n{left} * {right} = {left * right}"
    )


def running_steps(numbers: tuple[int, ...]) -> str:
    """A sum of small numbers, one at a time."""
    lines: list[str] = []
    total = numbers[0]
    for number in numbers[1:]:
        lines.append(f"{total} + {number} = {total + number}")
        total += number
    return "\n".join([*lines, f"The sum is {total}"])


def solve(prompt: str) -> str:
    """The answer, with its steps, to a prompt of this file."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", prompt))
    if prompt.startswith("Add up"):
        return running_steps(numbers)
    left, right = numbers
    if "+" in prompt:
        return add_steps(left, right)
    return subtract_steps(left, right) if " - " in prompt else multiply_steps(left, right)


def make(random: random.Random, held_out: bool) -> str:
    """A new prompt from one side of the split."""
    while True:
        shape = random.choice(["add", "add", "subtract", "multiply", "running"])
        top = random.choice([99, 999])
        if shape == "running":
            numbers = tuple(random.randint(1, 20) for _ in range(random.randint(3, 5)))
        elif shape == "multiply":
            numbers = (random.randint(11, 99), random.randint(2, 9))
        else:
            numbers = (random.randint(10, top), random.randint(1, top))
        if is_held_out(numbers) != held_out:
            continue
        if shape == "running":
            return f"Add up {', '.join(map(str, numbers))}."
        if shape == "subtract":
            numbers = (max(numbers), min(numbers))
        sign = {"add": "+", "subtract": "-", "multiply": "*"}[shape]
        return f"What is {numbers[0]} {sign} {numbers[1]}?"


def check(prompt: str, answer: str) -> bool:
    """Whether the last number of an answer is right; the steps are not checked."""
    numbers = re.findall(r"\d+", answer)
    return bool(numbers) and int(numbers[-1]) == int(re.findall(r"\d+", solve(prompt))[-1])
