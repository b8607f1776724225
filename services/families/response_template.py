"""Compiles a `response_template`, a model's own description of its output, into a family.

transformers defines the format (version 1, in tokenizer_config.json): fields, the delimiters of
their regions, and how a region's text becomes the field's value. Here a field is reasoning, calls
or text, by its name; its delimiters become the markers of a `Markup`, and its content one of the
readers of calls. A description that is invalid, or that these cannot express, is refused with the
name of the key.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, TypeVar

import msgspec

from services.families.description.calls import described_calls
from services.families.description.delimiters import delimiter, sample, special_tokens
from services.families.description.fields import (
    InvalidResponseTemplate,
    ResponseTemplate,
    TemplateField,
    converted,
    refused,
)
from services.families.description.regions import Region
from services.families.family import Family
from services.families.grammar.markup import Markup
from services.families.writing import Style

T = TypeVar("T")
MAX_CHARS: Final = 16_384
_CONTROL: Final = re.compile(r"<[|｜].*|.*[|｜]>")


def template_name(text: str) -> str:
    """The name of a description's family, which is the description itself: so every process that
    gets a turn's family by name can parse it. `text`: the description as JSON, or a JSON object
    that has it as `response_template`. Raises InvalidResponseTemplate."""
    try:
        source = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidResponseTemplate(f"response_template is not JSON: {error}") from None
    if isinstance(source, dict) and "response_template" in source:
        source = source["response_template"]
    if not isinstance(source, dict):
        raise InvalidResponseTemplate("response_template is not an object")
    try:
        name = json.dumps(source, ensure_ascii=False, separators=(",", ":"))
        described(name)
    except RecursionError:
        raise InvalidResponseTemplate("response_template is nested too deeply") from None
    return name


@lru_cache(16)
def described(name: str) -> Family:
    """The family of a description, by its name. Raises InvalidResponseTemplate."""
    if len(name) > MAX_CHARS:
        raise InvalidResponseTemplate(f"response_template has more than {MAX_CHARS} characters")
    template: ResponseTemplate = converted(json.loads(name), ResponseTemplate, "it")
    if not template.fields:
        raise refused("fields", "is empty")
    anchor = delimiter(template.start_anchor, template.start_anchor_pattern, "start_anchor", {})
    if not anchor:
        raise refused("start_anchor", "is missing")
    regions = [
        Region(key, converted(value, TemplateField, f"fields.{key}"))
        for key, value in template.fields.items()
    ]
    rest = [region for region in regions if region.opens is None]
    others = [region for region in rest if region.kind != "text"]
    for region in (*rest[1:], *others):
        raise region.refused("open", "is missing; one field of text can be without it")
    return _compiled(name, regions, anchor)


def _compiled(name: str, regions: Sequence[Region], anchor: Sequence[str]) -> Family:
    think = _joined(region.thoughts(anchor) for region in regions if region.kind == "reasoning")
    frames = _joined(region.pairs() for region in regions if region.kind == "text")
    stops = _joined(region.closes for region in regions if region.opens is None)
    text = "{text}"
    if frames and not stops:
        text = "{text}".join(frames[0])
        next_headers = [(header, frames[0][1]) for header in anchor]
        frames += next_headers
    calls = [described_calls(region) for region in regions if region.kind == "calls"]
    inside_calls = _joined(part.inner for part in calls)
    delimiters = _joined(region.delimiters for region in regions)
    markers = special_tokens([*delimiters, *inside_calls, *_joined(think), *anchor])
    tails = dict.fromkeys(_joined(part.closes for part in calls))
    style = calls[0].style if calls else Style()
    marks = (sample(think[0][0]), sample(think[0][1])) if think else None
    return Family(
        name=name,
        models="a model with a response_template",
        grammar=Markup(
            think=tuple(think),
            calls=tuple(_joined(part.calls for part in calls)),
            tails=tuple(tail for tail in tails if tail not in stops),
            stops=tuple(stop for stop in stops if not _is_control(stop)),
            frames=tuple(frames),
            inline=True,
            noise=tuple(filter(_is_control, markers)),
        ),
        style=Style(style.call, style.arguments, _reasoning_style(marks), text),
        think=marks,
        markers=markers,
        stops=tuple(stop for stop in stops if "{" not in stop),
    )


def _reasoning_style(marks: tuple[str, str] | None) -> str:
    """Reasoning on lines of its own; empty, for the family's default, between control tokens."""
    if marks is None or marks[0].endswith(("|>", "｜>")):
        return ""
    return "\n{text}\n".join(marks) + "\n\n"


def _is_control(token: str) -> bool:
    return _CONTROL.fullmatch(token) is not None


def _joined(parts: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(parts))
