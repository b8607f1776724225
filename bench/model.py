"""Makes the model directory that all stacks of a comparison share: the demo model with a published
chat template, or with another end of its own.

Both open a thought before every answer. Not every server lets a request turn that off, so here only
the model's output opens a thought.
"""

from pathlib import Path

from turnwire_tools.script.demo_model import build_demo_model

_OPENED = "{{- '<|im_start|>assistant\\n<think>\\n' }}"
_LEFT_OPEN = "{{- '<|im_start|>assistant\\n' }}"
_SKIPPED = "{{- '\\n</think>\\n\\n' }}"
_LEFT_OUT = "{{- '<think>\\n\\n</think>\\n\\n' }}"
_IF_REFUSED = "enable_thinking is defined and enable_thinking is false"
_UNLESS_ASKED = "enable_thinking is not defined or enable_thinking is false"
"""When templates of Qwen3.5 and its successors leave thoughts out: theirs, and ours."""


def build_bench_model(path: Path, template: Path | None = None) -> Path:
    """Makes or updates the directory at `path`; returns `path`. `template`: a file to use in place
    of the demo's; its answers have no thought unless a request asks for one. Raises OSError and
    ValueError."""
    build_demo_model(path)
    file = path / "chat_template.jinja"
    if template is not None:
        text = template.read_text(encoding="utf-8").replace(_IF_REFUSED, _UNLESS_ASKED)
        if "enable_thinking" in text and _UNLESS_ASKED not in text:
            raise ValueError(f"{template} leaves thoughts out in another way than Qwen's do")
    else:
        text = without_opening(file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    return path


def without_opening(template: str) -> str:
    """Returns the demo's chat template without an opened thought. Raises ValueError for another
    template."""
    if _LEFT_OPEN in template and _OPENED not in template:
        return template
    if template.count(_OPENED) != 1 or template.count(_SKIPPED) != 1:
        raise ValueError(
            "the demo model's chat template opens its answers in another way than it did"
        )
    return template.replace(_OPENED, _LEFT_OPEN).replace(_SKIPPED, _LEFT_OUT)
