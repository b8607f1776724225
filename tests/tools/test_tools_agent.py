"""The scripted agent over prompts as harnesses make them: what it writes is parsed back by the
family's own parser."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import OutputFormat
from services.families import family
from tests.kit.every import Cases
from tests.tools.agent_sessions import (
    CLAUDE,
    CLINE,
    CODEX,
    FOLLOW,
    LOOP,
    OPENCLAW,
    OPENCODE,
    PARALLEL,
    PATCHING,
    REMINDER,
    SHELL,
    UNKNOWN,
    Session,
    tool,
)
from turnwire_tools.script.agent import act
from turnwire_tools.script.agent_prompt import read_prompt


@pytest.fixture(scope="session")
def template(demo_dir: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(demo_dir)


OK = {"description": "Run the requested command"}
"""What Claude Code's shell tool also requires."""


def test_claude_code_completes_its_tool_loop(template: Any) -> None:
    session = Session(template, CLAUDE).user(REMINDER + LOOP)
    # Claude Code puts its environment into a system message after the request.
    environment = "# Environment\n - Primary working directory: /work\n - `ls`"
    session.messages.append({"role": "system", "content": environment})
    reasoning, text, calls = session.turn()
    assert reasoning.strip()
    assert text == ""
    assert calls == [("Bash", {"command": "echo ok-1 > proof.txt", **OK})]
    reasoning, text, calls = session.results("(Bash completed with no output)").turn()
    assert (text, calls) == ("DONE", [])
    assert reasoning.strip()
    assert session.user(FOLLOW).turn()[2][0][1]["command"] == "echo 2 > follow.txt"
    assert session.results("").turn()[1:] == ("DONE", [])


def test_three_calls_are_made_in_one_turn(template: Any, cases: Cases) -> None:
    harnesses = (
        (CLAUDE, "Bash", "command"),
        (CODEX, "exec_command", "cmd"),
        (OPENCODE, "bash", "command"),
        (OPENCLAW, "exec", "command"),
    )
    for kind in ("qwen3_coder", "nemotron_v3", "hermes"):
        for tools, name, argument in harnesses:
            with cases.case(family=kind, tool=name):
                session = Session(template, tools, kind).user(PARALLEL)
                calls = [(called, given[argument]) for called, given in session.turn()[2]]
                assert calls == [(name, f"echo {i} > p{i}.txt") for i in (1, 2, 3)]
                assert session.results("", "", "").turn()[1:] == ("DONE", [])


def test_calls_that_the_server_cut_off_are_made_later(template: Any) -> None:
    """`disable_parallel_tool_use` ends the turn after its first call."""
    session = Session(template, CLAUDE).user(PARALLEL)
    session.turn()
    session.messages[-1]["tool_calls"] = session.messages[-1]["tool_calls"][:1]
    commands = [arguments["command"] for _, arguments in session.results("").turn()[2]]
    assert commands == ["echo 2 > p2.txt", "echo 3 > p3.txt"]


def test_ordered_steps_are_made_one_by_one(template: Any) -> None:
    session = Session(template, CODEX).user("Run `make`, then run `make test`.")
    assert [a["cmd"] for _, a in session.turn()[2]] == ["make"]
    assert [a["cmd"] for _, a in session.results("built").turn()[2]] == ["make test"]
    last = "Done; 3 tools answered, the last of them: ok: 5 tests"
    assert session.results("built", "ok: 5 tests\nbye").turn()[1] == last


def test_openclaws_additions_are_not_a_request(template: Any) -> None:
    asked = f"[Fri 2026-11-20 07:58 UTC] {LOOP}\n\nRuntime: agent=main | shell=bash"
    marks = ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
    extra = "\nData: `rm x`\n".join(marks)
    session = Session(template, OPENCLAW).user(asked).user(extra)
    assert session.turn()[2] == [("exec", {"command": "echo ok-1 > proof.txt"})]
    assert session.results("(no output)").user(extra).turn()[1] == "DONE"


@pytest.mark.parametrize(
    ("command", "output", "answer"),
    [("cat VERSION", "1.2.3\n", "1.2.3"), ("true", "", "(no output)")],
)
def test_codex_results_and_context_are_read(
    command: str, output: str, answer: str, template: Any
) -> None:
    context = "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"
    session = (
        Session(template, CODEX).user(context).user(f"Run `{command}` and tell me the result.")
    )
    session.turn()
    head = "Chunk ID: 3\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\n"
    assert session.results(head + output).turn()[1] == f"Done; the tool answered: {answer}"


def test_a_cut_stream_is_resumed_and_not_started_again(template: Any) -> None:
    session = Session(template, CLAUDE).user(LOOP)
    session.turn()
    session.results("").user(
        "Your response above was cut off mid-stream. Resume directly from where it stops."
    )
    assert session.turn()[1:] == ("DONE", [])


PRINT = ("exec_command", {"cmd": "printf '%s\\n' 'it'\"'\"'s' > b.txt"})
SED = ("exec_command", {"cmd": r"sed -i 's/a\/b/c\&d/g' x.py"})
HELLO = 'Write "hello" to b.txt'
FENCED = "Run this:\n```bash\nmake &&\n  make test\n```"
PYTHON = "Create b.py with the content `print(1)`"


@pytest.mark.parametrize(
    ("request_text", "tools", "call"),
    [
        ("Read notes/a.txt", CLAUDE, ("Read", {"file_path": "/w/notes/a.txt"})),
        ("Show me the contents of the file `a.txt`", OPENCODE, ("read", {"filePath": "/w/a.txt"})),
        ("Read a.txt", CODEX, ("exec_command", {"cmd": "cat a.txt"})),
        (HELLO, CLAUDE, ("Write", {"file_path": "/w/b.txt", "content": "hello\n"})),
        (PYTHON, OPENCODE, ("write", {"filePath": "/w/b.py", "content": "print(1)\n"})),
        ('Write "it\'s" to b.txt', CODEX, PRINT),
        ("Please replace `a/b` with `c&d` in x.py", CODEX, SED),
        ("Run `ls -la`", SHELL, ("shell", {"command": ["bash", "-lc", "ls -la"]})),
        ("Run `ls -la`", CLINE, ("run_commands", {"commands": ["ls -la"]})),
        ("Read a.txt", CLINE, ("read_files", {"files": [{"path": "/w/a.txt"}]})),
        (HELLO, CLINE, ("editor", {"path": "/w/b.txt", "new_text": "hello\n"})),
        ("Run `ls`", UNKNOWN, ("launch", {"cmd": "ls", "script_line": 0})),
        ("Read a.txt", UNKNOWN, ("view_source", {"target_file": "/w/a.txt"})),
        (HELLO, UNKNOWN, ("store", {"filename": "/w/b.txt", "contents": "hello\n"})),
        (FENCED, CLAUDE, ("Bash", {"command": "make &&\n  make test", **OK})),
        ("What does `foo_bar` do?", CLAUDE, None),
    ],
)
def test_requests_in_plain_words_become_calls(
    template: Any, request_text: str, tools: list[Any], call: Any
) -> None:
    session = Session(template, tools)
    session.messages[0]["content"] += "\nYour working directory: /w\n"
    assert session.user(request_text).turn()[2] == ([] if call is None else [call])


def test_a_file_is_read_before_it_is_edited(template: Any) -> None:
    session = Session(template, CLAUDE).user(
        'Replace "1" with "2" in /w/x.py and answer with the word OK'
    )
    assert session.turn()[2] == [("Read", {"file_path": "/w/x.py"})]
    edit = {"file_path": "/w/x.py", "old_string": "1", "new_string": "2"}
    assert session.results("1\tx = 1").turn()[2] == [("Edit", edit)]
    assert session.results("1\tx = 1", "updated").turn()[1] == "OK"


@pytest.mark.parametrize(
    ("tools", "edit"),
    [
        (OPENCLAW, ("edit", {"path": "/w/x.py", "edits": [{"oldText": "a", "newText": "b"}]})),
        (CLINE, ("editor", {"path": "/w/x.py", "old_text": "a", "new_text": "b"})),
        (UNKNOWN, ("alter", {"file": "/w/x.py", "search": "a", "replace": "b"})),
    ],
)
def test_edit_is_made_with_tools_of_any_shape(template: Any, tools: list[Any], edit: Any) -> None:
    session = Session(template, tools).user("change 'a' to 'b' in /w/x.py")
    session.turn()
    assert session.results("a").turn()[2] == [edit]


def test_work_ends_with_the_tool_for_that(template: Any) -> None:
    """A client that asks again until it is called."""
    finish = tool("submit_and_exit", ("summary", "verified"), summary="string", verified="boolean")
    session = Session(template, [*CLINE, finish]).user(LOOP)
    assert session.turn()[2] == [("run_commands", {"commands": ["echo ok-1 > proof.txt"]})]
    done = ("submit_and_exit", {"summary": "DONE", "verified": False})
    assert session.results("").turn()[2] == [done]
    assert session.results("", "submitted").turn()[1:] == ("DONE", [])
    idle = Session(template, [*CLINE, finish]).user("How are you?")
    assert idle.turn()[2][0][0] == "submit_and_exit"


BLOCKS = "x.txt\n```\n<<<<<<< SEARCH\none a\n=======\none b\n>>>>>>> REPLACE\n```"
UDIFF = "```diff\n--- x.txt\n+++ x.txt\n@@ ... @@\n-one a\n+one b\n```"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("use this *file listing* format", "x.txt\n```\none b\ntwo\n```"),
        ("All changes use *SEARCH/REPLACE block*s", BLOCKS),
        ("similar to a unified diff like `diff -U0`", UDIFF),
    ],
)
def test_a_client_without_tools_gets_edits_in_its_format(
    template: Any, rules: str, expected: str
) -> None:
    """aider, which shows the file in a message."""
    session = Session(template, [])
    session.messages[0]["content"] = rules
    session.user("I have *added these files*.\n\nx.txt\n```\none a\ntwo\n```\n")
    session.messages.append({"role": "assistant", "content": "Ok."})
    session.user(
        "Replace `a` with `b` in x.txt, then answer with the word OK.\n\npath/name.js\n```\n// code\n```"
    )
    assert session.turn()[1] == f"{expected}\n\nOK"


def test_a_patch_is_made_of_the_lines_that_were_read(template: Any) -> None:
    session = Session(template, PATCHING).user(
        'Replace "one" with "two" in /w/a/x.py and answer with the word OK'
    )
    session.messages[0]["content"] += "\n<cwd>/w</cwd>"
    assert session.turn()[2] == [("exec_command", {"cmd": "cat /w/a/x.py"})]
    read = "Chunk ID: 3\nProcess exited with code 0\nOutput:\nzero\n  Output: one, one\none\n"
    patch = "*** Begin Patch\n*** Update File: a/x.py\n@@\n-  Output: one, one\n+  Output: two, two\n*** End Patch"
    assert session.results(read).turn()[2] == [("apply_patch", {"input": patch})]
    assert session.results(read, "Success.").turn()[1] == "OK"


def test_a_file_is_added_by_a_patch(template: Any) -> None:
    call = Session(template, PATCHING).user("Write `print(1)` to b/c.py").turn()[2]
    patch = "*** Begin Patch\n*** Add File: b/c.py\n+print(1)\n*** End Patch"
    assert call == [("apply_patch", {"input": patch})]


def test_required_arguments_without_a_word_get_the_least_value(template: Any) -> None:
    odd = tool(
        "run_command",
        ("command", "risk", "count", "flags", "confirm"),
        command="string",
        risk={"type": "string", "enum": ["low", "high"]},
        count={"type": "integer", "minimum": 1},
        flags={"type": "array", "items": {"type": "string"}},
        confirm="boolean",
    )
    (call,) = Session(template, [odd]).user("Run `ls`").turn()[2]
    least = {"risk": "low", "count": 1, "flags": [], "confirm": False}
    assert call == ("run_command", {"command": "ls", **least})


def test_a_malformed_schema_has_no_required_arguments(template: Any) -> None:
    odd = tool("run_command", (), command="string")
    odd["function"]["parameters"]["required"] = 5
    (call,) = Session(template, [odd]).user("Run `ls`").turn()[2]
    assert call == ("run_command", {"command": "ls"})


def test_thinking_that_is_switched_off_stays_off(template: Any) -> None:
    session = Session(template, CLAUDE, enable_thinking=False).user(LOOP)
    assert session.prompt().endswith("</think>\n\n")
    reasoning, _, calls = session.turn()
    assert (reasoning, len(calls)) == ("", 1)


@pytest.mark.parametrize("forced", ["Bash", "Agent"])
def test_a_call_that_was_opened_for_it_is_completed(template: Any, forced: str) -> None:
    session = Session(template, CLAUDE).user(LOOP)
    prompt = session.prompt() + "\n</think>\n\n" + session.family.style.call_prefix(forced)
    whole = session.family.style.call_prefix(forced) + act(prompt, session.family)
    arguments = {"Bash": {"command": "echo ok-1 > proof.txt", **OK}, "Agent": {"prompt": ""}}
    assert whole == session.family.style.write_call(forced, arguments[forced])


def test_compaction_is_answered_in_text_without_commands(template: Any) -> None:
    session = Session(template, CLAUDE).user(LOOP)
    session.turn()
    session.results("").user(
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nWrite an <analysis> and a <summary>. Run `ls`."
    )
    _, text, calls = session.turn()
    assert calls == []
    assert (text[:10], text[-10:]) == ("<analysis>", "</summary>")
    assert "`" not in text
    for asked in (
        "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.",
        "Summarize the conversation so far for a model that goes on with it and sees nothing else of it.",
    ):
        codex = Session(template, CODEX).user(LOOP).user(asked)
        assert "The user asked last: Use your shell tool" in codex.turn()[1]


def test_summary_has_what_the_user_asked_for(template: Any) -> None:
    """Claude Code puts its reminders in front of that, and drops what does not fit."""
    asks = "CRITICAL: Respond with TEXT ONLY. Write an <analysis> and a <summary>."
    session = Session(template, CLAUDE).user(REMINDER + LOOP)
    session.turn()
    summary = session.results("").user(asks).turn()[1]
    assert "The user asked last: Use your shell tool" in summary
    goes_on = f"This session is being continued from a previous conversation.\n{summary}"
    assert Session(template, CLAUDE).user(REMINDER + goes_on).turn()[1:] == ("DONE", [])
    told = 'Here is the conversation so far:\n\n<conversation>\n[User]: "Run `ls`"\n\n[Tool result]: x\n</conversation>'
    assert "The user asked last: \"Run 'ls'\"" in Session(template, []).user(told).turn()[1]
    cut = Session(template, CLAUDE).user("[earlier conversation truncated for compaction retry]")
    cut.turn()
    assert "The user asked last: nothing yet" in cut.user(asks).turn()[1]


def test_interruption_becomes_the_request(template: Any) -> None:
    session = Session(template, CLAUDE).user(LOOP)
    session.turn()
    session.results("ok").user("[Request interrupted by user for tool use]\n" + FOLLOW)
    assert session.turn()[2][0][1]["command"] == "echo 2 > follow.txt"
    goes_on = Session(template, CLAUDE).user(LOOP)
    goes_on.turn()
    assert goes_on.results("ok").user("[Request interrupted by user]").turn()[1] == "DONE"


def test_title_is_made_of_the_request(template: Any) -> None:
    session = Session(template, [])
    rules = "You are a title generator. You output ONLY a thread title. Nothing else."
    session.messages[0]["content"] = rules
    session.user("Generate a title for this conversation:\n")
    assert session.user('"Create proof.txt, then verify it."').turn()[1] == (
        "Create proof.txt then verify it"
    )


def test_answer_has_the_requested_form(template: Any) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    session = Session(template, []).user(
        "<session>\nRead the hostname\n</session>\n\nWrite the title."
    )
    text = session.turn(OutputFormat("json_schema", schema))[1]
    assert json.loads(text) == {"title": "Read the hostname"}
    assert isinstance(json.loads(session.turn(OutputFormat("json_object"))[1]), dict)


def test_request_without_a_rule_gets_a_description_of_the_agent(template: Any) -> None:
    for tools in ([], CLAUDE):
        _, text, calls = Session(template, tools).user("How are you?").turn()
        assert "scripted demo engine" in text
        assert calls == []
    no_tool = Session(template, [CLAUDE[0]]).user("Run `ls`").turn()
    assert no_tool[1].startswith("No tool for this is offered.")
    assert Session(template, []).user("Reply with exactly: PONG").turn()[1] == "PONG"


XML = """<|im_start|>system
# Tools

<tools>
<function>
<name>bash</name>
<description>Runs it. Looks like <name>nothing</name>.</description>
<parameters>
<parameter>
<name>command</name>
<type>string</type>
<description>What to run</description>
</parameter>
<parameter>
<name>timeout</name>
<type>integer</type>
</parameter>
<required>["command", "timeout"]</required>
</parameters>
</function>
</tools><|im_end|>
<|im_start|>user
Run `ls`<|im_end|>
<|im_start|>assistant
"""


def test_tool_list_of_qwen3_coder_is_read() -> None:
    assert read_prompt(XML).tools[0].schema["required"] == ["command", "timeout"]
    expected = family("qwen3_coder").style.write_call("bash", {"command": "ls", "timeout": 0})
    assert act(XML, family("qwen3_coder")).endswith(expected)


@pytest.mark.parametrize(
    "prompt",
    [
        "<|start_header_id|>system<|end_header_id|>\n\nGo.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nDo `it`.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<start_of_turn>user\nDo `it`.<end_of_turn>\n<start_of_turn>model\n",
        "[gMASK]<sop><|system|>\nGo.<|user|>\nDo `it`.<|assistant|>\n",
        "<｜begin▁of▁sentence｜>Go.<｜User｜>Do `it`.<｜Assistant｜>",
        "<s>[INST] Do `it`.[/INST]",
    ],
    ids=["llama3", "gemma", "glm", "deepseek", "mistral"],
)
def test_other_templates_are_read(prompt: str) -> None:
    view = read_prompt(prompt)
    assert (view.request, view.opening.strip(), view.results) == ("Do `it`.", "", [])


def test_text_in_no_known_form_is_a_request() -> None:
    assert read_prompt("just text").request == "just text"
    assert act("", family("qwen3_coder")) != ""


@pytest.mark.parametrize("prompt", ["Once upon a time", "", " \n", "def add(a, b):\n    return"])
def test_prompt_that_is_not_a_chat_is_continued_in_plain_text(prompt: str) -> None:
    output = act(prompt, family("qwen3_coder"))
    assert output
    assert "<think>" not in output


def test_prompt_that_is_not_a_chat_gets_the_word_or_the_form_that_it_asks_for() -> None:
    assert act("Answer with the single word DONE.", family("qwen3_coder")) == "DONE"
    assert json.loads(act("Give me an object.", family("qwen3_coder"), OutputFormat("json_object")))
