"""`turnwire trajectories` over real processes, with an independent check of every id."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.kit.messages_client import Client, body, call, say
from tests.kit.stack import Stack
from tests.pipeline.tap import Tap

OUTPUTS = (
    "  I look first,  \nthen I act. \n</think>\n\n Looking  \n\n\n"
    + call("ls  -l", timeout_s="2.50")
    + "\n",
    "\n</think>\n\nOne more.\n" + call("pwd"),
    "So that is it.\n</think>\n\nDone. ",
)


@pytest.mark.slow
async def test_one_session_is_one_sample(
    stack: Stack, client: Client, demo_model: Path, tmp_path: Path
) -> None:
    tap = Tap(stack.nats.url, tmp_path)
    messages: list[dict[str, Any]] = [{"role": "user", "content": say(*OUTPUTS)}]
    metadata = {"user_id": json.dumps({"session_id": "s1"})}
    seen: list[list[int]] = []
    for _ in OUTPUTS:
        request = body("", messages=messages, metadata=metadata, stream=False)
        _, answer = await client.post(
            "/v1/messages", request | {"return_token_ids": True, "logprobs": True}
        )
        seen.append(answer["prompt_token_ids"] + answer["token_ids"])
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "a file"}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        messages.append({"role": "assistant", "content": answer["content"]})
        messages.append({"role": "user", "content": results})
    (sample,) = tap.samples(demo_model)
    assert [sample["ids"][: span["end"]] for span in sample["turns"]] == seen
    assert sample["ids"] == seen[-1]
    assert (sample["session"], sample["departs"]) == ("s1", None)
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    blocks = [block for span in sample["turns"] for block in span["blocks"]]
    kinds = ["reasoning", "text", "tool_use", "text", "tool_use", "reasoning", "text"]
    assert [block["kind"] for block in blocks] == kinds
    texts = [tokenizer.decode(sample["ids"][block["start"] : block["end"]]) for block in blocks]
    assert "I look first" in texts[0]
    assert "ls  -l" in texts[2]
    assert "</think>" not in "".join(texts)
