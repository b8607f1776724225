"""Finds the traits of a chat template by rendering small conversations in its possible forms.

Each trait is the first candidate with which every part of the conversation is rendered once and in
order.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from msgspec.structs import replace

from schemas.conversation import EFFORTS, Call, Message, Part, Reasoning, Result, Text
from schemas.errors import Invalid
from services.families import Family
from services.templates.assistant import FRAME_USER, segments
from services.templates.chat_template import ChatTemplate
from services.templates.messages import render_messages
from services.templates.thinking import EFFORT_VARIABLES, SWITCHES
from services.templates.traits import (
    TemplateInputs,
    TemplateTraits,
    ThoughtSeparators,
    with_calls,
    with_inline,
)
from services.templates.trial import (
    ANSWER,
    ANSWER2,
    ARGUMENT,
    ARGUMENT2,
    ARGUMENTS,
    CALL_PART,
    CALL_PART2,
    ID,
    ONE_RESULT,
    QUESTION,
    QUESTION2,
    RESULT,
    RESULT2,
    SYSTEM,
    SYSTEM2,
    SYSTEM3,
    TEXT_PART,
    TEXT_PART2,
    THOUGHT,
    THOUGHT2,
    THOUGHT_PART,
    THOUGHT_PART2,
    TOOL,
    TOOL_NAME,
    TWO_RESULTS,
    USER,
    USER2,
    TemplateTrial,
    in_order,
    turn,
)

_TAGGED_TURNS: tuple[list[Part], ...] = (
    [THOUGHT_PART, CALL_PART],
    [THOUGHT_PART, TEXT_PART, CALL_PART, THOUGHT_PART2, CALL_PART2],
)


def probe(template: ChatTemplate) -> TemplateTraits:
    """The traits of a template. Never raises: a part that no form renders gets the simplest one."""
    trial = TemplateTrial(template)
    traits = TemplateTraits(inputs=TemplateInputs(variables=template.variables))
    traits = _content(trial, traits)
    traits = _ordered(trial, traits)
    traits = _calls(trial, traits)
    traits = _reasoning(trial, traits)
    traits = _system(trial, traits)
    traits = _sequences(trial, traits)
    traits = _frame(trial, traits)
    traits = _interleaved(trial, traits)
    return _inputs(trial, traits)


def image_frame(template: ChatTemplate, placeholder: str) -> tuple[str, str] | None:
    """`TemplateTraits.image`, for a model with this placeholder; None where the template renders no
    image.

    A template may move images before the texts of their message (LLaVA): they stay in their place
    here.
    """
    content = [{"type": "text", "text": USER}, {"type": "image"}, {"type": "text", "text": USER2}]
    try:
        text = template.render([{"role": "user", "content": content}], tools=[])
    except Invalid:
        return None
    before, found, after = text.partition(placeholder)
    if not found or USER2 not in text:
        return None
    if USER in before:
        return before.rpartition(USER)[2], after.partition(USER2)[0]
    return "", after.partition(USER)[0]


def reasoning_tags(
    template: ChatTemplate, traits: TemplateTraits, family: Family
) -> tuple[str, str] | None:
    """The tags in which the family's models write reasoning, for a template that reads no reasoning
    field.

    Many templates of reasoning models have no such field (QwQ, R1's distillates, a model tuned on
    another's template), and reasoning that explains a call belongs before that call. None where the
    template reads reasoning, the family writes none, or the template changes the tags: some cut off
    what stands before a closing tag.
    """
    if traits.reasoning is not None or traits.ordered or family.think is None:
        return None
    opening, closing = family.think
    tags = (f"{opening}\n", f"\n{closing}")
    traits = replace(traits, reasoning_tags=tags)
    keeps_tags = all(_keeps_tags(template, traits, family, parts) for parts in _TAGGED_TURNS)
    return tags if keeps_tags else None


def _keeps_tags(
    template: ChatTemplate, traits: TemplateTraits, family: Family, parts: list[Part]
) -> bool:
    calls = [part for part in parts if isinstance(part, Call)]
    results: list[Part] = [Result(call.call_id, [Text(RESULT)]) for call in calls]
    messages = [QUESTION, Message("assistant", parts), Message("tool", results)]
    text = render_messages(messages, traits, template, write_call=family.style.write_call)

    opening, closing = traits.reasoning_tags or ("", "")
    words: list[str] = []
    for part in parts:
        if isinstance(part, Call):
            words.append(ARGUMENTS[part.call_id])
        elif isinstance(part, Reasoning):
            words.append(f"{opening}{part.text}{closing}")
        else:
            words.append(ANSWER)
    return in_order(text, words)


def _content(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    candidates = [replace(traits, content="text"), replace(traits, content="parts")]
    return trial.first_that_shows(candidates, [QUESTION], [USER]) or traits


def _ordered(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    ordered = replace(traits, ordered=True)
    parts = (THOUGHT_PART, CALL_PART, THOUGHT_PART2, CALL_PART2, TEXT_PART2)
    words = [THOUGHT, ARGUMENT, THOUGHT2, ARGUMENT2, ANSWER2, RESULT, RESULT2]
    is_ordered = trial.shows(ordered, [QUESTION, turn(*parts), TWO_RESULTS], words)
    return ordered if is_ordered else traits


def _calls(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    messages = [QUESTION, turn(CALL_PART), ONE_RESULT]
    candidates = list(_call_candidates(traits))
    without_calls = with_calls(replace(traits, tool_role=False), arguments=None)
    traits = trial.first_that_shows(candidates, messages, [ARGUMENT, RESULT]) or without_calls

    text = trial.text(traits, messages)
    unnamed = trial.text(replace(traits, tool_name=False), messages)
    if unnamed and unnamed != text:
        traits = replace(traits, tool_name=False)
        text = unnamed

    names_by_id = "functions." in trial.template.source or TOOL_NAME not in text
    if ID in text and traits.calls.ids == "client" and names_by_id:
        traits = with_calls(traits, ids="counted")
    return traits


def _call_candidates(traits: TemplateTraits) -> Iterator[TemplateTraits]:
    """Yields all forms of calls and results, the most common first."""
    roles = (True, False)
    arguments: tuple[Any, ...] = ("object", "string", None)
    ids: tuple[Any, ...] = ("client", "short")
    names = (True, False)
    for role, form, call_ids, name in product(roles, arguments, ids, names):
        candidate = replace(traits, tool_name=name, tool_role=role)
        yield with_calls(candidate, arguments=form, ids=call_ids)


def _reasoning(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    fields: tuple[Any, ...] = ("reasoning_content", "reasoning", "thinking", "part")
    candidates = [replace(traits, reasoning=field) for field in fields]
    if traits.calls.arguments is not None:
        messages = [QUESTION, turn(THOUGHT_PART, CALL_PART), ONE_RESULT]
        suitable = trial.first_that_shows(candidates, messages, [THOUGHT, ARGUMENT])
        if suitable is not None:
            return suitable
    messages = [QUESTION, turn(THOUGHT_PART, TEXT_PART)]
    suitable = trial.first_that_shows(candidates, messages, [THOUGHT, ANSWER], generation=False)
    return suitable or traits


def _system(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    first, second, third = (Message("system", [Text(word)]) for word in (SYSTEM, SYSTEM2, SYSTEM3))
    messages = [first, QUESTION, second, turn(CALL_PART), ONE_RESULT, third]
    words = [SYSTEM, USER, SYSTEM2, ARGUMENT, RESULT, SYSTEM3]
    anywhere = replace(traits, system="anywhere")
    if trial.shows(anywhere, messages, words):
        return anywhere
    only_first = replace(traits, system="first")
    if trial.shows(only_first, [first, QUESTION], [SYSTEM, USER]):
        return only_first
    return replace(traits, system="none")


def _sequences(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """Which messages may follow each other, and which parts may share a message."""
    loop = [QUESTION, turn(CALL_PART), ONE_RESULT, QUESTION2]
    traits = replace(
        traits,
        adjacent_users=trial.shows(traits, [QUESTION, QUESTION2], [USER, USER2]),
        user_after_tool=trial.shows(traits, loop, [USER, ARGUMENT, RESULT, USER2]),
    )
    if traits.calls.arguments is None:
        return with_calls(traits, parallel=False, with_text=False, with_all=False)

    both_calls = [QUESTION, turn(CALL_PART, CALL_PART2), TWO_RESULTS]
    text_and_call = [QUESTION, turn(TEXT_PART, CALL_PART), ONE_RESULT]
    with_all = True
    after_all = True
    if traits.reasoning is not None:
        parts = (THOUGHT_PART, TEXT_PART, CALL_PART)
        everything = [QUESTION, turn(*parts), ONE_RESULT]
        with_all = trial.shows(traits, everything, [THOUGHT, ANSWER, ARGUMENT])
        split = with_calls(replace(traits, interleaved="split"), with_all=False)
        after_all = trial.shows_turn(split, parts)
    return with_calls(
        traits,
        parallel=trial.shows(traits, both_calls, [ARGUMENT, ARGUMENT2, RESULT, RESULT2]),
        with_text=trial.shows(traits, text_and_call, [ANSWER, ARGUMENT]),
        with_all=with_all,
        after_all=after_all,
    )


def _frame(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The text around an assistant's text, reasoning and calls."""
    plain = replace(traits, ordered=False)
    before, _, after = trial.framed(plain, [TEXT_PART]).partition(ANSWER)
    plain = with_inline(replace(plain, closing=after), frame=(before, after))
    if traits.reasoning is not None:
        plain = _text_separators(trial, plain)
    if traits.calls.arguments is not None:
        plain = _call_joins(trial, plain)
        plain = _call_separator(trial, plain)
    return replace(plain, ordered=traits.ordered)


def _text_separators(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The text around reasoning that text follows."""
    messages = [QUESTION, turn(THOUGHT_PART, TEXT_PART)]
    text = trial.text(traits, messages, generation=False)
    if not in_order(text, [THOUGHT, ANSWER]):
        return traits
    opening, _, rest = text.partition(THOUGHT)
    tag = max(opening.rfind("<"), opening.rfind("["), 0)
    before_text = rest.partition(ANSWER)[0]
    separators = ThoughtSeparators(opening[tag:], before_text, before_text)
    return with_inline(traits, separators=separators)


def _call_joins(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The white space between text and a call, and between two calls."""
    first_call = trial.markup(traits, CALL_PART)
    second_call = trial.markup(traits, CALL_PART2)
    beside = ""
    if traits.calls.with_text:
        beside = trial.framed(traits, [TEXT_PART, CALL_PART]).partition(ANSWER)[2]
    text_join, found_call, _ = beside.partition(first_call)
    if not found_call or text_join.strip():
        text_join = traits.inline.text_join

    pair = trial.markup(traits, CALL_PART, CALL_PART2) if traits.calls.parallel else ""
    call_join = pair.removeprefix(first_call).removesuffix(second_call)
    if call_join.strip():
        call_join = text_join
    return with_inline(traits, text_join=text_join, call_join=call_join)


def _call_separator(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The text between reasoning and a call."""
    messages = [QUESTION, turn(THOUGHT_PART, CALL_PART)]
    text = trial.text(traits, messages, generation=False)
    after_thought = text.partition(THOUGHT)[2]
    before_call, found_call, _ = after_thought.partition(trial.markup(traits, CALL_PART))
    separators = traits.inline.separators
    if not found_call or separators.before_text.strip() != before_call.strip():
        return traits
    return with_inline(traits, separators=separators._replace(before_call=before_call))


def _interleaved(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The form of a turn that continues after a call."""
    if traits.ordered:
        return traits
    split = replace(traits, interleaved="split")
    if traits.reasoning is not None:
        inline = _inline(trial, with_inline(traits, reasoning=True))
        if inline is not None:
            return inline
        parts = (THOUGHT_PART, CALL_PART, THOUGHT_PART2, CALL_PART2)
        if trial.shows_turn(split, parts):
            return split

    inline = _inline(trial, with_inline(traits, reasoning=False))
    if inline is not None:
        return inline
    if trial.shows_turn(split, (TEXT_PART, CALL_PART, TEXT_PART2, CALL_PART2)):
        return split
    return replace(traits, interleaved="drop")


def _inline(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits | None:
    """The traits of a template that renders content in its own markup; None: it does not."""
    for tail in (True, False):
        inline = with_inline(replace(traits, interleaved="inline"), tail=tail)
        if _renders_markup(trial, inline):
            messages = [QUESTION, turn(CALL_PART, TEXT_PART2), ONE_RESULT, turn(TEXT_PART)]
            ends_in_text = trial.text(inline, messages) != ""
            return with_inline(inline, text_end=ends_in_text or traits.calls.arguments is None)
    return None


def _renders_markup(trial: TemplateTrial, traits: TemplateTraits) -> bool:
    """Whether content in the template's own markup is rendered as the template writes the
    fields."""
    thinks = traits.reasoning is not None
    if traits.calls.arguments is not None and not _markup_equals_fields(trial, traits):
        return False

    later: Part = TEXT_PART2
    middle = ANSWER2 + traits.inline.text_join
    if traits.inline.reasoning:
        separators = traits.inline.separators
        later = THOUGHT_PART2
        middle = separators.opening + THOUGHT2 + separators.before_call
    first_call = trial.markup(traits, CALL_PART)
    second_call = trial.markup(traits, CALL_PART2)
    expected = first_call + traits.inline.call_join + middle + second_call

    starts: list[list[Part]] = [[TEXT_PART], []]
    if thinks:
        starts = [[TEXT_PART], [THOUGHT_PART, TEXT_PART], [THOUGHT_PART]]
    for start in starts:
        messages = [QUESTION, turn(*start, CALL_PART, later, CALL_PART2), TWO_RESULTS]
        if expected not in trial.text(traits, messages):
            return False
    return True


def _markup_equals_fields(trial: TemplateTrial, traits: TemplateTraits) -> bool:
    """Whether a call in markup is rendered as one in the fields, white space aside."""
    thinks = traits.reasoning is not None
    cut = segments([THOUGHT_PART, CALL_PART] if thinks else [CALL_PART])
    writer = trial.writer(traits)
    native = trial.render([FRAME_USER, writer.native(cut[0])], generation=False)
    inline = trial.render([FRAME_USER, writer.inline(cut, tail=False)], generation=False)
    return bool(native) and "".join(native.split()) == "".join(inline.split())


def _inputs(trial: TemplateTrial, traits: TemplateTraits) -> TemplateTraits:
    """The variables that the template reads, and whether it lists tools."""
    switches = [name for name in SWITCHES if name in traits.inputs.variables]
    efforts: dict[str, tuple[str, ...]] = {}
    for name in EFFORT_VARIABLES:
        levels = _levels(trial, name) if name in traits.inputs.variables else ()
        if levels:
            efforts[name] = levels
    inputs = TemplateInputs(
        tools=_lists_tools(trial, traits),
        variables=traits.inputs.variables,
        switches=tuple(name for name in switches if _accepts(trial, name, False)),
        efforts=efforts,
    )
    return replace(traits, inputs=inputs)


def _lists_tools(trial: TemplateTrial, traits: TemplateTraits) -> bool:
    """Whether prompts list the tools, also after a result: some templates list them only after a
    user's message."""
    loop = trial.adapted(traits, [QUESTION, turn(CALL_PART), ONE_RESULT])
    for messages in ([FRAME_USER], loop):
        with_tools = trial.render(messages, tools=[TOOL])
        if with_tools.count(TOOL_NAME) <= trial.render(messages).count(TOOL_NAME):
            return False
    return True


def _levels(trial: TemplateTrial, name: str) -> tuple[str, ...]:
    """The levels that a variable takes: low, medium and high, and others that the template
    names."""
    source = trial.template.source
    levels = [
        level
        for level in ("none", *EFFORTS)
        if level in ("low", "medium", "high") or f"'{level}'" in source or f'"{level}"' in source
    ]
    return tuple(level for level in levels if _accepts(trial, name, level))


def _accepts(trial: TemplateTrial, name: str, value: Any) -> bool:
    return bool(trial.render([FRAME_USER], variables={name: value}))
