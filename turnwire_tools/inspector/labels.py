"""Names sessions and turns: by the first words of a question, by a client's own title, or by what a
turn received. Pure."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from turnwire_tools.inspector.conversation import Item, without_additions

WORDS = 160
"""Characters of a question that a row has."""
MAX_TITLE = 120
_SPACE = re.compile(r"\s+")


def is_asked(item: Item) -> bool:
    """Whether an item is of what the user asks, or the agent that started a helper."""
    return item.kind in ("user", "prompt") or (item.kind == "media" and not item.call_id)


def question(items: Sequence[Item]) -> str:
    """The first words of what is asked, else the names of its images; "" where a request has no
    question. Text that clients add to it does not count."""
    asked = [item for item in items if is_asked(item)]
    texts = (_asked_text(item) for item in reversed(asked))
    others = (item.name or item.facts for item in asked if item.kind != "user")
    return first_words(next(filter(None, texts), "") or ", ".join(filter(None, others)))


def _asked_text(item: Item) -> str:
    return without_additions(item.text) if item.kind == "user" else item.text


def first_words(text: str) -> str:
    """The beginning of a text, on one line."""
    line = _SPACE.sub(" ", text[: 4 * WORDS]).strip()
    if len(line) <= WORDS:
        return line
    return f"{line[: WORDS - 1].rstrip()}…"


def results_label(items: Iterable[Item]) -> str:
    """Names what a turn without a question received: the results of its calls."""
    names = dict.fromkeys(item.name for item in items if item.kind == "result")
    listed = ", ".join(name for name in names if name)
    return f"results of {listed}" if listed else ""


def title(answer: str) -> str:
    """The title of a session in the answer to a client's request for one; "" where the answer is
    something else. Claude Code requests JSON, opencode a line of text."""
    text = answer.strip()
    if text.startswith("{"):
        try:
            document = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return ""
        member = document.get("title") if isinstance(document, dict) else None
        if not isinstance(member, str):
            return ""
        text = member.strip()
    if not text or "\n" in text or len(text) > MAX_TITLE:
        return ""
    return _SPACE.sub(" ", text)
