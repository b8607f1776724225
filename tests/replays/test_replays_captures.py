"""Tests that requests of agents become conversations, and conversations requests of every API,
without loss.

Two implementations that share no code agree here: the frontend (request → Conversation) and the
clients of `replay` (Conversation → request).
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from schemas.conversation import (
    Call,
    Conversation,
    Reasoning,
    Result,
    Text,
    ToolReference,
    ToolSpec,
)
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.parse.body import decode
from services.frontend.apis.responses.request import Responses
from tests.kit.bodies import MESSAGES
from tests.kit.every import Cases
from turnwire_tools.clients import chat, messages, responses
from turnwire_tools.clients.answer import APIS, Api

_PATHS: Mapping[str, Api] = {
    "v1-messages": "messages",
    "v1-responses": "responses",
    "v1-chat-completions": "chat",
}
REQUESTS: list[tuple[Api, Path]] = [
    (api, path)
    for name, api in _PATHS.items()
    for path in sorted((Path(__file__).parent / "requests").glob(f"*-POST-{name}*.json"))
]
Story: TypeAlias = list[tuple[Any, ...]]
PARSERS: Mapping[Api, Callable[[bytes, bool], Conversation]] = {
    "messages": lambda body, counting: (
        (Messages().parse_count(body, {}) if counting else MESSAGES.parse(body)).conversation
    ),
    "responses": lambda body, counting: (
        Responses().convert(decode(body), {}, counting=True).conversation
    ),
    "chat": lambda body, counting: Chat().parse_prompt(body, {}).conversation,
}
WRITERS: Mapping[Api, Callable[[Conversation], bytes]] = {
    "messages": messages.request,
    "responses": responses.request,
    "chat": chat.request,
}


def load(path: Path, api: Api) -> Conversation:
    captured = json.loads(path.read_text())
    body = captured.get("body", captured)
    return PARSERS[api](json.dumps(body, ensure_ascii=False).encode(), "count_tokens" in path.name)


def story_of(conversation: Conversation) -> Story:
    """The parts in order, with their roles; consecutive messages of one role are joined."""
    story: Story = [("system", text.text) for text in conversation.system]
    for message in conversation.messages:
        for part in message.parts:
            match part:
                case Text(text):
                    story.append((message.role, text))
                case Reasoning():
                    story.append(("reasoning", part.text, part.seal))
                case Call():
                    name = part.rendered_name
                    story.append(("call", part.call_id, name, _arguments(part.arguments)))
                case Result():
                    inner = [_inner(one) for one in part.parts]
                    story.append(("result", part.call_id, part.is_error, inner))
                case _:
                    story.append((message.role, part))
    return story


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def _inner(part: Any) -> Any:
    if isinstance(part, ToolReference):
        return ("tool", part.name)
    return part.text if isinstance(part, Text) else part


def form_of(tool: ToolSpec) -> tuple[str, str, Any]:
    return tool.rendered_name, tool.description, tool.schema


def reduced(story: Story, api: Api) -> Story:
    """A story without the content that the API has no fields for."""
    done: Story = []
    for block in story:
        kind = block[0]
        if kind == "result" and api != "messages":
            # Only Messages has errors of tools and tool references.
            loaded = [
                f"Tool {one[1]} was loaded." if isinstance(one, tuple) else one for one in block[3]
            ]
            done.append((*block[:2], None, loaded))
        elif kind == "call" and isinstance(block[3], str) and api == "messages":
            done.append((*block[:3], {"__unparsedToolInput": {"raw": block[3]}}))
        elif kind == "developer" and api == "messages":
            done.append(("system", *block[1:]))
        else:
            done.append(block)
    return done


def test_written_requests_keep_their_content_over_every_api(cases: Cases) -> None:
    assert {api for api, _ in REQUESTS} == {*APIS}
    for api, path in REQUESTS:
        for over in APIS:
            with cases.case(request=path.name, over=over):
                check(load(path, api), over)


def check(conversation: Conversation, over: Api) -> None:
    again = PARSERS[over](WRITERS[over](conversation), True)
    assert story_of(again) == reduced(story_of(conversation), over)
    if over == "responses":
        assert [*map(form_of, again.tools)] == [*map(form_of, conversation.tools)]
    # In Responses, thinking is disabled by an effort of none.
    off = over == "responses" and conversation.thinking.mode == "disabled"
    assert again.thinking.effort == ("none" if off else conversation.thinking.effort)
    for name in ("temperature", "top_p", "stop"):
        assert getattr(again.sampling, name) == getattr(conversation.sampling, name)
