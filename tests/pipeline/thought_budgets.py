"""Budgets of reasoning tokens: the check of a random model, which would think to the end."""

from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from schemas.conversation import Conversation, Message, Sampling, Text, Thinking
from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client
from turnwire_tools.clients.answer import APIS

LIMIT = 64
END = 2
"""The tokens before the answer that the parser counts as reasoning: a line break and the closing
tag."""
BUDGETS = {"effort_budgets": f"low={LIMIT}"}
"""Options of a preprocessor."""


async def check_random_model(
    client: Client, nats_url: str, name: str, directory: Path, mark: str = ""
) -> None:
    """On every API its thought ends with the budget, an answer follows, and the next prompt begins
    with all tokens of the turn."""
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("</think>")
    assert end is not None
    for api in APIS:
        messages: list[Message] = []
        async with BusTurns(nats_url) as bus:
            for stream in (False, True, False, True):
                question = Message("user", [Text(f"{mark}Say something, by {api}.")])
                conversation = Conversation(
                    name,
                    [*messages, question],
                    thinking=Thinking("adaptive", effort="low"),
                    sampling=Sampling(max_tokens=160, temperature=0.0),
                )
                answer = await client.converse(api, conversation, stream=stream)
                assert [block.kind for block in answer.blocks] == ["reasoning", "text"]
                messages = [*conversation.messages, Message("assistant", answer.parts)]
            turns = [await bus.ended(turn.id) for turn in await bus.begun(4)]
        assert [turn.output.index(end) + 1 for turn in turns] == [LIMIT + END] * 4
        assert [prefix_break(*pair) for pair in pairwise(turns)] == [None] * 3
