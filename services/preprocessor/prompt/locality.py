"""Tries at load whether a template can be rendered in parts, on made-up sessions, in 0.1 to 0.2 s.

The sessions follow from a seed, so that every start makes the same trials. They have what agents send: loops of calls
with and without reasoning, text and several calls, turns that continue after a call, answers, users who interrupt,
instructions in between. They grow request by request, and each prompt is rendered in parts and whole.
"""

import random
from collections.abc import Iterator

from schemas.conversation import Call, Conversation, Part, Reasoning, Result, Text, Thinking, ToolSpec, Turn
from schemas.errors import Invalid
from services.preprocessor.prompt.history import History
from services.templates.messages import adapt
from services.templates.thinking import template_variables
from services.templates.traits import Renderer, TemplateTraits

_TOOLS = [
    ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ToolSpec("run", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),
]
_SESSIONS = 5
_REQUESTS = 9
_WORDS = ("so", "the file", "reads\n\nwell", " 12 ", "done.", "</think>", "<b>", "{}", "look:", "a\n")


def open_history(template: Renderer, traits: TemplateTraits, max_bytes: int) -> History:
    """A history for a template, turned off if the trials show a difference."""
    history = History(template, traits, max_bytes=max_bytes)
    if (found := difference(template, traits)) is not None:
        history.turn_off(f"this template must be rendered whole: {found}")
    return history


def difference(template: Renderer, traits: TemplateTraits, *, sessions: int = _SESSIONS, seed: str = "") -> str | None:
    """The first trial in which a prompt in parts differs from the whole one; None: there is no difference."""
    for number in range(sessions):
        history = History(template, traits, max_bytes=1 << 30, tail=(3, 6, 14)[number % 3])
        for conversation in session(random.Random(f"{seed}{number}"), number):
            variables = template_variables(conversation, traits, defaults={}, own={})
            whole = adapt(conversation, traits, template)
            known = history.find(conversation, variables)
            adapted = adapt(conversation, traits, template, prefix=known.adapted if known is not None else None)
            try:
                expected = template.render(whole.messages, tools=whole.tools, variables=variables)
            except Invalid:
                break
            if adapted.messages != whole.messages:
                return f"messages of session {number} at turn {len(conversation.turns)}"
            text, _, keep = history.render(conversation, adapted, variables, known)
            if text != expected:
                return f"session {number} at turn {len(conversation.turns)}"
            if keep is not None:
                keep()
    return None


def session(source: random.Random, number: int) -> Iterator[Conversation]:
    """The requests of one session, each longer than the last."""
    tools = _TOOLS if number % 4 else []
    thinking: Thinking = Thinking(("enabled", "default", "disabled")[number % 3 if number > 2 else 0])
    system = [Text("Be brief.")] if number % 5 else []
    turns = [Turn("user", [_text(source)])]
    reasons, ends = source.choice((0.9, 0.5, 0.1)), source.choice((0.05, 0.2, 0.5))
    for _ in range(_REQUESTS):
        for _ in range(source.choice((1, 1, 1, 2, 5))):
            turns = [*turns, *_step(source, len(turns), reasons, ends if tools else 1.0)]
        yield Conversation("trial", turns, system=system, tools=tools, thinking=thinking)


def _step(source: random.Random, number: int, reasons: float, ends: float) -> list[Turn]:
    """A turn of the model and the answer to it."""
    parts: list[Part] = [Reasoning(_text(source).text)] if source.random() < reasons else []
    if source.random() < ends:
        return [Turn("assistant", [*parts, _text(source)]), Turn("user", [_text(source)])]
    calls: list[Call] = []
    for at in range(source.choice((1, 1, 1, 2, 3))):
        if source.random() < 0.4:
            parts.append(_text(source))
        elif at and source.random() < 0.3:
            parts.append(Reasoning(_text(source).text))
        calls.append(_call(source, f"toolu_{number}x{at}"))
        parts.append(calls[-1])
    after: list[Turn] = [Turn("tool", [Result(call.call_id, [_text(source)]) for call in calls])]
    if source.random() < 0.1:
        after.append(Turn(source.choice(("user", "system")), [_text(source)]))
    return [Turn("assistant", parts), *after]


def _call(source: random.Random, call_id: str) -> Call:
    if source.random() < 0.5:
        return Call(call_id, "read", f'{{"path": "file{source.randrange(1000)}.py"}}')
    return Call(call_id, "run", f'{{"command": "ls \\"{source.randrange(1000)}\\"", "n": {source.choice((1, 2.5))}}}')


def _text(source: random.Random) -> Text:
    return Text(" ".join((str(source.randrange(10**6)), source.choice(_WORDS), str(source.randrange(10**6)))))
