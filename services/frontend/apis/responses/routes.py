"""The operations of the Responses API."""

from services.frontend.apis.responses import wire, wire_answers, wire_events
from services.frontend.apis.responses.errors import FORMAT
from services.frontend.apis.responses.state.server import PATH, RESPONSES, ResponsesServer
from services.frontend.apis.shared.api import WEATHER_PARAMETERS, Api, ApiSetup, Operation, Query

_ID = "The id of a response."
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": WEATHER_PARAMETERS,
    "strict": False,
}
_EXAMPLE = {"model": "your-model", "input": "What is the weather in Paris?"}
_TURN = {**_EXAMPLE, "tools": [_WEATHER], "reasoning": {"effort": "medium"}}
_PAGE = (
    Query(
        "limit",
        {"type": "integer", "minimum": 0, "maximum": 100},
        "Most items to return; default: 20.",
    ),
    Query("after", {"type": "string"}, "Return the items that follow this one."),
    Query("order", {"enum": ["asc", "desc"]}, "Oldest or newest first; default: newest."),
)
_FOLLOW = (
    Query("stream", {"type": "boolean"}, "Send the events of the response again."),
    Query(
        "starting_after",
        {"type": "integer", "minimum": 0},
        "Leave out the events up to this sequence number.",
    ),
)
_RESPONSE = f"{PATH}/{{id}}"


def _add_routes(setup: ApiSetup) -> None:
    server = ResponsesServer(setup)
    setup.app[RESPONSES] = server
    setup.app.on_shutdown.append(server.close)
    server.add_to(setup.app.router)


API = Api(
    name="Responses",
    title="OpenAI Responses",
    errors=FORMAT,
    paths=(PATH,),
    operations=(
        Operation(
            PATH,
            "Create a response",
            body=wire.ResponsesBody,
            example=_TURN,
            answer=wire_answers.ResponsesAnswer,
            events=wire_events.Event,
        ),
        Operation(PATH, "Open a WebSocket for responses", "get", upgrade=True),
        Operation(
            f"{PATH}/compact",
            "Compact a conversation",
            body=wire.ResponsesBody,
            example=_EXAMPLE,
            answer=wire_answers.Compaction,
        ),
        Operation(
            f"{PATH}/input_tokens",
            "Count the tokens of a response's prompt",
            body=wire.ResponsesBody,
            example=_EXAMPLE,
            answer=wire_answers.ResponsesTokens,
        ),
        Operation(
            _RESPONSE,
            "Retrieve a stored response",
            "get",
            answer=wire_answers.ResponsesAnswer,
            events=wire_events.Event,
            query=_FOLLOW,
            id=_ID,
        ),
        Operation(
            _RESPONSE, "Delete a stored response", "delete", answer=wire_answers.Deleted, id=_ID
        ),
        Operation(
            f"{_RESPONSE}/cancel",
            "Cancel a background response",
            answer=wire_answers.ResponsesAnswer,
            id=_ID,
        ),
        Operation(
            f"{_RESPONSE}/input_items",
            "List the input of a response",
            "get",
            answer=wire_answers.Items,
            query=_PAGE,
            id=_ID,
        ),
    ),
    parts=wire_answers.OUTPUT_ITEMS,
    add_routes=_add_routes,
)
