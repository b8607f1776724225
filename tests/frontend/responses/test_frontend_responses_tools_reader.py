"""Which tools of a Responses request the model gets: no hosted ones, deferred ones where the client
searches."""

from tests.kit.bodies import RESPONSES, block, function

F = function("f", strict=True, description="F.")


def test_hosted_tools_are_dropped_and_noted() -> None:
    hosted = ["web_search", "file_search", "computer", "mcp", "code_interpreter"]
    shell = block("shell", environment=block("container_auto"))
    ask = RESPONSES.ask(tools=[*map(block, hosted), shell, F])
    assert ask.notes == [*hosted, "shell"]
    assert [tool.name for tool in ask.conversation.tools] == ["f"]


def test_tools_are_deferred_only_if_the_client_can_search() -> None:
    searches = (block("tool_search"), block("tool_search", execution="server"))
    deferred = F | {"defer_loading": True}
    for tools in ([], *([search] for search in searches)):
        assert [tool.deferred for tool in RESPONSES.read(tools=[deferred, *tools]).tools] == [False]
    listed = RESPONSES.read(tools=[deferred, block("tool_search", execution="client")]).tools
    assert [tool.deferred for tool in listed] == [True, False]
