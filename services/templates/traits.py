"""The form in which a chat template reads a conversation.

`probe` finds it by rendering small conversations at load; model names play no part. The notes on
each trait come from 78 published templates.
"""

from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace


class ThoughtSeparators(NamedTuple):
    """The text around reasoning."""

    opening: str = ""
    """Before reasoning."""
    before_text: str = ""
    """Between reasoning and text."""
    before_call: str = ""
    """Between reasoning and a call."""


class CallForm(Struct, frozen=True, kw_only=True):
    """The form in which a template reads calls."""

    arguments: Literal["object", "string"] | None = "object"
    """The type of a call's arguments: 34 templates raise on a string, 13 encode it twice, DeepSeek
    R1 and V3.1 accept nothing else; None: calls are never rendered, so they are written into the
    text."""
    ids: Literal["client", "short", "counted"] = "client"
    """The client's ids, or ids by position, since the template prints them: nine digits (older
    Mistrals raise at others) or `functions.NAME:N` (Kimi K2)."""
    parallel: bool = True
    """Several calls in one message are rendered (Llama 3.1 raises, gpt-oss drops all but the
    first)."""
    with_text: bool = True
    """Text beside a call is rendered (Llama 3, Hermes and Cohere drop it)."""
    with_all: bool = True
    """Reasoning and text beside a call are both rendered (gpt-oss raises)."""
    after_all: bool = True
    """Reasoning and text in a message of their own before the call's are both rendered (not by
    gpt-oss)."""


class InlineForm(Struct, frozen=True, kw_only=True):
    """The form of content in the template's own markup: reasoning and calls within the text."""

    reasoning: bool = False
    """Reasoning is rendered; else later reasoning is left out."""
    tail: bool = False
    """The last calls may be in `tool_calls`, and are rendered to the same text."""
    text_end: bool = True
    """A turn that calls and ends in text may be inline; else it is sorted into the fields. MiniMax
    M2 and M3 raise where the message before a result has no `tool_calls`; Ministral 3 counts such a
    message as an answer."""
    frame: tuple[str, str] = ("", "")
    """The text before and after an assistant's text in the small conversation from which calls are
    cut out."""
    separators: ThoughtSeparators = ThoughtSeparators()
    """The text around reasoning."""
    text_join: str = "\n"
    """White space between text and a call."""
    call_join: str = "\n"
    """White space between two calls."""


class TemplateInputs(Struct, frozen=True, kw_only=True):
    """The inputs that a template reads besides messages."""

    tools: bool = True
    """The tool list is rendered."""
    variables: frozenset[str] = frozenset()
    """Every name that the template does not define itself."""
    switches: tuple[str, ...] = ()
    """Boolean variables that turn thinking on and off, and that may be False."""
    efforts: dict[str, tuple[str, ...]] = {}
    """Variables that take a level of effort, and their levels, least first."""


class TemplateTraits(Struct, frozen=True, kw_only=True):
    """The form that one template reads. The defaults are those of an ideal template."""

    ordered: bool = False
    """An assistant's content may be a list of reasoning, text and tool_call parts in order (our own
    templates)."""
    content: Literal["text", "parts"] = "text"
    """Text is a string, or one text part (some vision templates accept nothing else)."""
    system: Literal["anywhere", "first", "none"] = "anywhere"
    """Where a system message is rendered in its place. Later ones raise in Qwen3.5 to 3.8, vanish
    in MiniMax, move to the front in DeepSeek; Gemma 1 and 2 refuse any."""
    adjacent_users: bool = True
    """Two user messages may follow each other (not in Gemma 1 to 3, Mistral)."""
    user_after_tool: bool = True
    """A user message may follow a tool's result (not in Mistral)."""
    reasoning: Literal["reasoning_content", "reasoning", "thinking", "part"] | None = None
    """The field in which reasoning is read; `part`: a content part of type thinking; None:
    never."""
    reasoning_tags: tuple[str, str] | None = None
    """Where no field is read: the tags around reasoning in the content of a turn that calls tools;
    None: reasoning is left out."""
    calls: CallForm = CallForm()
    tool_role: bool = True
    """Messages of role tool are rendered; else results are user messages."""
    tool_name: bool = True
    """Results carry the tool's name; not where that changes the text (Kimi K2 takes it for the
    role)."""
    interleaved: Literal["inline", "split", "drop"] = "drop"
    """The form of a turn that the fields cannot hold, such as reasoning, call, reasoning, call:
    written into the content in the template's own markup (`inline`); split into several assistant
    messages; or, where neither is rendered, sorted into the fields without the later reasoning."""
    inline: InlineForm = InlineForm()
    image: tuple[str, str] | None = None
    """The text before and after an image's placeholder, with what separates it from texts; None:
    not rendered."""
    closing: str = ""
    """The text that ends an assistant's turn."""
    inputs: TemplateInputs = TemplateInputs()


def with_calls(traits: TemplateTraits, **changes: Any) -> TemplateTraits:
    """The traits with another form of calls."""
    return replace(traits, calls=replace(traits.calls, **changes))


def with_inline(traits: TemplateTraits, **changes: Any) -> TemplateTraits:
    """The traits with another form of inline content."""
    return replace(traits, inline=replace(traits.inline, **changes))
