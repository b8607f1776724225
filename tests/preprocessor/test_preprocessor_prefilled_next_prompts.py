"""The certain prefix of the next prompt, and the turns after which it is prefilled."""

from array import array
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import Call, Conversation, Hints, Part, Reasoning, Result, Text
from schemas.events import PromptImage
from schemas.ledger import LedgerContext, LedgerEntry
from schemas.requests import TurnRequest
from services.ledger.turn_ledger import Ledger
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prefilled_next_prompts import (
    REPLIES,
    PrefilledNextPrompts,
    certain_prefix,
    with_reply,
)
from tests.kit.conversations import user
from tests.kit.process import FakeProcess

QUESTION = Conversation("m", [user("What?")])


def spell(conversation: Conversation) -> list[int]:
    """A template that shows everything, one id a character."""
    shown = ""
    for message in conversation.messages:
        shown += f"<{message.role}>"
        for part in message.parts:
            if isinstance(part, Result):
                texts = [inner.text for inner in part.parts if isinstance(inner, Text)]
                shown += f"[{part.name}]{''.join(texts)}/"
            elif isinstance(part, Call):
                shown += part.name
            elif isinstance(part, Text | Reasoning):
                shown += part.text or ""
    return [ord(c) for c in shown + "<assistant>"]


def prefix(*answer: Part) -> str:
    prompt, other = (array("I", spell(with_reply(QUESTION, answer, reply))) for reply in REPLIES)
    return "".join(map(chr, certain_prefix(prompt, [], other)[0]))


def test_answer_is_followed_by_a_user_message_and_calls_by_their_results() -> None:
    assert prefix(Text("That.")) == "<user>What?<assistant>That.<user>"
    answer = prefix(Reasoning("hm"), Call("1", "ls", "{}"), Call("2", "pwd", "{}"))
    assert answer == "<user>What?<assistant>hmlspwd<tool>[ls]"


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(0, 60),
    st.lists(st.integers(4, 7), max_size=9),
)
def test_prefix_is_what_both_prompts_share(common: list[int], cut: int, other: list[int]) -> None:
    prompt = array("I", [*common, *other])
    longer = array("I", [*common[:cut], 9, *common[cut:]])
    images = [PromptImage("a" * 40, at, 2) for at in range(0, len(common) + len(other) - 1, 2)]
    found, inside = certain_prefix(prompt, images, longer)
    expected = common[:cut] if cut <= len(common) else common
    assert list(found) == expected
    assert inside == [image for image in images if image.at + 2 <= len(found)]


async def test_no_prompt_is_prefilled_after_a_turn_that_workers_refused(setup: ModelSetup) -> None:
    process: Any = FakeProcess()
    kv: Any = SimpleNamespace(follow=lambda: None)
    other: Any = SimpleNamespace(setup=setup)
    ledger = LedgerReader(Ledger(setup.encoder))
    prompts = PrefilledNextPrompts(process, other, kv, other, ledger)
    context = LedgerContext(b"state", 9, b"head")

    hints = Hints(speculative_prefill=True)
    request = TurnRequest("t", "f", Conversation("m", [], hints=hints))
    no_tools = SimpleNamespace(tools=[])
    turn: Any = SimpleNamespace(request=request, ledger=context, prompt=no_tools)

    def prefills() -> int:
        """The prefills that the end of a turn with this prompt starts."""
        prompts.ended(LedgerEntry("m", b"key", context, b""))
        started = len(process.tasks)
        for task in process.tasks:
            task.cancel()
        process.tasks.clear()
        return started

    prompts.note_turn(turn, "w")
    assert prefills() == 1
    prompts.note_turn(turn, "w")
    prompts.forget_turn(turn)
    assert prefills() == 0
