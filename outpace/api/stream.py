"""Text while it is being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from outpace.api.run import Piece, Result, Run


class Stream(Iterator[str]):
    """Pieces of text that never split a character; stop whenever you like, `result` keeps what there is."""

    def __init__(self, run: Run, stack: ExitStack) -> None:
        self._run, self._stack = run, stack
        self._steps = iter(run)

    def __next__(self) -> str:
        for piece in self._steps:
            if piece.text:
                return piece.text
        self.close()
        raise StopIteration

    def pieces(self) -> Iterator[Piece]:
        """The same, step by step, with tokens and how many of them were drafted."""
        yield from self._steps
        self.close()

    @property
    def result(self) -> Result:
        """What has been decoded so far; complete once the stream has ended."""
        return self._run.results()[0]

    def close(self) -> None:
        """Decode no further, give a transformers model back as it was."""
        self._steps.close()
        self._stack.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
