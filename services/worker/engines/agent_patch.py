"""Patches in the form that Codex' apply_patch takes: whole lines, found by what is in them. Pure."""

from pathlib import PurePosixPath


def add_file(path: str, text: str) -> str:
    """A patch that makes a file of `text`."""
    return _patch(f"*** Add File: {path}", [f"+{line}" for line in text.splitlines()])


def replace_in_file(path: str, old: str, new: str, content: str) -> str:
    """A patch that changes the first line of `content` in which `old` stands; where none is, one that says so by not
    fitting."""
    line = next((line for line in content.splitlines() if old in line), old)
    return _patch(f"*** Update File: {path}", ["@@", f"-{line}", f"+{line.replace(old, new)}"])


def relative(path: str, directory: str | None) -> str:
    """The path as a patch names it: from the working directory on, where it lies in there."""
    if directory is not None and PurePosixPath(path).is_relative_to(directory):
        return str(PurePosixPath(path).relative_to(directory))
    return path


def _patch(section: str, lines: list[str]) -> str:
    return "\n".join(["*** Begin Patch", section, *lines, "*** End Patch"])
