"""Tests how the content of messages and results is converted: images, documents, blocks of other
servers."""

from typing import Any

from schemas.conversation import Media, Message, Part, Result, Text, ToolReference
from services.frontend.content.pdf_document import PDF, make_document
from tests.kit.bodies import (
    MESSAGES,
    USER,
    Json,
    assistant,
    block,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.every import for_rows
from tests.kit.frontend import messages_as_notes

CALLED = assistant(tool_use("t1"))


def read_messages(*messages: Json, **fields: Any) -> list[Message]:
    return messages_as_notes(MESSAGES.read(*messages, **fields))


def parts_of(*blocks: Json) -> list[Part]:
    """The parts of a message of the user."""
    (read,) = read_messages(user(*blocks))
    return read.parts


def encoded(media_type: str, data: str) -> Json:
    """A source in base64."""
    return block("base64", media_type=media_type, data=data)


@for_rows(
    [
        (block("url", url="https://x/y.png"), Media("image", url="https://x/y.png")),
        (block("url", url="data:image/gif;base64,aGVsbG8="), Media("image", "image/gif", 5)),
        (block("url", url="DATA:image/svg+xml,%3Csvg"), Media("image", "image/svg+xml", 4)),
    ],
)
def test_images_keep_only_type_and_size(source: Json, media: Media) -> None:
    assert parts_of(block("image", source=source)) == [media]


IMAGE = block("image", source=block("url", url="u"))


@for_rows(
    [
        (
            block("text", data="body"),
            {"title": "a.txt", "context": "old"},
            [Text("Title: a.txt\nContext: old\n\nbody")],
        ),
        (
            block("content", content=[text("one"), IMAGE]),
            {"title": "t"},
            [Text("Title: t\n\n"), Text("one"), Media("image", url="u")],
        ),
        (
            encoded("application/pdf", "JVBERg=="),
            {"title": "p.pdf"},
            [make_document(PDF, "JVBERg==", 4, "p.pdf", "Title: p.pdf\n\n")],
        ),
        (block("url", url="https://x/p.pdf"), {}, [Media("document", url="https://x/p.pdf")]),
        (encoded("text/markdown", "IyBoaQ=="), {"title": "a.md"}, [Text("Title: a.md\n\n# hi")]),
        (encoded("text/plain", "/w=="), {}, [Media("document", "text/plain", 1)]),
    ],
)
def test_documents_are_converted(source: Json, fields: Json, parts: list[Part]) -> None:
    assert parts_of(block("document", source=source, **fields)) == parts


def test_blocks_of_a_result_are_converted() -> None:
    content = [
        text("shot"),
        block("image", source=encoded("image/jpeg", "AAAA")),
        block("document", source=block("text", data="doc")),
        block("search_result", title="Doc", source="s", content=[text("one"), text("two")]),
        block("tool_reference", tool_name="CronList"),
        block("browser_state", tabs=[{"id": 1}]),
    ]
    wanted: list[Any] = [
        Text("shot"),
        Media("image", "image/jpeg", 3),
        Text("doc"),
        Text("Title: Doc\nSource: s\n\none\ntwo"),
        ToolReference("CronList"),
        Text('Open tabs: [{"id": 1}]'),
    ]
    found = read_messages(USER, CALLED, user(tool_result("t1", content)))
    assert found[2].parts == [Result("t1", wanted, name="look")]
