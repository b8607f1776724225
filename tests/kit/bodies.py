"""Request bodies of the four APIs, and what the frontend reads in them.

`messages()`, `chat()`, `completions()` and `responses()` make the smallest request of their API,
with any history and further fields. `MESSAGES.read(...)`, for example, parses one to its
conversation, and `MESSAGES.refusal(...)` returns the error of one that is refused.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from schemas.conversation import Conversation
from schemas.errors import ErrorInfo, Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.request import Responses

Json: TypeAlias = dict[str, Any]

MODEL = "acme/served-model"
"""The model of every request, which `FakeGateway` serves."""
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
PNG = "iVBORw0KGgo="
"""The first bytes of an image, in base64."""


def block(type: str, /, **fields: Any) -> Json:
    """A content block, part, item or tool of this type."""
    return {"type": type, **fields}


def text(said: Any, **fields: Any) -> Json:
    """A content block of text."""
    return {"type": "text", "text": said, **fields}


def message(role: str, *content: Any, **fields: Any) -> Json:
    """A message with a text, or with blocks."""
    plain = len(content) == 1 and not isinstance(content[0], dict)
    return {"role": role, "content": content[0] if plain else [*content], **fields}


def user(*content: Any, **fields: Any) -> Json:
    """A message of the user."""
    return message("user", *content, **fields)


def assistant(*content: Any, **fields: Any) -> Json:
    """A message of the assistant."""
    return message("assistant", *content, **fields)


USER = user("Hi.")


def messages(*history: Any, **fields: Any) -> Json:
    """A Messages request with these messages, or with one of the user."""
    base = {"model": MODEL, "max_tokens": 4096, "messages": [*history] or [USER]}
    return base | fields


def chat(*history: Any, **fields: Any) -> Json:
    """A Chat Completions request with these messages, or with one of the user."""
    return {"model": MODEL, "messages": [*history] or [USER]} | fields


def completions(**fields: Any) -> Json:
    """A Completions request."""
    return {"model": MODEL, "prompt": "Once"} | fields


def responses(*items: Any, **fields: Any) -> Json:
    """A Responses request with these items, or with a text."""
    return {"model": MODEL, "input": [*items] or "Hi."} | fields


def tool(name: str = "look", **fields: Any) -> Json:
    """A tool of Messages."""
    return {"name": name, "input_schema": SCHEMA} | fields


def chat_tool(name: str = "look", **fields: Any) -> Json:
    """A function of Chat Completions."""
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA} | fields}


def function(name: str = "look", **fields: Any) -> Json:
    """A function of Responses."""
    return {"type": "function", "name": name, "parameters": SCHEMA, "strict": False} | fields


def tool_use(id: str = "toolu_1", name: str = "look", **fields: Any) -> Json:
    """A call of Messages."""
    return {"type": "tool_use", "id": id, "name": name, "input": {}} | fields


def tool_result(id: str = "toolu_1", content: Any = "seen", **fields: Any) -> Json:
    """A result of Messages."""
    return {"type": "tool_result", "tool_use_id": id, "content": content} | fields


def chat_call(id: str = "call_1", name: str = "look", arguments: Any = "{}") -> Json:
    """A call of Chat Completions."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_result(id: str = "call_1", content: Any = "seen") -> Json:
    """A result of Chat Completions."""
    return {"role": "tool", "tool_call_id": id, "content": content}


def function_call(call_id: Any = "call_1", name: str = "look", **fields: Any) -> Json:
    """A call of Responses."""
    base = {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}
    return base | fields


def function_output(call_id: str = "call_1", output: Any = "seen", **fields: Any) -> Json:
    """A result of Responses."""
    return {"type": "function_call_output", "call_id": call_id, "output": output} | fields


Reader: TypeAlias = Messages | Chat | Completions | Responses


def parsed(reader: Reader, body: Json | bytes, headers: Mapping[str, str] | None = None) -> Any:
    """The request with this body, parsed without a store. Raises Invalid."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = headers or {}
    match reader:
        case Messages():
            return reader.convert(reader.decode(data, headers), headers)
        case Responses():
            return reader.convert(reader.decode(data), headers)
        case Chat() | Completions():
            return reader.parse(data, headers)


@dataclass(frozen=True)
class Api:
    """One API."""

    name: str
    path: str
    body: Callable[..., Json]
    """Makes a request."""
    tool: Callable[..., Json]
    """Makes a tool of a request."""
    make_reader: Callable[[], Reader]

    def parse(self, body: Json | bytes, headers: Mapping[str, str] | None = None) -> Any:
        """Parses a request, as the routes of the API do."""
        return parsed(self.make_reader(), body, headers)

    def ask(self, *history: Any, **fields: Any) -> Any:
        """The parsed request with this history and these fields."""
        return self.parse(self.body(*history, **fields))

    def read(self, *history: Any, **fields: Any) -> Conversation:
        """The conversation of the request with this history and these fields."""
        conversation: Conversation = self.ask(*history, **fields).conversations[0]
        return conversation

    def refused(self, body: Json | bytes) -> ErrorInfo:
        """The error of a request that is refused."""
        with pytest.raises(Invalid) as caught:
            self.parse(body)
        return caught.value.info

    def refusal(self, *history: Any, **fields: Any) -> ErrorInfo:
        """The error of the request with this history and these fields."""
        return self.refused(self.body(*history, **fields))


MESSAGES = Api("messages", "/v1/messages", messages, tool, Messages)
CHAT = Api("chat", "/v1/chat/completions", chat, chat_tool, lambda: Chat(ChatSettings()))
COMPLETIONS = Api("completions", "/v1/completions", completions, tool, Completions)
RESPONSES = Api("responses", "/v1/responses", responses, function, Responses)
APIS = (MESSAGES, CHAT, COMPLETIONS, RESPONSES)
CONVERSING = (MESSAGES, CHAT, RESPONSES)
"""The APIs that have conversations and tools."""
