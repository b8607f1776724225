"""Images and PDFs over each API, for models with vision and without: the conversation that the
pipeline gets, what is stored, and the note in the answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from typing_extensions import override

from schemas.conversation import Conversation, Media, Message, Text
from schemas.errors import Invalid, Unavailable
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.media import pdf_reader
from services.frontend.media.image_decoder import ImageDecoder
from services.frontend.media.image_fetch import ImageFetcher, public_connector
from services.frontend.media.image_reader import ImageReader
from services.frontend.turns.notice import make_notice
from services.images.image_data import MAX_BYTES, ImageFacts, image_hash, read_facts
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.media.media_apis import (
    HELLO,
    IMAGE,
    SEEN,
    Store,
    counted,
    encoded,
    image,
    image_part,
    media,
    pdf_part,
    refused,
    result_body,
    said,
    seeing,
)
from tests.kit.bodies import (
    CHAT,
    CONVERSING,
    MESSAGES,
    MODEL,
    RESPONSES,
    Api,
    assistant,
    block,
    user,
)
from tests.kit.every import Cases
from tests.kit.frontend import Served, key_line, serving
from tests.kit.pdf_files import PNG, pdf
from tests.kit.waiting import eventually


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def served(store: Store) -> AsyncIterator[Served]:
    """A frontend with a model that sees images, which are put into `store`."""
    async with serving(seeing(), put_image=store.put) as served:
        yield served


def seen(served: Served) -> list[list[Media]]:
    """The images of each turn."""
    return [media(asked) for asked in served.gateway.conversations]


async def test_model_with_vision_gets_a_reference_and_no_note(
    served: Served, store: Store, cases: Cases
) -> None:
    for api in CONVERSING:
        image = image_part(api)
        for body in (api.body(user(image)), result_body(api, image)):
            with cases.case(api.name, body):
                store.images.clear()
                assert media(await counted(served, api, body)) == [SEEN]
                assert not store.images
                for _ in range(2):  # the client sends the image again with every request
                    assert await said(served, api, body) == HELLO
    assert seen(served) == [[SEEN]] * 12
    assert store.puts == {SEEN.hash: 1}


async def test_model_without_vision_gets_a_note_of_an_image_that_nobody_decodes() -> None:
    store = Store()
    damaged = image_part(MESSAGES, encoded(b"no image"))
    async with serving(put_image=store.put) as served:
        for body in (MESSAGES.body(user(damaged)), result_body(MESSAGES, damaged)):
            assert await said(served, MESSAGES, body) == HELLO + make_notice({"image"}), body
    assert seen(served) == [[Media("image", "image/png", 8)]] * 2
    assert type(seen(served)[0][0]) is Media
    assert not store.images


class HeldDecoder(ImageDecoder):
    """Decodes each image when `go` is set."""

    def __init__(self) -> None:
        super().__init__(structlog.get_logger())
        self.decoded: list[bytes] = []
        self.go = asyncio.Event()

    @override
    async def read_facts(self, data: bytes) -> ImageFacts:
        self.decoded.append(data)
        await self.go.wait()
        return read_facts(data)


def reading(decoder: ImageDecoder) -> ImageReader:
    fetcher = ImageFetcher([], structlog.get_logger(), public_connector)
    return ImageReader(FrontendConfig(), Store().put, fetcher, decoder)


async def read_one(reader: ImageReader, data: bytes, tenant: str | None = None) -> Media:
    image = InlineImage("image", source=ImageSource(encoded(data), Invalid))
    conversation = Conversation("m", [Message("user", [image])])
    made, _ = await reader.read(conversation, [image], tenant, vision=True, store=True)
    return media(made)[0]


async def test_one_image_of_a_tenant_is_decoded_at_a_time_though_clients_hang_up() -> None:
    """Once for all requests. Others do not wait for a tenant with many images."""
    decoder = HeldDecoder()
    reader = reading(decoder)
    images = [image(side, 1) for side in range(1, 5)]
    asks = [asyncio.create_task(read_one(reader, data, "many")) for data in images]
    await eventually(lambda: decoder.decoded == images[:1])
    others = [asyncio.create_task(read_one(reader, PNG, "other")) for _ in range(5)]
    await eventually(lambda: decoder.decoded == [images[0], PNG])
    for ask in asks[:3]:
        ask.cancel()
    await asyncio.wait(asks[:3])
    await eventually(lambda: decoder.decoded == [images[0], PNG, images[3]])
    decoder.go.set()
    assert (await asks[3]).width == 4
    assert len({one.hash for one in await asyncio.gather(*others)}) == 1
    assert len(decoder.decoded) == 3


async def test_tenants_share_no_images(tmp_path: Path) -> None:
    store, tenants = Store(), ["alpha", "beta", "alpha"]
    keys = tmp_path / "keys"
    keys.write_text(key_line("alpha", "alpha") + key_line("beta", "beta"))
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(seeing(), config, put_image=store.put) as served:
        for tenant in tenants:
            body = MESSAGES.body(user(image_part(MESSAGES)))
            reply = await served.post(MESSAGES.path, body, headers={"x-api-key": tenant})
            assert reply.status == 200
    hashes = [found.hash for (found,) in seen(served)]
    assert hashes == [image_hash(PNG, tenant) for tenant in tenants]
    assert store.puts == Counter(set(hashes))


UNREADABLE = "Could not process image"
TOO_LARGE = f"image exceeds 5 MB maximum: {len(PNG) + MAX_BYTES} bytes > {MAX_BYTES} bytes"
TOO_WIDE = "At least one of the image dimensions exceed max allowed size: 8000 pixels"


async def test_unusable_image_is_refused_in_the_words_of_each_api(
    served: Served, store: Store, cases: Cases
) -> None:
    for data, reason, code in (
        (b"no image", UNREADABLE, "image_parse_error"),
        (PNG + bytes(MAX_BYTES), TOO_LARGE, "image_too_large"),
        (image(8001, 1), TOO_WIDE, "image_too_large"),
    ):
        found = encoded(data)
        with cases.case(MESSAGES.path, reason):
            asked = result_body(MESSAGES, block("text", text="x"), image_part(MESSAGES, found))
            error = await refused(served, MESSAGES, asked)
            place = "messages.2.content.0.tool_result.content.1.image.source.base64: "
            message = reason if reason == UNREADABLE else place + reason
            assert (error["type"], error["message"]) == ("invalid_request_error", message)
        for api, param, kind in (
            (CHAT, "messages[2].content[1].image_url.url", "text"),
            (RESPONSES, "input[2].output[1].image_url", "input_text"),
        ):
            with cases.case(api.path, reason):
                asked = result_body(api, block(kind, text="x"), image_part(api, found))
                error = await refused(served, api, asked)
                assert (error["param"], error["code"]) == (param, code)
                assert error["message"] == f"Invalid '{param}': {reason}."
    await refused(served, MESSAGES, MESSAGES.body(user(image_part(MESSAGES, "AA=A"))))
    assert not store.images
    # Only Messages refuses another type than stated.
    asked = MESSAGES.body(user(image_part(MESSAGES, IMAGE, "image/jpeg")))
    error = await refused(served, MESSAGES, asked)
    stated = "The image was specified using the image/jpeg media type"
    assert f"{stated}, but the image appears to be a image/png image" in error["message"]
    for api in (CHAT, RESPONSES):
        await said(served, api, api.body(user(image_part(api, IMAGE, "image/jpeg"))))
    assert seen(served) == [[SEEN]] * 2


async def test_number_of_images_is_limited_for_models_that_see_them() -> None:
    config = FrontendConfig(max_images=2)
    three = [image_part(MESSAGES)] * 3
    async with serving(seeing(), config, put_image=Store().put) as served:
        await said(served, MESSAGES, MESSAGES.body(user(*three[1:])))
        error = await refused(served, MESSAGES, MESSAGES.body(user(*three)))
        assert error["message"] == "Too much media: 0 document pages + 3 images > 2"
    async with serving(config=config) as served:
        await said(served, MESSAGES, MESSAGES.body(user(*three)))


async def test_image_that_cannot_be_stored_fails_the_request_and_old_ones_are_stored_again() -> (
    None
):
    """After half of the time after which the bucket deletes it."""
    store, body = Store(), MESSAGES.body(user(image_part(MESSAGES)))
    async with serving(seeing(), FrontendConfig(image_ttl_s=1e-6), put_image=store.put) as served:
        store.error = Unavailable("the bus does not answer")
        assert (await served.post(MESSAGES.path, body)).status == 503
        assert not served.gateway.turns
        store.error = None
        for _ in range(2):
            await said(served, MESSAGES, body)
    assert store.images == {SEEN.hash: PNG}
    assert store.puts[SEEN.hash] == 2


async def test_pages_of_a_pdf_are_text_and_images() -> None:
    store = Store()
    body = MESSAGES.body(user(pdf_part(MESSAGES, pdf("First.", "", "Third.", "Fourth."))))
    config = FrontendConfig(pdf_page_images=3)
    async with serving(seeing(), config, put_image=store.put) as served:
        for _ in range(2):
            assert await said(served, MESSAGES, body) == HELLO
    first, again = (asked.messages[0].parts for asked in served.gateway.conversations)
    assert first == again
    assert [part.text for part in first if isinstance(part, Text)] == [
        "Title: plan.pdf\n\n[page 1]\nFirst.",
        "\n\n[page 2: no text]",
        "\n\n[page 3]\nThird.",
        "\n\n[page 4]\nFourth.",
    ]
    assert [type(part) for part in first] == [Text, Media] * 3 + [Text]
    pages = [part for part in first if isinstance(part, Media)]
    shape = ("image/jpeg", 1176, 1568)
    assert {(page.media_type, page.width, page.height) for page in pages} == {shape}
    assert {page.hash for page in pages} == set(store.images)
    assert len(store.images) == 3


async def test_first_documents_of_a_request_have_the_images(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later document must not change the prompt of earlier ones."""
    monkeypatch.setattr(pdf_reader, "PAGE_IMAGES", 3)
    documents = [pdf_part(MESSAGES, pdf(f"{name} one.", f"{name} two.")) for name in "abc"]
    for count in (1, 2, 3):
        await said(served, MESSAGES, MESSAGES.body(user(*documents[:count])))
    one, two, three = (asked.messages[0].parts for asked in served.gateway.conversations)
    assert two[: len(one)] == one
    assert three[: len(two)] == two
    assert [len(found) for found in seen(served)] == [2, 3, 3]


async def test_further_turns_of_a_session_have_its_images(served: Served, store: Store) -> None:
    """Those of continued responses, and of compactions."""
    body = RESPONSES.body(user(image_part(RESPONSES)))
    first = (await served.post(RESPONSES.path, body)).json
    await said(served, RESPONSES, RESPONSES.body(previous_response_id=first["id"]))
    before, after = served.gateway.conversations
    assert media(after) == [SEEN]
    assert after.messages[:1] == before.messages

    managed = [{"type": "compaction", "compact_threshold": 1000}]
    await said(served, RESPONSES, {**body, "context_management": managed})
    await served.post("/v1/responses/compact", {"model": MODEL, "input": body["input"]})
    assert seen(served) == [[SEEN]] * 5
    assert store.puts[SEEN.hash] == 1


@pytest.mark.parametrize("api", CONVERSING, ids=lambda api: api.name)
async def test_note_is_sent_once_and_is_not_in_prompts(api: Api) -> None:
    async with serving() as served:
        first = user(image_part(api))
        noted = await said(served, api, api.body(first))
        assert noted == HELLO + make_notice({"image"})
        assert await said(served, api, api.body(first, assistant(noted), user("And?"))) == HELLO
        # As if there had been no note: the prompt before, the model's own text, the user's.
        before, after = (asked.messages for asked in served.gateway.conversations)
        assert after[:1] == before
        assert [part for turn in after[1:] for part in turn.parts] == [Text(HELLO), Text("And?")]
        # A document of another kind gets a note of its own.
        locked = user(pdf_part(api, pdf("x", locked=True)))
        answer = await said(served, api, api.body(first, assistant(noted), locked))
        assert answer == HELLO + make_notice({"document"})
        (part,) = served.gateway.conversations[-1].messages[-1].parts
        assert isinstance(part, Media)
        assert (part.title, part.problem) == ("plan.pdf", "protected by a password")
        # A PDF with text is its text, in turns and counts.
        asked = api.body(user(pdf_part(api, pdf("The code is 4711."))))
        assert await said(served, api, asked) == HELLO
        read = [Text("Title: plan.pdf\n\n[page 1]\nThe code is 4711.")]
        for conversation in (served.gateway.conversations[-1], await counted(served, api, asked)):
            assert conversation.messages[0].parts == read
