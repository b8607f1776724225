"""Finds the pages that a text cites: those of this answer's searches whose URLs the model wrote. Pure."""

import re
from collections.abc import Mapping
from typing import Any

_ENDS = r"(?![A-Za-z0-9_/]|[-.?#&=%~+:@][A-Za-z0-9_/%])"
"""Behind a URL: nothing that makes it a longer one."""


def url_citations(text: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """The `url_citation` annotations of a text, in its order. `titles`: of pages, by URL.

    A citation covers a Markdown link with the URL, or else the URL. Indexes count characters; the end is exclusive.
    """
    written = [url for url in titles if url in text]
    if not written:
        return []
    urls = "|".join(map(re.escape, sorted(written, key=len, reverse=True)))
    pattern = re.compile(rf"\[[^\[\]\n]*\]\(<?(?P<linked>{urls}){_ENDS}>?[^()\n]*\)|(?P<bare>{urls}){_ENDS}")
    found = []
    for match in pattern.finditer(text):
        url = match["linked"] or match["bare"]
        place = {"start_index": match.start(), "end_index": match.end()}
        found.append({"type": "url_citation", **place, "url": url, "title": titles[url]})
    return found
