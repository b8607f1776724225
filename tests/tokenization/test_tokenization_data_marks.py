"""Control tokens that data spells, alone or joined with other text, become ordinary text; other
text is unchanged."""

import json
import random
from itertools import product
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from services.templates.jinja import environment
from services.tokenization.data_marks import DataMarks, Piece
from services.tokenization.encoder import Encoder
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.tokenizer_zoo import KINDS

TOKENS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end",
    "[INST]",
    "[/INST]",
    "<think>",
    "</think>",
    "x<hid>",
    "<hid>",
]
LITERALS = [
    *("<|im_start|>user\n", "<|im_end|>\n", "<|", "|>", "<|im_", "[", "INST]", "<hid>"),
    *("\n", "a", " "),
]
FRAGMENTS = [
    token[start:end]
    for token in TOKENS
    for start in (0, 1, 3)
    for end in (2, 4, len(token))
    if start < end
]


@pytest.fixture(scope="module", params=["byte_level", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = KINDS[request.param]()
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in TOKENS[::2]]
    )
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOKENS[1::2]])
    return made


@pytest.fixture(scope="module")
def marks() -> DataMarks:
    return DataMarks(TOKENS, literals=LITERALS)


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer, marks: DataMarks) -> Encoder:
    return Encoder.load(tokenizer, choice="tokenizers", marks=marks)


def control(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    names = {tokenizer.token_to_id(token): token for token in TOKENS}
    return [names[one] for one in ids if one in names]


def any_data(chance: random.Random) -> str:
    some = [*FRAGMENTS, *TOKENS, " ", "\n", "b", "\ud800", "\udc3c"]
    return "".join(chance.choices(some, k=chance.randint(0, 4)))


def test_joined_pieces_never_make_a_control_token(
    tokenizer: Tokenizer, marks: DataMarks, encoder: Encoder
) -> None:
    """The template's texts and data in turn, the data as it is or stripped."""
    for chance in chances("joined", 150):
        whole = hidden = original = ""
        for own in chance.choices(LITERALS, k=chance.randint(1, 5)):
            one, two = any_data(chance), any_data(chance)
            whole += own + marks.data.mark(one).strip() + marks.data.mark(two)
            hidden += own + "\0" * (len(one.strip()) + len(two))
            original += own + one.strip() + two
        ids = list(encoder.encode(whole))
        expected = tokenizer.encode(hidden, add_special_tokens=False).ids
        assert control(tokenizer, ids) == control(tokenizer, expected)
        plain = original if original.isascii() else marks.plain(whole)
        assert encoder.plain(whole) == plain
        assert tokenizer.decode(ids, skip_special_tokens=False).lstrip() == plain.lstrip()
        assert encoder.reference(whole) == encoder.encode(whole)


def test_marks_keep_the_length_and_can_be_removed(marks: DataMarks) -> None:
    for chance in chances("marks", 150):
        text = "".join(chance.choices([*"<|im_endst>[/INSTx \n", *FRAGMENTS], k=12))
        marked = marks.data.mark(text)
        assert len(marked) == len(text)
        assert marks.plain(marked) == text
        assert [token for token in TOKENS if token in marked] == []
    assert marks.data.mark(" \n ").isspace()


def test_keys_and_values_are_marked(marks: DataMarks) -> None:
    data = {"<think>": ["a", {"b": "[INST]"}], "c": 1}
    found = json.dumps(marks.data.mark_json(data), ensure_ascii=False)
    assert marks.plain(found) == json.dumps(data)
    assert [token for token in TOKENS if token in found] == []


def test_only_control_tokens_of_data_are_cut_out(marks: DataMarks) -> None:
    text = "<|im_start|>user\n" + marks.data.mark("a<|im_end|>b <|im_") + "<|im_end|>\n"
    assert marks.pieces(text) == [
        Piece("<|im_start|>user\na"),
        Piece("<|im_end|>", True),
        Piece("b <|im_<|im_end|>\n"),
    ]


def test_middle_of_a_token_that_the_template_completes_is_text(
    tokenizer: Tokenizer, marks: DataMarks, encoder: Encoder
) -> None:
    assert control(tokenizer, [*encoder.encode("<|im_start|>")]) == ["<|im_start|>"]
    assert control(tokenizer, [*encoder.encode(f"<|{marks.data.mark('im_start')}|>")]) == []


def test_token_of_the_template_is_kept_where_data_would_extend_it(marks: DataMarks) -> None:
    assert marks.pieces("<|im_end" + marks.data.mark("|>")) == [Piece("<|im_end"), Piece("|>")]
    assert marks.pieces(marks.data.mark("x") + "<hid>") == [Piece("x"), Piece("<hid>")]


def test_text_of_the_assistant_keeps_tags_that_its_template_reads() -> None:
    marks = DataMarks(TOKENS, kept=["<think>", "</think>"], handled=["<think>", "</think>"])
    assert marks.assistant.mark("<think>a</think>b").startswith("<think>a</think>")
    assert "</think>" not in marks.data.mark("<think>a</think>b")
    assert "<|im_end|>" not in marks.assistant.mark("a</think><|im_end|>")


def test_text_that_a_template_takes_apart_cannot_join() -> None:
    marks = DataMarks(TOKENS, handled=["/no_think"])
    marked = marks.data.mark("<|im_/no_thinkend|> /no_think")
    assert "<|im_end|>" not in marked.replace("/no_think", "")
    assert marks.plain(marked) == "<|im_/no_thinkend|> /no_think"


@for_each(["", "(ensure_ascii=True)", "(indent=2)"])
def test_json_in_a_template_keeps_marks(options: str, marks: DataMarks) -> None:
    data = {"a": 'say "<|im_end|>" \\u003c \U0001f642 \\\\', "<think>": "\u00e9"}
    template = environment().from_string("{{ data | tojson" + options + " }}")
    marked = template.render(data=marks.data.mark_json(data))
    assert "<|im_end|>" not in marked
    assert marks.plain(marked) == template.render(data=data)


def test_without_marks_control_tokens_are_control_tokens(tokenizer: Tokenizer) -> None:
    ids = list(Encoder.load(tokenizer, choice="tokenizers").encode("a<|im_end|>b\ud800"))
    assert control(tokenizer, ids) == ["<|im_end|>"]


def with_normalized_token(kind: str, **options: Any) -> tuple[Tokenizer, Encoder]:
    tokenizer: Tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken("<Norm>", special=True, normalized=True)])
    marks = DataMarks(["<Norm>"], **options)
    return tokenizer, Encoder.load(tokenizer, choice="tokenizers", marks=marks)


@for_rows(
    [
        *product(
            ("byte_level_nfkc_lower", "unigram_nfkc", "wordpiece"),
            ("<NORM>", "\uff1cNorm\uff1e", "<Norm>"),
        )
    ]
)
def test_other_spellings_of_a_normalized_token_are_text(kind: str, spelled: str) -> None:
    tokenizer, encoder = with_normalized_token(kind)
    own = tokenizer.token_to_id("<Norm>")
    assert own is not None
    assert encoder.marks is not None
    marked = encoder.marks.data.mark(f"the {spelled} fox {spelled}{spelled}")
    text = f"<Norm>user a{marked}<Norm> dog"
    ids = [*encoder.encode(text)]
    assert ids == [*encoder.reference(text)]
    assert ids.count(own) == 2
    if kind == "byte_level_nfkc_lower":  # the others have no tokens for all characters
        assert tokenizer.decode(ids, skip_special_tokens=False).lower().count("<norm>") == 5
    plain = tokenizer.encode("<Norm>the fox", add_special_tokens=False).ids
    assert [*encoder.encode("<Norm>the fox")] == plain


def test_normalized_token_joined_of_data_and_template_is_text() -> None:
    tokenizer, encoder = with_normalized_token("byte_level_nfkc_lower", literals=["<No"])
    assert encoder.marks is not None
    ids = [*encoder.encode("<No" + encoder.marks.data.mark("RM> x") + "<Norm>")]
    own = tokenizer.token_to_id("<Norm>")
    assert own is not None
    assert ids.count(own) == 1
