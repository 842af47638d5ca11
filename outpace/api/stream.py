"""Streaming of one request: an iterator over text as it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.api.row_output import Piece, Result
from outpace.api.run import Run


class Stream(Iterator[str]):
    """Iterator over the generated text in pieces of whole characters; `result` is the result so far."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = iter(run)

    def __next__(self) -> str:
        for piece in self._steps:
            if piece.text:
                return piece.text
        self.close()
        raise StopIteration

    def pieces(self) -> Iterator[Piece]:
        """Iterate over one `Piece` per step: text, tokens and number of accepted draft tokens."""
        yield from self._steps
        self.close()

    @property
    def result(self) -> Result:
        """The result with the tokens generated so far; complete once the iterator is exhausted."""
        return self._run.result(0)

    def close(self) -> None:
        """Stop decoding and release the session's slots."""
        self._steps.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
