"""Reads the text of one PDF: a program with base64 on standard input and a JSON object on standard
output.

It is a process of its own because PDFs come from anyone and PDFium is a large C++ library: a
document that takes too much time or memory, or crashes the library, ends only this process.
`pdf_reader` starts it. It imports nothing else of this project, so that it starts quickly.

Arguments: maximum pages, maximum characters, CPU seconds, bytes of memory, maximum images. Output:
a `PdfContent`.
"""

import base64
import binascii
import io
import json
import sys
from typing import Any

import pypdfium2
from pypdfium2 import PdfiumError, raw

from services.frontend.media.process_limits import limit_cpu, limit_process

_NON_TEXT = str.maketrans("", "", "\x00\x02\ufffe\uffff")
"""Removes code points that PDFium inserts for hyphens at line ends, and code points that are not
characters."""
_LONG_SIDE = 1568
"""Pixels of a page's image. Vision models reduce larger ones."""
_MAX_SCALE = 3.0
"""Pixels per point of small pages."""


def main(
    max_pages: int, max_chars: int, cpu_s: int, memory_bytes: int, max_images: int
) -> dict[str, Any]:
    """Reads the PDF on standard input; returns the output."""
    try:
        data = binascii.a2b_base64(sys.stdin.buffer.read(), strict_mode=True)
    except ValueError:
        return {"problem": "not valid base64"}
    limit_process(memory_bytes + 4 * len(data))
    limit_cpu(cpu_s)
    try:
        return _read(data, max_pages, max_chars, max_images)
    except PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            return {"problem": "protected by a password"}
        return {"problem": "not a readable PDF"}
    except MemoryError:
        return {"problem": "too large to read"}


def _read(data: bytes, max_pages: int, max_chars: int, max_images: int) -> dict[str, Any]:
    pages: list[str] = []
    images: list[str] = []
    size = 0
    with pypdfium2.PdfDocument(data) as document:
        count = len(document)
        for index in range(min(count, max_pages)):
            text = _page_text(document, index)[: max_chars - size]
            size += len(text)
            if text:
                pages.append(f"[page {index + 1}]\n{text}")
            else:
                pages.append(f"[page {index + 1}: no text]")
            if index < max_images:
                images.append(_page_image(document, index))
            if size == max_chars:
                break
    if not size and not any(images):
        return {"problem": "no text in it"}
    if size == max_chars:
        pages.append(f"[cut here, on page {len(pages)} of {count}]")
    elif len(pages) < count:
        pages.append(f"[pages {len(pages) + 1} to {count} are left out]")
    pages_without_image = pages[len(images) :]
    return {
        "pages": [*zip(pages, images, strict=False)],
        "text": "\n\n".join(pages_without_image),
    }


def _page_text(document: pypdfium2.PdfDocument, index: int) -> str:
    try:
        page = document[index]
    except PdfiumError:  # one damaged page of many
        return ""
    text_page = page.get_textpage()
    text: str = text_page.get_text_bounded()
    text_page.close()
    page.close()
    lines = text.translate(_NON_TEXT).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip()


def _page_image(document: pypdfium2.PdfDocument, index: int) -> str:
    try:
        page = document[index]
    except PdfiumError:
        return ""
    scale = min(_MAX_SCALE, _LONG_SIDE / max(page.get_size()))
    out = io.BytesIO()
    page.render(scale=scale).to_pil().convert("RGB").save(out, "JPEG", quality=90)
    page.close()
    return base64.b64encode(out.getvalue()).decode()


if __name__ == "__main__":
    result = main(*map(int, sys.argv[1:6]))
    sys.stdout.buffer.write(json.dumps(result).encode())
