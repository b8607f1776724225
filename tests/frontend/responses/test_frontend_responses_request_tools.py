"""The tools of a Responses request and their names."""

from schemas.conversation import Grammar, ToolSpec
from services.frontend.apis.responses.parse.tools.request_tools import ToolName, find_tool_name
from tests.kit.bodies import RESPONSES, Json, block, function, function_call, function_output

F = function("f", strict=True, description="F.")
G = block("custom", name="g")
NS = block("namespace", name="ns", description="", tools=[block("function", name="f"), G])


def test_tools_of_every_kind_are_converted() -> None:
    grammar = block("grammar", syntax="lark", definition="start: /x/")
    search = block("tool_search", execution="client")
    ask = RESPONSES.ask(tools=[F, {**G, "format": grammar}, NS, search, block("shell")])
    shown = ask.conversation.tools
    assert shown[0] == ToolSpec("f", "F.", F["parameters"], strict=True)
    assert shown[1] == ToolSpec("g", kind="custom", grammar=Grammar("lark", "start: /x/"))
    names = [(tool.namespace, tool.name, tool.kind) for tool in shown[2:4]]
    assert names == [("ns", "f", "function"), ("ns", "g", "custom")]
    assert [tool.name for tool in shown[4:]] == ["tool_search", "shell"]
    assert [tool.name for tool in shown[4:] if not tool.schema["required"]] == []
    called = find_tool_name(ask.shape.names, "ns__g")
    assert (called.kind, called.name, called.namespace) == ("custom", "g", "ns")
    assert find_tool_name(ask.shape.names, "nobody") == ToolName("function", "nobody")


def in_namespace(name: str, namespace: str) -> Json:
    return block("namespace", name=namespace, tools=[function(name)])


def test_tools_that_render_to_one_name_are_told_apart() -> None:
    tools: list[tuple[str, str | None]] = [("b__c", "a"), ("c", "a__b"), ("a__b__c", None)]
    listed = [in_namespace("b__c", "a"), in_namespace("c", "a__b"), function("a__b__c")]
    calls = [
        function_call(str(number), name, **({"namespace": namespace} if namespace else {}))
        for number, (name, namespace) in enumerate(tools)
    ]
    outputs = [function_output(str(number)) for number in range(len(tools))]
    ask = RESPONSES.ask(*calls, *outputs, tools=listed)
    shown = [tool.rendered_name for tool in ask.conversation.tools]
    assert len({*shown}) == len(tools)
    known = [find_tool_name(ask.shape.names, name) for name in shown]
    assert [(name.name, name.namespace) for name in known] == tools
    assistants, results = ask.conversation.messages[-2:]
    assert [call.rendered_name for call in assistants.parts] == shown
    assert [result.name for result in results.parts] == shown
    for name, (bare, namespace) in zip(shown, tools, strict=True):
        chosen = {"type": "function", "name": bare, "namespace": namespace}
        choice = RESPONSES.read(tools=listed, tool_choice=chosen).tool_choice
        assert choice.rendered_name == name


def test_tool_that_is_declared_twice_is_refused() -> None:
    for tool in (F, G, NS, in_namespace("b__c", "a")):
        other = in_namespace("c", "a__b")
        assert RESPONSES.refusal(tools=[other, tool, tool]).code == "invalid_value", tool
