"""Plays agents of the three chat APIs: makes their requests, and reads answers. Pure.

`turnwire_tools.clients` is not used here: it writes each thing in one form and refuses ill-formed
answers, but these agents vary forms and fields at random, and send back whatever a server answered,
as it was.
"""

import json
from random import Random
from typing import Any

from tests.compare.checkout import MODEL
from tests.compare.contents import Json, Tool, arguments, ask, chosen, options, words


class Agent:
    """One client's conversation, which grows with each answer."""

    path: str
    name: str
    chance = 0.1
    """The chance of each field that a session may have."""
    previous: str | None = None
    """The stored response that the next request continues."""

    def __init__(self, rng: Random, mark: str) -> None:
        self.rng, self.mark = rng, mark
        every: list[Tool] = options()["tools"]
        self.tools = rng.sample(every, rng.randint(1, len(every))) if rng.random() < 0.85 else []
        table = options(mark, self.tools[0][0] if self.tools else "none")
        self.table: Json = table[self.name]
        # With a salt of its own, a session's count of cached tokens does not depend on other
        # sessions.
        self.fixed = {
            "cache_salt": mark,
            **chosen(rng, 0.05, table["any"]),
            **chosen(rng, self.chance, self.table["fixed"]),
        }
        more = (
            rng.sample(self.table["tools"], rng.randint(1, 2))
            if self.tools and rng.random() < 0.2
            else []
        )
        self.called = self.tools + [
            tool
            for tool in table["more_calls"]
            if f'"{tool[0].split("__")[0]}"' in json.dumps(more)
        ]
        if self.tools:
            self.fixed["tools"] = [*(self.declare(*tool) for tool in self.tools), *more]
        elif rng.random() < 0.98:
            self.fixed.pop("tool_choice", None)
        self.history: list[Json] = []
        self.begin(f"{mark} {words(rng, 5, 60)}")

    def declare(self, name: str, description: str, schema: Json) -> Json:
        """A tool as the API spells it."""
        raise NotImplementedError

    def begin(self, system: str) -> None:
        """Sets the instructions."""
        raise NotImplementedError

    def say(self, text: str, more: list[Json]) -> None:
        """Adds a user message, and other parts before its text."""
        raise NotImplementedError

    def body(self) -> Json:
        """The next request."""
        raise NotImplementedError

    def read(self, document: Any, events: list[Json]) -> bool:
        """Adds the answer and the results of its calls; returns whether there are any."""
        raise NotImplementedError

    def invent(self, thought: str, text: str, call: tuple[str, str, Json] | None) -> None:
        """Adds an answer that another server gave. A call: its id, name and arguments."""
        raise NotImplementedError

    def ask(self, turns: int) -> None:
        """Adds a user message that scripts this number of turns of the model."""
        more = [self.rng.choice(self.table["parts"])] if self.rng.random() < 0.2 else []
        self.say(ask(self.rng, self.called, turns), more)


class Messages(Agent):
    """Claude Code and its like."""

    path, name = "/v1/messages", "messages"

    def declare(self, name: str, description: str, schema: Json) -> Json:
        more = {
            "strict": [True],
            "defer_loading": [True],
            "input_examples": [[{}]],
            "cache_control": [{"type": "ephemeral"}],
        }
        return {
            "name": name,
            "description": description,
            "input_schema": schema,
            **chosen(self.rng, 0.04, more),
        }

    def begin(self, system: str) -> None:
        cached = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        billing = {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=abc12;",
        }
        self.fixed["system"] = self.rng.choice([system, [cached], [billing, cached]])

    def say(self, text: str, more: list[Json]) -> None:
        parts = [*more, {"type": "text", "text": text}]
        if self.rng.random() < 0.06 and self.history:
            self.history.append({"role": "system", "content": words(self.rng, 1, 12)})
        last = self.history[-1] if self.history else {}
        if last.get("role") == "user":
            before = last["content"]
            parts = [
                *([{"type": "text", "text": before}] if isinstance(before, str) else before),
                *parts,
            ]
            self.history.pop()
        self.history.append(
            {
                "role": "user",
                "content": text if len(parts) == 1 and self.rng.random() < 0.5 else parts,
            }
        )

    def body(self) -> Json:
        rng = self.rng
        body = {
            "model": MODEL,
            "max_tokens": rng.choice([4000] * 9 + [1, 9, 40]),
            "messages": self.history,
            **self.fixed,
        }
        if rng.random() < 0.05:
            body["thinking"] = rng.choice(
                [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1500}]
            )
        if rng.random() < 0.03:
            body["messages"] = [
                *self.history,
                {"role": "assistant", "content": words(rng, 1, 5).strip()},
            ]
        return {**body, "stream": True} if rng.random() < 0.6 else body

    def read(self, document: Any, events: list[Json]) -> bool:
        blocks: list[Json] = [*((document or {}).get("content") or [])]
        for event in events:
            if event.get("type") == "content_block_start":
                blocks.append({**event["content_block"], "_json": ""})
            elif event.get("type") == "content_block_delta":
                delta, block = event["delta"], blocks[-1]
                block |= {
                    k: block.get(k, "") + delta[k]
                    for k in ("text", "thinking", "signature")
                    if k in delta
                }
                block["_json"] += delta.get("partial_json", "")
        for block in blocks:
            if spelled := block.pop("_json", ""):
                try:
                    block["input"] = json.loads(spelled)
                except ValueError:
                    block["input"] = {}
        sends = self.rng.random()  # some clients drop thinking, or its text
        blocks = [b for b in blocks if sends > 0.05 or b["type"] != "thinking"]
        blocks = [
            {**b, "thinking": ""} if sends > 0.95 and b["type"] == "thinking" else b for b in blocks
        ]
        if blocks:
            self.history.append({"role": "assistant", "content": blocks})
        results = [self._result(block["id"]) for block in blocks if block["type"] == "tool_use"]
        if results:
            self.history.append({"role": "user", "content": results})
        return bool(results)

    def _result(self, id: str) -> Json:
        text = words(self.rng, 0, 60)
        content = [
            text,
            text,
            [{"type": "text", "text": text}],
            [{"type": "text", "text": text}, self.table["parts"][0]],
            [],
            None,
        ]
        found = {"type": "tool_result", "tool_use_id": id, "content": self.rng.choice(content)}
        return found | chosen(self.rng, 0.1, {"is_error": [True, False]})

    def invent(self, thought: str, text: str, call: tuple[str, str, Json] | None) -> None:
        signature = self.rng.choice(["", "unsealed", "EqQBCgIYAhIkZm9y"])
        blocks: list[Json] = [
            {"type": "thinking", "thinking": thought, "signature": signature},
            {"type": "text", "text": text},
        ]
        if self.rng.random() < 0.1:
            blocks.insert(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"})
        if call is not None:
            blocks.append({"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]})
        self.read({"content": blocks[self.rng.randint(0, 1) :]}, [])


class Chat(Agent):
    """opencode and its like."""

    path, name, chance = "/v1/chat/completions", "chat", 0.07

    def declare(self, name: str, description: str, schema: Json) -> Json:
        more = chosen(self.rng, 0.04, {"strict": [True]})
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema, **more},
        }

    def begin(self, system: str) -> None:
        if "top_logprobs" in self.fixed:
            self.fixed["logprobs"] = True
        self.history.append(
            {"role": self.rng.choice(["system", "system", "developer"]), "content": system}
        )

    def say(self, text: str, more: list[Json]) -> None:
        if self.rng.random() < 0.06:
            self.history.append(
                {
                    "role": self.rng.choice(["system", "developer"]),
                    "content": words(self.rng, 1, 12),
                }
            )
        content: Any = [*more, {"type": "text", "text": text}] if more else text
        self.history.append(
            {"role": "user", "content": content, **chosen(self.rng, 0.03, {"name": ["bob"]})}
        )

    def body(self) -> Json:
        limits = {
            "max_tokens": [1, 9, 40, 5000],
            "max_completion_tokens": [3, 400],
            "stream": [True],
        }
        more = chosen(self.rng, 0.1, limits) | (
            {"stream": True} if self.rng.random() < 0.55 else {}
        )
        return {"model": MODEL, "messages": self.history, **self.fixed, **more}

    def read(self, document: Any, events: list[Json]) -> bool:
        message: Json = {"role": "assistant", "content": None}
        choices = [
            choice for part in [document or {}, *events] for choice in part.get("choices") or []
        ]
        calls: dict[int, Json] = {}
        for delta in [
            c.get("message") or c.get("delta") or {} for c in choices if not c.get("index")
        ]:
            for key in ("content", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for number, call in enumerate(delta.get("tool_calls") or []):
                whole = calls.setdefault(call.get("index", number), {})
                whole |= {k: v for k, v in call.items() if k in ("id", "type")}
                for kind, part in (("function", "arguments"), ("custom", "input")):
                    if kind in call:
                        old = whole.setdefault(kind, {"name": "", part: ""})
                        old |= {k: old[k] + (call[kind].get(k) or "") for k in old}
        if calls:
            message["tool_calls"] = list(calls.values())
        if self.rng.random() < 0.3:
            message.pop("reasoning_content", None)
        if message["content"] is not None or calls:
            self.history.append(message)
        for call in calls.values():
            self.history.append(
                {"role": "tool", "tool_call_id": call["id"], "content": words(self.rng, 0, 60)}
            )
        return bool(calls)

    def invent(self, thought: str, text: str, call: tuple[str, str, Json] | None) -> None:
        message: Json = {"role": "assistant", "content": text, "reasoning_content": thought}
        if call is not None:
            spelled = json.dumps(call[2], separators=self.rng.choice([(",", ":"), (", ", ": ")]))
            message["tool_calls"] = [
                {
                    "id": call[0],
                    "type": "function",
                    "function": {"name": call[1], "arguments": spelled},
                }
            ]
        self.read({"choices": [{"index": 0, "message": message}]}, [])


class Responses(Agent):
    """Codex and its like, with and without the server's state."""

    path, name = "/v1/responses", "responses"

    def declare(self, name: str, description: str, schema: Json) -> Json:
        return {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": schema,
            "strict": False,
        }

    def begin(self, system: str) -> None:
        self.fixed |= {"instructions": system, "store": self.rng.random() < 0.25}

    def say(self, text: str, more: list[Json]) -> None:
        if self.rng.random() < 0.1:
            self.history.append(
                {"type": "message", "role": "developer", "content": words(self.rng, 1, 12)}
            )
        parts = [*more, {"type": "input_text", "text": text}]
        self.history.append(
            self.rng.choice(
                [
                    {"role": "user", "content": text},
                    {"type": "message", "role": "user", "content": parts},
                ]
            )
        )

    def body(self) -> Json:
        more = chosen(self.rng, 0.08, {"max_output_tokens": [1, 9, 40, 5000]}) | (
            {"stream": True} if self.rng.random() < 0.65 else {}
        )
        previous = {"previous_response_id": self.previous} if self.previous else {}
        return {"model": MODEL, "input": self.history, **self.fixed, **previous, **more}

    def read(self, document: Any, events: list[Json]) -> bool:
        found = document if isinstance(document, dict) else {}
        for event in events:
            found = event.get("response", found)
        output: list[Json] = found.get("output") or []
        if output and self.fixed["store"] and found.get("id"):
            self.history, self.previous = [], found["id"]
        elif self.rng.random() < 0.1:
            self.history += [
                {
                    k: v
                    for k, v in item.items()
                    if k not in ("id", "content") or item["type"] != "reasoning"
                }
                for item in output
            ]
        else:
            self.history += output
        calls = [item for item in output if item["type"].endswith("_call")]
        for item in calls:
            text, kind, id = words(self.rng, 0, 60), item["type"], item["call_id"]
            result: Any = (
                [{"type": "input_text", "text": text}] if self.rng.random() < 0.2 else text
            )
            if kind == "shell_call":
                result = [
                    {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
                ]
            found = {"type": f"{kind}_output", "call_id": id, "output": result}
            if kind == "local_shell_call":
                found = {"type": f"{kind}_output", "id": id, "output": text}
            elif kind == "tool_search_call":
                tools = [
                    self.declare(name, "Found.", schema)
                    for name, _, schema in options()["tools"][:2]
                ]
                found = {
                    "type": "tool_search_output",
                    "call_id": id,
                    "execution": "client",
                    "tools": tools,
                }
            elif kind == "apply_patch_call":
                found = {
                    "type": f"{kind}_output",
                    "call_id": id,
                    "status": "completed",
                    "output": text,
                }
            self.history.append(found)
        return bool(calls)

    def invent(self, thought: str, text: str, call: tuple[str, str, Json] | None) -> None:
        seal = self.rng.choice([None, "gAAAAABforeign"])
        items: list[Json] = [
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": thought}],
                "encrypted_content": seal,
            }
        ]
        items.append(
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text}],
            }
        )
        if call is not None:
            items.append(
                {
                    "type": "function_call",
                    "call_id": call[0],
                    "name": call[1],
                    "arguments": json.dumps(call[2]),
                }
            )
        self.read({"output": items[self.rng.randint(0, 1) :]}, [])


AGENTS: dict[str, type[Agent]] = {"messages": Messages, "chat": Chat, "responses": Responses}
_ALSO = {
    "messages": ["/v1/messages/count_tokens"],
    "responses": [
        "/v1/responses/input_tokens",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
    ],
    "chat": ["/tokenize"],
}
_GENERATES = (
    "cache_salt",
    "store",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
)


def freely(rng: Random, mark: str) -> tuple[str, Json]:
    """A request with a whole history that no server answered: its path and body."""
    name = rng.choice(list(AGENTS))
    agent = AGENTS[name](rng, mark)
    for number in range(rng.randint(1, 5)):
        agent.ask(1)
        tool, _, schema = rng.choice(agent.tools) if agent.tools else ("gone", "", {})
        call = (
            (f"toolu_{number}x{rng.randint(0, 9)}", tool, arguments(rng, schema))
            if rng.random() < 0.6
            else None
        )
        agent.invent(words(rng, 0, 20), words(rng, 1, 20), call)
    agent.ask(1)
    body = agent.body()
    if rng.random() < 0.6:
        return agent.path, body
    return rng.choice(_ALSO[name]), {
        k: v for k, v in body.items() if k not in _GENERATES or rng.random() < 0.05
    }
