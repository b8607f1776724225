"""Writes changes of files as text, for clients that offer no tools and read edits from the answer (aider). Pure."""

import re
from collections.abc import Sequence

from services.worker.engines.script.agent_prompt import Prompt
from services.worker.engines.script.agent_steps import Step

_FORMATS = (("*SEARCH/REPLACE", "blocks"), ("diff -U0", "diff"), ("*file listing*", "listing"))
"""How aider's system prompt names each of its formats."""


def edits_as_text(steps: Sequence[Step], view: Prompt) -> str:
    """The steps that change files, in the format that the prompt asks for; empty if it asks for none or nothing
    changes."""
    rules = "".join(message.text for message in view.messages if message.role == "system")
    form = next((form for words, form in _FORMATS if words in rules), None)
    changes = [] if form is None else [step for step in steps if step.kind in ("write", "edit")]
    return "\n\n".join(_written(step, str(form), _contents(step.path, view)) for step in changes)


def _written(step: Step, form: str, before: str) -> str:
    if step.kind == "write":
        old, new = "", step.text
    elif form == "listing":
        old, new = before, before.replace(step.old, step.text)
    else:
        old = next((line for line in before.splitlines() if step.old in line), step.old)
        new = old.replace(step.old, step.text)
    if form == "listing":
        return f"{step.path}\n```\n{new}\n```"
    if form == "blocks":
        return f"{step.path}\n```\n<<<<<<< SEARCH\n{old + chr(10) if old else ''}=======\n{new}\n>>>>>>> REPLACE\n```"
    source = step.path if old else "/dev/null"
    removed = [f"-{line}" for line in old.splitlines()]
    added = [f"+{line}" for line in new.splitlines()]
    lines = [f"--- {source}", f"+++ {step.path}", "@@ ... @@", *removed, *added]
    return "```diff\n" + "\n".join(lines) + "\n```"


def _contents(path: str, view: Prompt) -> str:
    """The file as the user's messages show it last: its name on a line, then its text in a fence."""
    shown = re.compile(
        rf"^{re.escape(path)}\n(?P<fence>`{{3,}})\w*\n(?P<text>.*?)\n?^(?P=fence)$", re.DOTALL | re.MULTILINE
    )
    found = [hit["text"] for message in view.messages if message.role == "user" for hit in shown.finditer(message.text)]
    return found[-1] if found else ""
