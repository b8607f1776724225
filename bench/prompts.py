"""Makes request bodies like an agent's from a seed: the same bytes on every machine. Pure.

`size` is `small` (200 tokens, no tools) or `large` (52,000 tokens with the demo model's tokenizer:
a system prompt of about 177 KB and 20 tools). `kind`: what one request has in common with the next:

    same    everything
    tail    all but the end of the user's message: a repeated prefix with a new tail
    head    nothing from the first words of the first tool or the system prompt on; the words after
            them are the same
    fresh   nothing: another text for every request
"""

import json
import random
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from bench.apis import Api, Prompt, Tool

Size: TypeAlias = Literal["small", "large"]
Kind: TypeAlias = Literal["same", "tail", "head", "fresh"]

SYSTEM_BYTES = 177_000
SMALL_BYTES = 740
TOOL_BYTES = 1620
NUMBER = b"@@@@@@@@"
"""Placeholder for the request's number."""
SHORT_ANSWER = 16
"""Tokens of the answers to long prompts."""
SHORT_PLAY = f"text n={SHORT_ANSWER} delay=0"
"""The script that writes them at once."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    """
    function argument attribute expression statement definition description dictionary directory
    documentation environment exception implementation information initialization instance
    instruction interface interpreter iteration keyword library location message method module
    namespace number object operation operator option output package parameter platform position
    process program property protocol reference representation request resource response result
    sequence server session specification string structure subclass substitution support syntax
    system template thread transaction translation type value variable version connection
    configuration condition character
    """
)
_VERBS = _words(
    """
    change check compare complete configure continue convert create define describe determine
    discard display evaluate examine execute expect explain follow generate handle implement import
    include initialize insert install interpret introduce iterate maintain match modify prepare
    preserve process provide raise recognize register remove replace report represent require
    resolve restore return review search select separate specify support translate update
    """
)
_QUALITIES = _words(
    """
    absolute abstract additional alternative anonymous appropriate arbitrary asynchronous available
    compatible complete complex conditional consistent corresponding current default different
    dynamic effective empty enclosing equivalent explicit external following global hidden immutable
    implicit independent individual internal invalid local missing mutable necessary nested optional
    ordinary original particular possible previous private recursive relative separate significant
    similar simple single specific standard static temporary unexpected unique universal virtual
    """
)
_LINKS = _words(
    """
    before after while because unless until when where although since whenever whether
    """
)
_TOOLS = _words(
    """
    read_file write_file edit_file list_files find_files search_text run_command command_output
    stop_command fetch_page search_web plan_task start_agent ask_user edit_notebook list_resources
    read_resource show_diff run_tests get_weather
    """
)


def make_body(
    api: Api, model: str, *, size: Size, kind: Kind, play: str, seed: int = 0
) -> Callable[[int], bytes]:
    """Returns the body of the n-th request. `play`: the script to play and its options, as in `text
    n=16`.

    Requests differ by their numbers within a run, and by the seed from run to run.
    """

    def render(seed: int) -> bytes:
        prompt = make_prompt(size, kind, play, seed)
        return json.dumps(api.body(prompt, model), separators=(",", ":")).encode()

    if kind == "fresh":
        return lambda number: render(seed + number + 1).replace(NUMBER, b"%08d" % number)
    body = render(0)
    run = seed * 10_000 % 100_000_000
    return lambda number: body.replace(NUMBER, b"%08d" % (run + number))


def make_prompt(size: Size, kind: Kind, play: str, seed: int = 0) -> Prompt:
    """The user message. `NUMBER` is replaced, so that requests differ."""
    source = random.Random(f"{size} {seed}")
    head = f"Session {NUMBER.decode()}. " if kind in ("head", "fresh") else ""
    tail = "" if kind == "same" else f" ({NUMBER.decode()})"
    user = f"Please go on with the next step{tail}. [[play {play}]]"
    if size == "small":
        return Prompt(user, head + prose(source, SMALL_BYTES))
    return Prompt(
        user,
        head + _manual(source, SYSTEM_BYTES),
        tuple(_tool(source, name, head if at == 0 else "") for at, name in enumerate(_TOOLS)),
        max_tokens=32_000,
        preamble=True,
    )


def story_prompt(play: str) -> Prompt:
    """A short request with three tools, for streams: their parser looks for calls in every
    token."""
    source = random.Random("story")
    return Prompt(
        f"Tell me a story. [[play {play}]]",
        tools=tuple(_tool(source, name, "") for name in _TOOLS[-3:]),
    )


def _manual(source: random.Random, size: int) -> str:
    parts: list[str] = []
    length = 0
    while length < size:
        part = f"# {_title(source)}\n\n{prose(source, source.randrange(600, 2400))}\n\n"
        parts.append(part)
        length += len(part)
    return "".join(parts)[:size]


def prose(source: random.Random, size: int) -> str:
    """`size` characters of sentences, lists and code."""
    lines: list[str] = []
    length = 0
    while length < size:
        form = source.random()
        if form < 0.36:
            line = " ".join(_sentence(source) for _ in range(source.randrange(2, 6)))
        elif form < 0.60:
            line = "\n".join(f"- {_sentence(source)}" for _ in range(source.randrange(2, 6)))
        else:
            line = _code(source)
        lines.append(line)
        length += len(line) + 2
    return "\n\n".join(lines)[:size]


def _sentence(source: random.Random) -> str:
    verb, link = source.choice(_VERBS), source.choice(_LINKS)
    first = f"{verb.capitalize()} the {source.choice(_QUALITIES)} {source.choice(_NOUNS)}"
    second = (
        f"the {source.choice(_NOUNS)} of the {source.choice(_QUALITIES)} {source.choice(_NOUNS)}"
    )
    return (
        f"{first} {link} {second} is {source.choice(_QUALITIES)}, and {source.choice(_VERBS)} it."
    )


def _title(source: random.Random) -> str:
    return f"How to {source.choice(_VERBS)} a {source.choice(_NOUNS)} {source.choice(_NOUNS)}"


def _code(source: random.Random) -> str:
    name, value = source.choice(_NOUNS), source.choice(_NOUNS)
    body = "\n".join(_statement(source, value) for _ in range(source.randrange(2, 7)))
    return f"```python\ndef {source.choice(_VERBS)}_{name}({value}: str) -> None:\n{body}\n```"


def _statement(source: random.Random, value: str) -> str:
    result, verb, noun = source.choice(_NOUNS), source.choice(_VERBS), source.choice(_NOUNS)
    return f"    {result} = {verb}_{noun}({value}, {source.randrange(100)})"


def _tool(source: random.Random, name: str, head: str) -> Tool:
    arguments = schema(source)
    return Tool(name, head + prose(source, TOOL_BYTES), arguments)


def schema(source: random.Random) -> dict[str, Any]:
    """The arguments of a tool, as JSON schema."""

    def described(kind: str) -> dict[str, Any]:
        return {"type": kind, "description": _sentence(source)}

    change = {
        "old": described("string"),
        "new": described("string"),
        "all": {"type": "boolean", "default": False},
    }
    properties: dict[str, Any] = {
        "path": described("string"),
        "pattern": described("string"),
        "city": described("string"),
        "days": described("integer"),
        "recursive": described("boolean"),
        "mode": {"type": "string", "enum": ["content", "names", "count"]},
        "edits": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": change,
                "required": ["old", "new"],
                "additionalProperties": False,
            },
        },
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": ["path"],
        "additionalProperties": False,
    }
