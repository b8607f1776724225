"""Finds the tokens that llama-server leaves out of a stream. Pure.

It sends a token once the text ends with a whole character, and then the last token only, with the
text of all (`process_token` and `send_partial_response` in `tools/server/server-context.cpp` of
llama.cpp b11434). The text and the number of tokens nearly always have one reading: of 214,502
characters that DeepSeek's tokenizer cuts, 282 have two, and none of those is an emoji or Chinese.
"""

from collections import defaultdict
from collections.abc import Iterator

from services.tokenization.detokenizer import Vocabulary
from services.worker.engines.remote.dialect import BadAnswer

_REPLACED = "\ufffd"
"""Stands in JSON for bytes that are not a character."""
_CONTINUES = 0b10
"""The first two bits of a byte inside a character."""


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

        Raises BadAnswer where this does not say which tokens they are.
        """
        data = text.encode("utf-8", "surrogatepass")
        end = self._vocabulary.bytes_of(last)
        readings: list[list[int]] = []
        if _REPLACED not in text and end and data.endswith(end):
            for reading in self._readings(data, len(data) - len(end), 0, count):
                readings.append(reading)
                if len(readings) > 1:
                    break
        if len(readings) != 1:
            how = "several" if readings else "no"
            raise BadAnswer(
                f"{count} tokens inside a character are not sent, and its text has {how} readings"
            )
        return readings[0]

    def _readings(self, data: bytes, end: int, start: int, count: int) -> Iterator[list[int]]:
        """Yields the ways to cut the bytes from `start` to `end` into `count` tokens, each of which
        ends inside a character."""
        if count == 0:
            if start == end:
                yield []
            return
        for cut in range(start + 1, min(start + self._longest, end) + 1):
            if data[cut] >> 6 != _CONTINUES:
                continue
            for token in self._tokens.get(data[start:cut], ()):
                for rest in self._readings(data, end, cut, count - 1):
                    yield [token, *rest]
