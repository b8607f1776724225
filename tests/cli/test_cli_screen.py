"""What the screen of `up` shows: instructions for clients, and lines of logs."""

import json
import re
from pathlib import Path

import pytest

from services.cli.up.plan import UpPlan
from services.cli.up.screen import Screen, ServedModelNotes, instructions, log_text
from tests.cli.up_plans import plan


def shown(made: UpPlan, model: ServedModelNotes) -> str:
    return instructions(made, ["http://127.0.0.1:81"], model, 3.21, ".venv/bin/turnwire")


def test_instructions_are_shell_lines(tmp_path: Path) -> None:
    lines = shown(plan(), ServedModelNotes(32768)).splitlines()
    for line in (
        "turnwire-demo is served at http://127.0.0.1:81  (ready after 3.2 s)",
        "  export ANTHROPIC_BASE_URL=http://127.0.0.1:81",
        "  export ANTHROPIC_MODEL=turnwire-demo",
        "  export CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768",
        "  export CLAUDE_CODE_MAX_OUTPUT_TOKENS=8192",
        "Settings for another client:  .venv/bin/turnwire connect codex",
        "  curl -N http://127.0.0.1:81/v1/messages \\",
        "See the turns in a browser:  .venv/bin/turnwire inspect",
        "Watch the messages on the bus:  .venv/bin/turnwire tap",
    ):
        assert line in lines
    assert "MAX_OUTPUT_TOKENS" not in shown(plan(), ServedModelNotes(262144))


def test_instructions_have_addresses_for_other_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.txt").write_text(f"ann:{'0' * 64}\n")
    assert plan().other_urls(81) == []
    made = plan("--host", "0.0.0.0")
    first, *more = made.other_urls(81)
    assert first == "http://gpu1:81"
    assert all(one.startswith("http://") and one.endswith(":81") for one in more)
    for own, refused in ("gpu1", []), ("llm.example", [first]):
        named = plan("--host", "0.0.0.0", "--allowed-hosts", own)
        assert named.other_urls(81) == [url for url in made.other_urls(81) if url not in refused]
    text = instructions(
        made, [made.url(81)], ServedModelNotes(), 3.21, "turnwire", other_urls=["http://gpu1:81"]
    )
    assert "is served at http://127.0.0.1:81 " in text
    assert "From other machines:  http://gpu1:81\n" in text
    assert "Everyone who reaches this port may use it: --api-keys-file names the keys." in text
    made = plan("--host", "0.0.0.0", "--api-keys-file", "keys.txt")
    text = instructions(made, ["u"], ServedModelNotes(), 1, "turnwire", other_urls=["http://gpu1"])
    assert "Everyone" not in text


def test_instructions_with_keys_have_the_window_or_where_it_is_listed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"ann:{'0' * 64}\n")
    made = plan("--api-keys-file", str(keys))
    text = shown(made, ServedModelNotes(32768))
    assert 'ANTHROPIC_AUTH_TOKEN="$TURNWIRE_API_KEY"' in text
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768" in text
    assert "the model's is among" not in text
    assert "the model's is among" in shown(made, ServedModelNotes())


def test_a_server_without_keys_that_others_reach_is_noted(tmp_path: Path) -> None:
    note, notes = "Everyone who reaches this port may use it", ServedModelNotes()
    assert note not in shown(plan(), notes)
    assert note not in shown(plan("--host=localhost"), notes)
    assert note in shown(plan("--host=0.0.0.0"), notes)
    assert note in shown(plan("--host=10.0.0.1"), notes)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"ann:{'0' * 64}\n")
    assert note not in shown(plan("--host=0.0.0.0", f"--api-keys-file={keys}"), notes)


def test_a_model_without_its_weights_is_named() -> None:
    notes = ServedModelNotes(32768)
    assert "No weights are loaded: the engine is script" in shown(plan("--model", "m"), notes)
    assert "No weights" not in shown(plan(), notes), "that is the demo"
    real = plan("--model", "m", "--engine", "transformers")
    assert "No weights" not in shown(real, notes)


def test_clients_that_cannot_work_are_not_recommended() -> None:
    for model, warning in (
        (ServedModelNotes(4096), "Its window of 4,096 tokens is too small for coding agents"),
        (ServedModelNotes(262144, tools=False), "requests with tools get status 400"),
    ):
        text = shown(plan(), model)
        assert warning in text
        assert [word for word in ("export", "connect", "Point Claude Code") if word in text] == []
        assert "is served at http://127.0.0.1:81" in text


def test_request_fits_a_terminal() -> None:
    fields = {
        "time": "2026-11-29T17:09:27.272622Z",
        "level": "info",
        "event": "request",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "stop",
        "request": "req_5a3a7189b08ea00cbf76b612",
        "tenant": None,
        "seconds": 1.399,
        "prompt_tokens": 152021,
        "ttft": 0.047,
        "cached_tokens": 149000,
        "output_tokens": 1078,
    }
    line = log_text("preprocessor-1", json.dumps(fields)).plain
    assert re.match(r"\d\d:\d\d:\d\d preprocessor-1 ", line)
    assert line[24:] == (
        "POST /v1/chat/completions 200  1.40 s, first 0.05 s  152021+1078 tokens, 98% cached  "
        "5a3a7189"
    )
    longer = fields | {"path": "/v1/responses/" + "x" * 300, "outcome": "hangup", "status": None}
    line = log_text("frontend-1", json.dumps(longer)).plain
    assert len(line) <= 120
    assert " hangup  1.40 s" in line
    hangup = fields | {"outcome": "hangup", "status": None}
    del hangup["cached_tokens"]
    assert log_text("frontend-1", json.dumps(hangup)).plain.endswith("152021+1078 tokens  5a3a7189")
    del hangup["ttft"]
    line = log_text("frontend-1", json.dumps(hangup)).plain
    assert line.endswith(" hangup  1.40 s  152021+1078 tokens  5a3a7189")
    unknown = fields | {"status": 404, "requested_model": "gpt-4"}
    del unknown["output_tokens"]
    line = log_text("frontend-1", json.dumps(unknown)).plain
    assert " 404  1.40 s, no model gpt-4  5a3a7189" in line
    line = log_text("frontend-1", json.dumps(unknown | {"status": 403, "reason": "model"})).plain
    assert " 403  1.40 s, not allowed: model gpt-4  5a3a7189" in line
    unlike = log_text("worker-1", '{"event":"request","path":7,"evidence":["long"]}').plain
    assert unlike[24:].split() == ["request", "path=7"]


def test_screen_hides_routine_lines_of_nats(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("info")
    screen.relay("nats", "[7] [INF] Starting nats-server")
    screen.relay("nats", "[7] [ERR] Cannot bind")
    screen.relay("worker-1", "a library's words")
    screen.relay("inspector", "turnwire inspect: http://127.0.0.1:8900/")
    screen.relay("worker-1", '{"event":"worker.loaded"}')
    screen.report("hello")
    screen.report("the disk is full", "error")
    with screen.progress("starting") as progress:
        for reason in ("waiting for worker", "waiting for worker", "not ready yet"):
            progress.update(reason)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines.pop(3) == {"event": "worker.loaded"}
    assert [(line["process"], line["level"], line["text"].split(" (")[0]) for line in lines] == [
        ("nats", "warning", "[7] [ERR] Cannot bind"),
        ("worker-1", "warning", "a library's words"),
        ("inspector", "info", "turnwire inspect: http://127.0.0.1:8900/"),
        ("up", "info", "hello"),
        ("up", "error", "the disk is full"),
        ("up", "info", "starting: waiting for worker"),
        ("up", "info", "starting: not ready yet"),
    ]
    assert all(line["time"].endswith("Z") for line in lines)
    Screen("debug").relay("nats", "[7] [INF] Starting nats-server")
    assert "Starting nats-server" in capsys.readouterr().err
