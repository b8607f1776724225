"""A model that no family matches: the demo's, with calls and reasoning of its own, and a
`response_template`."""

import json
from pathlib import Path
from typing import Any

from turnwire_tools.script.demo_model import build_demo_model

DESCRIPTION: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<musing>", "close_pattern": r"</musing>\s*"},
        "tool_calls": {
            "open_pattern": r'<act to="(?P<name>[^"\n]+)">',
            "close_pattern": r"</act>\s*",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*"},
    },
}
_CALL = """{{- '<act to="' + call.function.name + '">' + call.function.arguments | tojson + '</act>' }}"""


def describe_model(path: Path) -> Path:
    """Turns the demo model's directory at `path`, which is built if it is missing, into one that
    describes itself."""
    if not (path / "chat_template.jinja").exists():
        build_demo_model(path)
    template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    before, _, rest = template.partition("{%- macro render_call(call) %}")
    _, _, after = rest.partition("{%- endmacro %}")
    template = before + "{%- macro render_call(call) %}\n    " + _CALL + "\n{%- endmacro %}" + after
    template = template.replace("<think>", "<musing>").replace("</think>", "</musing>")
    start, end = template.index("'<tool_call>"), template.index("result comes back")
    shown = """'<act to="TOOL_NAME">{"ARGUMENT_NAME": "value"}</act>\\n\\n' }}\n    {{- 'After the last call every """
    template = template[:start] + shown + template[end:]
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "response_template": DESCRIPTION}))
    return path
