"""Streaming of one request: an iterator over text as it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from outpace.api.decoding import Decoding
from outpace.api.row_output import Piece, Result


class Stream(Iterator[str]):
    """Iterator over the generated text in pieces of whole characters; `result` is the result so far."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._steps = iter(decoding)
        self._is_closed = False
        self._stepping = Lock()  # held during a step

    def __next__(self) -> str:
        while (piece := self._next()) is not None:
            if piece.text:
                return piece.text
        raise StopIteration

    def pieces(self) -> Iterator[Piece]:
        """Iterate over one `Piece` per step: text, tokens and number of accepted draft tokens."""
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self.close()

    @property
    def result(self) -> Result:
        """The result with the tokens generated so far; complete once the iterator is exhausted."""
        return self._decoding.result(0)

    def close(self) -> None:
        """Stop decoding and release the session's slots. May be called while a step runs, by another thread
        or by the `on_piece` callback: then decoding stops at the end of that step."""
        self._is_closed = True
        if self._stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._stepping.release()

    def _next(self) -> Piece | None:
        """The next piece; None at the end."""
        with self._stepping:
            piece = None if self._is_closed else next(self._steps, None)
        if piece is None or self._is_closed:
            self.close()  # `close` was called during the step, which it does not interrupt
            return None
        return piece

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
