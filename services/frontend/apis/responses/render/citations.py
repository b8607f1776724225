"""Finds the pages that a text cites among those that searches found."""

import re
from collections.abc import Mapping

from services.frontend.apis.responses import wire

_ENDS = r"(?![A-Za-z0-9_/]|[-.?#&=%~+:@][A-Za-z0-9_/%])"
"""Matches where a URL ends: no character follows that would make it longer."""


def url_citations(text: str, titles: Mapping[str, str]) -> list[wire.UrlCitation]:
    """The citations of a text, in its order. `titles`: the titles of pages by URL.

    A citation covers a Markdown link with the URL, or else the URL. Indexes count characters; the
    end is exclusive.
    """
    urls = [url for url in titles if url in text]
    if not urls:
        return []
    citations = []
    for match in _pattern(urls).finditer(text):
        url = match["linked"] or match["bare"]
        citations.append(wire.UrlCitation(match.start(), match.end(), url, titles[url]))
    return citations


def _pattern(urls: list[str]) -> re.Pattern[str]:
    """Matches citations of these URLs, the longest first: one may begin with another."""
    longest_first = sorted(urls, key=len, reverse=True)
    any_url = "|".join(map(re.escape, longest_first))
    return re.compile(
        rf"\[[^\[\]\n]*\]\(<?(?P<linked>{any_url}){_ENDS}>?[^()\n]*\)|(?P<bare>{any_url}){_ENDS}"
    )
