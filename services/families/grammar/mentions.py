"""The rule by which a tag of reasoning in running text counts, or is only mentioned: as a word of a
sentence, or in quotes.

A tag counts if it begins a line or a sentence, or if nothing sets it apart from the text around it,
unlike a word. Parsers have this rule, and workers, which limit reasoning. Neither counts a tag in
code.
"""

from typing import Final

QUOTES: Final = "`'\"("
"""Signs after which a text may mention any marker."""
_OPENING_SIGNS: Final = QUOTES + "[{<>/=|*_“‘«「"
BEFORE_MENTION: Final = "\t\r\n" + _OPENING_SIGNS
"""Characters before a tag that is mentioned; a blank may precede one, too."""
_AFTER_MENTION: Final = ",;:.!?)]}`'\"”’»」"
_SENTENCE_ENDS: Final = tuple(".!?:…。！？：")
SIGNS_BEFORE_TAGS: Final = (*_OPENING_SIGNS, *_SENTENCE_ENDS)
"""The characters before a tag that decide, besides white space."""


def is_mention(before: str, after: str = "") -> bool:
    """Whether a tag that does not begin a line is only mentioned.

    `before`: at least the two characters before it. `after`: the next character; "": it is unknown,
    or the text ends.
    """
    if after and after in _AFTER_MENTION:
        return True
    if before.endswith(" "):
        begins_sentence = before[:-1].endswith(_SENTENCE_ENDS) and after != " "
        return not begins_sentence
    return before[-1:] in BEFORE_MENTION
