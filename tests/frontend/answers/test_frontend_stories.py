"""Tests the bytes of every story's stream and document, and that they fit the SDKs and schemas.

A test goes through the stories of `tests/kit/stories.py`, each told by its own API.
"""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from tests.kit.answers import check_document, dispatches, frames
from tests.kit.bodies import CHAT, MESSAGES, RESPONSES, Api
from tests.kit.every import Cases
from tests.kit.telling import Telling, own
from turnwire_tools.clients.shared import IllFormed

OWN = own()
FINISHED = [telling for telling in OWN if not telling.story.failed]
UNREAD = ("chat two_choices", "responses built_in_tools")
"""Stories with several choices, or with calls of built-in tools. The clients of `turnwire_tools`
read neither."""


def test_streams_and_documents_are_the_expected_bytes(cases: Cases) -> None:
    files = set()
    for telling in OWN:
        with cases.case(telling.name):
            assert telling.stream() == telling.file.read_bytes()
            files.add(telling.file)
            wanted = telling.file.with_suffix(".json")
            if telling.story.failed:
                assert not wanted.exists()
            else:
                assert json.loads(telling.document()) == json.loads(wanted.read_text())
                files.add(wanted)
    folder = OWN[0].file.parents[1]
    assert files == set(folder.rglob("*.*"))


def test_stream_has_the_content_of_the_document(cases: Cases) -> None:
    for telling in FINISHED:
        whole = json.loads(telling.document())
        for name, batches in (("event by event", None), ("in its batches", telling.batches)):
            unread = pytest.raises(IllFormed) if telling.name in UNREAD else nullcontext()
            with cases.case(telling.name, name), unread:
                check_document(telling.api.name, telling.stream(batches), whole)


def test_events_and_documents_fit_the_sdks_strict_types(cases: Cases) -> None:
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    types: dict[Api, tuple[TypeAdapter[Any], Any]] = {
        MESSAGES: (TypeAdapter(RawMessageStreamEvent), Message),
        CHAT: (TypeAdapter(ChatCompletionChunk), ChatCompletion),
        RESPONSES: (TypeAdapter(ResponseStreamEvent), Response),
    }
    for telling in OWN:
        event_type, document_type = types[telling.api]
        with cases.case(telling.name):
            if not telling.story.failed:
                document_type.model_validate_json(telling.document())
            for name, data in frames(telling.stream()):
                if is_known_to_the_sdk(telling, name, data):
                    event_type.validate_python(data, strict=False)


def is_known_to_the_sdk(telling: Telling, name: str, data: Any) -> bool:
    """Whether an event has a type in the SDK: a dispatch has none, nor have `error` of Messages
    and Chat, pings, and pieces of freeform calls of Chat, which are native."""
    if data == "[DONE]" or name.endswith("_dispatch"):
        return False
    if telling.api is RESPONSES:
        return True
    is_freeform = "freeform" in telling.story.name
    return not is_freeform and name not in ("error", "ping") and "error" not in data


def test_dispatch_is_sent_only_if_requested(cases: Cases) -> None:
    for telling in OWN:
        with cases.case(telling.name):
            assert dispatches(telling.silent().stream()) == []
