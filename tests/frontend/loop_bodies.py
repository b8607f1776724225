"""Requests that take long to read: for each API, bodies of a size that consist of one kind of part,
many times."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from tests.kit.frontend import MODEL

Part = Callable[[int], Any]
Wrap = Callable[[list[Any]], dict[str, Any]]


class Kind(NamedTuple):
    """One kind of part, and the request that has a list of them."""

    name: str
    path: str
    part: Part
    wrap: Wrap

    def body(self, size: int) -> bytes:
        """A body of about `size` bytes."""
        low, high = (
            len(json.dumps(self.part(i), separators=(",", ":"))) + 1 for i in (10, 1_000_000)
        )
        rough = size // ((low + high) // 2)
        return json.dumps(
            self.wrap([self.part(i) for i in range(max(rough, 1))]), separators=(",", ":")
        ).encode()


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def function(i: int, **rest: Any) -> dict[str, Any]:
    return {"name": f"f{i}", "parameters": {}, **rest}


def schema(kind: str, inner: list[Any]) -> dict[str, Any]:
    members = {f"p{i}": value for i, value in enumerate(inner)}
    match kind:
        case "wide":
            return {"type": "object", "properties": members}
        case "references":
            return {"type": "object", "properties": members, "$defs": {"a": {"anyOf": inner}}}
        case "enum":
            return {"type": "object", "properties": {"a": {"enum": inner}}}
    value: Any = inner
    for _ in range(50):
        value = {"type": "array", "items": value}
    return {"type": "object", "properties": {"a": value}}


def shaped(kind: str, use: Callable[[dict[str, Any]], dict[str, Any]]) -> Wrap:
    """Puts parts into a schema, and that into a request."""
    return lambda all: use(schema(kind, all))


SCHEMAS: list[tuple[str, Part]] = [
    ("wide", lambda i: {"type": "string"}),
    ("wide", lambda i: {}),
    ("deep", lambda i: {}),
    ("deep", lambda i: []),
    ("deep", lambda i: 1),
    ("enum", lambda i: f"e{i}"),
    ("references", lambda i: {"$ref": "#/$defs/a"}),
    ("references", lambda i: {"type": "object", "pattern": "(a+)+$"}),
]
ANCHORS = "^" * 200 + "$" * 200
GRAMMARS: list[tuple[str, str, Part]] = [
    ("small", "regex", lambda i: f"[a-z]{{{i}}}x"),
    ("anchors", "regex", lambda i: f"{i}" + "^" * 4000),
    ("classes", "regex", lambda i: f"{i}" + r"\w" * 4000),
    ("escapes", "regex", lambda i: f"{i}" + r"\p{L}" * 2500),
    ("alternatives", "regex", lambda i: "|".join(f"a{i}{j}" for j in range(2000))),
    (
        "rules",
        "lark",
        lambda i: (
            f'start: r0 "{i}"\n' + "".join(f"r{j}: r{j + 1}\n" for j in range(450)) + 'r450: "x"'
        ),
    ),
    (
        "too deep",
        "lark",
        lambda i: (
            f'start: r0 "{i}"\n' + "".join(f"r{j}: r{j + 1}\n" for j in range(5000)) + 'r5000: "x"'
        ),
    ),
    (
        "terminals",
        "lark",
        lambda i: (
            f'start: T0 "{i}"\n'
            + "".join(f"T{j}: /a{j}/ T{j + 1}\n" for j in range(450))
            + 'T450: "x"'
        ),
    ),
    ("sequence", "lark", lambda i: f'start: "{i}" ' + '"a" ' * 4000),
    ("nesting", "lark", lambda i: "start: " + "(" * 4000 + f'"{i}"' + ")" * 4000),
]


def chat() -> Iterator[Kind]:
    path = "/v1/chat/completions"

    def ask(**rest: Any) -> dict[str, Any]:
        return {"model": MODEL, "messages": user("hi"), **rest}

    def kind(name: str, part: Part, wrap: Wrap) -> Kind:
        return Kind(f"chat {name}", path, part, wrap)

    def call(i: int) -> dict[str, Any]:
        return {"id": f"c{i}", "function": {"name": "f", "arguments": "{}"}}

    yield kind(
        "messages", lambda i: {"role": "user", "content": "a"}, lambda all: ask(messages=all)
    )
    yield kind(
        "assistant", lambda i: {"role": "assistant", "content": "a"}, lambda all: ask(messages=all)
    )
    yield kind("strings", lambda i: "a", lambda all: ask(messages=user(all)))
    yield kind(
        "texts", lambda i: {"type": "text", "text": "a"}, lambda all: ask(messages=user(all))
    )
    image = {"type": "image_url", "image_url": "data:image/png;base64,AAAA"}
    yield kind("images", lambda i: image, lambda all: ask(messages=user(all)))
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}
    yield kind("files", lambda i: pdf, lambda all: ask(messages=user(all)))
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA"}}
    yield kind("audio", lambda i: audio, lambda all: ask(messages=user(all)))
    yield kind("calls", call, lambda all: ask(messages=[{"role": "assistant", "tool_calls": all}]))
    yield kind(
        "thoughts",
        lambda i: {"text": "a"},
        lambda all: ask(
            messages=[
                {
                    "role": "assistant",
                    "reasoning_details": all,
                    "tool_calls": [call(i) for i in range(len(all) // 5)],
                }
            ]
        ),
    )
    yield kind(
        "segments",
        lambda i: "a",
        lambda all: ask(
            messages=[
                {
                    "role": "assistant",
                    "reasoning_content": ["a", *all[::20]],
                    "tool_calls": [*map(call, range(len(all[::20])))],
                }
            ]
        ),
    )
    yield kind(
        "details",
        lambda i: {"format": "turnwire-v1", "data": "a", "id": f"c{i}"},
        lambda all: ask(
            messages=[
                {
                    "role": "assistant",
                    "reasoning_details": all,
                    "tool_calls": [*map(call, range(len(all)))],
                }
            ]
        ),
    )
    yield kind(
        "pairs",
        lambda i: i,
        lambda all: ask(
            messages=[
                message
                for i in range(len(all) // 20)
                for message in (
                    {"role": "assistant", "tool_calls": [call(i)]},
                    {"role": "tool", "tool_call_id": f"c{i}", "content": "a"},
                )
            ]
        ),
    )
    yield kind("functions", lambda i: {"function": function(i)}, lambda all: ask(tools=all))
    yield kind(
        "strict", lambda i: {"function": function(i, strict=True)}, lambda all: ask(tools=all)
    )
    yield kind("legacy functions", function, lambda all: ask(functions=all))
    yield kind(
        "allowed",
        lambda i: {"function": function(i)},
        lambda all: ask(
            tools=all,
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"function": {"name": f"f{i}"}} for i in range(len(all))],
                },
            },
        ),
    )
    for name, syntax, definition in GRAMMARS:
        for least in (1, 2000):

            def custom(
                i: int, syntax: str = syntax, definition: Part = definition, least: int = least
            ) -> Any:
                grammar = {"syntax": syntax, "definition": definition(i + least)}
                return {
                    "type": "custom",
                    "custom": {"name": f"c{i}", "format": {"type": "grammar", "grammar": grammar}},
                }

            def custom_tools(all: list[Any], few: bool) -> dict[str, Any]:
                return ask(tools=all[:60] if few else all)

            few = least == 1
            yield kind(
                f"{'few' if few else 'many'} {name} grammars",
                custom,
                partial(custom_tools, few=few),
            )
    for name, part in SCHEMAS:
        label = f"{name} {part(0)} schema"
        yield kind(
            label,
            part,
            shaped(name, lambda own: ask(tools=[{"function": function(0, parameters=own)}])),
        )
        yield kind(
            f"strict {label}",
            part,
            shaped(
                name,
                lambda own: ask(tools=[{"function": function(0, parameters=own, strict=True)}]),
            ),
        )
        yield kind(
            f"format {label}",
            part,
            shaped(
                name,
                lambda own: ask(
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "a", "schema": own},
                    }
                ),
            ),
        )
    yield kind("stops", lambda i: f"s{i}", lambda all: ask(stop=all))
    yield kind("stop ids", lambda i: i, lambda all: ask(stop_token_ids=all))
    yield kind("biases", lambda i: i, lambda all: ask(logit_bias={str(i): 1 for i in all}))
    yield kind("template kwargs", lambda i: [], lambda all: ask(chat_template_kwargs={"a": all}))
    yield kind("unknown", lambda i: {}, lambda all: ask(unknown=all))
    yield kind("surrogates", lambda i: "\ud800", lambda all: ask(messages=user("".join(all))))
    yield kind(
        "mistake",
        lambda i: {"role": "user", "content": "a"},
        lambda all: ask(messages=[*all, {"role": "a"}]),
    )
    yield kind("choices", lambda i: "word ", lambda all: ask(messages=user("".join(all)), n=128))
    yield kind(
        "choices of schema",
        lambda i: {},
        lambda all: ask(tools=[{"function": function(0, parameters=schema("wide", all))}], n=128),
    )


def messages() -> Iterator[Kind]:
    def ask(**rest: Any) -> dict[str, Any]:
        return {"model": MODEL, "max_tokens": 9, "messages": user("hi"), **rest}

    def kind(name: str, part: Part, wrap: Wrap) -> Kind:
        return Kind(f"messages {name}", "/v1/messages", part, wrap)

    def content(name: str, part: Part) -> Kind:
        return kind(name, part, lambda all: ask(messages=user(all)))

    def said(name: str, part: Part) -> Kind:
        return kind(
            name,
            part,
            lambda all: ask(
                messages=[*user("a"), {"role": "assistant", "content": all}, *user("b")]
            ),
        )

    def tool(i: int, **rest: Any) -> dict[str, Any]:
        return {"name": f"f{i}", "input_schema": {}, **rest}

    def use(i: int) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}}

    png = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    yield kind(
        "messages", lambda i: {"role": "user", "content": "a"}, lambda all: ask(messages=all)
    )
    yield content("texts", lambda i: {"type": "text", "text": "a"})
    yield content("images", lambda i: {"type": "image", "source": png})
    yield content(
        "documents", lambda i: {"type": "document", "source": {**png, "media_type": "text/plain"}}
    )
    yield content(
        "pdfs", lambda i: {"type": "document", "source": {**png, "media_type": "application/pdf"}}
    )
    yield content(
        "document blocks",
        lambda i: {"type": "document", "source": {"type": "content", "content": []}},
    )
    yield content(
        "passages", lambda i: {"type": "search_result", "content": [{"type": "text", "text": "a"}]}
    )
    yield said("thoughts", lambda i: {"type": "thinking", "thinking": "a"})
    yield said("calls", use)
    yield said(
        "searches", lambda i: {"type": "server_tool_use", "id": f"srvc{i}", "name": "web_search"}
    )
    yield said(
        "results", lambda i: {"type": "web_search_tool_result", "tool_use_id": "a", "content": []}
    )
    yield kind(
        "hosted results",
        lambda i: {"type": "web_search_tool_result", "tool_use_id": f"srvc{i}", "content": []},
        lambda all: ask(
            messages=[
                *user("a"),
                {"role": "assistant", "content": [use(i) for i in range(len(all) // 2)]},
                {"role": "assistant", "content": all[: len(all) // 2]},
            ]
        ),
    )
    yield kind(
        "pairs",
        lambda i: i,
        lambda all: ask(
            messages=[
                message
                for i in range(len(all) // 20)
                for message in (
                    {"role": "assistant", "content": [use(i)]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": f"c{i}", "content": "a"}
                        ],
                    },
                )
            ]
        ),
    )
    yield kind(
        "result texts",
        lambda i: {"type": "text", "text": "a"},
        lambda all: ask(
            messages=[
                {"role": "assistant", "content": [use(1)]},
                *user([{"type": "tool_result", "tool_use_id": "c1", "content": all}]),
            ]
        ),
    )

    def added(i):  # type: ignore[no-untyped-def]
        return {
            "type": "tool_addition",
            "tool": {"type": "tool_definition", "definition": tool(i)},
        }

    yield kind(
        "additions",
        added,
        lambda all: ask(messages=[*user("a"), {"role": "system", "content": all}]),
    )
    yield said("compactions", lambda i: {"type": "compaction", "content": "a"})
    yield kind(
        "compacted changes",
        added,
        lambda all: ask(
            messages=[
                *user("a"),
                {
                    "role": "assistant",
                    "content": [{"type": "compaction", "content": "a", "tool_changes": all}],
                },
                *user("b"),
            ]
        ),
    )
    yield kind("tools", tool, lambda all: ask(tools=all))
    yield kind("strict tools", lambda i: tool(i, strict=True), lambda all: ask(tools=all))
    yield kind("input examples", lambda i: {}, lambda all: ask(tools=[tool(0, input_examples=all)]))
    for name, part in SCHEMAS:
        yield kind(
            f"strict {name} {part(0)} schema",
            part,
            shaped(name, lambda own: ask(tools=[tool(0, strict=True, input_schema=own)])),
        )
    yield kind("system", lambda i: {"type": "text", "text": "a"}, lambda all: ask(system=all))
    yield kind("stops", lambda i: f"s{i}", lambda all: ask(stop_sequences=all))
    yield kind("edits", lambda i: {"type": "a"}, lambda all: ask(context_management={"edits": all}))
    yield kind("unknown", lambda i: {}, lambda all: ask(unknown=all))
    yield kind(
        "mistake",
        lambda i: {"role": "user", "content": "a"},
        lambda all: ask(messages=[*all, {"role": "a"}]),
    )


def responses() -> Iterator[Kind]:
    def ask(**rest: Any) -> dict[str, Any]:
        return {"model": MODEL, "input": "hi", **rest}

    def kind(name: str, part: Part, wrap: Wrap) -> Kind:
        return Kind(f"responses {name}", "/v1/responses", part, wrap)

    def item(name: str, part: Part) -> Kind:
        return kind(name, part, lambda all: ask(input=all))

    def tool(i: int, **rest: Any) -> dict[str, Any]:
        return {"type": "function", "name": f"f{i}", **rest}

    def call(i: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}

    yield item("messages", lambda i: {"role": "user", "content": "a"})
    yield item("answers", lambda i: {"role": "assistant", "content": "a"})
    yield item(
        "parts", lambda i: {"role": "user", "content": [{"type": "input_text", "text": "a"}] * 20}
    )
    yield item(
        "images",
        lambda i: {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        },
    )
    yield item("reasoning", lambda i: {"type": "reasoning", "summary": []})
    yield item("sealed", lambda i: {"type": "reasoning", "encrypted_content": "AAAA"})
    carried = {"type": "reasoning", "encrypted_content": "turnwire.1.W10="}
    yield item("carried", lambda i: carried)
    yield item("calls", call)
    yield item(
        "custom calls",
        lambda i: {"type": "custom_tool_call", "call_id": f"c{i}", "name": "f", "input": "a"},
    )
    yield item("searches", lambda i: {"type": "web_search_call"})
    yield item("unknown items", lambda i: {"type": "a"})
    yield item("references", lambda i: {"type": "item_reference", "id": f"msg_{i}"})
    yield item("more tools", lambda i: {"type": "additional_tools", "tools": [tool(i)]})
    yield kind(
        "pairs",
        lambda i: i,
        lambda all: ask(
            input=[
                one
                for i in range(len(all) // 20)
                for one in (
                    call(i),
                    {"type": "function_call_output", "call_id": f"c{i}", "output": "a"},
                )
            ]
        ),
    )
    yield kind("tools", tool, lambda all: ask(tools=all))
    yield kind(
        "strict tools", lambda i: tool(i, strict=True, parameters={}), lambda all: ask(tools=all)
    )
    yield kind(
        "namespaces",
        lambda i: {"type": "namespace", "name": f"n{i}", "tools": [tool(i)]},
        lambda all: ask(tools=all),
    )
    yield kind(
        "allowed",
        tool,
        lambda all: ask(
            tools=[{"type": "namespace", "name": "n", "tools": all}],
            tool_choice={
                "type": "allowed_tools",
                "tools": [
                    {"type": "function", "namespace": "n", "name": f"f{i}"} for i in range(len(all))
                ],
            },
        ),
    )
    yield kind(
        "allowed namespaces",
        lambda i: {"type": "namespace", "name": "n"},
        lambda all: ask(
            tools=[
                {"type": "namespace", "name": "n", "tools": [tool(i) for i in range(len(all) // 2)]}
            ],
            tool_choice={"type": "allowed_tools", "tools": all},
        ),
    )
    for name, syntax, definition in GRAMMARS:

        def custom(i: int, syntax: str = syntax, definition: Part = definition) -> Any:
            form = {"type": "grammar", "syntax": syntax, "definition": definition(i + 4000)}
            return {"type": "custom", "name": f"c{i}", "format": form}

        yield kind(f"{name} grammars", custom, lambda all: ask(tools=all[:60]))
        yield kind(
            f"{name} grammars in items",
            custom,
            lambda all: ask(input=[{"type": "additional_tools", "tools": all}]),
        )
    for name, part in SCHEMAS:
        yield kind(
            f"strict {name} {part(0)} schema",
            part,
            shaped(name, lambda own: ask(tools=[tool(0, strict=True, parameters=own)])),
        )
    yield kind("includes", lambda i: "reasoning.encrypted_content", lambda all: ask(include=all))
    yield kind("stops", lambda i: f"s{i}", lambda all: ask(stop=all))
    yield kind("biases", lambda i: i, lambda all: ask(logit_bias={str(i): 1 for i in all}))
    yield kind("metadata", lambda i: i, lambda all: ask(metadata={str(i): "a" for i in all}))
    yield kind("managed", lambda i: {"type": "a"}, lambda all: ask(context_management=all))
    yield kind("unknown", lambda i: {}, lambda all: ask(unknown=all))


def others() -> Iterator[Kind]:
    yield Kind(
        "completions ids",
        "/v1/completions",
        lambda i: i % 1000,
        lambda all: {"model": MODEL, "prompt": all},
    )
    yield Kind(
        "completions texts",
        "/v1/completions",
        lambda i: "a",
        lambda all: {"model": MODEL, "prompt": all},
    )
    yield Kind(
        "completions lists",
        "/v1/completions",
        lambda i: [1],
        lambda all: {"model": MODEL, "prompt": all},
    )
    yield Kind(
        "detokenize",
        "/v1/detokenize",
        lambda i: i % 1000,
        lambda all: {"model": MODEL, "tokens": all},
    )
    for path in ("/v1/tokenize", "/v1/messages/count_tokens"):
        yield Kind(
            f"{path} messages",
            path,
            lambda i: {"role": "user", "content": "a"},
            lambda all: {"model": MODEL, "messages": all},
        )
    yield Kind(
        "tokenize chat",
        "/v1/tokenize",
        lambda i: {"role": "tool", "content": "a"},
        lambda all: {"model": MODEL, "messages": all},
    )


KINDS = [*chat(), *messages(), *responses(), *others()]
