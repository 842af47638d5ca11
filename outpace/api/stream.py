"""A stream of text while it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.api.batch_run import BatchRun, Piece, Result


class Stream(Iterator[str]):
    """Yields pieces of text that never split a character; `result` has what is generated so far."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run
        self._steps = iter(run)

    def __next__(self) -> str:
        for piece in self._steps:
            if piece.text:
                return piece.text
        self.close()
        raise StopIteration

    def pieces(self) -> Iterator[Piece]:
        """One piece per step, with its tokens and how many of them were drafted."""
        yield from self._steps
        self.close()

    @property
    def result(self) -> Result:
        """The result so far; complete once the stream has ended."""
        return self._run.results()[0]

    def close(self) -> None:
        """Stop decoding and release the slots of the session."""
        self._steps.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
