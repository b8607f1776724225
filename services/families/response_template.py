"""Compiles a `response_template`, a model's own description of its output, into a family.

transformers defines the format (version 1, in tokenizer_config.json): fields, the delimiters of
their regions, and how a region's text becomes the field's value. Here a field is reasoning, calls
or text, by its name; its delimiters become the markers of a `Markup`, and its content one of the
readers of calls. A description that is invalid, or that these cannot express, is refused with the
name of the key.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from services.families.family import Family
from services.families.grammar import expressions
from services.families.grammar.markup import Call, Markup
from services.families.grammar.shapes import HOLE, Shape
from services.families.readers.gemma import GemmaValues, gemma_style
from services.families.readers.json_calls import Form, JsonCalls
from services.families.readers.parameters import BareCall, Parameters
from services.families.readers.pythonic import Pythonic, python_style
from services.families.writing import ARGUMENTS, NAME, Style, Tags

MAX_CHARS: Final = 16_384
_REASONING: Final = frozenset({"reasoning_content", "reasoning", "thinking", "thought", "thoughts"})
_CALLS: Final = frozenset({"tool_calls", "tool_call", "function_calls", "function_call"})
_PLACEHOLDER: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_TOKEN: Final = re.compile(r"<[^<>\s{}]+>|\[/?[A-Z_]{2,}\]|[^\x00-\u02ff]\S*[^\x00-\u02ff]")
"""Matches what a tokenizer probably has as one token."""
_CONTROL: Final = re.compile(r"<[|｜].*|.*[|｜]>")
_TAG: Final = re.compile(r"<(\w+)[ =>]")
_ENDLESS: Final = re.compile(r"\{\w+\}\Z")
"""Matches a hole at the end, of which no text says where it ends."""
_EDGE: Final = re.compile(r"^(?:\{ws\}|\s)+|(?:\{ws\}|\s)+$")
_VALUE: Final = "(?P<value>"
_KEYWORD: Final = re.compile(r"\(\?P<key>\\w\+\)(?:\\s\*)?=(?:\\s\*)?")
"""Matches what precedes the value of a keyword argument."""
_FUNCTION: Final = re.compile(r"\[?\{(?:plain_)?name\}\(\Z")


class InvalidResponseTemplate(ValueError):
    """The description is invalid, or cannot be followed; the message names the key."""


class _Field(Struct, forbid_unknown_fields=True):
    """A field, as it is written."""

    open: str | list[str] | None = None
    open_pattern: str | None = None
    close: str | list[str] | None = None
    close_pattern: str | None = None
    content: Literal[
        "text", "int", "float", "bool", "json", "xml-inline", "kv-lines", "python-call-list"
    ] = "text"
    content_args: dict[str, Any] = {}
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


class _Template(Struct, forbid_unknown_fields=True):
    """A description, as it is written."""

    fields: dict[str, Any]
    version: Literal[1] = 1
    defaults: dict[str, Any] = {}
    start_anchor: str | list[str] | None = None
    start_anchor_pattern: str | None = None


class _Calls(NamedTuple):
    """The calls in a field's regions."""

    calls: Sequence[Call]
    style: Style
    closes: Sequence[str]
    inner: Sequence[str] = ()
    """The delimiters inside of a call."""


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
    template: _Template = _converted(json.loads(name), _Template, "it")
    if not template.fields:
        raise _refused("fields", "is empty")
    anchor = _delimiter(template.start_anchor, template.start_anchor_pattern, "start_anchor", {})
    if not anchor:
        raise _refused("start_anchor", "is missing")
    regions = [
        _Region(key, _converted(value, _Field, f"fields.{key}"))
        for key, value in template.fields.items()
    ]
    rest = [region for region in regions if region.opens is None]
    for region in (*rest[1:], *(region for region in rest if region.kind != "text")):
        raise _refused(f"{region.place}.open", "is missing; one field of text can be without it")
    return _family(name, regions, anchor)


def _family(name: str, regions: "Sequence[_Region]", anchor: Sequence[str]) -> Family:
    think = [
        pair for region in regions if region.kind == "reasoning" for pair in region.thoughts(anchor)
    ]
    frames = [pair for region in regions if region.kind == "text" for pair in region.pairs()]
    stops = [close for region in regions if region.opens is None for close in region.closes]
    text = "{text}" if stops or not frames else "{text}".join(frames[0])
    if not stops and frames:  # the header of the turn's next message
        frames += [(header, frames[0][1]) for header in anchor]
    marks = (_sample(think[0][0]), _sample(think[0][1])) if think else None
    reasoning = (
        "\n{text}\n".join(marks) + "\n\n" if marks and not marks[0].endswith(("|>", "｜>")) else ""
    )
    calls = [region.calls() for region in regions if region.kind == "calls"]
    style = calls[0].style if calls else Style()
    written = [
        *(part for region in regions for part in (*(region.opens or ()), *region.closes)),
        *(part for one in calls for part in one.inner),
        *(part for pair in think for part in pair),
        *anchor,
    ]
    tokens = (token for part in written for token in _TOKEN.findall(part.replace("{ws}", " ")))
    markers = tuple(dict.fromkeys(tokens))
    tails = dict.fromkeys(close for one in calls for close in one.closes if close not in stops)
    return Family(
        name=name,
        models="a model with a response_template",
        grammar=Markup(
            think=tuple(think),
            calls=tuple(call for one in calls for call in one.calls),
            tails=tuple(tails),
            stops=tuple(stop for stop in stops if not _CONTROL.fullmatch(stop)),
            frames=tuple(frames),
            inline=True,
            noise=tuple(token for token in markers if _CONTROL.fullmatch(token)),
        ),
        style=Style(style.call, style.arguments, reasoning, text),
        think=marks,
        markers=markers,
        stops=tuple(stop for stop in stops if "{" not in stop),
    )


class _Region:
    """A field with its delimiters as shapes."""

    def __init__(self, name: str, field: _Field) -> None:
        self.place, self.field = f"fields.{name}", field
        self.kind = "reasoning" if name in _REASONING else "calls" if name in _CALLS else "text"
        if field.join is not None and not field.repeats:
            raise _refused(f"{self.place}.join", "needs repeats")
        if field.transform_each and field.transform is None:
            raise _refused(f"{self.place}.transform_each", "needs a transform")
        groups = re.findall(
            r"\(\?P<(\w+)>", f"{field.open_pattern or ''}{field.close_pattern or ''}"
        )
        self._check_transform(field.transform, {"content", *groups})
        if groups and field.transform is None:
            raise _refused(
                f"{self.place}.transform", f"is missing, so that the group {groups[0]!r} has no use"
            )
        self.name_path, self.arguments_path = self._paths()
        """The parts of the placeholders for a call's name and for its arguments; empty where the
        transform has none."""
        self.looks_ahead = (
            re.fullmatch(r"\(\?=.*\)", field.open_pattern or "", re.DOTALL) is not None
        )
        holes = {
            "id": "word",
            "call_id": "word",
            **({self.name_path[0]: "name"} if len(self.name_path) == 1 else {}),
        }
        own = (
            field.open,
            field.open_pattern,
            f"{self.place}.open",
            holes if self.kind == "calls" else {},
        )
        self.opens = [] if self.looks_ahead else _delimiter(*own)
        """None: the field is all text that no other field has."""
        self.closes = _delimiter(field.close, field.close_pattern, f"{self.place}.close") or []
        if self.opens == [] and not self.looks_ahead:
            raise _refused(f"{self.place}.open", "may be empty")

    def _check_transform(self, transform: Any, roots: set[str]) -> None:
        if isinstance(transform, dict | list):
            for part in transform.values() if isinstance(transform, dict) else transform:
                self._check_transform(part, roots)
        elif isinstance(transform, str) and (found := _PLACEHOLDER.search(transform)) is not None:
            if found[0] != transform:
                raise _refused(f"{self.place}.transform", f"mixes {found[0]} with text")
            if not self.field.transform_each and found[1].partition(".")[0] not in roots:
                raise _refused(f"{self.place}.transform", f"has {found[0]}, which nothing captures")

    def _paths(self) -> tuple[list[str], list[str]]:
        target = "{content}" if self.field.transform is None else self.field.transform
        target = target.get("function", target) if isinstance(target, dict) else target
        if target == "{content}":
            target = {"name": "{content.name}", "arguments": "{content.arguments}"}
        texts = [
            target.get(key) if isinstance(target, dict) else None for key in ("name", "arguments")
        ]
        found = [_PLACEHOLDER.fullmatch(text) if isinstance(text, str) else None for text in texts]
        name, arguments = ([] if match is None else match[1].split(".") for match in found)
        return name, arguments

    def pairs(self) -> list[tuple[str, str]]:
        """The delimiters around the field's text."""
        opens = self.opens or []
        if opens and not self.closes:
            raise _refused(f"{self.place}.close", "is missing")
        return list(
            zip(opens, self.closes, strict=True)
            if len(opens) == len(self.closes)
            else product(opens, self.closes)
        )

    def thoughts(self, anchor: Iterable[str]) -> list[tuple[str, str]]:
        """The delimiters around reasoning. An expression that only looks ahead to the closer stands
        for reasoning that the prompt opens; then the anchor has the opener."""
        if not self.looks_ahead:
            return self.pairs()
        for close in self.closes:
            opener = close.replace("/", "", 1)
            if opener != close and any(opener in header for header in anchor):
                return [(opener, close)]
        raise _refused(
            f"{self.place}.open_pattern",
            "only looks ahead, and start_anchor has no tag that opens it",
        )

    def calls(self) -> _Calls:
        """The calls in the field's regions."""
        if not self.opens:
            raise _refused(f"{self.place}.open", "is missing")
        if not self.name_path or not self.arguments_path:
            raise _refused(
                f"{self.place}.transform",
                "has no placeholder for the name or the arguments of a call",
            )
        match self.field.content:
            case "json" if len(self.name_path) == 1 and self.arguments_path == ["content"]:
                return self._json_arguments(self.opens)
            case "json":
                return self._json_calls(self.opens)
            case "xml-inline":
                return self._tags(self.opens)
            case "python-call-list":
                return self._python(self.opens, self.closes)
        raise _refused(
            f"{self.place}.content", f"is {self.field.content!r}, in which calls are not read"
        )

    def _json_arguments(self, opens: Sequence[str]) -> _Calls:
        """The opener has the name, and the body is its arguments."""
        closes = _without_brackets(self.closes)
        body = JsonCalls(form=Form.ARGUMENTS, closes=tuple(closes), stop_closes=True)
        style, inner = Style(), list[str]()
        args = {
            key: value for key, value in self.field.content_args.items() if key != "allow_non_json"
        }
        match args:
            case {"string_delims": [[str(token), closer]], "unquoted_keys": True} if (
                token == closer and len(token) > 1 and len(args) == 2 and closes
            ):
                values = GemmaValues(token, closes[0], opens[0])
                body = JsonCalls(
                    form=Form.ARGUMENTS, closes=tuple(closes), stop_closes=True, values=values
                )
                style, inner = Style(arguments=gemma_style(token)), [token]
            case {**rest} if rest:
                raise _refused(
                    f"{self.place}.content_args", "describe JSON of a kind that is not read"
                )
        call = _sample(opens[0]) + ARGUMENTS + "".join(map(_sample, self.closes[:1]))
        then = ("{", *closes) if opens[0].endswith("name}") else ("{", "null", *closes)
        found = [Call(Shape(text, then=then), body) for text in opens]
        return _Calls(found, Style(call=call, arguments=style.arguments), closes, inner)

    def _json_calls(self, opens: Sequence[str]) -> _Calls:
        """The body is an object with name and arguments, or a list of them."""
        each = self.field.transform_each
        paths = [path if each else path[1:] for path in (self.name_path, self.arguments_path)]
        if self.field.content_args or any(len(path) != 1 for path in paths):
            raise _refused(
                f"{self.place}.transform", "takes the call from places that are not read"
            )
        name, arguments = (path[0] for path in paths)
        several, closes = each or self.field.transform is None, _without_brackets(self.closes)
        body = JsonCalls(
            form=Form.LIST if several else Form.OBJECT,
            closes=tuple(closes),
            names=(name,),
            arguments=(arguments, "parameters") if arguments == "arguments" else (arguments,),
        )
        call = f'{{"{name}": "{NAME}", "{arguments}": {ARGUMENTS}}}'
        joint = "\n" if opens[0].endswith(">") else ""
        parts = (
            _sample(opens[0]),
            f"[{call}]" if each else call,
            "".join(map(_sample, self.closes[:1])),
        )
        found = [Call(Shape(text, then=("[", "{") if several else ("{",)), body) for text in opens]
        return _Calls(found, Style(call=joint.join(parts)), closes)

    def _tags(self, opens: Sequence[str]) -> _Calls:
        """The opener has the name, and the body a tag for each argument."""
        place, source = (
            f"{self.place}.content_args.tag_pattern",
            self.field.content_args.get("tag_pattern"),
        )
        if not isinstance(source, str) or _VALUE not in source or "(?P<key>" not in source:
            raise _refused(place, "must be an expression with the groups 'key' and 'value'")
        before, _, rest = source.partition(_VALUE)
        after = rest[expressions.group_end(rest) :]
        if not after and _KEYWORD.fullmatch(before):
            return self._keywords(opens)
        names = [
            re.sub(r">(?=\{(?:plain_)?name\})", ">{ws}", text) for text in opens if "name}" in text
        ]
        if not names or self.arguments_path != ["content"] or not self.closes:
            raise _refused(
                self.place, "needs a name in open_pattern, the content as arguments, and a closer"
            )
        edges = [_forms(part, {"key": "key"}, place) for part in (before, after)]
        keys, closes = ([_EDGE.sub("", text) for text in texts] for texts in edges)
        if not all(closes) or any("key}" not in text or text.startswith("{") for text in keys):
            raise _refused(place, "has no fixed text before the key, or none after the value")
        frame = (keys, closes) != tuple(edges)
        # Descriptions leave out the closer of a tag inside of the opener:
        # `<tool_call><function=NAME>`.
        inner = [f"</{tag}>" for tag in _TAG.findall(names[0]) if f"</{tag}>" not in self.closes]
        bare = [text.rpartition("{ws}")[2] for text in names if "{ws}<" in text]
        heads = dict.fromkeys(Shape(text).head for text in (*names, *bare))
        keys += [
            text.rpartition("{ws}")[0] for text in keys if "key}" in text.rpartition("{ws}")[0]
        ]
        body = Parameters(
            opens=tuple(keys),
            closes=tuple(closes),
            ends=tuple(inner or self.closes),
            beyond=(*(self.closes if inner else ()), *heads),
            openers=(*names, *bare),
            frame=frame,
        )
        value = "\n{value}\n" if frame else "{value}"
        call = "\n".join(
            (
                _sample(names[0]),
                "".join([ARGUMENTS, *(f"{text}\n" for text in inner), _sample(self.closes[0])]),
            )
        )
        style = Style(call=call, arguments=Tags(f"{_sample(keys[0])}{value}{_sample(closes[0])}\n"))
        calls = [*map(body.call, names), *(body.call(text, line_start=True) for text in bare)]
        cut = [
            Shape(text[:-1], then=(*self.closes, *heads))
            for text in names
            if text.endswith("name}>")
        ]
        calls += [Call(shape, BareCall(whole=False)) for shape in cut]
        return _Calls(calls, style, [*self.closes, *inner], [*keys, *closes])

    def _keywords(self, opens: Sequence[str]) -> _Calls:
        """Functions with keyword arguments, as in Python, where the delimiters have the brackets."""
        parts = [_FUNCTION.split(text) for text in opens]
        markers = [text for text, *call in parts if call and _TOKEN.search(text)]
        if not markers:
            raise _refused(
                f"{self.place}.open_pattern", "has no marker before the name of a function"
            )
        return self._python(markers, _without_brackets(self.closes))

    def _python(self, opens: Sequence[str], closes: Sequence[str]) -> _Calls:
        if len(opens) != 1 or "{" in opens[0]:
            raise _refused(f"{self.place}.open", "must be one fixed text before calls in Python")
        call = f"{opens[0]}[{NAME}({ARGUMENTS})]{''.join(map(_sample, closes[:1]))}"
        found = Call(Shape(opens[0], then=("[",)), Pythonic(opens[0], tuple(closes)))
        return _Calls([found], Style(call=call, arguments=python_style), closes)


def _delimiter(
    fixed: str | list[str] | None,
    pattern: str | None,
    place: str,
    holes: Mapping[str, str] | None = None,
) -> list[str] | None:
    """A delimiter's forms, without white space at their ends, which regions leave out; None if
    there is none. `holes`: those of the groups in an opener; None for a closer."""
    if pattern is not None:
        if fixed is not None:
            raise _refused(place, "is there twice, as text and as a pattern")
        found = _forms(pattern, holes or {}, f"{place}_pattern", closes=holes is None)
    elif fixed is not None:
        found = sorted([fixed] if isinstance(fixed, str) else fixed, key=len, reverse=True)
        _check_text(found, place)
    else:
        return None
    found = list(dict.fromkeys(filter(None, (_EDGE.sub("", form) for form in found))))
    if any(not Shape(form).head for form in found):
        raise _refused(place, "does not begin with fixed text")
    if not holes and any(map(_ENDLESS.search, found)):
        raise _refused(place, "does not end with fixed text")
    if len(found) > expressions.MAX_FORMS:
        raise _refused(place, "has too many forms")
    return found


def _forms(
    pattern: str, holes: Mapping[str, str], place: str, *, closes: bool = False
) -> list[str]:
    _check_text([re.sub(r"\\(\W)", r"\1", pattern)], place)
    try:
        return expressions.forms(pattern, holes, closes=closes)
    except expressions.UnsupportedExpression as error:
        raise _refused(place, str(error)) from None


def _check_text(texts: Iterable[str], place: str) -> None:
    """Refuses fixed text that would be read as a hole."""
    for found in filter(None, map(HOLE.search, texts)):
        raise _refused(place, f"has the text {found[0]!r}, which cannot be expressed")


def _without_brackets(closes: Iterable[str]) -> list[str]:
    """Closers without the brackets that end the body itself."""
    return list(filter(None, (text.lstrip(")]}") for text in closes)))


def _sample(form: str) -> str:
    """A text of a form, as a model would most likely write it."""
    form = re.sub(r"\{(?:tag|word)\}", "0", form.replace("{plain_", "{").replace("{junk}", ""))

    def blank(found: re.Match[str]) -> str:
        before, after = form[: found.start()][-1:], form[found.end() :][:1]
        return (
            "\n"
            if before == ">" or after == "<"
            else " "
            if before in ":," or before.isalnum()
            else ""
        )

    return re.sub(r"\{ws\}", blank, form)


def _converted(value: Any, kind: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refused(place, f"is invalid: {error}") from None


def _refused(place: str, problem: str) -> InvalidResponseTemplate:
    return InvalidResponseTemplate(f"response_template: {place} {problem}")
