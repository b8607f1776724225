"""Requests, and mutations of them, are parsed or refused."""

from fuzz import bodies
from tests.kit.every import Cases, for_each
from tests.kit.examples import chances


def test_requests_are_parsed_and_mutations_of_them_parsed_or_refused(cases: Cases) -> None:
    pool = [*bodies.seeds()]
    for request in pool:
        with cases.case(request):
            assert bodies.check(request)
    for chance in chances("bodies", 1800):
        request = bodies.mutate(chance.choice(pool), chance)
        with cases.case(request):
            if bodies.check(request, counting=chance.random() < 0.1):
                pool.append(request)


HOSTED = (
    # Bytes that are not UTF-8 reach the reader of hosted results, because raw JSON is not
    # decoded before.
    b'{"type":"web_search_tool_result","content":[{"title":"\xc5"}]}',
    b'{"type":"mcp_tool_use","id":"a","name":"n","input":{"a":"\xff"}}',
    # Deeper than Python recurses, shallower than the JSON reader refuses.
    b'{"type":"web_search_tool_result","content":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"type":"web_search_tool_result","content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
)


@for_each(HOSTED)
def test_hosted_results_are_parsed_or_refused(block: bytes) -> None:
    message = b'{"role":"user","content":[' + block + b"]}"
    body = b'{"model":"m","max_tokens":9,"messages":[' + message + b"]}"
    bodies.check(("/v1/messages", body))
