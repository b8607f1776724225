"""Templates without a model, and conversations that are adapted to them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from schemas.conversation import Call, Conversation, Message, Result, Text, ToolSpec
from services.templates.chat_template import ChatTemplate, TemplateMessage
from services.templates.messages import TemplateInput, adapt
from services.templates.traits import TemplateTraits
from tests.kit.conversations import assistant, user

__all__ = [
    "adapted",
    "assistant",
    "call",
    "result",
    "template_messages",
    "template_of",
    "tokenizer_with",
    "user",
]

IDEAL = TemplateTraits(reasoning="reasoning_content", interleaved="split")


def tokenizer_with(template: str | dict[str, str] | None) -> Any:
    """What a template reads of a tokenizer."""
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return SimpleNamespace(special_tokens_map=names, chat_template=template)


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(tokenizer_with(source), source)


class NoTemplate(ChatTemplate):
    """Writes only calls: adapting renders nothing else, for turns that must be written into the
    content."""

    def __init__(self) -> None:
        pass

    def render(self, messages: Sequence[TemplateMessage], **_: Any) -> str:
        calls = messages[-1]["tool_calls"]
        written = "".join(f"<{call['function']['name']}>" for call in calls)
        return f"[user][assistant]{written}[end]"


def adapted(
    *messages: Message,
    traits: TemplateTraits = IDEAL,
    system: list[str] | None = None,
    tools: list[ToolSpec] | None = None,
) -> TemplateInput:
    conversation = Conversation(
        "m", list(messages), system=[Text(text) for text in system or []], tools=tools or []
    )
    return adapt(conversation, traits, NoTemplate(), unseal={"sealed": "unsealed thought"}.get)


def template_messages(*messages: Message, **how: Any) -> list[TemplateMessage]:
    return adapted(*messages, **how).messages


def call(name: str = "Bash", arguments: str = '{"command": "ls"}', call_id: str = "c1") -> Call:
    return Call(call_id, name, arguments)


def result(text: str = "ok", call_id: str = "c1", *, is_error: bool | None = None) -> Message:
    return Message("tool", [Result(call_id, [Text(text)], is_error)])
