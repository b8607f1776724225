"""What a chat template takes and does, as far as it decides the form in which a conversation is given to it.

`probe` finds these out by rendering small conversations at load; names of models play no part. The findings behind
each trait, over 78 published templates, are told field by field.
"""

from typing import Any, Literal, Protocol

from msgspec import Struct

from services.preprocessor.template import Message, Tool


class Renderer(Protocol):
    """What probing and adapting need of a template: `ChatTemplate.render`."""

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[Tool] = ...,
        variables: dict[str, Any] | None = ...,
        generation: bool = ...,
    ) -> str:
        """The prompt text. Raises Invalid."""
        ...


class TemplateTraits(Struct, frozen=True, kw_only=True):
    """The form that one template wants. The defaults are those of an ideal template."""

    ordered: bool = False
    """An assistant's content may be a list of reasoning, text and tool_call parts in order (our own templates)."""
    content: Literal["text", "parts"] = "text"
    """Whether text is given as a string or as one text part (some vision templates know nothing else)."""
    system: Literal["anywhere", "first", "none"] = "anywhere"
    """Where a system message is rendered in its place. Others than the first one raise in Qwen3.5 to 3.8, vanish in
    MiniMax, move to the front in DeepSeek; Gemma 1 and 2 refuse any."""
    adjacent_users: bool = True
    """Two user messages may follow each other (not in Gemma 1 to 3, Mistral)."""
    user_after_tool: bool = True
    """A user message may follow a tool's result (not in Mistral)."""
    reasoning: Literal["reasoning_content", "reasoning", "thinking", "part"] | None = None
    """The field in which reasoning is read; `part`: a content part of type thinking; None: never."""
    own_tags: tuple[str, str] | None = None
    """Where no field is read: what goes before and behind reasoning in the content of a turn that calls tools; None:
    it is left out."""
    arguments: Literal["object", "string"] | None = "object"
    """How arguments are given: 34 templates raise on a string, 13 encode it twice, DeepSeek R1 and V3.1 want nothing
    else; None: calls are never rendered, so they are written into the text."""
    tool_role: bool = True
    """Whether messages of role tool are rendered; else results are user messages."""
    tool_name: bool = True
    """Results carry the tool's name; not where that changes what is shown (Kimi K2 takes it for the role)."""
    call_ids: Literal["given", "short", "counted"] = "given"
    """Ids as they came, or by position, since the template prints them: nine digits (older Mistrals raise at others)
    or `functions.NAME:N` (Kimi K2)."""
    parallel: bool = True
    """Several calls in one message are rendered (Llama 3.1 raises, gpt-oss drops all but the first)."""
    text_with_call: bool = True
    """Text beside a call is rendered (Llama 3, Hermes and Cohere drop it)."""
    all_with_call: bool = True
    """Reasoning and text beside a call are both rendered (gpt-oss raises)."""
    all_before_call: bool = True
    """Reasoning and text in a message of their own before the call's are both rendered (not by gpt-oss)."""
    interleaved: Literal["inline", "split", "drop"] = "drop"
    """What becomes of a turn that its fields cannot express, such as reasoning, call, reasoning, call: written into
    the content in the template's own marks; split into several assistant messages; or, where neither is shown, sorted
    into the fields with the later reasoning left out."""
    inline_reasoning: bool = False
    """Reasoning written into the content in the template's own marks survives; else later reasoning is left out."""
    inline_tail: bool = False
    """After inline content the last calls may stand in `tool_calls`, with the same text as a result."""
    frame: tuple[str, str] = ("", "")
    """What stands before and after an assistant's text in the small conversation from which calls are cut out."""
    marks: tuple[str, str, str] = ("", "", "")
    """What stands before reasoning, between it and text, and between it and a call."""
    text_join: str = "\n"
    """White space between text and a call."""
    call_join: str = "\n"
    """White space between two calls."""
    closing: str = ""
    """The text that ends an assistant's turn."""
    tools: bool = True
    """The tool list is rendered."""
    variables: frozenset[str] = frozenset()
    """Every name that the template reads from outside."""
    switches: tuple[str, ...] = ()
    """Boolean variables by which thinking is turned on and off, and which the template lets be False."""
    efforts: dict[str, tuple[str, ...]] = {}
    """Variables that take a level of effort, and the levels that the template knows, least first."""
