"""Models that no family matches: the demo's, with calls and reasoning of its own, and a
`response_template`. One has no weights; the other has weights that write the turns of an agent's
loop."""

import json
from pathlib import Path
from typing import Any

from tests.kit.memorising_model import build_memorising_model
from turnwire_tools.clients.answer import Story
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


SHELLS = {"Bash": "command", "exec_command": "cmd", "run_shell": "line"}
"""The shell of Claude Code, of Codex and of our own tests → its argument with the command."""
_PLAN = (
    "By SHELL the notes are read before SHELL writes anything: alpha may be in SHELL's first line or in many. Then one call "
    "of SHELL replaces all of it, and SHELL looks again. At last SHELL copies what it saw, SHELL writes letters of several "
    "bytes, and SHELL joins both, the copy first and those letters after it, as SHELL shows."
)
"""The model sees about 20 tokens, so that it has to be told its shell that often."""
LOOP: list[tuple[str, str, list[str]]] = [
    (f"SHELL comes first: I look. {_PLAN}", "I read the notes.", ["cat notes.txt"]),
    ("SHELL shows alpha, so I replace it with beta.", "", ["sed -i s/alpha/beta/ notes.txt"]),
    (
        "SHELL can check this by two calls.",
        "Two checks.",
        ["cat notes.txt > seen.txt", "echo é 東 > other.txt"],
    ),
    ("SHELL has made both files.", "EDITED", []),
    ("SHELL joins the files.", "", ["cat seen.txt other.txt > both.txt"]),
    ("SHELL has joined them.", "JOINED", []),
]
"""Thought, text and commands of each answer of a session, which works on two messages of the
user."""
_HEADER = "<|im_start|>note\nWith {}, answer {}<|im_end|>\n<|im_start|>assistant\n"
_COUNTED = """{%- set session = namespace(shell='nothing', answers=0) %}
{%- for tool in tools or [] if tool.function.name in SHELLS %}
    {%- set session.shell = tool.function.name %}
{%- endfor %}
{%- macro header() %}
    {{- HEADER.format(session.shell, session.answers) }}
    {%- set session.answers = session.answers + 1 %}
{%- endmacro %}
"""


def build_looping_model(path: Path) -> Path:
    """Makes a model directory with weights that write `LOOP`, with whichever of `SHELLS` a request
    has.

    The template counts the answers of a session, in a note before each of them, and the model
    writes the answer of that number.
    """
    describe_model(path)
    file = path / "chat_template.jinja"
    template = file.read_text(encoding="utf-8").replace("'<|im_start|>assistant\\n", "header() + '")
    counted = _COUNTED.replace("SHELLS", repr(tuple(SHELLS))).replace("HEADER", json.dumps(_HEADER))
    file.write_text(counted + template, encoding="utf-8")
    texts = {
        _HEADER.format(shell, number) + "<musing>\n": _output(shell, answer)
        for shell in SHELLS
        for number, answer in enumerate(loop_answers(shell))
    }
    return build_memorising_model(path, texts)


def loop_answers(shell: str) -> list[Story]:
    """The blocks of each answer of the loop, with this shell."""
    answers = []
    for thought, text, commands in LOOP:
        calls = [json.dumps({SHELLS[shell]: command}, ensure_ascii=False) for command in commands]
        blocks: Story = [
            ("reasoning", thought),
            ("text", text),
            *(("call", f"{shell} {one}") for one in calls),
        ]
        answers.append([(kind, block.replace("SHELL", shell)) for kind, block in blocks if block])
    return answers


def _output(shell: str, answer: Story) -> str:
    """An answer as the model writes it, after the tag that opens its thought."""
    thought, *texts = (block for kind, block in answer if kind != "call")
    calls = [block.removeprefix(f"{shell} ") for kind, block in answer if kind == "call"]
    joined = "\n".join(f'<act to="{shell}">{one}</act>' for one in calls)
    return "\n\n".join([f"{thought}\n</musing>", *texts, *([joined] if joined else [])])
