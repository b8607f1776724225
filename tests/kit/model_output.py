"""Calls as the demo model writes them."""

from services.families import find_family


def written_call(tool: str, /, **arguments: object) -> str:
    """A call in the model's output."""
    return find_family("qwen3_coder").style.write_call(tool, arguments)
