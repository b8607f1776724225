"""Requests that take long to read: for each API, bodies of a size that consist of one kind of part,
many times."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tests.kit.bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    Api,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    chat_result,
    completions,
    function_call,
    function_output,
    message,
    messages,
    responses,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.frontend import MODEL

Part: TypeAlias = Callable[[int], Any]
Wrap: TypeAlias = Callable[[list[Any]], Json]


class Kind(NamedTuple):
    """One kind of part, and the request that has a list of them."""

    name: str
    path: str
    part: Part
    wrap: Wrap

    def body(self, size: int) -> bytes:
        """A body of about `size` bytes."""
        low, high = (len(compact(self.part(i))) + 1 for i in (10, 1_000_000))
        rough = size // ((low + high) // 2)
        return compact(self.wrap([self.part(i) for i in range(max(rough, 1))])).encode()


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def always(value: Any) -> Part:
    """The same part every time."""
    return lambda _: value


def pairs(call: Part, result: Part) -> Callable[[list[Any]], list[Json]]:
    """Calls, each followed by its result, for a twentieth of the parts."""
    return lambda all: [each(i) for i in range(len(all) // 20) for each in (call, result)]


def schema(form: str, inner: list[Any]) -> Json:
    members = {f"p{i}": value for i, value in enumerate(inner)}
    match form:
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


SCHEMAS: list[tuple[str, Part]] = [
    ("wide", always({"type": "string"})),
    ("wide", always({})),
    ("deep", always({})),
    ("deep", always([])),
    ("deep", always(1)),
    ("enum", lambda i: f"e{i}"),
    ("references", always({"$ref": "#/$defs/a"})),
    ("references", always({"type": "object", "pattern": "(a+)+$"})),
]


def chain(i: int, length: int) -> str:
    """A grammar of rules that each name the next one."""
    rules = "".join(f"r{j}: r{j + 1}\n" for j in range(length))
    return f'start: r0 "{i}"\n{rules}r{length}: "x"'


def terminals(i: int) -> str:
    rules = "".join(f"T{j}: /a{j}/ T{j + 1}\n" for j in range(450))
    return f'start: T0 "{i}"\n{rules}T450: "x"'


GRAMMARS: list[tuple[str, str, Part]] = [
    ("small", "regex", lambda i: f"[a-z]{{{i}}}x"),
    ("anchors", "regex", lambda i: f"{i}" + "^" * 4000),
    ("classes", "regex", lambda i: f"{i}" + r"\w" * 4000),
    ("escapes", "regex", lambda i: f"{i}" + r"\p{L}" * 2500),
    ("alternatives", "regex", lambda i: "|".join(f"a{i}{j}" for j in range(2000))),
    ("rules", "lark", lambda i: chain(i, 450)),
    ("too deep", "lark", lambda i: chain(i, 5000)),
    ("terminals", "lark", terminals),
    ("sequence", "lark", lambda i: f'start: "{i}" ' + '"a" ' * 4000),
    ("nesting", "lark", lambda i: "start: " + "(" * 4000 + f'"{i}"' + ")" * 4000),
]


def field(api: Api, name: str) -> Wrap:
    """A request with the parts in this field."""
    return lambda all: api.body(**{name: all})


def history(api: Api) -> Wrap:
    return lambda all: api.body(*all)


def shaped(form: str, use: Callable[[Json], Json]) -> Wrap:
    """Puts parts into a schema, and that into a request."""
    return lambda all: use(schema(form, all))


def schema_kinds(api: Api, tool: Callable[..., Json]) -> Iterator[tuple[str, Part, Wrap]]:
    """Strict tools with a schema."""
    for form, part in SCHEMAS:
        yield (
            f"strict {form} {part(0)} schema",
            part,
            shaped(form, lambda own: api.body(tools=[tool(0, own, strict=True)])),
        )


def chat_function(i: int, parameters: Any = None, **more: Any) -> Json:
    return {"function": {"name": f"f{i}", "parameters": parameters or {}, **more}}


def call(i: int) -> Json:
    return chat_call(f"c{i}", "f")


def spoken(**fields: Any) -> Json:
    """A request with one message of the assistant."""
    return chat({"role": "assistant", **fields})


def allowed(all: list[Any]) -> Json:
    names = [{"function": {"name": f"f{i}"}} for i in range(len(all))]
    choice = block("allowed_tools", allowed_tools={"mode": "auto", "tools": names})
    return chat(tools=all, tool_choice=choice)


def custom_tool(syntax: str, definition: Part, least: int, i: int) -> Json:
    grammar = block("grammar", grammar={"syntax": syntax, "definition": definition(i + least)})
    return block("custom", custom={"name": f"c{i}", "format": grammar})


def chat_kinds() -> Iterator[tuple[str, Part, Wrap]]:
    def in_user(name: str, part: Any) -> tuple[str, Part, Wrap]:
        return name, always(part), lambda all: chat({"role": "user", "content": all})

    def calls(all: list[Any]) -> list[Json]:
        return [call(i) for i in range(len(all))]

    image = block("image_url", image_url="data:image/png;base64,AAAA")
    yield "messages", always(user("a")), history(CHAT)
    yield "assistant", always(assistant("a")), history(CHAT)
    yield in_user("strings", "a")
    yield in_user("texts", text("a"))
    yield in_user("images", image)
    yield in_user("files", block("file", file={"file_data": "data:application/pdf;base64,AAAA"}))
    yield in_user("audio", block("input_audio", input_audio={"data": "AAAA"}))
    yield "calls", call, lambda all: spoken(tool_calls=all)
    yield (
        "thoughts",
        always({"text": "a"}),
        lambda all: spoken(reasoning_details=all, tool_calls=calls(all)[: len(all) // 5]),
    )
    yield (
        "segments",
        always("a"),
        lambda all: spoken(reasoning_content=["a", *all[::20]], tool_calls=calls(all[::20])),
    )
    yield (
        "details",
        lambda i: {"format": "turnwire-v1", "data": "a", "id": f"c{i}"},
        lambda all: spoken(reasoning_details=all, tool_calls=calls(all)),
    )
    paired = pairs(
        lambda i: {"role": "assistant", "tool_calls": [call(i)]},
        lambda i: chat_result(f"c{i}", "a"),
    )
    yield "pairs", lambda i: i, lambda all: chat(messages=paired(all))
    yield "functions", chat_function, field(CHAT, "tools")
    yield "strict", lambda i: chat_function(i, strict=True), field(CHAT, "tools")
    yield "legacy functions", lambda i: chat_function(i)["function"], field(CHAT, "functions")
    yield "allowed", chat_function, allowed
    for name, syntax, definition in GRAMMARS:
        few = partial(custom_tool, syntax, definition, 1)
        many = partial(custom_tool, syntax, definition, 2000)
        yield f"few {name} grammars", few, lambda all: chat(tools=all[:60])
        yield f"many {name} grammars", many, field(CHAT, "tools")
    yield from schema_kinds(CHAT, chat_function)
    for form, part in SCHEMAS:
        label = f"{form} {part(0)} schema"
        yield label, part, shaped(form, lambda own: chat(tools=[chat_function(0, own)]))

        def formatted(own: Json) -> Json:
            named = {"name": "a", "schema": own}
            return chat(response_format=block("json_schema", json_schema=named))

        yield f"format {label}", part, shaped(form, formatted)
    yield "stops", lambda i: f"s{i}", field(CHAT, "stop")
    yield "stop ids", lambda i: i, field(CHAT, "stop_token_ids")
    yield "biases", lambda i: i, lambda all: chat(logit_bias={str(i): 1 for i in all})
    yield "template kwargs", always([]), lambda all: chat(chat_template_kwargs={"a": all})
    yield "unknown", always({}), field(CHAT, "unknown")
    yield "surrogates", always("\ud800"), lambda all: chat(user("".join(all)))
    yield "mistake", always(user("a")), lambda all: chat(*all, {"role": "a"})
    yield "choices", always("word "), lambda all: chat(user("".join(all)), n=128)
    yield (
        "choices of schema",
        always({}),
        shaped("wide", lambda own: chat(tools=[chat_function(0, own)], n=128)),
    )


def message_tool(i: int, input_schema: Any = None, **more: Any) -> Json:
    return {"name": f"f{i}", "input_schema": input_schema or {}, **more}


def use(i: int) -> Json:
    return tool_use(f"c{i}", "f")


def added(i: int) -> Json:
    definition = block("tool_definition", definition=message_tool(i))
    return block("tool_addition", tool=definition)


def messages_kinds() -> Iterator[tuple[str, Part, Wrap]]:
    def content(name: str, part: Json) -> tuple[str, Part, Wrap]:
        return name, always(part), lambda all: messages(user(*all))

    def answer(name: str, part: Part) -> tuple[str, Part, Wrap]:
        return name, part, lambda all: messages(user("a"), assistant(*all), user("b"))

    def encoded(media_type: str) -> Json:
        return block("base64", media_type=media_type, data="AAAA")

    def result(i: int) -> Json:
        return block("web_search_tool_result", tool_use_id=f"srvc{i}", content=[])

    yield "messages", always(user("a")), history(MESSAGES)
    yield content("texts", text("a"))
    yield content("images", block("image", source=encoded("image/png")))
    yield content("documents", block("document", source=encoded("text/plain")))
    yield content("pdfs", block("document", source=encoded("application/pdf")))
    yield content("document blocks", block("document", source=block("content", content=[])))
    yield content("passages", block("search_result", content=[text("a")]))
    yield answer("thoughts", always(block("thinking", thinking="a")))
    yield answer("calls", use)
    yield answer("searches", lambda i: block("server_tool_use", id=f"srvc{i}", name="web_search"))
    yield answer("results", always(result(0)))
    yield (
        "hosted results",
        result,
        lambda all: messages(
            user("a"),
            assistant(*(use(i) for i in range(len(all) // 2))),
            assistant(*all[: len(all) // 2]),
        ),
    )
    paired = pairs(lambda i: assistant(use(i)), lambda i: user(tool_result(f"c{i}", "a")))
    yield "pairs", lambda i: i, lambda all: messages(messages=paired(all))
    yield (
        "result texts",
        always(text("a")),
        lambda all: messages(assistant(use(1)), user(tool_result("c1", all))),
    )
    yield "additions", added, lambda all: messages(user("a"), message("system", *all))
    yield answer("compactions", always(block("compaction", content="a")))
    yield (
        "compacted changes",
        added,
        lambda all: messages(
            user("a"), assistant(block("compaction", content="a", tool_changes=all)), user("b")
        ),
    )
    yield "tools", message_tool, field(MESSAGES, "tools")
    yield "strict tools", lambda i: message_tool(i, strict=True), field(MESSAGES, "tools")
    yield (
        "input examples",
        always({}),
        lambda all: messages(tools=[message_tool(0, input_examples=all)]),
    )
    yield from schema_kinds(MESSAGES, message_tool)
    yield "system", always(text("a")), field(MESSAGES, "system")
    yield "stops", lambda i: f"s{i}", field(MESSAGES, "stop_sequences")
    yield "edits", always(block("a")), lambda all: messages(context_management={"edits": all})
    yield "unknown", always({}), field(MESSAGES, "unknown")
    yield "mistake", always(user("a")), lambda all: messages(*all, {"role": "a"})


def function(i: int, parameters: Any = None, **more: Any) -> Json:
    fields = {} if parameters is None else {"parameters": parameters}
    return block("function", name=f"f{i}", **fields, **more)


def responses_kinds() -> Iterator[tuple[str, Part, Wrap]]:
    def item(name: str, part: Part) -> tuple[str, Part, Wrap]:
        return name, part, history(RESPONSES)

    image = block("input_image", image_url="data:image/png;base64,AAAA")
    yield item("messages", always(user("a")))
    yield item("answers", always(assistant("a")))
    yield item("parts", always(user(*[block("input_text", text="a")] * 20)))
    yield item("images", always(user(image)))
    yield item("reasoning", always(block("reasoning", summary=[])))
    yield item("sealed", always(block("reasoning", encrypted_content="AAAA")))
    yield item("carried", always(block("reasoning", encrypted_content="turnwire.1.W10=")))
    yield item("calls", lambda i: function_call(f"c{i}", "f"))
    yield item(
        "custom calls", lambda i: block("custom_tool_call", call_id=f"c{i}", name="f", input="a")
    )
    yield item("searches", always(block("web_search_call")))
    yield item("unknown items", always(block("a")))
    yield item("references", lambda i: block("item_reference", id=f"msg_{i}"))
    yield item("more tools", lambda i: block("additional_tools", tools=[function(i)]))
    paired = pairs(lambda i: function_call(f"c{i}", "f"), lambda i: function_output(f"c{i}", "a"))
    yield "pairs", lambda i: i, lambda all: responses(input=paired(all))
    yield "tools", function, field(RESPONSES, "tools")
    yield "strict tools", lambda i: function(i, {}, strict=True), field(RESPONSES, "tools")
    yield (
        "namespaces",
        lambda i: block("namespace", name=f"n{i}", tools=[function(i)]),
        field(RESPONSES, "tools"),
    )
    yield (
        "allowed",
        function,
        lambda all: responses(
            tools=[block("namespace", name="n", tools=all)],
            tool_choice=block(
                "allowed_tools",
                tools=[block("function", namespace="n", name=f"f{i}") for i in range(len(all))],
            ),
        ),
    )
    yield (
        "allowed namespaces",
        always(block("namespace", name="n")),
        lambda all: responses(
            tools=[block("namespace", name="n", tools=[function(i) for i in range(len(all) // 2)])],
            tool_choice=block("allowed_tools", tools=all),
        ),
    )
    for name, syntax, definition in GRAMMARS:

        def custom(i: int, syntax: str = syntax, definition: Part = definition) -> Json:
            form = block("grammar", syntax=syntax, definition=definition(i + 4000))
            return block("custom", name=f"c{i}", format=form)

        yield f"{name} grammars", custom, lambda all: responses(tools=all[:60])
        yield (
            f"{name} grammars in items",
            custom,
            lambda all: responses(block("additional_tools", tools=all)),
        )
    yield from schema_kinds(RESPONSES, function)
    yield "includes", always("reasoning.encrypted_content"), field(RESPONSES, "include")
    yield "stops", lambda i: f"s{i}", field(RESPONSES, "stop")
    yield "biases", lambda i: i, lambda all: responses(logit_bias={str(i): 1 for i in all})
    yield "metadata", lambda i: i, lambda all: responses(metadata={str(i): "a" for i in all})
    yield "managed", always(block("a")), field(RESPONSES, "context_management")
    yield "unknown", always({}), field(RESPONSES, "unknown")


def prompts(all: list[Any]) -> Json:
    return completions(prompt=all)


def conversations(all: list[Any]) -> Json:
    return chat(*all)


KINDS = [
    *(Kind(f"chat {name}", CHAT.path, part, wrap) for name, part, wrap in chat_kinds()),
    *(Kind(f"messages {name}", MESSAGES.path, part, wrap) for name, part, wrap in messages_kinds()),
    *(
        Kind(f"responses {name}", RESPONSES.path, part, wrap)
        for name, part, wrap in responses_kinds()
    ),
    Kind("completions ids", "/v1/completions", lambda i: i % 1000, prompts),
    Kind("completions texts", "/v1/completions", always("a"), prompts),
    Kind("completions lists", "/v1/completions", always([1]), prompts),
    Kind(
        "detokenize",
        "/v1/detokenize",
        lambda i: i % 1000,
        lambda all: {"model": MODEL, "tokens": all},
    ),
    Kind("/v1/tokenize messages", "/v1/tokenize", always(user("a")), conversations),
    Kind(
        "/v1/messages/count_tokens messages",
        "/v1/messages/count_tokens",
        always(user("a")),
        conversations,
    ),
    Kind("tokenize chat", "/v1/tokenize", always(message("tool", "a")), conversations),
]
