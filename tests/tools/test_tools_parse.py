"""`turnwire parse`: raw model output in, events out, with tools in the form of any API."""

import io
import json
from pathlib import Path

import pytest

from services.cli.main import main
from turnwire_tools.parse import read_tools

CALL = (
    "<tool_call>\n<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
RAW = "Hm.</think>\n\nLet me look.\n" + CALL
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"name": "Bash", "description": "Runs.", "input_schema": SCHEMA}]


@pytest.fixture
def tools(tmp_path: Path) -> str:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return str(tmp_path / "tools.json")


def parse(monkeypatch: pytest.MonkeyPatch, text: str, *argv: str) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
    return main(["parse", *argv])


def test_events_are_printed_in_order(
    tools: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--family=qwen3_coder", "--tools", tools, "--in-reasoning", "--json", "--chunk=1"]
    assert parse(monkeypatch, RAW, *argv) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    starts = [event for event in events if event["type"] == "block_start"]
    assert [start["kind"] for start in starts] == ["reasoning", "text", "tool_use"]
    assert starts[2]["name"] == "Bash"
    deltas = [event for event in events if event["type"] == "delta" and event["block"] == 2]
    arguments = "".join(delta["text"] for delta in deltas)
    assert json.loads(arguments) == {"command": "ls"}
    (dispatch,) = [event for event in events if event["type"] == "dispatch"]
    assert (dispatch["block"], dispatch["call_id"]) == (2, "")
    assert (dispatch["name"], dispatch["arguments"]) == ("Bash", arguments)
    assert events[-1]["type"] == "block_stop"
    assert events[-1].get("complete", True)


def test_a_cut_call_is_incomplete(
    tools: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = RAW[: RAW.index("</parameter>")]
    argv = ["--family", "qwen3_coder", "--tools", tools, "--in-reasoning", "--finish", "length"]
    assert parse(monkeypatch, cut, *argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("incomplete")
    assert not any("dispatch" in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--family", "qwen3_codr"], "qwen3_coder"),
        (["--family", "hermes", "--tools", "none.json"], "none.json"),
        ([], "turnwire parse: "),
    ],
)
def test_wrong_usage_has_status_2(
    argv: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse(monkeypatch, "", *argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert reason in line


def test_tools_of_every_api_are_read() -> None:
    for form in (
        {"name": "Bash", "input_schema": SCHEMA},
        {"type": "function", "name": "Bash", "parameters": SCHEMA},
        {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}},
        {"name": "Bash", "schema": SCHEMA},
    ):
        (tool,) = read_tools(json.dumps([form]).encode())
        assert (tool.name, tool.schema) == ("Bash", SCHEMA), form


def test_description_takes_the_place_of_a_family(
    tools: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"open": "<do>", "close": "</do>", "content": "json", "repeats": True}
    description = {"start_anchor": "<bot>", "fields": {"tool_calls": call, "content": {}}}
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"response_template": description}))
    raw = 'Look.<do>{"name": "Bash", "arguments": {"command": "ls"}}</do>'
    argv = ["--response-template", str(file), "--tools", tools, "--json"]
    assert parse(monkeypatch, raw, *argv) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [event["kind"] for event in events if event["type"] == "block_start"]
    assert kinds == ["text", "tool_use"]
    assert [event["name"] for event in events if event["type"] == "dispatch"] == ["Bash"]
