"""Renders a conversation to the text of its prompt: the second stage of `assembly`."""

from functools import partial
from typing import Any

from msgspec import Struct

from schemas.conversation import Conversation
from schemas.errors import Invalid
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.constraints import enforced_format, forced_call
from services.templates.messages import TemplateInput, Unseal, adapt
from services.templates.thinking import decide, template_variables, without_old_reasoning
from services.templates.tools import tool_name
from services.tokenization.data_marks import DataMarks
from services.tokenization.encoder import StablePrefix

_TAIL_CHARS = 512
_CONTINUE_MARK = "\ue000continues here\ue000"


class RenderedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as text."""

    text: str
    """With marks (`DataMarks`), where data may spell control tokens."""
    prefix: str = ""
    """The end of the text that opens a forced call, and so belongs to the model's turn."""
    in_reasoning: bool = False
    """The text ends inside an open reasoning block."""
    continues: bool = False
    """The text ends in the assistant's own text, which the model continues."""
    stable: StablePrefix | None = None
    """A prefix of the text that the session's next prompts probably share."""


def render(conversation: Conversation, setup: ModelSetup, unseal: Unseal | None = None) -> RenderedPrompt:
    """The prompt's text, up to where the model continues. Raises Invalid."""
    conversation = without_old_reasoning(conversation)
    call = forced_call(conversation, setup.family)
    marks = setup.encoder.marks
    own = conversation.template_kwargs
    if marks is not None:
        own = {name: marks.data.mark_json(value) for name, value in own.items()}
        _check_forced_name(call or "", conversation, marks)
    variables = template_variables(decide(conversation), setup.traits, defaults=setup.template_kwargs, own=own)
    known = setup.history.find(conversation, variables, unseal)
    adapted = adapt(
        conversation,
        setup.traits,
        setup.template,
        unseal=unseal,
        write_call=setup.family.write_call,
        prefix=known.adapted if known is not None else None,
        marks=marks,
    )
    stable: StablePrefix | None = None
    if adapted.continues:
        text = _continued(adapted, setup, variables)
    else:
        text, stable = setup.history.render(conversation, adapted, variables, known, unseal)
        setup.audit.offer(text, stable, partial(_render_whole, conversation, setup, variables, unseal))
    in_reasoning = setup.family.opens_reasoning(text[-_TAIL_CHARS:])
    if in_reasoning and (call is not None or enforced_format(conversation) is not None):
        # Constrained decoding begins with the first token: the model could never close the reasoning itself.
        text, in_reasoning = text + _reasoning_end(setup), False
    elif call is not None and adapted.continues:
        text += setup.traits.text_join
    return RenderedPrompt(
        text=text + (call or ""),
        prefix=call or "",
        in_reasoning=in_reasoning,
        continues=adapted.continues,
        stable=stable,
    )


def _render_whole(
    conversation: Conversation, setup: ModelSetup, variables: dict[str, Any], unseal: Unseal | None
) -> str:
    """The text, without anything that is known from earlier prompts."""
    adapted = adapt(
        conversation,
        setup.traits,
        setup.template,
        unseal=unseal,
        write_call=setup.family.write_call,
        marks=setup.encoder.marks,
    )
    return setup.template.render(adapted.messages, tools=adapted.tools, variables=variables)


def _check_forced_name(call: str, conversation: Conversation, marks: DataMarks) -> None:
    """Raises Invalid where the forced call is of a tool whose name would make a control token at the prompt's end."""
    for tool in conversation.tools if call else ():
        name = tool_name(tool.name, tool.namespace)
        if any(piece.data for piece in marks.pieces(call.replace(name, marks.data.mark(name)))):
            raise Invalid(f"a tool whose name spells a control token cannot be forced: {name}", param="tool_choice")


def _reasoning_end(setup: ModelSetup) -> str:
    """The text that closes an open reasoning block before a call."""
    if setup.traits.marks[2]:
        return setup.traits.marks[2]
    return f"\n{setup.family.think[1]}\n\n" if setup.family.think else ""


def _continued(adapted: TemplateInput, setup: ModelSetup, variables: dict[str, Any]) -> str:
    """The template's text up to the end of the assistant's last text."""
    last = dict(adapted.messages[-1])
    if isinstance(last["content"], str):
        last["content"] += _CONTINUE_MARK
    else:
        *before, part = last["content"]
        last["content"] = [*before, {**part, "text": part["text"] + _CONTINUE_MARK}]
    text = setup.template.render(
        [*adapted.messages[:-1], last], tools=adapted.tools, variables=variables, generation=False
    )
    before_mark, found, _ = text.rpartition(_CONTINUE_MARK)
    if not found:
        raise Invalid("this model's chat template cannot continue an assistant message", param="messages")
    return before_mark
