"""A conversation to a prompt, in four stages: strip, render, encode, check. Pure and CPU-bound; made for a thread pool.

Around rendering stands the ledger: before it, turns come back as they were said; after it, their own tokens take the
place of encoding their text again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, RawPrompt, Sampling, ToolSpec
from schemas.errors import Invalid
from services.preprocessor.answer_form import held_form, with_form
from services.preprocessor.encoding import Stable
from services.preprocessor.ledger import Found, Recall
from services.preprocessor.limits import OutputLimit, check_sampling, limit_output
from services.preprocessor.messages import Adapted, Unseal, adapt
from services.preprocessor.model import ModelSetup
from services.preprocessor.preamble import strip_preamble
from services.preprocessor.raw_prompt import encode_raw
from services.preprocessor.template import Message, Tool
from services.preprocessor.thinking import ThinkingDecision, decide, template_variables, without_old_reasoning
from services.preprocessor.tool_lists import NO_TOOLS, ToolList
from services.preprocessor.wording import tool_name
from services.runtime.model_files import with_defaults

_TAIL_CHARS = 512
_CONTINUE_MARK = "\ue000continues here\ue000"


class Prompt(Struct, frozen=True, kw_only=True):
    """All that a worker and a parser shard need of a prompt."""

    ids: Sequence[int]
    """`pack_ids` takes them as they are: an array, where they come from the tokenizer."""
    text: str
    in_reasoning: bool
    """The prompt ends inside an open reasoning block."""
    prefix: str
    """The end of the prompt that is the opening of a forced call, and so belongs to the turn."""
    tools: list[ToolSpec]
    """The tools under the names and with the schemas that the model was told, deferred ones included."""
    parsed_tools: bytes = b"[]"
    """The same as JSON, with what parsers need of them."""
    max_tokens: int
    window_limited: bool
    """Reaching `max_tokens` means that the context window is full."""
    stop_ids: list[int]
    sampling: Sampling
    """The client's, with the model's defaults where it said nothing, and `max_tokens` set."""
    stripped_lines: int
    """Billing header lines that were removed."""
    found: Found | None = None
    """What the ledger made of it, where one was asked."""


class Rendered(Struct, frozen=True, kw_only=True):
    """A prompt as text, and what it was made of."""

    text: str
    prefix: str
    in_reasoning: bool
    messages: list[Message]
    tools: list[Tool]
    variables: dict[str, Any]
    thinking: ThinkingDecision
    continues: bool = False
    """It ends in the assistant's own last text, which the model goes on writing."""
    stable: Stable | None = None
    """A text with which this one begins, and with which the session's next prompts will begin, most likely."""


Encoder: TypeAlias = Callable[[Rendered], Sequence[int]]
Remember: TypeAlias = Callable[[Conversation, list[ToolSpec]], Recall]
"""A look into the ledger for a conversation without preamble, and its tools as the model is told: `Ledger.recall`."""


def assemble(
    conversation: Conversation,
    setup: ModelSetup,
    *,
    window: int | None = None,
    limit: bool = True,
    unseal: Unseal | None = None,
    encode: Encoder | None = None,
    remember: Remember | None = None,
) -> Prompt:
    """The prompt of a conversation.

    `window`: the workers' context window in tokens, if one is known. `limit` False: only the prompt is wanted, to
    count it or to show it, and no check is made. `unseal` opens sealed reasoning, `encode` replaces the tokenizer.
    `remember`: the ledger of earlier turns, which with `limit` keeps this prompt for the turn that follows.

    Raises Invalid where the conversation, a tool choice, a template variable or the stop strings cannot be served,
    ContextOverflow where prompt and answer do not fit.
    """
    if limit:
        check_sampling(conversation.sampling, setup.tokenizer.vocab_size)
    raw = conversation.prompt
    stripped, lines = strip_preamble(conversation) if setup.strip_preamble and not raw else (conversation, 0)
    stripped = with_form(stripped)
    recall, found = None, None
    try:
        tools = setup.tool_lists.of(conversation.tools) if raw is None else NO_TOOLS
        if remember is not None and raw is None:
            recall = remember(stripped, tools.told)
            stripped = recall.restore()
        rendered = render(stripped, setup, unseal, tools) if raw is None else _unrendered(raw, conversation)
        if recall is not None:
            found = recall.encode(rendered.text, rendered.prefix, rendered.stable, continues=rendered.continues)
    except RecursionError:
        raise Invalid("a tool's schema, a call's arguments or a template variable is nested too deeply") from None
    if raw is not None:
        ids: Sequence[int] = encode_raw(raw, setup.tokenizer)
    elif found is not None:
        ids = found.ids
    else:
        ids = encode(rendered) if encode is not None else setup.encoder.encode(rendered.text, rendered.stable)
    wanted = conversation.sampling.max_tokens
    output = (
        limit_output(len(ids), wanted, setup.window(window), setup.card.max_output_tokens or None)
        if limit
        else OutputLimit(wanted or 0, False)
    )
    if limit and recall is not None and found is not None:
        recall.keep(found)
    return Prompt(
        ids=ids,
        text=rendered.text,
        in_reasoning=rendered.in_reasoning,
        prefix=rendered.prefix,
        tools=tools.told,
        parsed_tools=tools.parsed,
        max_tokens=output.max_tokens,
        window_limited=output.window_limited,
        stop_ids=_stop_ids(conversation.sampling, setup),
        sampling=replace(with_defaults(conversation.sampling, setup.sampling), max_tokens=output.max_tokens),
        stripped_lines=lines,
        found=found,
    )


def _unrendered(raw: RawPrompt, conversation: Conversation) -> Rendered:
    """A raw prompt in the place of a rendered one. Given as ids it has no text."""
    return Rendered(
        text=raw.text or "",
        prefix="",
        in_reasoning=False,
        messages=[],
        tools=[],
        variables={},
        thinking=decide(conversation),
    )


def _stop_ids(sampling: Sampling, setup: ModelSetup) -> list[int]:
    own = () if sampling.ignore_eos else setup.stop_ids
    return list(dict.fromkeys((*own, *sampling.stop_token_ids)))


def render(
    conversation: Conversation, setup: ModelSetup, unseal: Unseal | None = None, tools: ToolList | None = None
) -> Rendered:
    """The prompt's text, up to where the model goes on. `tools`: the conversation's. Raises Invalid."""
    conversation = without_old_reasoning(conversation)
    forced = _forced_call(conversation, setup)
    thinking = decide(conversation)
    variables = template_variables(
        thinking, setup.traits, defaults=setup.template_kwargs, own=conversation.template_kwargs
    )
    known = setup.history.find(conversation, variables, unseal)
    adapted = adapt(
        conversation,
        setup.traits,
        setup.template,
        unseal=unseal,
        write_call=setup.family.write_call,
        begun=known.begun if known is not None else None,
        shown=tools.shown if tools is not None else None,
    )
    stable: Stable | None = None
    if adapted.continues:
        text = _continued(adapted, setup, variables)
    else:
        text, stable = setup.history.render(conversation, adapted, variables, known, unseal)
        setup.audit.offer(text, stable, partial(_whole, conversation, setup, variables, unseal))
    in_reasoning = setup.family.opens_reasoning(text[-_TAIL_CHARS:])
    if in_reasoning and (forced is not None or held_form(conversation) is not None):
        # An engine that holds its output to a form does so from the first token: it could never leave the reasoning.
        text, in_reasoning = text + _reasoning_end(setup), False
    elif forced is not None and adapted.continues:
        text += setup.traits.text_join
    text += forced or ""
    return Rendered(
        text=text,
        prefix=forced or "",
        in_reasoning=in_reasoning,
        messages=adapted.messages,
        tools=adapted.tools,
        variables=variables,
        thinking=thinking,
        continues=adapted.continues,
        stable=stable,
    )


def _whole(conversation: Conversation, setup: ModelSetup, variables: dict[str, Any], unseal: Unseal | None) -> str:
    """The text, made from nothing that is known already."""
    adapted = adapt(conversation, setup.traits, setup.template, unseal=unseal, write_call=setup.family.write_call)
    return setup.template.render(adapted.messages, tools=adapted.tools, variables=variables)


def _forced_call(conversation: Conversation, setup: ModelSetup) -> str | None:
    """How the model's turn must begin, or None where it is free."""
    choice = conversation.tool_choice
    allowed = allowed_tools(conversation)
    if choice.mode not in ("any", "tool"):
        return None
    if not conversation.tools:
        raise Invalid("tool_choice may only be specified while providing tools", param="tool_choice")
    if choice.mode == "any":
        return setup.family.call_prefix(allowed[0] if len(allowed) == 1 else None)
    named = [tool for tool in conversation.tools if choice.name in (tool.name, tool_name(tool.name, tool.namespace))]
    # A bare name means the tool that has no namespace, where there is one.
    named.sort(key=lambda tool: tool.namespace is not None)
    chosen = next((tool for tool in named if choice.namespace in (None, tool.namespace)), None)
    if chosen is None:
        told = tool_name(choice.name or "", choice.namespace)
        raise Invalid(f"tool_choice names a tool that is not among the tools: {told}", param="tool_choice")
    return setup.family.call_prefix(tool_name(chosen.name, chosen.namespace))


def allowed_tools(conversation: Conversation) -> list[str]:
    """The only tools that may be called, by the names which the model was told; empty where all may.

    Raises Invalid where the client allows a tool that it does not offer.
    """
    known: dict[str, list[str]] = {}
    for tool in conversation.tools:
        told = tool_name(tool.name, tool.namespace)
        for name in {tool.name, told}:
            known.setdefault(name, []).append(told)
    for name in conversation.tool_choice.allowed:
        if name not in known:
            raise Invalid(f"tool_choice allows a tool that is not among the tools: {name}", param="tool_choice")
    return list(dict.fromkeys(told for name in conversation.tool_choice.allowed for told in known[name]))


def _reasoning_end(setup: ModelSetup) -> str:
    """What closes an open reasoning block before a call."""
    if setup.traits.marks[2]:
        return setup.traits.marks[2]
    return f"\n{setup.family.think[1]}\n\n" if setup.family.think else ""


def _continued(adapted: Adapted, setup: ModelSetup, variables: dict[str, Any]) -> str:
    """The prompt that ends in the assistant's own last text: the template's text up to the end of that."""
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
