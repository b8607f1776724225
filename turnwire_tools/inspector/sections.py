"""Makes the conversation of a session that the page shows: for each turn, what its request adds and
what the model answers, with the tokens of every part. Pure."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from cachetools import LRUCache
from msgspec import Struct

from turnwire_tools.inspector.conversation import DEFERRED, Item, listed
from turnwire_tools.inspector.difference import computed_again
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.places import Place, PromptText, estimated, located, scaled
from turnwire_tools.inspector.tokens import Vocabularies
from turnwire_tools.inspector.turns import Departure, InspectedBlock, InspectedTurn, Row
from turnwire_tools.inspector.views import Cost, PromptSegment, cost_of, row_of, segments_of

SHOWN = 6000
"""Characters of a text that the page gets at first."""
HEAD_SHOWN = 1500
"""Characters of instructions and of a tool, which are folded."""
LEAST_AGAIN = 128
"""Tokens of earlier messages, computed again, that the page shows; the same in `page/draw.js`."""
KEPT = 4096
"""Turns with known places of their items."""

Groups: TypeAlias = list[list[Item]]
"""Instructions, tools and messages."""
Places: TypeAlias = list[list[Place]]
"""The places of their items."""
NOWHERE = Place(0, 0, exact=False)
"""The place in a prompt that is not made so far, and that of a deferred tool."""


class Part(Struct, frozen=True, kw_only=True):
    """A part of the conversation. `Item` describes most fields."""

    kind: str
    text: str = ""
    length: int = 0
    name: str = ""
    call_id: str = ""
    error: bool = False
    image: str = ""
    facts: str = ""
    start: int | None = None
    """Its first token in the prompt; None: that is not known, or it is of the answer."""
    tokens: int | None = None
    exact: bool = False
    """False: its tokens are estimated."""
    ms: float | None = None
    """How long the model wrote it."""
    sent_ms: float | None = None
    """When a client could run the call."""
    cut: bool = False
    """It is not complete."""


class TurnSection(Struct, frozen=True, kw_only=True):
    """A turn in the conversation of its session."""

    turn: Row
    system: list[Part]
    tools: list[Part]
    """Both empty: they are those of the turn before."""
    tools_tokens: int
    """What the definitions of all tools take, about, with what the template writes around them; 0:
    unknown."""
    parts: list[Part]
    """What the request adds."""
    rest: int | None
    """New tokens of the prompt in none of these parts, about: what the template writes. Where the
    prompt does not begin with the one before it, those that were computed. None: unknown."""
    answer: list[Part]
    rewritten: int
    """Earlier messages that the client changed or left out."""
    finish: str
    worker: str
    attempt: int
    troubles: list[str]
    """What was done again or lost, in the order in which it happened."""
    incomplete: bool
    held_for: str
    held_s: float
    difference: Departure | None
    cost: Cost | None
    segments: list[PromptSegment]


class Sections:
    """Makes the sections of one fold."""

    def __init__(self, fold: Fold, vocabularies: Vocabularies) -> None:
        self._fold = fold
        self._vocabularies = vocabularies
        self._places: LRUCache[str, Places] = LRUCache(KEPT)

    def section(self, turn: InspectedTurn) -> TurnSection:
        """A turn as a part of its session's conversation."""
        previous = self._fold.turns.get(turn.previous)
        system, tools, items = _groups(turn, previous)
        placed = [system, listed(tools), items]
        places = self._places_of(turn, placed) if turn.prompt else _no_places(placed)
        return TurnSection(
            turn=row_of(turn),
            rest=_rest(turn, previous, places),
            system=_parts(system, places[0], HEAD_SHOWN),
            tools=_parts(tools, _with_deferred(tools, places[1]), HEAD_SHOWN),
            tools_tokens=turn.tools,
            parts=_parts(items, places[2], SHOWN),
            answer=_answer(turn, texts=self._fold.texts),
            rewritten=turn.addition.rewritten,
            finish=turn.finish,
            worker=turn.worker,
            attempt=turn.attempt,
            troubles=[f"{mark.kind}: {mark.text}" for mark in turn.marks if mark.trouble],
            incomplete=turn.incomplete,
            held_for=turn.held_for,
            held_s=turn.held_s,
            difference=turn.difference,
            cost=cost_of(self._fold, turn),
            segments=segments_of(turn, self._fold.ancestors(turn)),
        )

    def _places_of(self, turn: InspectedTurn, groups: Groups) -> Places:
        known = self._places.get(turn.id)
        if known and list(map(len, known)) == list(map(len, groups)):
            return known
        places = _estimates(turn, self._fold.turns.get(turn.previous), groups)
        ids = self._fold.prompts.ids(turn.id)
        vocabulary = self._vocabularies.of(turn.model)
        if vocabulary and ids and self._fold.texts:
            has_head = bool(groups[0] or groups[1])
            first = 0 if has_head else min((place.start for place in places[2]), default=0)
            text = PromptText.of(ids, vocabulary, first)
            # Templates have instructions and tools in any order.
            of_tools = sum(place.tokens for place in places[1])
            places = [located(*group, text) for group in zip(groups, places, strict=True)]
            places[1] = scaled(places[1], of_tools)
        places[2] = _with_known(turn, groups[2], places[2])
        if ids:
            self._places[turn.id] = places
        return places


def _groups(turn: InspectedTurn, previous: InspectedTurn | None) -> Groups:
    """Instructions, tools and messages that a turn adds."""
    added = turn.addition
    if previous is not None and previous.addition.head is added.head:
        return [[], [], added.items]
    return [added.head.system, added.head.tools, added.items]


def _with_deferred(tools: Sequence[Item], places: Iterable[Place]) -> list[Place]:
    """The places of all tools, with those of the listed ones."""
    of_listed = iter(places)
    return [NOWHERE if tool.facts == DEFERRED else next(of_listed) for tool in tools]


def _no_places(groups: Groups) -> Places:
    """The places in a prompt that is not made so far."""
    return [[NOWHERE] * len(group) for group in groups]


def _estimates(turn: InspectedTurn, previous: InspectedTurn | None, groups: Groups) -> Places:
    """The places of items by their lengths: of the first turn in all of the prompt, of others in
    what they add to it."""
    system, tools, items = groups
    ratio = turn.characters_per_token or 4.0
    weight_of_tools = min(turn.prompt, turn.tools or round(_length(tools) / ratio))
    if previous is None:
        rest = turn.prompt - weight_of_tools
        weight = rest * _length(system) // (_length([*system, *items]) or 1)
        start = weight + weight_of_tools
    else:
        weight = min(turn.prompt, round(_length(system) / ratio))
        start = max(0, turn.prompt - round(_length(items) / ratio))
        if turn.difference is not None and turn.difference.extends:
            start = min(turn.prompt, previous.prompt + len(previous.ids))
    return [
        estimated(system, 0, weight),
        estimated(tools, weight, min(turn.prompt, weight + weight_of_tools)),
        estimated(items, start, turn.prompt),
    ]


def _rest(turn: InspectedTurn, previous: InspectedTurn | None, places: Places) -> int | None:
    """The tokens that are new in a prompt, without those of its parts."""
    start = 0
    if previous is not None:
        if turn.difference is None or not turn.difference.extends:
            return _rest_of_computed(turn, places)
        start = previous.prompt + len(previous.ids)
    system, tools, items = (sum(place.tokens for place in group) for group in places)
    if tools:
        tools = turn.tools or tools  # as the page shows them
    return max(0, turn.prompt - start - system - tools - items)


def _rest_of_computed(turn: InspectedTurn, places: Places) -> int | None:
    """The computed tokens of a prompt with another beginning, without those of its parts and of
    earlier messages, which the page shows as one part where they are many."""
    if turn.cached is None or turn.difference is None or turn.difference.at is None:
        return None
    system, tools, items = (_computed(group, turn.cached) for group in places)
    unexplained = max(0, turn.prompt - turn.cached - system - tools - items)
    earlier = min(sum(computed_again(turn)) - system - tools, unexplained)
    if earlier < LEAST_AGAIN:
        return unexplained
    return unexplained - earlier


def _computed(places: Iterable[Place], cached: int) -> int:
    """How many tokens of places are after the cached ones."""
    ends = ((place, place.start + place.tokens) for place in places)
    return sum(max(0, end - max(place.start, cached)) for place, end in ends)


def _length(items: Sequence[Item]) -> int:
    return sum(item.length for item in items)


def _with_known(turn: InspectedTurn, items: Sequence[Item], places: Sequence[Place]) -> list[Place]:
    """The places with those that are known: of images, and of a prompt without a template."""
    if items and items[0].kind == "prompt":
        return [Place(0, turn.prompt, exact=True)]
    images = turn.addition.images
    known = {image.hash: Place(image.at, image.tokens, exact=True) for image in images}
    return [
        known.get(item.image, place) if item.image else place
        for item, place in zip(items, places, strict=True)
    ]


def _parts(items: Sequence[Item], places: Sequence[Place], shown: int) -> list[Part]:
    """Items with their places, and at most `shown` characters of each."""
    return [_part(item, place, shown) for item, place in zip(items, places, strict=True)]


def _part(item: Item, place: Place, shown: int) -> Part:
    is_placed = place is not NOWHERE
    return Part(
        kind=item.kind,
        text=item.text[:shown],
        length=item.length,
        name=item.name,
        call_id=item.call_id,
        error=item.error,
        image=item.image,
        facts=item.facts,
        start=place.start if is_placed else None,
        tokens=place.tokens if is_placed else None,
        exact=place.exact,
    )


def _answer(turn: InspectedTurn, *, texts: bool) -> list[Part]:
    """The blocks with their tokens. Those of reasoning are known once the turn has ended; others
    share the rest of the answer by their lengths."""
    known = [block for block in turn.blocks if turn.reasoning and block.kind == "reasoning"]
    others = [block for block in turn.blocks if block not in known]
    sizes = _shares(known, turn.reasoning) | _shares(others, turn.output - turn.reasoning)
    return [
        _block(block, sizes[id(block)], exact=known == [block], texts=texts)
        for block in turn.blocks
    ]


def _shares(blocks: Sequence[InspectedBlock], tokens: int) -> dict[int, int]:
    """Divides tokens among blocks by their lengths; the keys are the blocks' identities."""
    items = [Item("text", length=block.length + len(block.name)) for block in blocks]
    places = estimated(items, 0, tokens)
    return {id(block): place.tokens for block, place in zip(blocks, places, strict=True)}


def _block(block: InspectedBlock, tokens: int, *, exact: bool, texts: bool) -> Part:
    ms = None if block.end_ms is None else max(0.0, block.end_ms - block.start_ms)
    sent_ms = None
    if block.kind == "tool_use" and block.complete:
        sent_ms = block.dispatch_ms or block.end_ms
    return Part(
        kind=block.kind,
        text=block.text[:SHOWN] if texts else "",
        length=block.length,
        name=block.name,
        call_id=block.call_id,
        tokens=tokens,
        exact=exact,
        ms=ms,
        sent_ms=sent_ms,
        cut=not block.complete,
    )
