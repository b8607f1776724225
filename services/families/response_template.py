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
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final, TypeVar

import msgspec

from services.families.description.calls import DescribedCalls, described_calls
from services.families.description.delimiters import delimiter, sample, special_tokens
from services.families.description.fields import (
    InvalidResponseTemplate,
    ResponseTemplate,
    TemplateField,
    converted,
    refusal,
)
from services.families.description.regions import Region, RegionKind
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
        described_family(name)
    except RecursionError:
        raise InvalidResponseTemplate("response_template is nested too deeply") from None
    return name


@lru_cache(16)
def described_family(name: str) -> Family:
    """The family of a description, by its name. Raises InvalidResponseTemplate."""
    if len(name) > MAX_CHARS:
        raise InvalidResponseTemplate(f"response_template has more than {MAX_CHARS} characters")
    template: ResponseTemplate = converted(json.loads(name), ResponseTemplate, "it")
    if not template.fields:
        raise refusal("fields", "is empty")
    anchor = delimiter(template.start_anchor, template.start_anchor_pattern, "start_anchor", {})
    if not anchor:
        raise refusal("start_anchor", "is missing")
    regions = [
        Region(key, converted(value, TemplateField, f"fields.{key}"))
        for key, value in template.fields.items()
    ]
    rest = [region for region in regions if region.opens is None]
    others = [region for region in rest if region.kind != "text"]
    for region in (*rest[1:], *others):
        raise region.refusal("open", "is missing; one field of text can be without it")
    return _compiled(name, regions, anchor)


def _compiled(name: str, regions: Sequence[Region], anchor: Sequence[str]) -> Family:
    think = _joined(region.thoughts(anchor) for region in _of_kind("reasoning", regions))
    frames = _joined(region.pairs() for region in _of_kind("text", regions))
    calls = list(map(described_calls, _of_kind("calls", regions)))
    stops = _joined(region.closes for region in regions if region.opens is None)
    text = "{text}"
    if frames and not stops:
        opener, closer = frames[0]
        text = opener + text + closer
        frames += [(header, closer) for header in anchor]

    markers = _markers(regions, calls, [*_joined(think), *anchor])
    tags = (sample(think[0][0]), sample(think[0][1])) if think else None
    return Family(
        name=name,
        models="a model with a response_template",
        grammar=Markup(
            think=tuple(think),
            calls=tuple(_joined(part.calls for part in calls)),
            tails=_tails(calls, stops),
            stops=tuple(stop for stop in stops if not _is_control(stop)),
            frames=tuple(frames),
            inline=True,
            noise=tuple(filter(_is_control, markers)),
        ),
        style=_style(calls, tags, text),
        think=tags,
        markers=markers,
        stops=tuple(stop for stop in stops if "{" not in stop),
    )


def _of_kind(kind: RegionKind, regions: Iterable[Region]) -> list[Region]:
    return [region for region in regions if region.kind == kind]


def _markers(
    regions: Iterable[Region], calls: Iterable[DescribedCalls], others: Iterable[str]
) -> tuple[str, ...]:
    """The special tokens in the delimiters of regions, inside of calls and in `others`."""
    delimiters = _joined(region.delimiters for region in regions)
    inside_calls = _joined(part.inner for part in calls)
    return special_tokens([*delimiters, *inside_calls, *others])


def _tails(calls: Iterable[DescribedCalls], stops: Sequence[str]) -> tuple[str, ...]:
    closes = dict.fromkeys(_joined(part.closes for part in calls))
    return tuple(close for close in closes if close not in stops)


def _style(calls: Sequence[DescribedCalls], tags: tuple[str, str] | None, text: str) -> Style:
    """The written form of a turn. Reasoning stands on lines of its own; between control tokens, as
    in the family's default."""
    style = calls[0].style if calls else Style()
    reasoning = ""
    if tags is not None and not tags[0].endswith(("|>", "｜>")):
        reasoning = "\n{text}\n".join(tags) + "\n\n"
    return replace(style, reasoning=reasoning, text=text)


def _is_control(token: str) -> bool:
    return _CONTROL.fullmatch(token) is not None


def _joined(parts: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(parts))
