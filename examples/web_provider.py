"""A provider of web search and fetch over a folder of text files: python examples/web_provider.py
FOLDER [PORT]

    turnwire up --web-provider http://127.0.0.1:9300/ --web-fetch

The contract is in docs/hosted-tools.md: one POST for a search, one for a page.
"""

import sys
from pathlib import Path

from aiohttp import web

SITE = "https://docs.example/"
"""The prefix of each file's name, because the model and the user see URLs."""
MOST = 5


def search(pages: dict[str, str], query: str) -> list[dict[str, str]]:
    """Returns the pages with the most words of the query, each with the text around the first
    one."""
    words = query.lower().split()
    scores = {url: sum(word in text.lower() for word in words) for url, text in pages.items()}
    best = sorted((url for url in pages if scores[url]), key=lambda url: -scores[url])[:MOST]
    found = []
    for url in best:
        at = max(
            0, min(pages[url].lower().find(word) % (len(pages[url]) + 1) for word in words) - 200
        )
        found.append(
            {"url": url, "title": url.removeprefix(SITE), "text": pages[url][at : at + 1000]}
        )
    return found


def main(folder: str, port: int) -> None:
    """Serves the Markdown files of a folder."""
    pages = {f"{SITE}{path.name}": path.read_text() for path in sorted(Path(folder).glob("*.md"))}
    if not pages:
        sys.exit(f"{folder} has no Markdown files")

    async def answer(request: web.Request) -> web.Response:
        call = await request.json()
        if call["tool"] == "web_search":
            return web.json_response({"results": search(pages, call["query"])})
        if call["url"] not in pages:
            return web.json_response({"error": "url_not_accessible"}, status=404)
        return web.json_response({"results": [{"url": call["url"], "text": pages[call["url"]]}]})

    app = web.Application()
    app.router.add_post("/", answer)
    web.run_app(
        app,
        host="127.0.0.1",
        port=port,
        print=lambda _: print(f"serving {len(pages)} pages", flush=True),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9300)
