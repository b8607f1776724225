"""Images and PDFs over each API, for models without vision: the conversation that the pipeline
gets, and the note in the answer."""

from typing import Any

import pytest

from schemas.conversation import Media, Text
from services.frontend.turns.notice import make_notice
from services.runtime.config import FrontendConfig
from tests.frontend.media.media_apis import APIS, HELLO, RESPONSES, Api
from tests.kit.frontend import serving
from tests.kit.pdf_files import pdf

PLAN = pdf("The code is 4711.")
LOCKED = pdf("x", locked=True)
TEXT = "[page 1]\nThe code is 4711."
NOTED = HELLO + make_notice({"image"})
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)


@each_api
async def test_note_is_sent_once_and_is_not_in_prompts(api: Api) -> None:
    async with serving() as served:

        async def said(*turns: Any, stream: bool) -> str:
            return await api.said(served, api.body(*turns, stream=stream))

        first = [api.image()]
        answer = await said(first, stream=False)
        assert answer == NOTED
        assert await said(first, answer, "And?", stream=True) == HELLO
        # As if there had been no note: the prompt before, the model's own text, the user's.
        before, after = (asked.messages for asked in served.gateway.conversations)
        assert after[:1] == before
        assert [part for turn in after[1:] for part in turn.parts] == [Text(HELLO), Text("And?")]
        # A document of another kind gets a note of its own.
        locked = [api.pdf(LOCKED)]
        noted = HELLO + make_notice({"document"})
        assert await said(first, answer, locked, stream=True) == noted
        (part,) = served.gateway.conversations[-1].messages[-1].parts
        assert isinstance(part, Media)
        assert (part.title, part.problem) == ("plan.pdf", "protected by a password")
        # A PDF with text is its text, in turns and counts.
        asked = api.body([api.pdf(PLAN)])
        assert await api.said(served, asked) == HELLO
        for conversation in (served.gateway.conversations[-1], await api.count(served, asked)):
            assert conversation.messages[0].parts == [Text(f"Title: plan.pdf\n\n{TEXT}")]


async def test_image_that_codex_left_out_is_named_to_the_user() -> None:
    """Codex does not send images to a model with only text in its profile."""
    text = "image content omitted because you do not support image input"
    omitted = {"type": "input_text", "text": text}
    async with serving() as served:
        assert await RESPONSES.said(served, RESPONSES.body([omitted])) == NOTED
        assert served.gateway.conversations[0].messages[0].parts == [Media("image")]


async def test_answer_has_no_note_if_notes_are_off() -> None:
    async with serving(config=FrontendConfig(media_notice=False)) as served:
        for api in APIS:
            assert await api.said(served, api.body([api.image()])) == HELLO
