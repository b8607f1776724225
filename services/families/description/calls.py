"""Compiles the regions of calls: their openers with the readers after them, and the style of the
calls."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from services.families.description.delimiters import (
    first_parts,
    forms,
    has_key,
    has_name,
    has_token,
    last_part,
    sample,
    samples,
    trimmed,
    with_blanks_before_name,
    without_brackets,
)
from services.families.description.fields import refusal
from services.families.description.regions import Region
from services.families.grammar import expressions
from services.families.grammar.call_marker import CallMarker
from services.families.grammar.shapes import Shape
from services.families.readers.gemma import GemmaStyle, GemmaValues
from services.families.readers.json_calls import Form, JsonCalls
from services.families.readers.json_values import JSON, Values
from services.families.readers.named_calls import BareCall
from services.families.readers.parameters import Parameters
from services.families.readers.pythonic import Pythonic, python_style
from services.families.writing import ARGUMENTS, NAME, Style, Tags

_TAG: Final = re.compile(r"<(\w+)[ =>]")
_KEY: Final = "(?P<key>"
_VALUE: Final = "(?P<value>"
_KEYWORD: Final = re.compile(r"\(\?P<key>\\w\+\)(?:\\s\*)?=(?:\\s\*)?")
"""Matches what precedes the value of a keyword argument."""
_FUNCTION: Final = re.compile(r"\[?\{(?:plain_)?name\}\(\Z")


class DescribedCalls(NamedTuple):
    """The calls in a field's regions."""

    calls: Sequence[CallMarker]
    style: Style
    closes: Sequence[str]
    inner: Sequence[str] = ()
    """The delimiters inside of a call."""


def described_calls(region: Region) -> DescribedCalls:
    """The calls in a field's regions. Raises InvalidResponseTemplate."""
    if not region.opens:
        raise region.refusal("open", "is missing")
    if not region.name_path or not region.arguments_path:
        problem = "has no placeholder for the name or the arguments of a call"
        raise region.refusal("transform", problem)
    match region.field.content:
        case "json" if len(region.name_path) == 1 and region.arguments_path == ["content"]:
            return _json_arguments(region, region.opens)
        case "json":
            return _json_calls(region, region.opens)
        case "xml-inline":
            return _inline_calls(region, region.opens)
        case "python-call-list":
            return _python_calls(region, region.opens, region.closes)
    problem = f"is {region.field.content!r}, in which calls are not read"
    raise region.refusal("content", problem)


def _json_arguments(region: Region, opens: Sequence[str]) -> DescribedCalls:
    """The opener has the name, and the body is its arguments."""
    closes = tuple(without_brackets(region.closes))
    token = _string_token(region, closes)
    values: Values = JSON
    style = Style(call=sample(opens[0]) + ARGUMENTS + samples(region.closes[:1]))
    inner: list[str] = []
    if token is not None:
        values = GemmaValues(token, closes[0], opens[0])
        style = replace(style, arguments=GemmaStyle(token))
        inner = [token]
    body = JsonCalls(form=Form.ARGUMENTS, call_closers=closes, stop_closes=True, values=values)
    then = ["{", *closes]
    if not opens[0].endswith("name}"):
        then.insert(1, "null")
    calls = [CallMarker(Shape(opener, then=then), body) for opener in opens]
    return DescribedCalls(calls, style, closes, inner)


def _string_token(region: Region, closes: Sequence[str]) -> str | None:
    """The token on both sides of a string; None if the arguments are plain JSON."""
    arguments = dict(region.field.content_args)
    arguments.pop("allow_non_json", None)
    match arguments:
        case {"string_delims": [[str(token), closer]], "unquoted_keys": True} if (
            token == closer and len(token) > 1 and len(arguments) == 2 and closes
        ):
            return token
        case {**others} if others:
            raise region.refusal("content_args", "describe JSON of a kind that is not read")
    return None


def _json_calls(region: Region, opens: Sequence[str]) -> DescribedCalls:
    """The body is an object with name and arguments, or a list of them."""
    is_list = region.field.transform_each
    name_path = region.name_path
    arguments_path = region.arguments_path
    if not is_list:  # without `content`
        name_path = name_path[1:]
        arguments_path = arguments_path[1:]
    if region.field.content_args or len(name_path) != 1 or len(arguments_path) != 1:
        raise region.refusal("transform", "takes the call from places that are not read")
    name = name_path[0]
    arguments = arguments_path[0]

    form = Form.OBJECT
    then = ["{"]
    if is_list or region.field.transform is None:
        form = Form.LIST
        then = ["[", "{"]
    keys = [arguments]
    if arguments == "arguments":
        keys.append("parameters")
    closes = tuple(without_brackets(region.closes))
    body = JsonCalls(form=form, call_closers=closes, names=(name,), arguments=tuple(keys))
    calls = [CallMarker(Shape(opener, then=then), body) for opener in opens]

    written = f'{{"{name}": "{NAME}", "{arguments}": {ARGUMENTS}}}'
    if is_list:
        written = f"[{written}]"
    joint = "\n" if opens[0].endswith(">") else ""
    parts = (sample(opens[0]), written, samples(region.closes[:1]))
    return DescribedCalls(calls, Style(call=joint.join(parts)), closes)


def _inline_calls(region: Region, opens: Sequence[str]) -> DescribedCalls:
    """The opener has the name, and the body a tag, or a keyword, for each argument."""
    key_path = f"{region.key_path}.content_args.tag_pattern"
    source = region.field.content_args.get("tag_pattern")
    if not isinstance(source, str) or _VALUE not in source or _KEY not in source:
        raise refusal(key_path, "must be an expression with the groups 'key' and 'value'")
    before, _, rest = source.partition(_VALUE)
    after = rest[expressions.group_end(rest) :]
    if not after and _KEYWORD.fullmatch(before):
        return _keyword_calls(region, opens)
    names = [with_blanks_before_name(opener) for opener in opens if has_name(opener)]
    if not names or region.arguments_path != ["content"] or not region.closes:
        problem = "needs a name in open_pattern, the content as arguments, and a closer"
        raise refusal(region.key_path, problem)
    return _tagged_calls(names, _argument_tag(before, after, key_path), region.closes)


class _ArgumentTag(NamedTuple):
    """The tags around an argument."""

    opens: list[str]
    closes: list[str]
    framed: bool
    """The value has a line of its own."""


def _argument_tag(before: str, after: str, key_path: str) -> _ArgumentTag:
    """The tags of the expressions before and after a value."""
    openers = forms(before, {"key": "key"}, key_path)
    closers = forms(after, {"key": "key"}, key_path)
    opens = list(map(trimmed, openers))
    closes = list(map(trimmed, closers))
    have_keys = all(has_key(text) and not text.startswith("{") for text in opens)
    if not all(closes) or not have_keys:
        raise refusal(key_path, "has no fixed text before the key, or none after the value")
    return _ArgumentTag(opens, closes, framed=opens != openers or closes != closers)


def _tagged_calls(names: list[str], tag: _ArgumentTag, ends: list[str]) -> DescribedCalls:
    """Calls with openers that have a name, and an argument in each tag."""
    inner = _missing_closers(names[0], ends)
    without_wrapper = [last_part(opener) for opener in names if "{ws}<" in opener]
    openers = (*names, *without_wrapper)
    heads = dict.fromkeys(Shape(opener).head for opener in openers)
    only_keys = list(filter(has_key, map(first_parts, tag.opens)))
    opens = (*tag.opens, *only_keys)
    body = Parameters(
        parameter_tags=opens,
        parameter_closers=tuple(tag.closes),
        call_closers=tuple(inner or ends),
        next_markers=(*(ends if inner else ()), *heads),
        call_tags=openers,
        frame=tag.framed,
    )
    cut = [opener for opener in names if opener.endswith("name}>")]
    cut_shapes = [Shape(opener.removesuffix(">"), then=(*ends, *heads)) for opener in cut]
    calls = [
        *map(body.call, names),
        *(body.call(opener, line_start=True) for opener in without_wrapper),
        *(CallMarker(shape, BareCall(whole=False)) for shape in cut_shapes),
    ]
    style = _tagged_style(names[0], tag, [*inner, ends[0]])
    return DescribedCalls(calls, style, [*ends, *inner], [*opens, *tag.closes])


def _missing_closers(opener: str, ends: Sequence[str]) -> list[str]:
    """The closers of tags inside of the opener, which descriptions leave out:
    `<tool_call><function=NAME>`."""
    closers = (f"</{name}>" for name in _TAG.findall(opener))
    return [closer for closer in closers if closer not in ends]


def _tagged_style(opener: str, tag: _ArgumentTag, ends: Sequence[str]) -> Style:
    value = "\n{value}\n" if tag.framed else "{value}"
    argument = f"{sample(tag.opens[0])}{value}{sample(tag.closes[0])}\n"
    *inner, last = ends
    closers = "\n".join([*inner, sample(last)])
    return Style(call=f"{sample(opener)}\n{ARGUMENTS}{closers}", arguments=Tags(argument))


def _keyword_calls(region: Region, opens: Sequence[str]) -> DescribedCalls:
    """Functions with keyword arguments, as in Python, where the delimiters have the brackets."""
    parts = [_FUNCTION.split(opener) for opener in opens]
    markers = [marker for marker, *call in parts if call and has_token(marker)]
    if not markers:
        raise region.refusal("open_pattern", "has no marker before the name of a function")
    return _python_calls(region, markers, without_brackets(region.closes))


def _python_calls(region: Region, opens: Sequence[str], closes: Sequence[str]) -> DescribedCalls:
    """A list of function calls in Python."""
    if len(opens) != 1 or "{" in opens[0]:
        raise region.refusal("open", "must be one fixed text before calls in Python")
    marker = opens[0]
    style = Style(
        call=f"{marker}[{NAME}({ARGUMENTS})]{samples(closes[:1])}", arguments=python_style
    )
    call = CallMarker(Shape(marker, then=("[",)), Pythonic(marker, tuple(closes)))
    return DescribedCalls([call], style, closes)
