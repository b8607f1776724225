"""Renders a prompt from what earlier prompts of its session were rendered to, so that it costs its new turns only.

Agents send their whole history with every request. The turns up to a boundary near the end are compared with those of
an earlier request, whose messages and text are then used again. The rest is rendered in a window: a few messages from
all over the conversation, then the new ones.

A chat template is a program and may read anything. Two comparisons show that the window's text fits the prompt:

    at the boundary     the prompt ends as the window does, so the messages left out change nothing behind it
    at a later request  the window begins as it did, so the new messages change nothing before it

The second holds for the turns left out since the window has turns like them: the last of each shape, with and without
reasoning, before and after the user's last message. A new user message that makes the template drop old reasoning
changes the window, too. Where a comparison fails the prompt is rendered whole. `locality` tries every template at load,
and `audit` compares whole prompts from time to time.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from sys import getsizeof
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Text, ToolSpec, Turn
from schemas.errors import Invalid
from services.ledger.chain import beginning_of
from services.preprocessor.prompt.prompt_heads import PromptHeads
from services.preprocessor.prompt.window import is_user, window
from services.runtime.branch_cache import BranchCache
from services.templates.call_names import CallNames
from services.templates.chat_template import Message
from services.templates.messages import AdaptedPrefix, TemplateInput, Unseal
from services.templates.traits import Renderer, TemplateTraits
from services.tokenization.encoder import StablePrefix
from services.tokenization.segments import common_prefix

Draw: TypeAlias = Callable[..., str | None]
"""Renders messages; see `_draw`."""
Keep: TypeAlias = Callable[[], StablePrefix | None]
"""Moves the boundary to the end of a prompt, and returns what the session's next prompts share with it."""
TAIL = 14
"""Messages behind the boundary that are rendered with each prompt before the boundary moves on."""
SHORT = 6
"""Conversations of so few messages are rendered whole."""
_OTHER_TEXT = "\ue000"


class RenderedPrefix(Struct, frozen=True):
    """The text before a boundary, and the window that shows whether it is still right."""

    stable: StablePrefix
    window: list[Message]
    before: str
    """The beginning of the window's text."""


class KnownPrefix(Struct, eq=False, kw_only=True):
    """A conversation up to a boundary. Only `newest` ever changes."""

    system: list[Text]
    tools: list[ToolSpec]
    variables: Mapping[str, Any]
    turns: list[Turn]
    adapted: AdaptedPrefix
    unseal: Unseal | None
    rendered: RenderedPrefix | None
    """None: this conversation cannot be rendered in parts."""
    answers_user: bool
    """The boundary stands before the answer to the user's last message: the text before it stays right when the user
    writes again, even if the template then drops reasoning."""
    base: "KnownPrefix | None"
    """The last prefix of which that is true."""
    newest: tuple[list[Turn], AdaptedPrefix] | None = None
    """The session's last prompt up to the model's last turn in it: the turns behind this boundary, and all messages."""

    @property
    def size(self) -> int:
        """Bytes, roughly: the text as turns, as messages and as ids, and the window's text."""
        text = (
            0 if self.rendered is None else 2 * getsizeof(self.rendered.stable.text) + getsizeof(self.rendered.before)
        )
        return 4096 + 512 * len(self.turns) + text + (self.base.size if self.base is not None else 0)

    def begins(self, conversation: Conversation, variables: Mapping[str, Any], unseal: Unseal | None) -> bool:
        """Whether the conversation begins with this prefix."""
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

    def adapted_for(self, conversation: Conversation) -> AdaptedPrefix:
        """The longest known beginning of a conversation that `begins` with this prefix, as messages."""
        turns, newest = self.newest or ([], self.adapted)
        return newest if conversation.turns[self.adapted.turn : newest.turn] == turns else self.adapted


class History:
    """Renders prompts and keeps their prefixes. Thread-safe; the least recently used prefixes are evicted first."""

    def __init__(self, template: Renderer, traits: TemplateTraits, *, max_bytes: int, tail: int = TAIL) -> None:
        """`max_bytes` bounds what is kept; `tail`: see `TAIL`."""
        self._template = template
        self._traits = traits
        self._tail = tail
        self._heads = PromptHeads(max_bytes // 4)
        self._known: BranchCache[KnownPrefix] = BranchCache(max_bytes, lambda known: known.size)
        self._lock = threading.Lock()
        self.off: str | None = None
        """Why every prompt is rendered whole, if it is."""
        self.parts = 0
        """Prompts rendered in parts."""
        self.wholes = 0
        """Prompts rendered whole."""

    @property
    def size(self) -> int:
        """Bytes that are held, roughly, heads not counted."""
        return self._known.size

    def turn_off(self, reason: str) -> None:
        """Renders every prompt whole from now on."""
        self.off = reason
        self._known.clear()
        self._heads.clear()

    def find(
        self, conversation: Conversation, variables: Mapping[str, Any], unseal: Unseal | None = None
    ) -> KnownPrefix | None:
        """The longest known prefix of the conversation, adapted and rendered with the same variables."""
        if self.off is not None:
            return None
        key = beginning_of(conversation)
        candidates = sorted(self._known.get(key), key=lambda known: len(known.turns), reverse=True)
        for known in candidates:
            if known.begins(conversation, variables, unseal):
                self._known.put(key, known)
                return known
        bases = (known.base for known in candidates if known.base is not None)
        return next((base for base in bases if base.begins(conversation, variables, unseal)), None)

    def render(
        self,
        conversation: Conversation,
        adapted: TemplateInput,
        variables: Mapping[str, Any],
        known: KnownPrefix | None,
        unseal: Unseal | None = None,
    ) -> tuple[str, StablePrefix | None, Keep | None]:
        """The prompt's text, as the template renders it, and a prefix of it that earlier prompts share.

        `adapted` is the conversation, adapted behind `known.adapted_for` it. The last value, if any, is to be called
        when nothing waits for the prompt. Raises Invalid as the template does.
        """
        if adapted.prefix is None:
            known = None
        if known is not None:
            self._keep_newest(known, conversation, adapted)
        draw = partial(_draw, self._template, adapted, variables)
        text, rendered = _in_parts(draw, adapted, known) if known is not None else (None, None)
        whole = text is None
        stable = rendered.stable if rendered is not None else None
        if text is None:
            text = self._template.render(adapted.messages, tools=adapted.tools, variables=dict(variables))
            stable = self._heads.find(conversation.client.tenant, text, adapted.messages)
        with self._lock:
            self.wholes += whole
            self.parts += not whole
        if self.off is not None or not _should_move(adapted, known, whole, self._tail):
            return text, stable, None

        def keep() -> StablePrefix | None:
            prefix = _render_prefix(draw, adapted, text, known, stable)
            fresh = self._extend(conversation, adapted, variables, rendered=prefix, known=known, unseal=unseal)
            self._known.put(beginning_of(conversation), fresh, instead_of=known)
            return prefix.stable if prefix is not None else None

        return text, stable, keep

    def _keep_newest(self, known: KnownPrefix, conversation: Conversation, adapted: TemplateInput) -> None:
        assert adapted.prefix is not None
        boundary = adapted.boundaries[-1] if adapted.boundaries else None
        if boundary is not None and boundary.turn > adapted.prefix.turn:
            calls = adapted.prefix.calls.grown(conversation.turns[adapted.prefix.turn : boundary.turn], self._traits)
            if calls is not None:
                turns = conversation.turns[known.adapted.turn : boundary.turn]
                messages = adapted.messages[: boundary.message]
                known.newest = turns, AdaptedPrefix(boundary.turn, messages, calls)

    def _extend(
        self,
        conversation: Conversation,
        adapted: TemplateInput,
        variables: Mapping[str, Any],
        *,
        rendered: RenderedPrefix | None,
        known: KnownPrefix | None,
        unseal: Unseal | None,
    ) -> KnownPrefix:
        """The conversation up to its last turn of the model."""
        boundary = adapted.boundaries[-1]
        answers_user = any(is_user(message) for message in adapted.messages[boundary.message :])
        turns = conversation.turns[: boundary.turn]
        if known is None:
            calls, base = CallNames.of(turns, self._traits), None
        else:
            calls = known.adapted.calls.grown(turns[known.adapted.turn :], self._traits) or known.adapted.calls
            turns = known.turns + turns[known.adapted.turn :]  # the known objects: equal text is not kept twice
            base = known if known.answers_user else known.base
        return KnownPrefix(
            system=conversation.system if known is None else known.system,
            tools=conversation.tools if known is None else known.tools,
            variables=variables,
            unseal=unseal,
            turns=turns,
            adapted=AdaptedPrefix(boundary.turn, adapted.messages[: boundary.message], calls),
            rendered=rendered,
            answers_user=answers_user,
            base=None if answers_user or base is None else replace(base, base=None),
        )


def _draw(
    template: Renderer,
    adapted: TemplateInput,
    variables: Mapping[str, Any],
    messages: list[Message],
    generation: bool = True,
) -> str | None:
    """The messages, rendered with the prompt's tools and variables; None where the template refuses them."""
    try:
        return template.render(messages, tools=adapted.tools, variables=dict(variables), generation=generation)
    except Invalid:
        return None


def _in_parts(draw: Draw, adapted: TemplateInput, known: KnownPrefix) -> tuple[str, RenderedPrefix] | tuple[None, None]:
    for one in (known, known.base):
        if one is not None and (rendered := one.rendered) is not None:
            text = draw([*rendered.window, *adapted.messages[len(one.adapted.messages) :]])
            if text is not None and text.startswith(rendered.before):
                return rendered.stable.text + text[len(rendered.before) :], rendered
    return None, None


def _render_prefix(
    draw: Draw, adapted: TemplateInput, text: str, known: KnownPrefix | None, parent: StablePrefix | None
) -> RenderedPrefix | None:
    """The text and the window before the last boundary; None where the prompt does not end as the window does.
    `parent`: a prefix of `text`."""
    end = adapted.boundaries[-1].message
    if known is not None and known.rendered is not None:
        since = adapted.messages[len(known.adapted.messages) : end]
        chosen = window([*known.rendered.window, *since], len(known.rendered.window) + len(since))
    else:
        chosen = window(adapted.messages, end)
    tail = adapted.messages[end:]
    window_text = draw([*chosen, *tail])
    if window_text is None:
        return None
    before = _before(draw, chosen, tail, window_text)
    rest = len(window_text) - len(before)
    if rest > len(text) or not text.endswith(window_text[len(before) :]):
        return None
    fixed = text[: len(text) - rest]
    if parent is not None and not fixed.startswith(parent.text):
        parent = None
    return RenderedPrefix(StablePrefix(fixed, parent), chosen, before)


def _before(draw: Draw, chosen: list[Message], tail: list[Message], window_text: str) -> str:
    """The part of the window's text before the tail, give or take a few characters.

    It is the text that two windows share: this one and one without the tail or, where the tail changes the text before
    it, one whose tail begins with another text.
    """
    alone = draw(chosen, False) or ""
    before = common_prefix(window_text, alone)
    if before == alone and alone:
        return before
    first = {key: value for key, value in tail[0].items() if key in ("role", "content", "tool_calls")}
    first["content"] = [{"type": "text", "text": _OTHER_TEXT}] if isinstance(first["content"], list) else _OTHER_TEXT
    other = draw([*chosen, first, *tail[1:]]) or ""
    return max(before, common_prefix(window_text, other), key=len)


def _should_move(adapted: TemplateInput, known: KnownPrefix | None, whole: bool, tail: int) -> bool:
    """Whether the boundary moves on: after a whole rendering, after a user's message, and every `tail` messages."""
    if len(adapted.messages) <= SHORT or not adapted.boundaries:
        return False
    if known is None:
        return True
    passed = adapted.boundaries[-1].message - len(known.adapted.messages)
    if known.rendered is None:
        return passed > tail
    return passed > 0 and (whole or passed > tail or is_user(adapted.messages[-1]))
