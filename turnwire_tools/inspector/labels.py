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


def question(items: Sequence[Item]) -> str:
    """The first words of what the user, or the agent that started a helper, asks; "" where a
    request has no question. Text that clients add to it does not count."""
    texts = [item.text for item in items if item.kind == "user"]
    asked = (words for text in reversed(texts) if (words := without_additions(text)))
    return first_words(next(asked, ""))


def first_words(text: str) -> str:
    """The beginning of a text, on one line."""
    line = _SPACE.sub(" ", text[: 4 * WORDS]).strip()
    if len(line) <= WORDS:
        return line
    return f"{line[: WORDS - 1].rstrip()}…"


def results_label(items: Iterable[Item]) -> str:
    """Names what a turn without a question received: the results of its calls."""
    names = dict.fromkeys(item.name for item in items if item.kind == "result")
    named = ", ".join(name for name in names if name)
    return f"results of {named}" if named else ""


def title(answer: str) -> str:
    """The title of a session in the answer to a client's request for one; "" where the answer is
    something else. Claude Code requests JSON, opencode a line of text."""
    text = answer.strip()
    if text.startswith("{"):
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return ""
        member = found.get("title") if isinstance(found, dict) else None
        if not isinstance(member, str):
            return ""
        text = member.strip()
    if not text or "\n" in text or len(text) > MAX_TITLE:
        return ""
    return _SPACE.sub(" ", text)
