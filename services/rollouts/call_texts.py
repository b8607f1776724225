"""The texts in a call's arguments, by which the agent that it starts is found. Pure."""

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from schemas.conversation import Call
from services.ledger.turns.keys import squeeze


class CallTexts(Struct, frozen=True):
    """A call with keys of its texts."""

    call: Call
    keys: frozenset[int]

    @classmethod
    def of(cls, call: Call) -> "CallTexts":
        """Reads a call's arguments."""
        texts = map(squeeze, texts_in(call.arguments))
        return cls(call, frozenset(text_key(text) for text in texts if text))


def text_key(text: str) -> int:
    """A number that is equal for equal texts without white space."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def texts_in(arguments: str) -> list[str]:
    """The strings in a call's arguments, at any depth; of text that is not JSON, or is nested too
    deep, the whole."""
    try:
        waiting = [msgspec.json.decode(arguments)]
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return [arguments]
    texts: list[str] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return texts
