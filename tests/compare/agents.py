"""Agents of the three chat APIs: their requests, what they read in an answer, and how they go on. Pure."""

import json
from random import Random
from typing import Any, Protocol

from tests.compare.checkout import MODEL
from tests.compare.contents import PDF, PIXEL, arguments, ask, chosen, tools, words

Json = dict[str, Any]
_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}, "n": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}  # fmt: skip
_EFFORTS = ["low", "medium", "high"]
_NUMBERS: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 1, 1.5], "top_p": [0.1, 1], "top_k": [1, 40, -1], "min_p": [0.1], "seed": [7, -1, 2**63], "min_tokens": [1],
    "presence_penalty": [0.5], "frequency_penalty": [-0.5], "repetition_penalty": [1.1], "return_token_ids": [True], "priority": [3], "ignore_eos": [False],
}  # fmt: skip


class Agent(Protocol):
    """A conversation of one client."""

    path: str

    def body(self) -> Json:
        """The next request."""

    def ask(self, turns: int) -> None:
        """Adds what the user says."""

    def read(self, document: Any, events: list[Json]) -> bool:
        """Adds the answer and the results of its calls; returns whether there are any."""


class _Base:
    def __init__(self, rng: Random, mark: str) -> None:
        self.rng, self.mark, self.tools = rng, mark, tools(rng) if rng.random() < 0.85 else []
        self.salt = {"cache_salt": mark}
        self.fixed: Json = chosen(rng, 0.06, **_NUMBERS)
        self.prepare()

    def prepare(self) -> None: ...

    def result(self) -> str:
        return words(self.rng, 0, 60)


class Messages(_Base):
    """Claude Code and its like."""

    path = "/v1/messages"

    def prepare(self) -> None:
        rng = self.rng
        self.history: list[Json] = []
        text = f"{self.mark} {words(rng, 5, 60)}"
        cached = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=abc12;"}
        self.fixed |= chosen(
            rng,
            0.12,
            thinking=[{"type": "enabled", "budget_tokens": 2048}, {"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}],
            tool_choice=[{"type": t, **p} for t in ("auto", "any", "none") for p in ({}, {"disable_parallel_tool_use": True})] if self.tools else [None],
            output_config=[{"effort": "high"}, {"format": {"type": "json_schema", "schema": _SCHEMA}}],
            stop_sequences=[["end."], ["line", "\n\n"], []],
            metadata=[{"user_id": f"user_a_account__session_{self.mark}"}, {"user_id": json.dumps({"session_id": self.mark})}],
            context_management=[{"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 2}}]}],
            logprobs=[True],
        )  # fmt: skip
        self.fixed["system"] = rng.choice([text, [cached], [billing, cached]])
        if self.tools:
            found = [{"name": n, "description": d, "input_schema": s} for n, d, s in self.tools]
            if rng.random() < 0.1:
                found.append(rng.choice([{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, {"type": "web_search_20250305", "name": "web_search"}]))
            if rng.random() < 0.1:
                found[-1]["cache_control"] = {"type": "ephemeral"}
            if rng.random() < 0.1:
                found[0] |= rng.choice([{"strict": True}, {"defer_loading": True}, {"input_examples": [{}]}])
            self.fixed["tools"] = found

    def ask(self, turns: int) -> None:
        rng = self.rng
        text: list[Json] = [{"type": "text", "text": ask(rng, self.tools, turns)}]
        extra = [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "A.pdf"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words(rng, 3, 30)}},
            {"type": "text", "text": f"<system-reminder>{words(rng, 1, 9)}</system-reminder>"},
            {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": words(rng, 1, 9)}]},
        ]  # fmt: skip
        parts = [rng.choice(extra), *text] if rng.random() < 0.2 else text
        if rng.random() < 0.06 and self.history:
            self.history.append({"role": "system", "content": words(rng, 1, 12)})
        if self.history and self.history[-1]["role"] == "user":
            self.history[-1] = {"role": "user", "content": [*self.history[-1]["content"], *parts]}
        elif parts == text and rng.random() < 0.5:
            self.history.append({"role": "user", "content": text[0]["text"]})
        else:
            self.history.append({"role": "user", "content": parts})
        if isinstance(self.history[-1]["content"], str):
            self.history[-1] = {"role": "user", "content": [{"type": "text", "text": self.history[-1]["content"]}]} if rng.random() < 0.99 else self.history[-1]  # fmt: skip

    def body(self) -> Json:
        rng = self.rng
        body = {"model": MODEL, "max_tokens": rng.choice([4000] * 9 + [1, 9, 40]), "messages": self.history, **self.fixed, **self.salt}
        if rng.random() < 0.05:
            body["thinking"] = rng.choice([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1500}])
        if rng.random() < 0.03:
            body["messages"] = [*self.history, {"role": "assistant", "content": words(rng, 1, 5).strip()}]
        if rng.random() < 0.6:
            body["stream"] = True
        return body

    def read(self, document: Any, events: list[Json]) -> bool:
        blocks: list[Json] = (document or {}).get("content") or []
        for event in events:
            if event.get("type") == "content_block_start":
                blocks.append({**event["content_block"], "_json": ""})
            elif event.get("type") == "content_block_delta":
                delta, block = event["delta"], blocks[-1]
                for key in ("text", "thinking", "signature"):
                    if key in delta:
                        block[key] = block.get(key, "") + delta[key]
                block["_json"] += delta.get("partial_json", "")
        blocks = [dict(block) for block in blocks]
        for block in blocks:
            if spelled := block.pop("_json", ""):
                try:
                    block["input"] = json.loads(spelled)
                except ValueError:
                    block["input"] = {}
        if self.rng.random() < 0.05:
            blocks = [block for block in blocks if block["type"] != "thinking"]
        elif self.rng.random() < 0.05:
            blocks = [{**b, "thinking": ""} if b["type"] == "thinking" else b for b in blocks]
        if not blocks:
            return False
        self.history.append({"role": "assistant", "content": blocks})
        results = [self._result(block["id"]) for block in blocks if block["type"] == "tool_use"]
        if results:
            self.history.append({"role": "user", "content": results})
        return bool(results)

    def _result(self, id: str) -> Json:
        rng, text = self.rng, self.result()
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        content: Any = rng.choice([text, text, [{"type": "text", "text": text}], [{"type": "text", "text": text}, image], [], None])
        return {"type": "tool_result", "tool_use_id": id, "content": content, **chosen(rng, 0.1, is_error=[True, False])}


class Chat(_Base):
    """opencode and its like."""

    path = "/v1/chat/completions"

    def prepare(self) -> None:
        rng = self.rng
        role = rng.choice(["system", "system", "developer"])
        self.history: list[Json] = [{"role": role, "content": f"{self.mark} {words(rng, 5, 60)}"}]
        self.fixed |= chosen(
            rng,
            0.08,
            reasoning_effort=_EFFORTS,
            tool_choice=["auto", "required", "none", {"type": "function", "function": {"name": self.tools[0][0]}}] if self.tools else [None],
            parallel_tool_calls=[False, True],
            response_format=[{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}, {"type": "text"}],
            stop=["end.", ["line", "\n\n"], ["the", 5]],
            n=[1, 2, 3],
            logprobs=[True],
            chat_template_kwargs=[{"enable_thinking": False}, {"enable_thinking": True}],
            logit_bias=[{"5": -100}],
            include_stop_str_in_output=[True],
            user=["someone"],
            prompt_cache_key=[self.mark],
            verbosity=["low"],
            store=[False],
            metadata=[{"a": "b"}],
            stream_options=[{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
        )  # fmt: skip
        if self.fixed.get("logprobs") and rng.random() < 0.7:
            self.fixed["top_logprobs"] = rng.choice([0, 2, 5])
        if self.tools:
            found: list[Json] = [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in self.tools]
            if rng.random() < 0.1:
                found[0]["function"]["strict"] = True
            if rng.random() < 0.1:
                grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z ]+"}}
                found.append({"type": "custom", "custom": {"name": "patch", "description": "Patches.", **chosen(rng, 0.5, format=[{"type": "text"}, grammar])}})
            self.fixed["tools"] = found

    def ask(self, turns: int) -> None:
        rng, text = self.rng, ask(self.rng, self.tools, turns)
        extra = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "A.pdf"}},
            {"type": "text", "text": words(rng, 1, 9)},
        ]
        content: Any = [rng.choice(extra), {"type": "text", "text": text}] if rng.random() < 0.2 else text
        if rng.random() < 0.06:
            self.history.append({"role": rng.choice(["system", "developer"]), "content": words(rng, 1, 12)})
        self.history.append({"role": "user", "content": content, **chosen(rng, 0.03, name=["bob"])})

    def body(self) -> Json:
        rng = self.rng
        body = {"model": MODEL, "messages": self.history, **self.fixed, **self.salt}
        body |= chosen(rng, 0.15, max_tokens=[1, 9, 40, 5000]) or chosen(rng, 0.1, max_completion_tokens=[3, 400])
        if rng.random() < 0.6:
            body["stream"] = True
        return body

    def read(self, document: Any, events: list[Json]) -> bool:
        message: Json = {"role": "assistant", "content": None}
        choices = [choice for part in [document or {}, *events] for choice in part.get("choices") or []]
        calls: dict[int, Json] = {}
        for choice in choices:
            if choice.get("index"):
                continue
            delta = choice.get("message") or choice.get("delta") or {}
            for key in ("content", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for number, call in enumerate(delta.get("tool_calls") or []):
                known = calls.setdefault(call.get("index", number), {"id": "", "type": "function"})
                known |= {k: v for k, v in call.items() if k in ("id", "type")}
                for kind, part in (("function", "arguments"), ("custom", "input")):
                    if kind in call:
                        old = known.setdefault(kind, {"name": "", part: ""})
                        old["name"] += call[kind].get("name") or ""
                        old[part] += call[kind].get(part) or ""
        if calls:
            message["tool_calls"] = list(calls.values())
        if self.rng.random() < 0.3:
            message.pop("reasoning_content", None)
        if message.get("content") is None and not calls:
            return False
        self.history.append(message)
        for call in calls.values():
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.result()})
        return bool(calls)


class Responses(_Base):
    """Codex and its like, with and without the server's state."""

    path = "/v1/responses"

    def prepare(self) -> None:
        rng = self.rng
        self.items: list[Json] = []
        self.previous: str | None = None
        self.stored = rng.random() < 0.25
        self.fixed = {
            **{k: v for k, v in self.fixed.items() if k != "priority"},
            "instructions": f"{self.mark} {words(rng, 5, 60)}",
        }
        self.fixed |= chosen(
            rng,
            0.12,
            reasoning=[{"effort": "high", "summary": "auto"}, {"effort": "none"}, {"effort": "low"}, {"context": "all_turns"}],
            tool_choice=["auto", "required", "none", {"type": "function", "name": self.tools[0][0]}] if self.tools else ["auto"],
            parallel_tool_calls=[False, True],
            text=[{"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA, "strict": True}}, {"verbosity": "low"}, {"format": {"type": "text"}}],
            prompt_cache_key=[self.mark],
            stop=["end."],
            top_logprobs=[0, 2],
            metadata=[{"a": "b"}],
            truncation=["auto", "disabled"],
            service_tier=["auto"],
            max_tool_calls=[1],
            user=["u"],
        )  # fmt: skip
        include = [name for name in ("reasoning.encrypted_content", "message.output_text.logprobs") if rng.random() < 0.5]
        if include:
            self.fixed["include"] = include
        if self.tools:
            found: list[Json] = [{"type": "function", "name": n, "description": d, "parameters": s, "strict": False} for n, d, s in self.tools]
            more: list[Json] = [
                {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a" "b"*'}},
                {"type": "local_shell"}, {"type": "shell"}, {"type": "web_search"}, {"type": "apply_patch"},
                {"type": "namespace", "name": "ns", "description": "Some.", "tools": [{"type": "function", "name": "inner", "description": "I", "parameters": {"type": "object", "properties": {}}}]},
                {"type": "tool_search", "execution": "client", "description": "Search.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
            ]  # fmt: skip
            if rng.random() < 0.25:
                found += rng.sample(more, rng.randint(1, 3))
            self.fixed["tools"] = found

    def ask(self, turns: int) -> None:
        rng, text = self.rng, ask(self.rng, self.tools, turns)
        extra: list[Json] = [
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
            {"type": "input_file", "filename": "A.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
            {"type": "input_text", "text": words(rng, 1, 9)},
        ]
        parts: list[Json] = [{"type": "input_text", "text": text}]
        parts = [rng.choice(extra), *parts] if rng.random() < 0.2 else parts
        if rng.random() < 0.1:
            self.items.append({"type": "message", "role": "developer", "content": words(rng, 1, 12)})
        kinds = [{"role": "user", "content": text}, {"type": "message", "role": "user", "content": parts}]
        self.items.append(rng.choice(kinds))

    def body(self) -> Json:
        rng = self.rng
        body = {"model": MODEL, "input": self.items, **self.fixed, **self.salt, "store": self.stored}
        if self.stored and self.previous:
            body["previous_response_id"] = self.previous
        body |= chosen(rng, 0.08, max_output_tokens=[1, 9, 40, 5000])
        if rng.random() < 0.65:
            body["stream"] = True
        return body

    def read(self, document: Any, events: list[Json]) -> bool:
        found = document if isinstance(document, dict) else {}
        for event in events:
            found = event.get("response", found)
        output: list[Json] = found.get("output") or []
        if not output:
            return False
        if self.stored:
            self.items, self.previous = [], found.get("id")
        elif self.rng.random() < 0.1:
            self.items += [{k: v for k, v in item.items() if k not in ("id", "content") or item["type"] != "reasoning"} for item in output]  # fmt: skip
        else:
            self.items += output
        calls = 0
        for item in output:
            kind = item.get("type", "")
            if kind in ("function_call", "custom_tool_call"):
                content = self.result()
                result: Any = [{"type": "input_text", "text": content}] if self.rng.random() < 0.2 else content
                self.items.append({"type": f"{kind}_output", "call_id": item["call_id"], "output": result})
                calls += 1
        return calls > 0


AGENTS: dict[str, type[Messages | Chat | Responses]] = {"messages": Messages, "chat": Chat, "responses": Responses}


def freely(rng: Random, mark: str) -> tuple[str, Json]:
    """A request with a whole history that no server answered: its path and body."""
    path = rng.choice([Messages.path, Chat.path, Responses.path, Messages.path + "/count_tokens", Responses.path + "/input_tokens", "/tokenize"])
    kind = Messages if "messages" in path else Responses if "responses" in path else Chat
    agent: Messages | Chat | Responses = kind(rng, mark)
    for number in range(rng.randint(1, 5)):
        agent.ask(1)
        agent.read(*_invented(rng, agent, number))
    agent.ask(1)
    body = agent.body()
    if path in (Messages.path, Chat.path, Responses.path):
        return path, body
    left = ("cache_salt", "store", "stream", "max_tokens", "max_output_tokens") if rng.random() < 0.9 else ()
    return path, {name: given for name, given in body.items() if name not in left}


def _invented(rng: Random, agent: Messages | Chat | Responses, number: int) -> tuple[Json, list[Json]]:
    """An answer that another server could have given."""
    name, _, schema = rng.choice(agent.tools) if agent.tools else ("gone", "", {"type": "object"})
    call = rng.random() < 0.6
    values = arguments(rng, schema)
    thought, text, id = words(rng, 0, 20), words(rng, 1, 20), f"toolu_{number}x{rng.randint(0, 9)}"
    if isinstance(agent, Messages):
        blocks: list[Json] = [{"type": "thinking", "thinking": thought, "signature": rng.choice(["", "unsealed", "EqQBCgIYAhIkZm9y"])}]
        blocks += [{"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}] if rng.random() < 0.1 else []
        blocks += [{"type": "text", "text": text}] + ([{"type": "tool_use", "id": id, "name": name, "input": values}] if call else [])
        return {"content": blocks[rng.randint(0, 1) :]}, []
    spelled = json.dumps(values, separators=rng.choice([(",", ":"), (", ", ": ")]))
    if isinstance(agent, Chat):
        message: Json = {"role": "assistant", "content": text, "reasoning_content": thought}
        if call:
            message["tool_calls"] = [{"id": id, "type": "function", "function": {"name": name, "arguments": spelled}}]
        return {"choices": [{"index": 0, "message": message}]}, []
    agent.stored = False
    items: list[Json] = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}], "encrypted_content": rng.choice([None, "gAAAAABforeign"])}]
    items += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    items += [{"type": "function_call", "call_id": id, "name": name, "arguments": spelled}] if call else []
    return {"id": None, "output": items[rng.randint(0, 1) :]}, []
