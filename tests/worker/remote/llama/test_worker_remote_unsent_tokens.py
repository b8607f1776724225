"""Tokens that a server does not send are found in its text, or are an error."""

import random
import time
from collections.abc import Iterator

import pytest

from services.tokenization.detokenizer import Vocabulary
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.llama.unsent_tokens import UnsentTokens
from tests.worker.fake_llama_server import TEXT, byte_tokenizer, is_cut


@pytest.mark.parametrize("cuts", [0, 12, 40])
def test_random_cuts_are_found_again_or_are_an_error(cuts: int) -> None:
    """With `cuts` tokens beside single bytes, so that some texts have several readings."""
    rng = random.Random(cuts)
    outcomes = [0, 0]
    for _ in range(40):
        data = "".join(rng.choices(TEXT, k=30)).encode()
        starts = rng.choices(range(len(data)), k=cuts)
        some = {data[start : start + rng.randint(2, 4)] for start in starts}
        pieces = sorted({bytes([byte]) for byte in TEXT.encode()} | some)
        unsent = UnsentTokens(Vocabulary(byte_tokenizer(pieces)))
        for text, tokens in _stream(data, pieces, rng):
            *before, last = tokens
            try:
                assert unsent.find(text, last, len(before)) == before
                outcomes[0] += 1
            except BadAnswer:
                outcomes[1] += 1
    assert outcomes[0] > 500
    assert bool(outcomes[1]) == bool(cuts)


def _stream(
    data: bytes, pieces: list[bytes], rng: random.Random
) -> Iterator[tuple[str, list[int]]]:
    """What is sent of `data`, cut into random tokens: texts, and the tokens of each."""
    text, tokens = b"", []
    while data:
        token = rng.choice([n for n, piece in enumerate(pieces) if data.startswith(piece)])
        data = data.removeprefix(pieces[token])
        text += pieces[token]
        tokens.append(token)
        if not is_cut(text):
            yield text.decode(), tokens
            text, tokens = b"", []


def test_text_with_countless_readings_is_an_error_at_once() -> None:
    """Single bytes and pairs: as many readings as there are ways to choose the pairs."""
    text = "🙂" * 128
    data = text.encode()
    pairs = {data[start : start + 2] for start in range(4)}
    pieces = sorted({bytes([byte]) for byte in data} | pairs)
    unsent = UnsentTokens(Vocabulary(byte_tokenizer(pieces)))
    last = pieces.index(data[-1:])
    before = time.process_time()
    for count, how in ((300, "several readings"), (10, "no reading"), (1 << 60, "no reading")):
        with pytest.raises(BadAnswer, match=how):
            unsent.find(text, last, count)
    with pytest.raises(BadAnswer, match="no reading"):
        unsent.find(text * 1000, last, 400)
    assert time.process_time() - before < 10
