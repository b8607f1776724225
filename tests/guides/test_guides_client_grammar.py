"""Grammars of freeform tools, embedded in JSON strings and in front of closing markers."""

import pytest

from schemas.conversation import Grammar
from services.guides.client_grammar import embedded
from services.guides.json_regex import NotEmbeddable
from tests.guides.random_model import PATCH, ByteTokenizer, in_json, whole
from tests.kit.every import for_each, for_rows

TOKENIZER = ByteTokenizer(())
PATCHES = [
    "*** Begin Patch\n*** Delete File: a\n*** End Patch",
    '*** Begin Patch\n*** Add File: a "b"\\c.py\n+x = "\\n"\n+\ty\n*** End Patch\n',
    "*** Begin Patch\n*** Update File: ä.py\n*** Move to: b\n@@\n-</p>\n+🦊\n*** End of File\n*** End Patch",
]
ARITHMETIC = r"""
// Sums, as in OpenAI's guide.
start: expr
?expr.2: term (SP ADD SP term)* -> add | term
term: factor (SP MUL SP factor)*
factor: INT | "(" expr ")" | WORD~1..2
SP: " "
ADD: "+" | "-"   # a comment
MUL: "*" | "/"
%import common.INT
%import common (WORD, LF)
"""


@for_each(PATCHES)
def test_codex_patches_are_accepted(patch: str) -> None:
    grammar = Grammar("lark", PATCH)
    bare = whole(grammar, in_json=False, closers=("</parameter>",))
    quoted = whole(grammar, in_json=True)
    assert TOKENIZER.accepts(bare, patch)
    assert TOKENIZER.accepts(quoted, in_json(patch))
    begun, returned = patch.replace("*** Begin", "** Begin"), patch.replace("\n", "\r", 1)
    for broken in (begun, f"{patch}\nmore", returned):
        assert not TOKENIZER.accepts(bare, broken)
        assert not TOKENIZER.accepts(quoted, in_json(broken))


def test_bare_text_does_not_contain_the_marker_that_ends_it() -> None:
    patch = PATCHES[1].replace("x = ", "</parameter>")
    grammar = Grammar("lark", PATCH)
    assert TOKENIZER.accepts(whole(grammar, in_json=False), patch)
    assert not TOKENIZER.accepts(whole(grammar, in_json=False, closers=("</parameter>",)), patch)
    assert TOKENIZER.accepts(whole(grammar, in_json=True), in_json(patch))


@for_each([True, False])
def test_features_of_lark_are_embedded(json_string: bool) -> None:
    lark = whole(Grammar("lark", ARITHMETIC), in_json=json_string)
    for text in ("(1 - b) * 3", "ab * 12"):
        assert TOKENIZER.accepts(lark, text)
        assert not TOKENIZER.accepts(lark, text + " +")
    lark = whole(Grammar("lark", 'start: "say \\"hi\\""i /[.]/'), in_json=json_string)
    for text in ('say "hi".', 'SAY "Hi".'):
        assert TOKENIZER.accepts(lark, in_json(text) if json_string else text)


@for_rows(
    [
        ('start: "a".."z"', "range"),
        ('start: a\na[lazy]: "x"', "attributes"),
        ('start: "x"\n%ignore " "', "%ignore"),
        ('%import common.NONE\nstart: "x"', "common.NONE"),
        ('begin: "x"', "no rule start"),
        ("start: /(?=a)b/", "group"),
    ]
)
def test_unsupported_grammars_are_refused(definition: str, match: str) -> None:
    with pytest.raises(NotEmbeddable, match=match):
        embedded(Grammar("lark", definition), "g_", in_json=True)
