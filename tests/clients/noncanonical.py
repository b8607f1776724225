"""Model outputs that no template renders, for each request of a long session: unusual white space
and line ends, numbers and letters that JSON libraries re-encode, reasoning between calls, empty
reasoning, blank text."""

from collections.abc import Callable


def turns(shell: Callable[[str], str]) -> list[list[str]]:
    """The model's outputs for each user request, turn by turn, the last one without a call. The
    prompt opens the reasoning. `shell`: writes a call of the client's shell tool."""
    three = "\n".join(shell(f"echo 7{letter} > 7{letter}") for letter in "abc")
    quoted = shell("""echo '6 "a" \\ <b> & c' >> log.txt""")
    return [
        [
            "  I look first,  \nthen I act. \n</think>\n\n Looking  \n\n\n"
            + shell("echo 1 >> log.txt"),
            "\n</think>\n\nDone. ",
        ],
        [
            "One.\n</think>\n\n"
            + shell("echo 2a >> log.txt")
            + "\n<think>\nTwo.\n</think>\n\n"
            + shell("echo 2b >> log.txt"),
            "Both are there.\n</think>\n\nYes:\n\n\n- a\n- b\n",
        ],
        [
            "</think>\n\n" + shell("echo 3 >> log.txt") + "\n",
            "Again.\n</think>\n\n" + shell("echo 3b >> log.txt"),
            "</think>\n\n3",
        ],
        [
            "Caf\u00e9 \u2013 \U0001f642\n\n\n</think>\n" + shell("echo 4 caf\u00e9 >> log.txt"),
            "\u00fcber\n</think>\n\n\U0001f468\u200d\U0001f469",
        ],
        [
            "Tabs\tand  blanks.\n</think>\n\n \n\n"
            + shell("echo 5 >> log.txt  # 1e2 5000.0")
            + "\n \n",
            "x\n</think>\n\n\t5\t\n",
        ],
        ["Quotes.\n</think>\n\n" + quoted, 'q\n</think>\n\n`6` <b>bold</b> &amp; "x"'],
        ["Three at once.\n</think>\n\n" + three, "ok\n</think>\n\n7."],
        [
            "Lines.\n</think>\n\nText first.\n\n" + shell("echo 8 >> log.txt"),
            "\n\n</think>\n\n```sh\nls\n```\n",
        ],
        [
            f"Long one. {'word ' * 300}\n</think>\n\n" + shell("echo 9 >> log.txt"),
            "fin\n</think>\n\nNine \u2026",
        ],
        ["The end.\n</think>\n\n" + shell("wc -l < log.txt"), "Over.\n</think>\n\nDONE"],
    ]
