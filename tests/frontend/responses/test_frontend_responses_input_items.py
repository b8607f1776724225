"""The input as it is stored."""

import json

import msgspec

from services.frontend.apis.responses.parse.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from tests.kit.bodies import Json, assistant, block, function_call, function_output, responses, user


def encoded(body: Json) -> bytes:
    return json.dumps(body).encode()


def stored(*items: Json, **references: Json) -> list[Json]:
    request = decode(encoded(responses(*items)))
    if references:
        request = request.with_references(
            {id: msgspec.Raw(encoded(item)) for id, item in references.items()}
        )
    return [json.loads(bytes(item)) for item in stored_items(request, "t1")]


def test_stored_items_are_complete_and_have_ids() -> None:
    items = [
        user("Hi.", x_own=[1.50]),
        assistant("Ho.", phase="commentary"),
        function_call("c", "n", id="fc_9", arguments="{ }"),
        function_output("c", "o", status="incomplete"),
        block("reasoning", id="", summary=[], encrypted_content="e"),
        {"id": "msg_old"},
    ]
    found = stored(*items, msg_old=block("message", id="msg_old", status="incomplete"))
    ids = ["msg_t1i000", "msg_t1i001", "fc_9", "fco_t1i003", "rs_t1i004", "msg_old"]
    assert [item["id"] for item in found] == ids
    assert found[0]["content"] == [block("input_text", text="Hi.")]
    assert found[0]["x_own"] == [1.5]
    assert found[1]["content"] == [block("output_text", text="Ho.", annotations=[])]
    statuses = ["completed", "completed", "completed", "incomplete", None, "incomplete"]
    assert [item.get("status") for item in found] == statuses
    for before, after in zip(items[2:5], found[2:5], strict=True):
        assert after.items() >= {**before, "id": after["id"]}.items()
