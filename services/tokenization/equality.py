"""Compares two encoders on texts that are likely to show a difference, in 0.1 to 0.3 s.

The texts depend only on the tokenizer, so that every start makes the same trials. Short ones mix
unusual with usual text (white space, digits, letters that fold, compose or join, control tokens
whole, cut and joined); long ones repeat them, to use caches and code paths for long input."""

import random
from collections.abc import Iterator

from tokenizers import Tokenizer

from services.tokenization.segments import EncodeText

_WORDS = (
    "\t \n \r\n \r \n\n \t\t \x0b \x0c \x00 \x1c \x7f \x85 "
    "\u00a0 \u1680 \u2003 \u2028 \u2029 \u200b \u200d \u202f \u2060 \u3000 \ufeff \ufffd "
    "'s 'S 're 'LL \u2019s don't '\u017f I'VE '' \" ` \u2581 \u0120 ## </w> <0x0A> "
    "0 12 123 1234 3.14 1,000 \u0663 \u00bd \u00b2 \u2167 \u2460 \U0001d7d9 \uff11 \u096a "
    "caf\u00e9 cafe\u0301 \u212b \u00c5 \ufb01 \u1e9e \u00df \u0130 \u0131 \u01c5 \u0345 \u0149 "
    "\u1fb3 "
    "\uac00 \u1100\u1161 \u304b\u3099 \u304c \u6f22\u5b57 \u3002 \ud55c\uad6d\uc5b4 \u0e01\u0e33 "
    "\u0915\u094d\u0937 "
    "\u0627\u0644 \ufedf \u05e9\u05dc \u202e \u0300 \u20dd \U0001f642 \U0001f468\u200d\U0001f469 "
    "\U0001f1e9\U0001f1ea "
    "\u2764\ufe0f \U00020000 \U0010ffff \ue000 \ufdd0 \u0378 \u00ad \u00b7 \u2014 \u2026 \u00ab $ "
    "\u20ac ^ "
    "aaaa AbC camelCase snake_case __init__ HTTPServer2 x86_64 e.g. :// -> === ... !? \\n <| |>"
)
_UNUSUAL = (" ", "  ", "   ", " \n", "\n ", *_WORDS.split(" "))
_CODE = (
    "def read_file(path: str) -> bytes:\n    with open(path, 'rb') as file:\n"
    "        return file.read()\n\n",
    '{"name": "Bash", "input": {"command": "ls -la | grep \\"x\\" && echo $HOME", "timeout": '
    "120000}}\n",
    "I'll look at the tests first; they've failed since 2024-11-20T12:17:04Z (see #1234, 3.5x "
    "slower).\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- [ ] todo\n  * nested\n\t\tindented\n",
    "+++ b/src/main.rs\n@@ -1,7 +1,7 @@\n-    let x = vec![0u8; 16];\n+    let x = [0u8; 16];\n",
)
_SHORT = 1400
_LONG = (20_000, 60_000)


def difference(tokenizer: Tokenizer, reference: EncodeText, other: EncodeText) -> str | None:
    """Describes the first text for which `other` raises or returns other ids than `reference`;
    None: there is none.

    `other` encodes each text twice, because of its cache.
    """
    for text in trials(tokenizer):
        expected = reference(text)
        for _ in range(2):
            try:
                if other(text) == expected:
                    continue
            except Exception as error:  # any failure of native code is a difference
                return f"{type(error).__name__} for {_shown(text)}"
            return _shown(text)
    return None


def trials(tokenizer: Tokenizer) -> Iterator[str]:
    """The texts, short ones first."""
    source = random.Random("equality")
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    words = _words(tokenizer, source)
    yield ""
    yield from _UNUSUAL
    yield from _CODE
    for token in source.sample(added, min(len(added), 64)):
        for around in ("{}", " {}", "{} ", "a{}b", "{}{}", "\n{}\n"):
            yield around.replace("{}", token)
        yield from (token[:-1], token[1:])
        yield f"  {token}  x {token[:-1]} {token.upper()} {token}"
    for _ in range(_SHORT):
        yield _mixed(source, words, added, source.randrange(1, 14))
    yield "a" * 5000
    yield from (char * 3000 for char in " \n1=")
    yield from (word * 2000 for word in ("\u6f22", "ab1 "))
    yield "\U0001f642" * 1000
    for size in _LONG:
        text = ""
        while len(text) < size:
            if source.random() < 0.6:
                text += source.choice(_CODE)
            else:
                text += _mixed(source, words, added, 20)
        yield text


def _words(tokenizer: Tokenizer, source: random.Random) -> list[str]:
    """Texts of random tokens: they end on and beside the tokenizer's own boundaries."""
    size = tokenizer.get_vocab_size()
    ids = [source.randrange(size) for _ in range(600)]
    words = [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
    return list(filter(None, words))


def _mixed(source: random.Random, words: list[str], added: list[str], pieces: int) -> str:
    made = []
    for _ in range(pieces):
        kind = source.random()
        if kind < 0.45:
            made.append(source.choice(_UNUSUAL))
        elif kind < 0.8 and words:
            made.append(source.choice(words))
        elif kind < 0.87 and added:
            made.append(source.choice(added))
        elif kind < 0.95:
            made.append(source.choice((" ", " ", "\n", "the", "of", "x")))
        else:
            codes = (source.randrange(0x20, 0x3000), source.randrange(0xE000, 0x20000))
            made.append(chr(source.choice(codes)))
    return "".join(made)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
