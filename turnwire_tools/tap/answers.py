"""Compares answers of the model with the histories that clients send back. Pure."""

from collections.abc import Sequence
from itertools import groupby

from schemas.conversation import Message, Part
from services.ledger.chain import text_and_calls
from services.ledger.keys import squeeze


def content_of(parts: Sequence[Part]) -> tuple[str, list[tuple[str, str]]]:
    """What is the same of an answer in whatever form its client sends it back: its text without white space, and its
    calls by name and value."""
    text, calls = text_and_calls(parts)
    return squeeze(text), sorted(calls)


def answers_in(turns: Sequence[Message]) -> list[list[Part]]:
    """The answers of the model in a history: the parts of each run of its turns."""
    runs = groupby(turns, key=lambda turn: turn.role == "assistant")
    return [[part for turn in run for part in turn.parts] for is_answer, run in runs if is_answer]
