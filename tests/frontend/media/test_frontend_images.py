"""Images over each API, for models with vision: the conversation that the pipeline gets, and what
is stored."""

import asyncio
import base64
import json
from collections import Counter
from io import BytesIO
from pathlib import Path
from threading import Semaphore
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
from msgspec.structs import replace
from PIL import Image

from schemas.control import VISION, ModelCard
from schemas.conversation import Call, Conversation, Media, Message, Result, Text
from schemas.errors import Invalid, Unavailable
from services.frontend.content.image import ImageSource, InlineImage, without_images
from services.frontend.media import image_reader, pdf_reader
from services.frontend.media.image_fetch import ImageFetcher, public_connector
from services.frontend.turns.notice import make_notice
from services.images.image import MAX_BYTES, ImageFacts, image_hash, read_facts
from services.images.parts import media_of
from services.runtime.config import FrontendConfig
from tests.frontend.hosted.rounds import FIRST, LAST, SEARCH, Rounds
from tests.frontend.http.test_frontend_edge import line
from tests.frontend.media.test_frontend_media_apis import APIS, HELLO, IMAGE, Api, post
from tests.kit.events import finish
from tests.kit.frontend import CARD, MODEL, FakeGateway, Served, serving
from tests.kit.pdf_files import PNG, pdf
from tests.kit.search_provider import provider

MESSAGES, CHAT, RESPONSES = APIS
SEEING = replace(CARD, features=[VISION])
SEEN = Media("image", "image/png", len(PNG), hash=image_hash(PNG, None), width=2, height=2)
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)


class Store:
    """Stands for the bucket."""

    def __init__(self) -> None:
        self.images: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.error: Exception | None = None

    async def put(self, image: str, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.images[image] = data
        self.puts[image] += 1


def seeing(**options: Any) -> FakeGateway:
    return FakeGateway(cards=[SEEING], **options)


def image(width: int, height: int, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    out = BytesIO()
    Image.new(mode, (width, height)).save(out, kind, **options)
    return out.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def refused(served: Served, api: Api, body: dict[str, Any]) -> dict[str, Any]:
    async with aiohttp.ClientSession(served.url) as http, http.post(api.path, json=body) as answer:
        document = await answer.json()
        assert answer.status == 400, document
        return dict(document["error"])


def media(conversation: Conversation) -> list[Media]:
    msgspec.json.encode(conversation)  # nothing in it keeps the data
    return media_of(conversation)


@each_api
@pytest.mark.parametrize("place", ["user", "result"])
async def test_model_with_vision_gets_a_reference_and_no_note(api: Api, place: str) -> None:
    store, gateway = Store(), seeing()
    body = api.body([api.image()]) if place == "user" else api.result_body(api.image())
    async with serving(gateway, put_image=store.put) as served:
        for _ in range(2):  # the client sends the image again with every request
            assert api.text(await post(served, api.path, body)) == HELLO
        counting = {
            name: value
            for name, value in body.items()
            if name not in ("max_tokens", "stream", "store")
        }
        await post(served, api.counting, counting)
    conversations = [turn.conversation for turn in gateway.turns]
    conversations += [
        *gateway.counted,
        *(one for *_, one, _ in gateway.tokenized if one is not None),
    ]
    assert [media(conversation) for conversation in conversations] == [[SEEN]] * 3
    assert store.images == {SEEN.hash: PNG}
    assert store.puts[SEEN.hash] == 1


@each_api
@pytest.mark.parametrize("place", ["user", "result"])
async def test_model_without_vision_gets_the_same_note_as_ever(api: Api, place: str) -> None:
    store = Store()
    damaged = api.image(encoded(b"no image"))
    body = api.body([damaged]) if place == "user" else api.result_body(damaged)
    async with serving(put_image=store.put) as served:
        assert api.text(await post(served, api.path, body)) == HELLO + make_notice({"image"})
        (found,) = media(served.gateway.turns[0].conversation)
    assert type(found) is Media
    assert found == Media("image", "image/png", 8)
    assert not store.images


async def test_siblings_decode_an_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def counted(data: bytes) -> ImageFacts:
        decoded.append(data)
        return read_facts(data)

    monkeypatch.setattr(image_reader, "read_facts", counted)
    config, log = FrontendConfig(), structlog.get_logger()
    reader = image_reader.ImageReader(config, Store().put, ImageFetcher([], log, public_connector))

    async def read() -> Media:
        image = InlineImage("image", source=ImageSource(encoded(PNG), Invalid))
        conversation = Conversation("m", [Message("user", [image])])
        made, _ = await reader.read(conversation, [image], None, vision=True, store=True)
        return media(made)[0]

    assert {one.hash for one in await asyncio.gather(*(read() for _ in range(5)))} == {SEEN.hash}
    assert decoded == [PNG]


async def test_counting_stores_no_image() -> None:
    store = Store()
    async with serving(seeing(), put_image=store.put) as served:
        for api in APIS:
            body = api.body([api.image()])
            await post(
                served,
                api.counting,
                {k: v for k, v in body.items() if k not in ("stream", "store", "max_tokens")},
            )
    assert not store.images


async def test_tenants_share_no_images(tmp_path: Path) -> None:
    store, gateway = Store(), seeing()
    keys = tmp_path / "keys"
    keys.write_text(line("alpha", "alpha") + line("beta", "beta"))
    config = FrontendConfig(api_keys_file=str(keys))
    async with (
        serving(gateway, config, put_image=store.put) as served,
        aiohttp.ClientSession(served.url) as http,
    ):
        for tenant in ("alpha", "beta", "alpha"):
            body = MESSAGES.body([MESSAGES.image()])
            async with http.post(MESSAGES.path, json=body, headers={"x-api-key": tenant}) as answer:
                assert answer.status == 200
    hashes = [media(turn.conversation)[0].hash for turn in gateway.turns]
    assert hashes == [image_hash(PNG, tenant) for tenant in ("alpha", "beta", "alpha")]
    assert store.puts == Counter(set(hashes))


@each_api
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no image", "Could not process image"),
        (PNG[:50], "Could not process image"),
        (
            PNG + bytes(MAX_BYTES),
            f"image exceeds 5 MB maximum: {len(PNG) + MAX_BYTES} bytes > {MAX_BYTES} bytes",
        ),
        (
            image(8001, 1),
            "At least one of the image dimensions exceed max allowed size: 8000 pixels",
        ),
    ],
    ids=["other data", "cut", "bytes", "pixels"],
)
async def test_unusable_image_is_refused_in_the_words_of_each_api(
    api: Api, data: bytes, reason: str
) -> None:
    store = Store()
    async with serving(seeing(), put_image=store.put) as served:
        error = await refused(
            served,
            api,
            api.result_body(
                {"type": "text", "text": "x"}
                if api is not RESPONSES
                else {"type": "input_text", "text": "x"},
                api.image(encoded(data)),
            ),
        )
    assert not store.images
    if api is MESSAGES:
        place = (
            ""
            if reason.startswith("Could")
            else "messages.2.content.0.tool_result.content.1.image.source.base64: "
        )
        assert (error["type"], error["message"]) == ("invalid_request_error", place + reason)
        return
    param = (
        "messages[2].content[1].image_url.url" if api is CHAT else "input[2].output[1].image_url"
    )
    code = "image_parse_error" if reason.startswith("Could") else "image_too_large"
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"] == f"Invalid '{param}': {reason}."


async def test_only_messages_refuses_another_type_than_stated() -> None:
    async with serving(seeing(), put_image=Store().put) as served:
        error = await refused(
            served, MESSAGES, MESSAGES.body([MESSAGES.image(IMAGE, "image/jpeg")])
        )
        assert error["message"] == (
            "messages.0.content.0.image.source.base64: The image was specified using the image/jpeg media type, but "
            "the image appears to be a image/png image"
        )
        for api in (CHAT, RESPONSES):
            await post(served, api.path, api.body([api.image(IMAGE, "image/jpeg")]))
            assert media(served.gateway.turns[-1].conversation) == [SEEN]


async def test_number_of_images_is_limited_for_models_that_see_them() -> None:
    config = FrontendConfig(max_images=2)
    three = [MESSAGES.image()] * 3
    async with serving(seeing(), config, put_image=Store().put) as served:
        await post(served, MESSAGES.path, MESSAGES.body(three[1:]))
        error = await refused(served, MESSAGES, MESSAGES.body(three))
        assert error["message"] == "Too much media: 0 document pages + 3 images > 2"
    async with serving(config=config) as served:
        await post(served, MESSAGES.path, MESSAGES.body(three))


async def test_image_that_cannot_be_stored_fails_the_request() -> None:
    store = Store()
    store.error = Unavailable("the bus does not answer")
    body = MESSAGES.body([MESSAGES.image()])
    async with serving(seeing(), put_image=store.put) as served:
        async with (
            aiohttp.ClientSession(served.url) as http,
            http.post(MESSAGES.path, json=body) as answer,
        ):
            assert answer.status == 503
        assert not served.gateway.turns
        store.error = None
        await post(served, MESSAGES.path, body)
    assert store.images == {SEEN.hash: PNG}


async def test_image_is_stored_again_after_half_of_its_time() -> None:
    store = Store()
    async with serving(seeing(), FrontendConfig(image_ttl_s=1e-6), put_image=store.put) as served:
        for _ in range(2):
            await post(served, MESSAGES.path, MESSAGES.body([MESSAGES.image()]))
    assert store.puts[SEEN.hash] == 2


@each_api
async def test_pages_of_a_pdf_are_text_and_images(api: Api) -> None:
    store, gateway = Store(), seeing()
    document = api.pdf(encoded(pdf("First.", "", "Third.", "Fourth.")))
    config = FrontendConfig(pdf_page_images=3)
    async with serving(gateway, config, put_image=store.put) as served:
        for _ in range(2):
            assert api.text(await post(served, api.path, api.body([document]))) == HELLO
    first, again = (turn.conversation.messages[0].parts for turn in gateway.turns)
    assert first == again
    texts = [part.text for part in first if isinstance(part, Text)]
    assert texts == [
        "Title: plan.pdf\n\n[page 1]\nFirst.",
        "\n\n[page 2: no text]",
        "\n\n[page 3]\nThird.",
        "\n\n[page 4]\nFourth.",
    ]
    pages = [part for part in first if isinstance(part, Media)]
    assert [type(part) for part in first] == [Text, Media] * 3 + [Text]
    assert {(page.media_type, page.width, page.height) for page in pages} == {
        ("image/jpeg", 1176, 1568)
    }
    assert {page.hash for page in pages} == set(store.images)
    assert len(store.images) == 3


async def test_scanned_pdf_is_its_images() -> None:
    gateway = seeing()
    async with serving(gateway, put_image=Store().put) as served:
        assert (
            MESSAGES.text(
                await post(served, MESSAGES.path, MESSAGES.body([MESSAGES.pdf(encoded(pdf("")))]))
            )
            == HELLO
        )
    text, page = gateway.turns[0].conversation.messages[0].parts
    assert text == Text("Title: plan.pdf\n\n[page 1: no text]")
    assert isinstance(page, Media)
    assert page.hash


async def test_first_documents_of_a_request_have_the_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later document must not change the prompt of earlier ones."""
    monkeypatch.setattr(pdf_reader, "PAGE_IMAGES", 3)
    gateway = seeing()
    documents = [MESSAGES.pdf(encoded(pdf(f"{name} one.", f"{name} two."))) for name in "abc"]
    async with serving(gateway, put_image=Store().put) as served:
        for count in (1, 2, 3):
            await post(served, MESSAGES.path, MESSAGES.body(documents[:count]))
    one, two, three = (turn.conversation.messages[0].parts for turn in gateway.turns)
    assert two[: len(one)] == one
    assert three[: len(two)] == two
    assert [len(media(turn.conversation)) for turn in gateway.turns] == [2, 3, 3]


async def test_continued_response_has_the_images_of_the_stored_one() -> None:
    store, gateway = Store(), seeing()
    async with serving(gateway, put_image=store.put) as served:
        first = json.loads(
            await post(
                served, RESPONSES.path, RESPONSES.body([RESPONSES.image()]) | {"store": True}
            )
        )
        chained = RESPONSES.body("And?") | {"previous_response_id": first["id"]}
        await post(served, RESPONSES.path, chained)
        assert media(gateway.turns[1].conversation) == [SEEN]
        assert gateway.turns[1].conversation.messages[:1] == gateway.turns[0].conversation.messages


@pytest.mark.parametrize("stream", [False, True])
async def test_background_response_has_its_images(stream: bool) -> None:
    store, gateway = Store(), seeing()
    async with serving(gateway, put_image=store.put) as served:
        body = RESPONSES.body([RESPONSES.image()], stream=stream) | {
            "store": True,
            "background": True,
        }
        answer = await post(served, RESPONSES.path, body)
        if not stream:
            await gateway.opening.wait()
        assert answer
        await served.responses.background.drain()
    assert [media(turn.conversation) for turn in gateway.turns] == [[SEEN]]
    assert store.puts[SEEN.hash] == 1


async def test_every_choice_has_the_images() -> None:
    store, gateway = Store(), seeing()
    async with serving(gateway, put_image=store.put) as served:
        await post(served, CHAT.path, CHAT.body([CHAT.image()]) | {"n": 3})
    assert [media(turn.conversation) for turn in gateway.turns] == [[SEEN]] * 3
    assert store.puts[SEEN.hash] == 1


async def test_compactions_keep_the_images_of_their_turns() -> None:
    store, gateway = Store(), seeing()
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}
    async with serving(gateway, put_image=store.put) as served:
        body = RESPONSES.body([RESPONSES.image()])
        await post(
            served,
            RESPONSES.path,
            {**body, "context_management": [{"type": "compaction", "compact_threshold": 1000}]},
        )
        await post(served, "/v1/responses/compact", {"model": MODEL, "input": body["input"]})
        gateway.steps = lambda: [[finish(0)]]  # no summary: the whole conversation is answered
        await post(
            served,
            MESSAGES.path,
            MESSAGES.body([MESSAGES.image()]) | {"context_management": {"edits": [edit]}},
        )
    assert [media(turn.conversation) for turn in gateway.turns] == [[SEEN]] * 5
    assert store.puts[SEEN.hash] == 1


async def test_every_turn_of_an_answer_with_hosted_tools_has_the_images() -> None:
    store, gateway = Store(), Rounds(FIRST, LAST)
    gateway.cards = [SEEING]
    async with provider() as stub:
        config = FrontendConfig(web_provider=stub.url)
        async with serving(gateway, config, put_image=store.put) as served:
            await post(
                served,
                MESSAGES.path,
                MESSAGES.body([MESSAGES.image()]) | {"tools": [SEARCH], "max_tokens": 500},
            )
    assert [media(turn.conversation) for turn in gateway.turns] == [[SEEN]] * 2


async def test_responses_of_a_connection_have_the_images_of_earlier_ones() -> None:
    store, gateway = Store(), seeing()
    previous: dict[str, Any] = {}
    async with (
        serving(gateway, put_image=store.put) as served,
        aiohttp.ClientSession(served.url) as http,
        http.ws_connect(RESPONSES.path) as ws,
    ):
        for content in ([RESPONSES.image()], "And?"):
            body = {
                name: value for name, value in RESPONSES.body(content).items() if name != "stream"
            }
            await ws.send_json({"type": "response.create", **body, **previous})
            frame = await ws.receive_json(timeout=60)
            while frame["type"] != "response.completed":
                frame = await ws.receive_json(timeout=60)
            previous = {"previous_response_id": frame["response"]["id"]}
    assert [media(turn.conversation) for turn in gateway.turns] == [[SEEN]] * 2


@pytest.mark.parametrize(("card", "sees"), [(CARD, False), (SEEING, True)])
async def test_models_are_listed_with_what_they_see(card: ModelCard, sees: bool) -> None:
    async with (
        serving(FakeGateway(cards=[card])) as served,
        aiohttp.ClientSession(served.url) as http,
    ):
        async with http.get(f"/v1/models/{MODEL}") as answer:
            assert (await answer.json())["capabilities"]["image_input"] == {"supported": sees}
        async with http.get("/codex/models.json") as answer:
            assert (await answer.json())["models"][0]["input_modalities"] == (
                ["text", "image"] if sees else ["text"]
            )


async def test_data_is_not_held_by_a_running_turn() -> None:
    gateway = seeing()
    sources: list[Any] = []
    original = InlineImage.read

    def spy(item: InlineImage) -> Media:
        sources.append(item.source)
        return original(item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineImage, "read", spy)
        async with serving(gateway, put_image=Store().put) as served:
            for api in APIS:
                await post(served, api.path, api.body([api.image()], stream=True))
    assert [source.data for source in sources] == [""] * 3


async def test_one_image_is_decoded_at_a_time_though_clients_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, go = Semaphore(0), Semaphore(0)
    running: list[int] = []

    def slow(data: bytes) -> ImageFacts:
        running.append(1)
        started.release()
        assert go.acquire(timeout=60)
        most.append(len(running))
        running.pop()
        return read_facts(data)

    most: list[int] = []
    monkeypatch.setattr(image_reader, "read_facts", slow)
    async with serving(seeing(), put_image=Store().put) as served:
        asks = [
            asyncio.create_task(
                post(served, CHAT.path, CHAT.body([CHAT.image(encoded(image(side, 1)))]))
            )
            for side in range(1, 5)
        ]
        assert await asyncio.to_thread(started.acquire, timeout=60)
        for ask in asks[:3]:
            ask.cancel()
        await asyncio.wait(asks[:3])
        go.release(4)
        await asks[3]
    assert set(most) == {1}


def test_model_without_vision_that_takes_over_gets_notes() -> None:
    result = Result("c", [Text("Look:"), SEEN])
    conversation = Conversation(
        "m",
        [
            Message("user", [SEEN]),
            Message("assistant", [Call("c", "f", "{}")]),
            Message("tool", [result]),
        ],
    )
    assert media_of(without_images(conversation)) == [Media("image", "image/png", len(PNG))] * 2
