"""Takes out of a call what clients are known to change when they send it back (docs/clients.md).

Claude Code reads a call with the schema of its tool and tidies it, before it runs the call and
sends it back. What differs between the two forms is the same here, whichever of them comes.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from services.templates.tools import read_arguments

_CHANGES_DIRECTORY = re.compile(r"\Acd (?:/|[A-Za-z]:[\\/])\S* && ")
_EXIT_PLAN_MODE = "exitplanmode"
"""Letters of the name of a tool of Claude Code."""
_INJECTED = frozenset({"plan", "planFilePath"})
"""Members that Claude Code adds to a call of that tool that it receives, and drops when it sends
the call back: the model's own, too."""
_NOT_A_LETTER = re.compile("[^a-z]+")
_RENAMED: Mapping[str, str] = {"old_str": "old_string", "new_str": "new_string"}
"""Members to which Claude Code gives the names in its tool's schema."""
_SHORTHANDS: Mapping[str, str] = {
    "<fnr>": "<function_results>",
    "<n>": "<name>",
    "</n>": "</name>",
    "<o>": "<output>",
    "</o>": "</output>",
    "<e>": "<error>",
    "</e>": "</error>",
    "<s>": "<system>",
    "</s>": "</system>",
    "<r>": "<result>",
    "</r>": "</result>",
    "< META_START >": "<META_START>",
    "< META_END >": "<META_END>",
    "< EOT >": "<EOT>",
    "< META >": "<META>",
    "< SOS >": "<SOS>",
    "\n\nH:": "\n\nHuman:",
    "\n\nA:": "\n\nAssistant:",
}
"""Texts of an edit that Claude Code replaces where only the replacement is in the file."""
_SHORTHAND = re.compile("|".join(map(re.escape, _SHORTHANDS)))
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_SCALAR = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_FLAGS: Mapping[str, bool] = {"true": True, "false": False}
_BLANKS = (
    " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""White space of Python and of JavaScript."""


def tidied_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments without what Claude Code changes:

    - flags that are off are filled in, numbers and flags in quotes are read (`timeout: "5000"`),
      and a single file gets a list;
    - `cd` into the working directory is taken off a command, and a backslash off `\\\\;` in it;
    - white space is taken off the ends of lines that it writes; escapes in a text (`\\u00e9`) are
      read, and other spellings of tags and members in an edit;
    - members that it adds to a call itself are left out when it sends the call back, also where a
      client has repaired the tool's name.
    """
    letters = _NOT_A_LETTER.sub("", name.lower())
    injected = _INJECTED if _EXIT_PLAN_MODE in letters else frozenset()
    tidied: dict[str, Any] = {}
    for member, value in arguments.items():
        if member in injected:
            continue
        schema_name = _RENAMED.get(member, member)
        tidied[schema_name] = _tidied(schema_name, value)
    return {member: value for member, value in tidied.items() if value is not False}


def changes_directory(original: str, sent: str) -> bool:
    """Whether a call that a client sent back enters another directory than the original, or enters
    one where the original enters none. `tidied_arguments` leaves this out, and no client does it by
    itself. Both are arguments as JSON."""
    command = read_arguments(sent, freeform=False).get("command")
    change = _CHANGES_DIRECTORY.match(command) if isinstance(command, str) else None
    if change is None:
        return False
    original_command = read_arguments(original, freeform=False).get("command")
    return not isinstance(original_command, str) or not original_command.startswith(change[0])


def _tidied(member: str, value: Any) -> Any:
    if member == "files" and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        return value
    if _SCALAR.fullmatch(value.strip()) and math.isfinite(float(value)):
        return float(value)
    if value in _FLAGS:
        return _FLAGS[value]

    if member == "command":
        value = _CHANGES_DIRECTORY.sub("", value, count=1).replace("\\\\;", "\\;")
    elif member in _RENAMED.values():
        value = _SHORTHAND.sub(lambda match: _SHORTHANDS[match[0]], value)
    if "\\u" in value:
        value = _ESCAPES.sub(lambda match: str(json.loads(f'"{match[0]}"')), value)
    lines = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join([line.rstrip(_BLANKS) for line in lines])
