"""Renders a conversation to the text of its prompt, whole, up to where the model continues. Pure.

A request may demand a call: then the prompt ends with the opening of that call.

A request may demand a format (`response_format`, `text.format`). The engine enforces it where no
tool may be called. A model with tools cannot be constrained in this way: its first token would
belong to the answer, and an agent that sends a format with every request (Codex' `--output-schema`)
would never get a call. An instruction describes the format to such a model, the same in every turn
of the session.
"""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, OutputFormat, Text, Unseal
from schemas.errors import Invalid
from schemas.events import BlockStart, FinishReason
from services.families import Family, open_parser
from services.images.prompt_images import show_images
from services.preprocessor.model import ModelSetup
from services.templates.messages import TemplateInput, adapt
from services.templates.thinking import template_variables, without_old_reasoning
from services.templates.tools import PromptTools, rendered_tool, tool_name
from services.tokenization.image_processor import Expansion

_TAIL_CHARS = 512
_CONTINUATION = "\ue000continues here\ue000"


class RenderedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as text."""

    text: str
    """The text with marks (`DataMarks`), where data may spell control tokens."""
    prefix: str = ""
    """The end of the text, if it opens a forced call: it belongs to the model's turn."""
    in_reasoning: bool = False
    """The text ends inside an open reasoning block."""
    continues: bool = False
    """The text ends in the assistant's own text, which the model continues."""
    images: Sequence[tuple[str, Expansion]] = ()
    """Hash and expansion of each image in the text, in order."""


def render(
    conversation: Conversation, setup: ModelSetup, tools: PromptTools, unseal: Unseal | None = None
) -> RenderedPrompt:
    """The prompt's text, up to where the model continues. Raises Invalid."""
    conversation = without_old_reasoning(conversation)
    call = forced_call(conversation, setup.family)
    marks = setup.encoder.marks
    own = conversation.template_kwargs
    if marks is not None:
        own = {name: marks.data.mark_json(value) for name, value in own.items()}
    variables = template_variables(
        conversation, setup.traits, defaults=setup.template_kwargs, own=own
    )
    adapted = adapt(
        conversation,
        setup.traits,
        setup.template,
        unseal=unseal,
        write_call=setup.family.style.write_call,
        marks=marks,
    )
    if adapted.continues:
        text = _continued(adapted, setup, tools, variables)
    else:
        text = setup.template.render(adapted.messages, tools=tools.definitions, variables=variables)
    text, images = show_images(text, conversation, setup.images, setup.traits.image)
    in_reasoning = setup.family.opens_reasoning(text[-_TAIL_CHARS:])
    if in_reasoning and (call is not None or enforced_format(conversation) is not None):
        # Constrained decoding begins with the first token: the model could never close the
        # reasoning itself.
        text, in_reasoning = text + _reasoning_end(setup), False
    elif call is not None and adapted.continues:
        text += setup.traits.text_join
    return RenderedPrompt(
        text=text + (_marked_call(call, conversation, setup) if call is not None else ""),
        prefix=call or "",
        in_reasoning=in_reasoning,
        continues=adapted.continues,
        images=images,
    )


def enforced_format(conversation: Conversation) -> OutputFormat | None:
    """The format that the engine enforces; None where the output is free."""
    callable_tools = conversation.tools and conversation.tool_choice.mode != "none"
    return None if callable_tools else conversation.format


def with_format_instruction(conversation: Conversation) -> Conversation:
    """The conversation with its format among the instructions, if it has tools."""
    output = conversation.format
    if output is None or not conversation.tools:
        return conversation
    if output.schema is None:
        text = "Your final answer, when you call no more tools, must be one JSON object and nothing else."
    else:
        schema = json.dumps(output.schema, ensure_ascii=False)
        text = "Your final answer, when you call no more tools, must be JSON that fits this schema, and nothing else:\n"
        text += schema
    return replace(conversation, system=[*conversation.system, Text(text)])


def forced_call(conversation: Conversation, family: Family) -> str | None:
    """The opening of the call with which the model's turn must begin; None where it may begin
    freely. Raises Invalid."""
    choice = conversation.tool_choice
    allowed = allowed_tools(conversation)
    if choice.mode not in ("any", "tool"):
        return None
    if not conversation.tools:
        raise Invalid(
            "tool_choice may only be specified while providing tools", param="tool_choice"
        )
    if choice.mode == "any":
        return family.style.call_prefix(allowed[0] if len(allowed) == 1 else None)
    named = [
        tool
        for tool in conversation.tools
        if choice.name in (tool.name, tool_name(tool.name, tool.namespace))
    ]
    # A bare name means the tool without a namespace, if there is one.
    named.sort(key=lambda tool: tool.namespace is not None)
    chosen = next((tool for tool in named if choice.namespace in (None, tool.namespace)), None)
    if chosen is None:
        name = tool_name(choice.name or "", choice.namespace)
        raise Invalid(
            f"tool_choice names a tool that is not among the tools: {name}", param="tool_choice"
        )
    return family.style.call_prefix(tool_name(chosen.name, chosen.namespace))


def allowed_tools(conversation: Conversation) -> list[str]:
    """The only tools that may be called, under the names that the model sees; empty where all may.

    Raises Invalid where the client allows a tool that it does not offer.
    """
    names: dict[str, list[str]] = {}
    for tool in conversation.tools if conversation.tool_choice.allowed else ():
        rendered = tool_name(tool.name, tool.namespace)
        for name in {tool.name, rendered}:
            names.setdefault(name, []).append(rendered)
    for name in conversation.tool_choice.allowed:
        if name not in names:
            raise Invalid(
                f"tool_choice allows a tool that is not among the tools: {name}",
                param="tool_choice",
            )
    return list(
        dict.fromkeys(
            rendered for name in conversation.tool_choice.allowed for rendered in names[name]
        )
    )


def _marked_call(call: str, conversation: Conversation, setup: ModelSetup) -> str:
    """The opening of a forced call, in which the tool's name is data. Raises Invalid where the name
    spells a control token with which the family's calls cannot be read back."""
    marks, family = setup.encoder.marks, setup.family
    for tool in conversation.tools if marks is not None else ():
        assert marks is not None
        name = tool_name(tool.name, tool.namespace)
        marked = call.replace(name, marks.data.mark(name))
        if any(piece.data for piece in marks.pieces(marked)):
            parser = open_parser(family.name, tools=[rendered_tool(tool)])
            events = [
                *parser.feed(family.style.write_call(name, {})),
                *parser.finish(FinishReason.STOP),
            ]
            if not any(isinstance(event, BlockStart) and event.name == name for event in events):
                reason = f"calls of {family.models} cannot hold the name of this tool, which spells one of their markers"
                raise Invalid(f"the tool cannot be forced: {reason}: {name}", param="tool_choice")
            return marked
    return call


def _reasoning_end(setup: ModelSetup) -> str:
    """The text that closes an open reasoning block before a call."""
    if setup.traits.separators[2]:
        return setup.traits.separators[2]
    return f"\n{setup.family.think[1]}\n\n" if setup.family.think else ""


def _continued(
    adapted: TemplateInput, setup: ModelSetup, tools: PromptTools, variables: dict[str, Any]
) -> str:
    """The template's text up to the end of the assistant's last text."""
    last = dict(adapted.messages[-1])
    if isinstance(last["content"], str):
        last["content"] += _CONTINUATION
    else:
        *before, part = last["content"]
        last["content"] = [*before, {**part, "text": part["text"] + _CONTINUATION}]
    text = setup.template.render(
        [*adapted.messages[:-1], last],
        tools=tools.definitions,
        variables=variables,
        generation=False,
    )
    opening, found, _ = text.rpartition(_CONTINUATION)
    if not found:
        raise Invalid(
            "this model's chat template cannot continue an assistant message", param="messages"
        )
    return opening
