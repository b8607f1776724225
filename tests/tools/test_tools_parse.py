"""`turnwire parse`: raw model output in, events out."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.main import main
from tests.kit.model_output import written_call

RAW = "Hm.</think>\n\nLet me look.\n" + written_call("Bash", command="ls")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"name": "Bash", "description": "Runs.", "input_schema": SCHEMA}]
Parse = Callable[..., int]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parse:
    """Runs the command over a text, with a file of these tools."""
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))

    def run(text: str, *argv: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
        return main(["parse", "--tools", str(tools), *argv])

    return run


def test_events_are_printed_in_order(parse: Parse, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(RAW, "--family=qwen3_coder", "--in-reasoning", "--json", "--chunk=1") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    starts = [event for event in events if event["type"] == "block_start"]
    assert [start["kind"] for start in starts] == ["reasoning", "text", "tool_use"]
    deltas = [event for event in events if event["type"] == "delta" and event["block"] == 2]
    arguments = "".join(delta["text"] for delta in deltas)
    assert json.loads(arguments) == {"command": "ls"}
    (dispatch,) = [event for event in events if event["type"] == "dispatch"]
    assert (dispatch["block"], dispatch["call_id"]) == (2, "")
    assert (dispatch["name"], dispatch["arguments"]) == ("Bash", arguments)
    assert events[-1]["type"] == "block_stop"
    assert events[-1].get("complete", True)

    cut = RAW[: RAW.index("</parameter>")]
    assert parse(cut, "--family", "qwen3_coder", "--in-reasoning", "--finish", "length") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("incomplete")
    assert [line for line in lines if "dispatch" in line] == []
