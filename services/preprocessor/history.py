"""What is known of the conversations that were prepared before, so that the next prompt costs its new turns only.

Agents send their whole history with every request. The turns up to some place near its end are compared with those of
an earlier request, and what those became is taken as it is: their messages, and their text. The rest is rendered in a
window: a few messages from all over the conversation, then the new ones.

A chat template is a program and may look at anything. What makes the window's text the prompt's is seen in the text:

    at the place        the prompt ends as the window does (so the window's middle, left out, changes nothing behind it)
    at a later request  the window begins as it did (so what is new changes nothing before it)

The second holds for the turns left out since turns like them stand in the window: the last of each shape, with and
without reasoning, before and after the user's last message. A new user message at which a template drops old reasoning
changes the window, too. What is seen to be otherwise is rendered whole, `locality` tries every template at load, and
`audit` compares whole prompts now and then.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from sys import getsizeof
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Text, ToolSpec, Turn
from schemas.errors import Invalid
from services.preprocessor.call_names import CallNames
from services.preprocessor.common_prefix import common_prefix
from services.preprocessor.encoding import Stable
from services.preprocessor.fronts import Fronts
from services.preprocessor.messages import Adapted, Begun, Unseal
from services.preprocessor.template import Message
from services.preprocessor.traits import Renderer, TemplateTraits
from services.preprocessor.windows import is_user, window

TAIL = 14
"""So many messages behind the place are rendered anew before it moves on."""
SHORT = 6
"""Conversations of so few messages are rendered whole."""
_OTHER = "\ue000"
BRANCHES = 8
"""Conversations that begin alike and are kept side by side."""


class View(Struct, frozen=True):
    """The text before a place, and what shows whether it still holds."""

    stable: Stable
    window: list[Message]
    before: str
    """The beginning of the window's text."""


class Known(Struct, frozen=True, eq=False, kw_only=True):
    """A conversation up to a place."""

    system: list[Text]
    tools: list[ToolSpec]
    variables: Mapping[str, Any]
    turns: list[Turn]
    begun: Begun
    unseal: Unseal | None
    view: View | None
    """None: seen not to be rendered in parts here."""
    asked: bool
    """The place stands before the answer to which the user's last message replied: what is before it holds when the
    user speaks again, even where the template then drops reasoning."""
    base: "Known | None"
    """The last one of which that is true."""

    @property
    def size(self) -> int:
        """Bytes that it takes, roughly: its text as turns, as messages and as ids, and what is compared."""
        text = 0 if self.view is None else 2 * getsizeof(self.view.stable.text) + getsizeof(self.view.before)
        return 4096 + 512 * len(self.turns) + text + (self.base.size if self.base is not None else 0)

    def begins(self, conversation: Conversation, variables: Mapping[str, Any], unseal: Unseal | None) -> bool:
        """Whether the conversation goes on from here."""
        at, turns = len(self.turns), conversation.turns
        return (
            at < len(turns)
            and turns[at].role == "assistant"
            and turns[:at] == self.turns
            and self.system == conversation.system
            and self.tools == conversation.tools
            and self.variables == variables
            and self.unseal == unseal
        )


class History:
    """Conversations by how they begin. Thread-safe; those used least lately go first."""

    def __init__(self, template: Renderer, traits: TemplateTraits, *, max_bytes: int, tail: int = TAIL) -> None:
        """`max_bytes` bounds what is kept; `tail`: so many messages are rendered anew before a place moves on."""
        self._template = template
        self._traits = traits
        self._limit = max_bytes
        self._tail = tail
        self._fronts = Fronts(max_bytes // 4)
        self._known: OrderedDict[Known, Hashable] = OrderedDict()
        self._by_start: dict[Hashable, list[Known]] = {}
        self._lock = threading.Lock()
        self.size = 0
        """Bytes that are held, roughly."""
        self.off: str | None = None
        """Why everything is rendered whole, if it is."""
        self.parts = 0
        """Prompts rendered in parts."""
        self.wholes = 0
        """Prompts rendered whole."""

    def turn_off(self, reason: str) -> None:
        """Renders everything whole from now on, for good."""
        with self._lock:
            self.off = reason
            self._known.clear()
            self._by_start.clear()
            self.size = 0
        self._fronts.clear()

    def find(
        self, conversation: Conversation, variables: Mapping[str, Any], unseal: Unseal | None = None
    ) -> Known | None:
        """The most that is known of how this conversation begins, adapted and rendered in this way."""
        with self._lock:
            candidates = list(self._by_start.get(_start(conversation), ()))
        candidates.sort(key=lambda known: len(known.turns), reverse=True)
        for known in candidates:
            if known.begins(conversation, variables, unseal):
                with self._lock:
                    if known in self._known:
                        self._known.move_to_end(known)
                return known
        bases = (known.base for known in candidates if known.base is not None)
        return next((base for base in bases if base.begins(conversation, variables, unseal)), None)

    def render(
        self,
        conversation: Conversation,
        adapted: Adapted,
        variables: Mapping[str, Any],
        known: Known | None,
        unseal: Unseal | None = None,
    ) -> tuple[str, Stable | None]:
        """The prompt's text, as the template renders it, and a text with which it begins.

        `adapted` is the conversation, adapted behind `known.begun`. Raises Invalid as the template does.
        """
        if adapted.begun is None:
            known = None
        text, view = self._in_parts(adapted, variables, known) if known is not None else (None, None)
        whole = text is None
        stable = view.stable if view is not None else None
        if text is None:
            text = self._template.render(adapted.messages, tools=adapted.tools, variables=dict(variables))
            stable = self._fronts.of(conversation.client.tenant, text, adapted.messages)
        with self._lock:
            self.wholes += whole
            self.parts += not whole
        if self.off is None and _is_due(adapted, known, whole, self._tail):
            fresh = self._learn(conversation, adapted, variables, text=text, known=known, parent=stable, unseal=unseal)
            self._keep(_start(conversation), fresh, known)
            stable = fresh.view.stable if fresh.view is not None else stable
        return text, stable

    def _in_parts(
        self, adapted: Adapted, variables: Mapping[str, Any], known: Known
    ) -> tuple[str, View] | tuple[None, None]:
        for at in (known, known.base):
            if at is not None and at.view is not None:
                text = self._try([*at.view.window, *adapted.messages[len(at.begun.messages) :]], adapted, variables)
                if text is not None and text.startswith(at.view.before):
                    return at.view.stable.text + text[len(at.view.before) :], at.view
        return None, None

    def _learn(
        self,
        conversation: Conversation,
        adapted: Adapted,
        variables: Mapping[str, Any],
        *,
        text: str,
        known: Known | None,
        parent: Stable | None,
        unseal: Unseal | None,
    ) -> Known:
        """The conversation up to its last turn of the model. `parent`: a text with which `text` begins."""
        place = adapted.places[-1]
        asked = any(is_user(message) for message in adapted.messages[place.message :])
        turns = conversation.turns[: place.turn]
        if known is None:
            calls, base = CallNames.of(turns, self._traits), None
        else:
            calls = known.begun.calls.grown(turns[known.begun.turn :], self._traits) or known.begun.calls
            turns = known.turns + turns[known.begun.turn :]  # those held already: the same text is not kept twice
            base = known if known.asked else known.base
        return Known(
            system=conversation.system if known is None else known.system,
            tools=conversation.tools if known is None else known.tools,
            variables=variables,
            unseal=unseal,
            turns=turns,
            begun=Begun(place.turn, adapted.messages[: place.message], calls),
            view=self._view(adapted, variables, text, known, parent),
            asked=asked,
            base=None if asked or base is None else replace(base, base=None),
        )

    def _view(
        self, adapted: Adapted, variables: Mapping[str, Any], text: str, known: Known | None, parent: Stable | None
    ) -> View | None:
        """The window for the last place, if the prompt ends as it does."""
        end = adapted.places[-1].message
        if known is not None and known.view is not None:
            since = adapted.messages[len(known.begun.messages) : end]
            shown = window([*known.view.window, *since], len(known.view.window) + len(since))
        else:
            shown = window(adapted.messages, end)
        found = self._try([*shown, *adapted.messages[end:]], adapted, variables)
        if found is None:
            return None
        before = self._before(shown, adapted, variables, adapted.messages[end:], found)
        rest = len(found) - len(before)
        if rest > len(text) or not text.endswith(found[len(before) :]):
            return None
        fixed = text[: len(text) - rest]
        if parent is not None and not fixed.startswith(parent.text):
            parent = None
        return View(Stable(fixed, parent), shown, before)

    def _before(
        self,
        shown: list[Message],
        adapted: Adapted,
        variables: Mapping[str, Any],
        tail: list[Message],
        found: str,
    ) -> str:
        """How much of the window's text stands before the tail, a little more or less.

        It is what the text has in common with that of other windows which begin alike: one without the tail, or, where
        what follows changes what stands before, one in which the tail's first message says something else.
        """
        alone = self._try(shown, adapted, variables, generation=False) or ""
        before = common_prefix(found, alone)
        if before == alone and alone:
            return before
        first = {key: value for key, value in tail[0].items() if key in ("role", "content", "tool_calls")}
        first["content"] = [{"type": "text", "text": _OTHER}] if isinstance(first["content"], list) else _OTHER
        other = self._try([*shown, first, *tail[1:]], adapted, variables) or ""
        return max(before, common_prefix(found, other), key=len)

    def _try(
        self, messages: list[Message], adapted: Adapted, variables: Mapping[str, Any], *, generation: bool = True
    ) -> str | None:
        try:
            return self._template.render(
                messages, tools=adapted.tools, variables=dict(variables), generation=generation
            )
        except Invalid:
            return None

    def _keep(self, start: Hashable, fresh: Known, former: Known | None) -> None:
        """Adds what is known now. It takes the place of what it grew from."""
        with self._lock:
            if self.off is not None:
                return
            if former is not None:
                self._drop(former)
            self._known[fresh] = start
            branches = self._by_start.setdefault(start, [])
            branches.append(fresh)
            self.size += fresh.size
            if len(branches) > BRANCHES:
                self._drop(branches[0])
            while self.size > self._limit:
                self._drop(next(iter(self._known)))

    def _drop(self, known: Known) -> None:
        start = self._known.pop(known, None)
        if start is None:
            return
        self.size -= known.size
        self._by_start[start].remove(known)
        if not self._by_start[start]:
            del self._by_start[start]


def _is_due(adapted: Adapted, known: Known | None, whole: bool, tail: int) -> bool:
    """Whether the place should move on: after a whole rendering, after a user's message, and now and then."""
    if len(adapted.messages) <= SHORT or not adapted.places:
        return False
    if known is None:
        return True
    passed = adapted.places[-1].message - len(known.begun.messages)
    if known.view is None:
        return passed > tail
    return passed > 0 and (whole or passed > tail or is_user(adapted.messages[-1]))


def _start(conversation: Conversation) -> Hashable:
    """What conversations that go on from each other have in common, told quickly."""
    client, turns = conversation.client, conversation.turns
    first = turns[0].parts[0] if turns and turns[0].parts else None
    text = first.text if isinstance(first, Text) else ""
    return client.tenant, client.session, len(conversation.system), len(conversation.tools), len(text), text[:400]
