"""Renders a conversation to the text of its prompt, whole, up to where the model continues. Pure.

A request may demand a call: then the prompt ends with the opening of that call.

It may demand a format (`response_format`, `text.format`): the engine enforces it where no tool may
be called. Else an instruction describes it (`normalize.py`).
"""

from collections.abc import Sequence
from typing import Any

from schemas.conversation import Conversation, OutputFormat, ToolSpec, Unseal
from schemas.errors import Invalid
from schemas.events import BlockStart, FinishReason
from services.families import Family, open_parser
from services.ledger.prompt.prompts import RenderedPrompt
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_images import show_images
from services.templates.chat_template import TemplateMessage
from services.templates.messages import TemplateInput, adapt
from services.templates.thinking import template_variables, without_old_reasoning
from services.templates.tools import PromptTools, rendered_tool

_TAIL_CHARS = 512
_CONTINUATION = "\ue000continues here\ue000"


def render(
    conversation: Conversation, setup: ModelSetup, tools: PromptTools, unseal: Unseal
) -> RenderedPrompt:
    """The prompt's text, up to where the model continues. Raises Invalid."""
    conversation = without_old_reasoning(conversation)
    allowed = allowed_tools(conversation)
    output_format = enforced_format(conversation)
    call = forced_call(conversation, setup.family, allowed)

    variables = _variables(conversation, setup)
    adapted = adapt(
        conversation,
        setup.traits,
        setup.template,
        unseal=unseal,
        write_call=setup.family.style.write_call,
        marks=setup.encoder.marks,
    )
    text = _template_text(adapted, setup, tools, variables)
    text, images = show_images(text, conversation, setup.images, setup.traits.image)

    in_reasoning = setup.family.opens_reasoning(text[-_TAIL_CHARS:])
    constrained = call is not None or output_format is not None
    if in_reasoning and constrained:
        # Constrained decoding begins with the first token: the model could never close the
        # reasoning itself.
        text += _reasoning_end(setup)
        in_reasoning = False
    elif call is not None and adapted.continues:
        text += setup.traits.inline.text_join
    if call is not None:
        text += _marked_call(call, _forced_tool(conversation, allowed), setup)
    return RenderedPrompt(
        marked_text=text,
        plain_text=setup.encoder.plain(text),
        tools=tools,
        prefix=call or "",
        in_reasoning=in_reasoning,
        continues=adapted.continues,
        images=images,
        allowed_tools=allowed,
        enforced_format=output_format,
    )


def enforced_format(conversation: Conversation) -> OutputFormat | None:
    """The format that the engine enforces; None where the output is free."""
    may_call_tools = conversation.tools and conversation.tool_choice.mode != "none"
    return None if may_call_tools else conversation.format


def forced_call(conversation: Conversation, family: Family, allowed: Sequence[str]) -> str | None:
    """The opening of the call with which the model's turn must begin; None where it may begin
    freely. `allowed`: `allowed_tools`. Raises Invalid."""
    if conversation.tool_choice.mode not in ("any", "tool"):
        return None
    if not conversation.tools:
        raise Invalid(
            "tool_choice may only be specified while providing tools", param="tool_choice"
        )
    tool = _forced_tool(conversation, allowed)
    return family.style.call_prefix(tool.rendered_name if tool else None)


def allowed_tools(conversation: Conversation) -> list[str]:
    """The only tools that may be called, under the names that the model sees; empty where all may.

    Raises Invalid where the client allows a tool that it does not offer.
    """
    allowed = conversation.tool_choice.allowed
    if not allowed:
        return []

    rendered_names: dict[str, list[str]] = {}
    """The names that the model sees by those that the client may use."""
    for tool in conversation.tools:
        rendered = tool.rendered_name
        for name in tool.names:
            rendered_names.setdefault(name, []).append(rendered)

    names: list[str] = []
    for name in allowed:
        if name not in rendered_names:
            raise Invalid(
                f"tool_choice allows a tool that is not among the tools: {name}",
                param="tool_choice",
            )
        names += rendered_names[name]
    return list(dict.fromkeys(names))


def _forced_tool(conversation: Conversation, allowed: Sequence[str]) -> ToolSpec | None:
    """The one tool that a forced call may call; None: it may call several. Raises Invalid."""
    choice = conversation.tool_choice
    if choice.mode != "tool":
        candidates = [tool for tool in conversation.tools if tool.rendered_name in allowed]
        return candidates[0] if len(allowed) == 1 else None
    chosen = choice.chosen(conversation.tools)
    if chosen is not None:
        return chosen
    name = choice.rendered_name
    raise Invalid(
        f"tool_choice names a tool that is not among the tools: {name}", param="tool_choice"
    )


def _variables(conversation: Conversation, setup: ModelSetup) -> dict[str, Any]:
    """The template's variables; in those of the client, data is marked."""
    values = conversation.template_kwargs
    marks = setup.encoder.marks
    if marks is not None:
        values = {name: marks.data.mark_json(value) for name, value in values.items()}
    return template_variables(
        conversation, setup.traits.inputs, defaults=setup.template_kwargs, client=values
    )


def _template_text(
    adapted: TemplateInput, setup: ModelSetup, tools: PromptTools, variables: dict[str, Any]
) -> str:
    """The template's text up to where the model continues."""
    if not adapted.continues:
        return setup.template.render(adapted.messages, tools=tools.definitions, variables=variables)
    *earlier, last = adapted.messages
    text = setup.template.render(
        [*earlier, _with_mark_at_end(last)],
        tools=tools.definitions,
        variables=variables,
        generation=False,
    )
    before_mark, mark, _ = text.rpartition(_CONTINUATION)
    if not mark:
        raise Invalid(
            "this model's chat template cannot continue an assistant message", param="messages"
        )
    return before_mark


def _with_mark_at_end(message: TemplateMessage) -> TemplateMessage:
    """The message with `_CONTINUATION` after its last text."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUATION}
    *earlier, part = content
    part = {**part, "text": part["text"] + _CONTINUATION}
    return {**message, "content": [*earlier, part]}


def _marked_call(call: str, tool: ToolSpec | None, setup: ModelSetup) -> str:
    """The opening of a forced call, in which the tool's name is data. Raises Invalid where the name
    spells a control token with which the family's calls cannot be read back."""
    marks = setup.encoder.marks
    if marks is None or tool is None:
        return call
    name = tool.rendered_name
    marked = setup.family.style.call_prefix(marks.data.mark(name))
    spells_token = any(piece.data for piece in marks.pieces(marked))
    if spells_token and not _reads_calls_of(tool, setup.family):
        reason = (
            f"calls of {setup.family.models} cannot hold the name of this tool, "
            "which spells one of their markers"
        )
        raise Invalid(f"the tool cannot be forced: {reason}: {name}", param="tool_choice")
    return marked


def _reads_calls_of(tool: ToolSpec, family: Family) -> bool:
    """Whether a parser finds the tool's name in a call that the family writes."""
    name = tool.rendered_name
    parser = open_parser(family.name, tools=[rendered_tool(tool)])
    events = [
        *parser.feed(family.style.write_call(name, {})),
        *parser.finish(FinishReason.STOP),
    ]
    return any(isinstance(event, BlockStart) and event.name == name for event in events)


def _reasoning_end(setup: ModelSetup) -> str:
    """The text that closes an open reasoning block before a call."""
    separator = setup.traits.inline.separators.before_call
    if separator:
        return separator
    if not setup.family.think:
        return ""
    closer = setup.family.think[1]
    return f"\n{closer}\n\n"
