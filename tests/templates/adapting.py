"""Templates without a model, and conversations that are adapted to them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from schemas.conversation import Conversation, Message, Text, ToolSpec
from services.templates.chat_template import ChatTemplate, TemplateMessage
from services.templates.messages import TemplateInput, adapt
from services.templates.traits import TemplateTraits

IDEAL = TemplateTraits(reasoning="reasoning_content", interleaved="split")


def tokenizer_with(template: str | dict[str, str] | None) -> Any:
    """What a template reads of a tokenizer."""
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return SimpleNamespace(special_tokens=names, chat_template=template)


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
