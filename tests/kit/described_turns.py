"""Turns in the formats of response templates, and their fields as we and as transformers read
them."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.conversation import ToolSpec
from services.families import open_parser
from services.families.response_template import described_family
from tests.kit.parser_cases import Block, every_way
from tests.kit.response_templates import OWN, of_trl

SCHEMA = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "share": {"type": "number"},
    "places": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
}
TOOLS = [
    ToolSpec(name, schema={"type": "object", "properties": SCHEMA})
    for name in ("get_weather", "look_up")
]
DEFINITIONS: list[Any] = [
    {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.schema)}}
    for tool in TOOLS
]
Arguments = Mapping[str, Any]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Written:
    """The way in which a model writes turns."""

    calls: Callable[[Sequence[Call]], str] | None
    thought: Callable[[str], str] | None = None
    text: Callable[[str], str] = str
    prompt: str = ""
    """The end of the prompt; "": every prompt opens reasoning."""
    thinking_prompt: str = ""
    """The end of a prompt that opens reasoning; then `thought` writes no opener."""
    end: str = ""
    joint: str = ""
    text_beside: bool = True
    """Text may stand beside calls."""


def _each(
    write: Callable[[str, Arguments], str], joint: str = "\n"
) -> Callable[[Sequence[Call]], str]:
    return lambda calls: joint.join(write(name, arguments) for name, arguments in calls)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _object(name: str, arguments: Arguments) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _function_tags(name: str, arguments: Arguments) -> str:
    tags = "".join(
        f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


def _harmony(name: str, arguments: Arguments) -> str:
    body = json.dumps(arguments, ensure_ascii=False)
    return f" to=functions.{name}<|channel|>commentary json<|message|>{body}<|call|>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return json.dumps(value)


def _gemma(name: str, arguments: Arguments) -> str:
    return f"<|tool_call>call:{name}{_gemma_value(arguments)}<tool_call|>"


def _think(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def _opened(text: str) -> str:
    return f"{text}\n</think>\n\n"


def _renamed(name: str, arguments: Arguments) -> str:
    return f"<action>{json.dumps({'tool': name, 'input': arguments}, ensure_ascii=False)}</action>"


_CHATML: dict[str, Any] = {"prompt": "<|im_start|>assistant\n", "end": "<|im_end|>"}
WRITTEN = {
    "qwen3": Written(_each(_object), _think, **_CHATML),
    "qwen3_5": Written(_each(_function_tags), _think, **_CHATML),
    "gptoss": Written(
        _each(_harmony, "<|start|>assistant"),
        lambda text: f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant",
        lambda text: f"<|channel|>final<|message|>{text}<|return|>",
        prompt="<|start|>assistant",
        text_beside=False,
    ),
    "nemotron_3": Written(
        _each(_function_tags),
        _opened,
        prompt=_CHATML["prompt"] + "<think></think>",
        thinking_prompt=_CHATML["prompt"] + "<think>\n",
        end="<|im_end|>",
    ),
    "gemma4": Written(
        _each(_gemma, ""),
        lambda text: f"<|channel>thought\n{text}<channel|>",
        prompt="<|turn>model\n",
        end="<turn|>",
    ),
    "renamed": Written(
        _each(_renamed),
        lambda text: f"<scratchpad>{text}</scratchpad>",
        lambda text: f"<reply>{text}</reply>",
        prompt="<bot>",
    ),
}
WORDS = (
    *("Paris", "naïve", "東京", "😀", "a < b", "it", "…", "x=1", 'say "hi"', "C:\\temp", "l1\nl2"),
    *("the end.", "{k: v}"),
)


def templates() -> dict[str, dict[str, Any]]:
    """All templates at hand."""
    return {**of_trl(), **OWN}


@dataclass(frozen=True)
class Turn:
    """An output, and what it means."""

    prompt: str
    output: str
    thought: str
    text: str
    """The last text."""
    calls: list[Call]


def make_turn(rng: random.Random, written: Written) -> Turn:
    """A well-formed turn."""

    def words(most: int = 5) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most))).strip() or "x"

    def value(kind: str) -> Any:
        values: dict[str, Callable[[], Any]] = {
            "city": words,
            "days": lambda: rng.randint(-5, 99),
            "exact": lambda: rng.random() < 0.5,
            "share": lambda: rng.choice([0.5, -1.25, 3, 1e20]),
            "places": lambda: [words(2) for _ in range(rng.randint(0, 3))],
            "options": lambda: {
                "a": [1, {"b": words(2)}],
                "c": None,
                "d": rng.choice([True, words(2)]),
            },
        }
        return values[kind]()

    thought = text = output = ""
    calls: list[Call] = []
    if written.thought is not None and (not written.prompt or rng.random() < 0.6):
        thought = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))).strip()
    if written.calls is not None:
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            keys = rng.sample(list(SCHEMA), rng.randint(0, len(SCHEMA)))
            calls.append((rng.choice(TOOLS).name, {key: value(key) for key in keys}))
    if not calls or (written.text_beside and rng.random() < 0.5):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))).strip()
    if thought and written.thought is not None:
        output += written.thought(thought)
    texts = [written.text(text)] if text else []
    parts = [written.calls(calls)] if calls and written.calls is not None else []
    order = [*texts, *parts] if rng.random() < 0.7 else [*parts, *texts]
    output += "\n".join(order) + written.end
    prompt = written.thinking_prompt if thought and written.thinking_prompt else written.prompt
    return Turn(f"<user>Hi.\n{prompt}", output, thought, text, calls)


def by_transformers(template: dict[str, Any], turn: Turn) -> tuple[str, str, list[Call]]:
    """Reasoning, text and calls, as transformers reads them. Raises what it raises."""
    from transformers.utils.chat_parsing import parse_response

    message = parse_response(turn.output, template, prefix=turn.prompt, tools=DEFINITIONS)
    thought = message.get("reasoning_content") or message.get("thinking") or ""
    calls = message.get("tool_calls") or []
    flat = [one for item in calls for one in (item if isinstance(item, list) else [item])]
    functions = [item["function"] for item in flat]
    return (
        thought,
        message.get("content") or "",
        [(one["name"], one["arguments"]) for one in functions],
    )


def parsed(name: str, turn: Turn) -> list[Block]:
    """The blocks of a turn, the same in every cut."""
    thinks = described_family(name).opens_reasoning(turn.prompt[-512:])
    return every_way(lambda: open_parser(name, tools=TOOLS, in_reasoning=thinks), turn.output)


def fields(found: Sequence[Block]) -> tuple[str, str, list[Call]]:
    """Reasoning, the last text, and the complete calls."""
    last = {block["type"]: block["text"].strip() for block in found}
    calls = [
        (block["name"], block["input"])
        for block in found
        if block["type"] == "tool_use" and block["complete"]
    ]
    return last.get("reasoning", ""), last.get("text", ""), calls
