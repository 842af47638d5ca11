"""A lower bound for the number of tokens of a text, to refuse far too long prompts without tokenizing them,
which takes seconds per megabyte."""

from __future__ import annotations

from outpace.serving.http.logprob_formats import TokenBytes

# characters that a tokenizer may leave out of a text: some special tokens take the blanks beside them, and
# some normalizers write one for several
BLANKS = [chr(code) for code in range(0x3001) if chr(code).isspace()]
IN_UTF8 = [byte for byte in range(0xF5) if byte not in (0xC0, 0xC1)]  # the bytes that occur in UTF-8


class LeastTokens:
    """How many tokens a text has at least: its bytes, divided by those of the longest token."""

    def __init__(self, bytes_of: TokenBytes, vocab: int) -> None:
        self._normalizer, self._longest = None, 0  # 0: a token may stand for any number of bytes
        pieces = [bytes_of(token) for token in range(vocab)] if bytes_of.add_up else []
        # a tokenizer without a token for some byte has one unknown token for a text of any length
        if {bytes([byte]) for byte in IN_UTF8} <= set(pieces):
            self._normalizer = bytes_of.tokenizer.backend_tokenizer.normalizer
            self._longest = max(map(len, pieces))

    def exceeds(self, text: str, limit: int) -> int:
        """The bound if it is over `limit`, else 0."""
        if not self._longest or len(text.encode()) <= limit * self._longest:
            return 0
        if self._normalizer is not None:  # it may write fewer bytes, such as é for two characters
            text = self._normalizer.normalize_str(text)
        blank = sum(text.count(each) * len(each.encode()) for each in BLANKS)
        least = -(-(len(text.encode()) - blank) // self._longest)
        return least if least > limit else 0
