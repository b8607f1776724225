"""Where the script engine's output comes from: files, directives, the agent."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import Invalid
from schemas.events import FinishReason


async def test_a_request_brings_its_own_output(stage: Any) -> None:
    trial = await stage()
    output = "<think>\nHm.\n</think>\n\nGood <tool_call>day"
    deltas = await trial.play(f"[[say]]{output}[[/say]]")
    assert trial.text_of(deltas) == output
    assert deltas[-1].finish is FinishReason.STOP
    assert deltas[-1].stop_id == trial.info.eos_ids[0]


async def test_agent_mode_ignores_output_in_requests(stage: Any) -> None:
    trial = await stage(script_mode="agent", family="qwen3_coder")
    said = await trial.say("[[say]]secret[[/say]] [[die]] [[play x]]")
    assert "secret" not in said
    assert "scripted demo engine" in said
    assert trial.engine.healthy()


async def test_scripts_of_a_directory_are_named_at_the_end_of_the_prompt(
    stage: Any, tmp_path: Path
) -> None:
    (tmp_path / "hello.txt").write_text("Hello there.")
    (tmp_path / "some.json").write_text(json.dumps({"long": ["Start ", {"fill": "n"}]}))
    trial = await stage(script_dir=str(tmp_path), script_mode="agent", family="qwen3_coder")
    assert await trial.say("x " * 3000 + "[[play hello]]") == "Hello there."
    long = await trial.play("[[play long n=30 burst=8]]")
    assert len([i for d in long for i in d.ids]) == 30 + len(trial.encode("Start "))
    assert max(len(d.ids) for d in long) == 8
    with pytest.raises(Invalid, match="there are: hello, long"):
        await trial.play("[[play nothing]]")
