"""Puts images into prompts: the text in the place of each, and its place among the prompt's tokens.
Pure."""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.conversation import Conversation, Media
from schemas.errors import EngineFailed
from schemas.events import PromptImage
from schemas.token_ids import pack_ids
from services.images.parts import media_of
from services.templates.wording import IMAGE_SLOT, image_slots, media_note
from services.tokenization.block_keys import TOKEN_ID_BYTES
from services.tokenization.image_processor import Expansion, ImageProcessor


def images_of(conversation: Conversation) -> list[Media]:
    """The images that the model gets, in order."""
    return [media for media in media_of(conversation) if media.hash]


def all_known(conversation: Conversation, processor: ImageProcessor) -> bool:
    """Whether the expansions of all images are known, so that they take no time."""
    return all(processor.knows(media.width, media.height) for media in images_of(conversation))


def show_images(
    text: str,
    conversation: Conversation,
    processor: ImageProcessor | None,
    frame: tuple[str, str] | None,
) -> tuple[str, list[tuple[str, Expansion]]]:
    """Fills the slots in a rendered text, with notes for a model that sees no images (`processor`
    None).

    `frame`: `TemplateTraits.image`. Returns also hash and expansion of each shown image, in order.
    An image that the model's processor refuses becomes a note.
    """
    if IMAGE_SLOT not in text:
        return text, []
    images = images_of(conversation)
    known = {media.hash: media for media in images}
    left = Counter(media.hash for media in images)
    pieces: list[str] = []
    shown: list[tuple[str, Expansion]] = []
    at = 0
    for slot in image_slots(text):
        media = known.get(slot[1])
        if media is None or not left[media.hash]:
            continue  # text of a client, which could make a prompt of any size
        left[media.hash] -= 1
        pieces.append(text[at : slot.start()])
        at = slot.end()
        if processor is None or frame is None:
            pieces.append(media_note(media))
            continue
        try:
            expansion = processor.expansion(media.width, media.height)
        # refused in a result, it would end the session: clients send it again with every request
        except ValueError:
            size = f"its processor takes none of {media.width} x {media.height} pixels"
            pieces.append(media_note(replace(media, problem=size)))
            continue
        pieces += [frame[0], expansion.text, frame[1]]
        shown.append((media.hash, expansion))
    return "".join((*pieces, text[at:])), shown


def place_images(ids: Sequence[int], shown: Sequence[tuple[str, Expansion]]) -> list[PromptImage]:
    """The places of the shown images in the prompt. Raises EngineFailed where the tokenizer made
    other tokens of an expansion than the model's processor."""
    if not shown:
        return []
    packed = pack_ids(ids)
    at = 0
    images: list[PromptImage] = []
    for image, expansion in shown:
        at = packed.find(expansion.ids, at)
        while at % TOKEN_ID_BYTES and at >= 0:
            at = packed.find(expansion.ids, at + 1)
        if at < 0:
            raise EngineFailed(
                "an image's tokens are not in the prompt as the model's processor makes them"
            )
        tokens = len(expansion.ids) // TOKEN_ID_BYTES
        images.append(PromptImage(image, at // TOKEN_ID_BYTES, tokens))
        at += len(expansion.ids)
    return images
