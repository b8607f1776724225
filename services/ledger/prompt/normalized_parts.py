"""Compares the parts of a turn by their normal form.

Turns are equal where they hold the same parts in the same order. White space around text and
reasoning, blank text, an empty think block and the spelling of arguments
(`keys.canonical_arguments`) make no difference.
"""

from collections.abc import Sequence

from schemas.conversation import Call, Text
from services.ledger.turns.keys import canonical_arguments, squeeze
from services.ledger.turns.turn import TurnPart
from services.templates.wording import join_blocks

_TEXT = "\x00text"
_REASONING = "\x00reasoning"
"""Kinds of parts, where a call has its name."""


def same_parts(original: Sequence[TurnPart], rendered: Sequence[TurnPart]) -> bool:
    """Whether a template renders the parts of a turn, in their order.

    Text before a call may be rendered as reasoning, or as the end of it: templates that have no
    place for text beside a call do so (gpt-oss), though the model may write both.
    """
    parts = normalized(original)
    rendered_parts = normalized(rendered)
    if parts == rendered_parts:
        return True
    squeezed = [(kind, squeeze(text)) for kind, text in rendered_parts]
    return _text_as_reasoning(parts) == squeezed


def normalized(parts: Sequence[TurnPart]) -> list[tuple[str, str]]:
    """The kinds and texts of parts, without what makes no difference."""
    normal: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Call):
            normal.append((part.name, canonical_arguments(part.arguments)))
            continue
        text = (part.text or "").strip()
        if not text:
            continue
        kind = _TEXT if isinstance(part, Text) else _REASONING
        if kind == _TEXT and normal and normal[-1][0] == _TEXT:
            # One text where it is rendered: the model wrote a closer between them that closes
            # nothing, which no block has.
            text = join_blocks((normal.pop()[1], text))
        normal.append((kind, text))
    return normal


def _text_as_reasoning(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parts with text before a call as reasoning, and without white space."""
    changed: list[tuple[str, str]] = []
    next_kinds = [kind for kind, _ in parts[1:]]
    next_kinds.append(_TEXT)  # no call follows the last part
    for (kind, text), next_kind in zip(parts, next_kinds, strict=False):
        is_before_call = next_kind not in (_TEXT, _REASONING)
        is_reasoning = kind == _REASONING or (kind == _TEXT and is_before_call)
        if not is_reasoning:
            changed.append((kind, squeeze(text)))
            continue
        thought = squeeze(text)
        if changed and changed[-1][0] == _REASONING:
            thought = changed.pop()[1] + thought
        changed.append((_REASONING, thought))
    return changed
