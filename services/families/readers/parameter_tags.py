"""The tags of calls with one tag per argument: what each means before, between and in values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from re import Match, compile, escape
from typing import Final

from services.families.grammar.scanner import PlainStretch, Search
from services.families.grammar.shapes import END, Markers, Shape, with_meaning
from services.families.readers.value_tags import Tag

CDATA: Final = ("<![CDATA[", "]]>")


@dataclass(frozen=True, kw_only=True)
class ParameterTags:
    """The tags of a call with one tag per argument, after its opening tag.

    `parameter_tags` open a parameter (holes: `key`, and `bool` or `word` for a stated type),
    `bare_tags` do so without the tag before the value, `parameter_closers` close it;
    `call_closers` close the call, `next_markers` are heads of markers after it; `call_tags` open a
    call, which a value may show. `frame`: the template puts a line break on each side of a value.
    """

    parameter_tags: tuple[str, ...]
    parameter_closers: tuple[str, ...]
    call_closers: tuple[str, ...]
    bare_tags: tuple[str, ...] = ()
    next_markers: tuple[str, ...] = ()
    call_tags: tuple[str, ...] = ()
    frame: bool = False
    json: tuple[str, ...] = ()
    """Markers before arguments that are one JSON object instead; `{` for an object without a
    marker."""
    json_closers: tuple[str, ...] = ()
    """Markers that may follow such an object."""
    pieces: tuple[str, ...] = ()
    """Parts of tags, which stand alone only where a tag is damaged."""
    unwrap: tuple[str, ...] = ()
    """A single parameter with one of these names holds all arguments, unless the schema has the
    name."""
    unescape: Callable[[str], str] = str
    """Undoes the escapes in a tag's attributes."""
    stop_closes: bool = False
    """The marker that closes a call is a stop token, which engines do not return."""
    rename: tuple[str, ...] = ()
    """Namespaces that may precede a tool's name."""
    rename_unknown: bool = True
    """The namespaces are also removed from the names of tools that the request lacks."""

    @property
    def follows(self) -> tuple[str, ...]:
        """The texts that may follow the opening tag; it counts only with one of them."""
        texts = (*self.parameter_tags, *self.call_closers, *self.next_markers, *self.json)
        return tuple(dict.fromkeys(Shape(text).head for text in texts))

    @cached_property
    def stated(self) -> bool:
        """Whether the model states types. A value without type and schema is JSON if it parses as
        such."""
        return any("{bool}" in opener for opener in self.parameter_tags)

    @cached_property
    def before(self) -> Markers[Tag]:
        """Tags before the first value."""
        return self._tags(self.json)

    @cached_property
    def between(self) -> Markers[Tag]:
        """Tags after a value."""
        return self._tags()

    def _tags(self, json: tuple[str, ...] = ()) -> Markers[Tag]:
        return Markers(
            [
                *with_meaning(Tag.VALUE_START, self.parameter_tags),
                *with_meaning(Tag.BARE_VALUE_START, self.bare_tags),
                *with_meaning(Tag.CALL_END, self.call_closers),
                *with_meaning(Tag.JSON_START, json),
                *with_meaning(Tag.AFTER_CALL, self.next_markers),
                *with_meaning(Tag.UNREADABLE_START, self._heads),
            ]
        )

    @property
    def _heads(self) -> tuple[str, ...]:
        tags = (*self.parameter_tags, *self.bare_tags)
        return tuple(dict.fromkeys(Shape(opener).head for opener in tags))

    @property
    def _opens(self) -> tuple[str, ...]:
        """The tags that open a parameter, up to its key."""
        tags = (*self.parameter_tags, *self.bare_tags)
        return tuple(dict.fromkeys(tag.partition("{key}")[0].removesuffix("{q}") for tag in tags))

    @cached_property
    def inside(self) -> Markers[Tag]:
        """Tags that a value may contain, or that end it."""
        after = [head for head in self.next_markers if not _opens_any(self.call_tags, head)]
        next_calls = [opener for opener in self.call_tags if opener.startswith(self.next_markers)]
        heads = (*(Shape(text).head for text in (*self.parameter_tags, *self.call_closers)), "{")
        goes_on = _each_before(self.parameter_closers, (*self._opens, *self.call_closers, *after))
        after_end = ("", *("{ws}" + head for head in after))
        last_closers = map("".join, product(self.call_closers, after_end))
        return Markers(
            [
                *with_meaning(Tag.VALUE_END, goes_on),
                *with_meaning(
                    Tag.VALUE_END, _each_before(self.parameter_closers, next_calls), then=heads
                ),
                *with_meaning(Tag.VALUE_END, self.parameter_closers, then=(END,)),
                *with_meaning(Tag.STRAY_VALUE_END, self.parameter_closers),
                *with_meaning(Tag.CALL_START, self.call_tags, then=heads),
                *with_meaning(Tag.VALUE_START, (*self.parameter_tags, *self.bare_tags)),
                *with_meaning(Tag.FOREIGN_START, self._foreign_tags),
                *with_meaning(Tag.FINAL_CALL_END, last_closers, then=(END,)),
                *with_meaning(Tag.CALL_END, self.call_closers),
                *with_meaning(Tag.AFTER_CALL, self.next_markers),
                *with_meaning(Tag.STRAY_PIECE, self.pieces),
            ]
        )

    @property
    def _foreign_tags(self) -> Iterable[str]:
        """The tags of other formats that one of `parameter_closers` closes. A model that writes
        about such a format writes them into a value."""
        names = [closer[2:-1] for closer in self.parameter_closers if closer[:2] == "</"]
        keys = ("={key}>", " name={q}{key}{q}>")
        return (f"<{name}{key}" for name, key in product(names, keys))

    @cached_property
    def closer_shapes(self) -> tuple[Shape, ...]:
        """`parameter_closers` as shapes."""
        return tuple(map(Shape, self.parameter_closers))

    @property
    def edges(self) -> str:
        """The first and the last characters of tags."""
        return "".join(closer[0] + closer[-1] for closer in self.parameter_closers)

    @cached_property
    def find_stray_end(self) -> Search:
        """Finds a parameter after another one in text, or the end of a call at the end of text."""
        closes = "|".join(Shape(text).pattern for text in self.parameter_closers)
        ends = "|".join(Shape(text).pattern for text in self.call_closers)
        opens = "|".join(map(escape, self._heads))
        opened = compile(rf"(?:{closes})\s*(?:{opens})").search
        # What may follow is passed as a whole, for all ends in it: a search from each of them takes
        # quadratic time.
        ended = compile(rf"(?:{closes})\s*(?:{ends})(?:\s|<[^<>]*>|\w)*+(\Z)?").finditer

        def find(text: str) -> Match[str] | None:
            at_end = (end for end in ended(text) if end[1] is not None)
            return opened(text) or next(at_end, None)

        return find

    @cached_property
    def stretch(self) -> PlainStretch:
        """The text of a value."""
        parameter_markers = (*self.parameter_tags, *self.parameter_closers)
        markers = (*parameter_markers, *self.call_closers, *self.call_tags)
        first = "".join(sorted({escape(marker[0]) for marker in markers}))
        ending = r"|\n\Z" if self.frame else ""
        return PlainStretch(compile(f"[{first}]{ending}").search, escape=True)


def _opens_any(openers: Iterable[str], head: str) -> bool:
    """Whether one of `openers` begins with `head`."""
    return any(opener.startswith(head) for opener in openers)


def _each_before(texts: Iterable[str], following: Iterable[str]) -> Iterable[str]:
    """Each of `texts` with blanks and each of `following` after it."""
    return map("{ws}".join, product(texts, following))
