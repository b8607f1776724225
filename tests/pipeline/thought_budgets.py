"""Budgets of reasoning tokens: conversations that have one, and the check of a random model."""

from itertools import pairwise
from pathlib import Path

from msgspec import structs
from tokenizers import Tokenizer

from schemas.conversation import Conversation, Message, Sampling, Text, Thinking
from tests.clients.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client
from turnwire_tools.clients.answer import APIS

LIMIT = 64
END = 2
"""The tokens before the answer that the parser counts as reasoning: a line break and the closing
tag."""
BUDGETS = {"effort_budgets": f"low={LIMIT}"}
"""Options of a preprocessor."""


def asking(text: str, *earlier: Message, model: str) -> Conversation:
    """A conversation with a budget of `LIMIT`."""
    return Conversation(
        model,
        [*earlier, Message("user", [Text(text)])],
        thinking=Thinking("adaptive", effort="low"),
        sampling=Sampling(max_tokens=4000),
    )


def end_of_thought(model: Path) -> int:
    """The token that ends a thought."""
    end = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("</think>")
    assert end is not None
    return int(end)


async def check_random_model(
    client: Client, nats_url: str, name: str, directory: Path, mark: str = ""
) -> None:
    """A random model would think to the end of its tokens. On every API its thought ends with the
    budget, an answer follows, and the next prompt begins with all tokens of the turn."""
    end = end_of_thought(directory)
    for api in APIS:
        messages: list[Message] = []
        async with BusTurns(nats_url) as bus:
            for stream in (False, True, False, True):
                conversation = asking(f"{mark}Say something, by {api}.", *messages, model=name)
                sampling = Sampling(max_tokens=160, temperature=0.0)
                conversation = structs.replace(conversation, sampling=sampling)
                answer = await client.converse(api, conversation, stream=stream)
                assert [block.kind for block in answer.blocks] == ["reasoning", "text"]
                messages = [*conversation.messages, Message("assistant", answer.parts)]
            turns = [await bus.ended(turn.id) for turn in await bus.begun(4)]
        assert [turn.output.index(end) + 1 for turn in turns] == [LIMIT + END] * 4
        assert [prefix_break(*pair) for pair in pairwise(turns)] == [None] * 3
