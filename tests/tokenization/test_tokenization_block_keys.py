"""Keys of KV blocks."""

import random
from itertools import product

import pytest

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import (
    _STRETCH,
    KeyMemo,
    PromptKeys,
    adapter_salt,
    block_keys,
    pack,
    unpack,
)
from tests.kit.examples import chances

STRETCH = _STRETCH * 2


def any_ids(chance: random.Random) -> list[int]:
    """Few different ones, so that two have the same beginning."""
    return chance.choices([1, 1, 1, 200_000], k=chance.randint(0, 70))


def keys(tokens: list[int], size: int = 4, **more: object) -> list[int]:
    return list(block_keys(pack_ids(tokens), size, **more))  # type: ignore[arg-type]


def test_keys_are_the_same_in_every_process() -> None:
    assert keys([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [8052976908588476977, 16362517228796925090]


def test_as_many_keys_are_equal_as_whole_blocks_and_keys_can_be_continued() -> None:
    for chance in chances("keys", 150):
        one, other, size = any_ids(chance), any_ids(chance), chance.randint(1, 9)
        pairs = [a == b for a, b in zip(one, other, strict=False)]
        common = [*pairs, False].index(False)
        found = [a == b for a, b in zip(keys(one, size), keys(other, size), strict=False)]
        assert sum(found) == common // size
        whole, count = keys(one + other, size), len(one) // size
        parent = whole[count - 1] if count else None
        assert keys((one + other)[count * size :], size, parent=parent) == whole[count:]
        assert unpack(pack(whole)) == whole


def test_salt_separates_prompts() -> None:
    plain, salted = keys([1, 2, 3, 4]), keys([1, 2, 3, 4], salt="a")
    assert plain != salted != keys([1, 2, 3, 4], salt="b")
    assert plain == keys([1, 2, 3, 4], salt="")


def test_no_two_adapters_salts_are_equal_and_without_one_a_salt_stays() -> None:
    """Salts as they are made of tenants and clients' salts, which clients choose freely."""
    tenants, adapters = ["", "a", "adapter"], ["", "a", "b", "a=b", "adapter=a"]
    clients = ["", *adapters[1:], "\n", "a\n", "adapter=a\n", "\nadapter=a\n"]
    salts = {None, *tenants[1:], *(f"{tenant}\n{one}" for tenant in tenants for one in clients)}
    pairs = list(product(adapters, salts))
    made = {adapter_salt(adapter, salt) for adapter, salt in pairs}
    assert len(made) == len(pairs)
    assert {adapter_salt("", salt) for salt in salts} == salts
    assert adapter_salt("sql", "tenant") == "adapter=sql\ntenant", "in every release"


def test_memo_and_lazy_keys_change_no_key() -> None:
    """Prompts with common beginnings of any length, under several salts, with room for few of
    them."""
    for chance in chances("memo", 20):
        memo = KeyMemo(2, max_stretches=5)
        for _ in range(chance.randint(1, 12)):
            head, tail = chance.randint(0, 3), chance.randint(0, 3)
            length, salt = chance.randint(0, 5 * STRETCH), chance.choice((None, "a", "b"))
            packed = pack_ids([head] * length + [tail] * chance.randint(0, STRETCH + 3))
            whole = list(block_keys(packed, 2, salt=salt))
            assert list(memo.keys(packed, salt=salt)) == whole
        made, whole = PromptKeys(KeyMemo(2), packed), list(block_keys(packed, 2))
        assert len(made) == len(whole)
        for _ in range(4):
            start, stop, place = (chance.randint(-330, 330) for _ in range(3))
            assert list(made[start:stop]) == whole[start:stop]
            if -len(whole) <= place < len(whole):
                assert made[place] == whole[place]
            else:
                with pytest.raises(IndexError):
                    made[place]
        assert list(made) == whole
