"""The form in which answers of two runs are compared: what may differ is left out, and nothing
else."""

from typing import Any

import pytest

from simulation.canonical import canonical


def delta(text: str, index: int = 0) -> tuple[str, Any]:
    return "content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": text}}


def chunk(text: str, id: str = "chatcmpl-1") -> tuple[str, Any]:
    return "", {"id": id, "created": 1, "choices": [{"index": 0, "delta": {"content": text}}]}


def usage(**tokens: int) -> list[tuple[str, Any]]:
    return [("message_delta", {"usage": tokens})]


@pytest.mark.parametrize("piece", [delta, chunk], ids=("messages", "chat"))
def test_pieces_of_a_text_are_joined(piece: Any) -> None:
    assert canonical([piece("a"), piece("b"), ("ping", {}), piece("c")]) == canonical(
        [piece("ab"), piece("c")]
    )
    assert canonical([piece("a"), piece("a")]) == canonical([piece("aa")])


@pytest.mark.parametrize("piece", [delta, chunk], ids=("messages", "chat"))
def test_doubled_lost_and_swapped_pieces_differ(piece: Any) -> None:
    whole = canonical([piece("a"), piece("b"), piece("c")])
    for texts in ("abbc", "ac", "acb"):
        assert canonical([*map(piece, texts)]) != whole


def test_ids_are_compared_by_where_they_return() -> None:
    def call(first: str, second: str) -> list[tuple[str, Any]]:
        return [("added", {"item": {"id": first}}), ("done", {"item_id": second})]

    assert canonical(call("a", "a")) == canonical(call("b", "b")) != canonical(call("a", "b"))


def test_tokens_of_a_prompt_are_compared_whether_cached_or_not() -> None:
    without = usage(input_tokens=9, cache_read_input_tokens=0, output_tokens=2)
    assert canonical(without) == canonical(
        usage(input_tokens=1, cache_read_input_tokens=8, output_tokens=2)
    )
    assert canonical(without) != canonical(
        usage(input_tokens=2, cache_read_input_tokens=8, output_tokens=2)
    )
    assert canonical(without) != canonical(
        usage(input_tokens=9, cache_read_input_tokens=0, output_tokens=3)
    )


def test_only_the_presence_of_a_seal_is_compared() -> None:
    sealed, other, none = ([("item", {"encrypted_content": seal})] for seal in ("x", "y", ""))
    assert canonical(sealed) == canonical(other) != canonical(none)


def choice(index: int, text: str, *tokens: str) -> tuple[str, Any]:
    logprobs = {"content": [{"token": token} for token in tokens]} if tokens else None
    delta = {"index": index, "delta": {"content": text}, "logprobs": logprobs}
    return "", {"object": "chat.completion.chunk", "choices": [delta]}


def test_choices_are_compared_whatever_their_order() -> None:
    together = canonical([choice(0, "ab"), choice(1, "xy")])
    assert canonical([choice(1, "x"), choice(0, "a"), choice(1, "y"), choice(0, "b")]) == together
    assert canonical([choice(0, "xy"), choice(1, "ab")]) != together
