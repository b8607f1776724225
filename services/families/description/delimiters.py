"""Compiles the delimiters of a description to the notation of shapes, and splits this notation."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from services.families.description.fields import refusal
from services.families.grammar import expressions
from services.families.grammar.shapes import HOLE, Shape

BLANKS: Final = "{ws}"
_ENDLESS: Final = re.compile(r"\{\w+\}\Z")
"""Matches a hole at the end: no fixed text follows it."""
_EDGE: Final = re.compile(r"^(?:\{ws\}|\s)+|(?:\{ws\}|\s)+$")
_TAG_BEFORE_NAME: Final = re.compile(r">(?=\{(?:plain_)?name\})")
_TOKEN: Final = re.compile(r"<[^<>\s{}]+>|\[/?[A-Z_]{2,}\]|[^\x00-\u02ff]\S*[^\x00-\u02ff]")
"""Matches what a tokenizer probably has as one token."""


def delimiter(
    fixed: str | list[str] | None,
    pattern: str | None,
    key_path: str,
    holes: Mapping[str, str] | None = None,
) -> list[str] | None:
    """A delimiter's forms, without white space at their ends, which regions leave out; None without
    a delimiter. `holes`: those of the groups in an opener; None for a closer. Raises
    InvalidResponseTemplate."""
    if pattern is not None and fixed is not None:
        raise refusal(key_path, "is there twice, as text and as a pattern")
    if pattern is not None:
        delimiters = forms(pattern, holes or {}, f"{key_path}_pattern", closes=holes is None)
    elif fixed is not None:
        texts = [fixed] if isinstance(fixed, str) else fixed
        delimiters = sorted(texts, key=len, reverse=True)
        _check_text(delimiters, key_path)
    else:
        return None
    delimiters = list(dict.fromkeys(filter(None, map(trimmed, delimiters))))
    _check_forms(delimiters, key_path, may_end_in_hole=bool(holes))
    return delimiters


def _check_forms(delimiters: list[str], key_path: str, *, may_end_in_hole: bool) -> None:
    if any(not Shape(form).head for form in delimiters):
        raise refusal(key_path, "does not begin with fixed text")
    if not may_end_in_hole and any(map(_ENDLESS.search, delimiters)):
        raise refusal(key_path, "does not end with fixed text")
    if len(delimiters) > expressions.MAX_FORMS:
        raise refusal(key_path, "has too many forms")


def forms(
    pattern: str, holes: Mapping[str, str], key_path: str, *, closes: bool = False
) -> list[str]:
    """The forms of a regular expression (`expressions.forms`). Raises InvalidResponseTemplate."""
    _check_text([re.sub(r"\\(\W)", r"\1", pattern)], key_path)
    try:
        return expressions.forms(pattern, holes, closes=closes)
    except expressions.UnsupportedExpression as error:
        raise refusal(key_path, str(error)) from None


def _check_text(texts: Iterable[str], key_path: str) -> None:
    """Refuses fixed text that would be read as a hole."""
    for hole in filter(None, map(HOLE.search, texts)):
        raise refusal(key_path, f"has the text {hole[0]!r}, which cannot be expressed")


def trimmed(form: str) -> str:
    """A form without blanks at its ends."""
    return _EDGE.sub("", form)


def has_name(form: str) -> bool:
    """Whether a form has the name of a tool."""
    return "name}" in form


def has_key(form: str) -> bool:
    """Whether a form has the name of a parameter."""
    return "key}" in form


def with_blanks_before_name(form: str) -> str:
    """A form that admits blanks between a tag and the name after it."""
    return _TAG_BEFORE_NAME.sub(">" + BLANKS, form)


def first_parts(form: str) -> str:
    """A form without its last part and the blanks before that; empty if it has no such blanks."""
    return form.rpartition(BLANKS)[0]


def last_part(form: str) -> str:
    """The part of a form after its last blanks."""
    return form.rpartition(BLANKS)[2]


def without_brackets(closes: Iterable[str]) -> list[str]:
    """Closers without the brackets that end the body itself."""
    return list(filter(None, (close.lstrip(")]}") for close in closes)))


def special_tokens(texts: Iterable[str]) -> tuple[str, ...]:
    """The parts of forms that a tokenizer probably has as tokens."""
    tokens: dict[str, None] = {}
    for text in texts:
        tokens.update(dict.fromkeys(_TOKEN.findall(text.replace(BLANKS, " "))))
    return tuple(tokens)


def has_token(form: str) -> bool:
    """Whether a form has what a tokenizer probably has as one token."""
    return _TOKEN.search(form) is not None


def sample(form: str) -> str:
    """A text of a form, as a model would most likely write it."""
    text = form.replace("{plain_", "{").replace("{junk}", "")
    text = re.sub(r"\{(?:tag|word)\}", "0", text)
    before, *parts = text.split(BLANKS)
    for part in parts:
        before += _likely_blank(before, part) + part
    return before


def _likely_blank(before: str, after: str) -> str:
    if before.endswith(">") or after.startswith("<"):
        return "\n"
    if not before or before[-1] in ":," or before[-1].isalnum():
        return " "
    return ""


def samples(texts: Iterable[str]) -> str:
    """The texts of forms, as `sample` gives them, one after the other."""
    return "".join(map(sample, texts))
