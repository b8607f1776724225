"""Finds the tokens that llama-server leaves out of a stream. Pure.

It sends a token once the text ends with a whole character, and then the last token only, with the
text of all (`process_token` and `send_partial_response` in `tools/server/server-context.cpp` of
llama.cpp b11434). The text and the number of tokens nearly always have one reading: of 214,502
characters that DeepSeek's tokenizer cuts, 282 have two, and none of those is an emoji or Chinese.
"""

from collections import defaultdict
from collections.abc import Iterator

from services.tokenization.detokenizer import Vocabulary
from services.worker.engines.remote.event_reader import BadAnswer

_REPLACED = "\ufffd"
"""Stands in JSON for bytes that are not a character."""
_CONTINUES = 0b10
"""The first two bits of a byte inside a character."""
_MOST_BYTES = 512
"""No model writes a longer text without one token that ends with a character."""

_Piece = tuple[int, int, list[int]]
"""(start, end, the tokens with these bytes)."""


class UnsentTokens:
    """The tokens of a model that end or begin inside a character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens: dict[bytes, list[int]] = defaultdict(list)
        for token, data in vocabulary.parts.items():
            self._tokens[data].append(token)
        self._longest = max(map(len, self._tokens), default=0)

    def find(self, text: str, last: int, count: int) -> list[int]:
        """Returns the `count` tokens before the token `last`, with which they make up `text`.

        Raises BadAnswer where this does not determine the tokens.
        """
        data = text.encode("utf-8", "surrogatepass")
        end = self._vocabulary.bytes_of(last)
        length = len(data) - len(end)
        is_whole = _REPLACED not in text and len(data) <= _MOST_BYTES
        if not (is_whole and end and data.endswith(end) and 0 <= count <= length):
            raise _unclear(count, "no reading")
        return self._read(list(self._pieces(data, length)), length, count)

    def _pieces(self, data: bytes, length: int) -> Iterator[_Piece]:
        """Yields the pieces of the first `length` bytes that are tokens and end inside a character,
        ordered by their ends."""
        for end in range(1, length + 1):
            if data[end] >> 6 == _CONTINUES:
                for start in range(max(0, end - self._longest), end):
                    tokens = self._tokens.get(data[start:end])
                    if tokens is not None:
                        yield start, end, tokens

    def _read(self, pieces: list[_Piece], length: int, count: int) -> list[int]:
        """Returns the only reading of `length` bytes as `count` of these tokens. Raises BadAnswer
        if there is none, or are several.

        Readings are counted, not listed: with each byte there can be twice as many. Numbers of
        tokens are bits, so that one step handles all of them.
        """
        some = [1] + [0] * length
        """For each end, the numbers of tokens that some reading up to there has."""
        several = [0] * (length + 1)
        """The numbers that more than one reading has."""
        for start, end, tokens in pieces:
            longer = some[start] << 1
            again = longer if len(tokens) > 1 else some[end] & longer
            several[end] |= several[start] << 1 | again
            some[end] |= longer
        if not some[length] >> count & 1:
            raise _unclear(count, "no reading")
        if several[length] >> count & 1:
            raise _unclear(count, "several readings")

        reading = list[int]()
        for start, end, tokens in reversed(pieces):
            left = count - len(reading)
            if end == length and some[start] >> (left - 1) & 1:
                reading.append(tokens[0])
                length = start
        return reading[::-1]


def _unclear(count: int, how: str) -> BadAnswer:
    return BadAnswer(f"{count} tokens inside a character are not sent, and its text has {how}")
