"""Names for tool calls, derived from the turn: whoever parses the same tokens again gives the same name."""

import hashlib

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LENGTH = 24


def call_id(turn: str, block: int) -> str:
    """An id such as `toolu_…` for the call in a block of a turn: 140 bits, unique over all turns.

    The prefix and length are Anthropic's; no client of any of the three APIs looks at them (apis.md F.1).
    """
    number = int.from_bytes(hashlib.blake2b(f"{turn}/{block}".encode(), digest_size=24).digest())
    characters = []
    for _ in range(_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return "toolu_" + "".join(characters)
