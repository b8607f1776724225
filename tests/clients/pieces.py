"""The assistant's output in pieces, in one form for all three APIs, from answers and from the
history of later requests.

Nothing is normalized that a client or Turnwire could have changed, except the spelling of
arguments, which every client but Codex decodes."""

import json
from typing import Any

from tests.clients.wire import Exchange
from turnwire_tools.clients.apis import CLIENTS

Piece = tuple[Any, ...]
"""("reasoning", text, seal) | ("text", text) | ("call", id, name, arguments) | ("compaction",
seal)"""


def answer_pieces(exchange: Exchange) -> list[Piece]:
    """The pieces of an answer, also of one that was cut."""
    if exchange.path.endswith("/responses"):
        done = [
            data["item"] for name, data in exchange.events if name == "response.output_item.done"
        ]
        return _items(done)
    messages = exchange.path.endswith("/messages")
    reader = CLIENTS["messages" if messages else "chat"].reader()
    for name, data in exchange.events:
        reader.event(name, data)
    if exchange.document is not None:
        reader.document(exchange.document)
    found: list[Piece] = []
    for block in reader.answer.blocks:
        if block.kind == "reasoning":
            found.append(("reasoning", block.text, block.seal if messages else None))
        elif block.kind == "text":
            found.append(("text", block.text))
        else:
            arguments = json.loads(block.arguments) if block.complete else {}
            call_id = block.call_id if messages else block.call_id.replace("_", "")
            found.append(("call", call_id, block.name, _spelled(arguments)))
    return found


def history(exchange: Exchange) -> list[Piece]:
    """The assistant's pieces in a request, in order."""
    body = exchange.body
    if exchange.path.endswith("/responses"):
        return _items(body["input"])
    found: list[Piece] = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            content = message.get("content") or ""
            if exchange.path.endswith("/messages"):
                found += _blocks(
                    [{"type": "text", "text": content}] if isinstance(content, str) else content
                )
            else:
                found += _message(message)
    return found


def turn_id(exchange: Exchange) -> str:
    """The turn's id on the bus."""
    data = next((data for _, data in exchange.events if data), exchange.document)
    holder = data.get("message") or data.get("response") or data
    return str(holder["id"]).rpartition("_" if "_" in holder["id"] else "-")[2]


def usage(exchange: Exchange) -> dict[str, int]:
    """prompt, cached, output and reasoning tokens as the client receives them."""
    found: dict[str, Any] = {}
    for _, data in exchange.events:
        for holder in (data or {}, (data or {}).get("message"), (data or {}).get("response")):
            found |= (holder or {}).get("usage") or {}
    if "prompt_tokens" in found:
        prompt, output = found["prompt_tokens"], found["completion_tokens"]
        cached = found["prompt_tokens_details"]["cached_tokens"]
        reasoning = found["completion_tokens_details"]["reasoning_tokens"]
    elif "cache_read_input_tokens" in found:
        cached, output = found["cache_read_input_tokens"], found["output_tokens"]
        prompt = found["input_tokens"] + cached + found["cache_creation_input_tokens"]
        reasoning = found["output_tokens_details"]["thinking_tokens"]
    else:
        prompt, output = found["input_tokens"], found["output_tokens"]
        cached = found["input_tokens_details"]["cached_tokens"]
        reasoning = found["output_tokens_details"]["reasoning_tokens"]
    return {"prompt": prompt, "cached": cached, "output": output, "reasoning": reasoning}


def unchanged(piece: Piece) -> Piece:
    """The form of clients that do not change pieces."""
    return piece


def _blocks(blocks: list[Any]) -> list[Piece]:
    found: list[Piece] = []
    for block in blocks:
        match block["type"]:
            case "thinking":
                found.append(("reasoning", block["thinking"], block["signature"]))
            case "text":
                found.append(("text", block["text"]))
            case "tool_use":
                found.append(("call", block["id"], block["name"], _spelled(block["input"])))
            case other:
                found.append((other, json.dumps(block)))
    return found


def _items(items: list[Any]) -> list[Piece]:
    found: list[Piece] = []
    for item in items:
        match item.get("type", "message"):
            case "reasoning":
                text = "".join(
                    part["text"] for part in item.get("content") or item.get("summary") or []
                )
                found.append(("reasoning", text, item.get("encrypted_content")))
            case "message" if item["role"] == "assistant":
                found.append(("text", _text(item["content"])))
            case "function_call" | "custom_tool_call" | "tool_search_call" as kind:
                name = (
                    f"{item['namespace']}__{item['name']}"
                    if item.get("namespace")
                    else item.get("name", kind)
                )
                arguments = item["input"] if kind == "custom_tool_call" else item["arguments"]
                found.append(("call", item["call_id"], name, arguments))
            case "compaction":
                found.append(("compaction", item["encrypted_content"]))
    return found


def _message(message: dict[str, Any]) -> list[Piece]:
    found: list[Piece] = []
    if message.get("reasoning_content"):
        found.append(("reasoning", message["reasoning_content"], None))
    if text := _text(message.get("content")):
        found.append(("text", text))
    for call in message.get("tool_calls") or []:
        function = call["function"]
        # OpenClaw removes underscores from ids.
        call_id = call["id"].replace("_", "")
        found.append(
            ("call", call_id, function["name"], _spelled(json.loads(function["arguments"])))
        )
    return found


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or [])


def _spelled(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)
