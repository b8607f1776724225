"""Makes small PDFs."""

import zlib

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000020802000000fdd49a730000001149444154789c63f8cfc0004460"
    "e23f03001df003fda03309890000000049454e44ae426082"
)


def pdf(*pages: str, locked: bool = False) -> bytes:
    """A PDF with a line of text on each page. `locked`: it needs a password that nobody has."""
    return pdf_of(
        [zlib.compress(f"BT /F1 12 Tf 20 700 Td ({text}) Tj ET".encode()) for text in pages],
        locked=locked,
    )


def pdf_of(streams: list[bytes], *, locked: bool = False) -> bytes:
    """A PDF with a page for each of these compressed content streams."""
    first = 4
    kids = " ".join(f"{first + 2 * n} 0 R" for n in range(len(streams)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(streams)}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for n, stream in enumerate(streams):
        contents = first + 2 * n + 1
        page = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(f"{page}/Contents {contents} 0 R>>".encode())
        head = b"<</Length %d/Filter/FlateDecode>>stream\n" % len(stream)
        objects.append(head + stream + b"\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    keys = f"/O<{'11' * 32}>/U<{'22' * 32}>"
    lock = f"/Encrypt<</Filter/Standard/V 1/R 2/P -4{keys}>>/ID[<00><00>]" if locked else ""
    trailer = f"trailer<</Size {len(objects) + 1}/Root 1 0 R{lock}>>\nstartxref\n{len(out)}\n%%EOF"
    return (
        out + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table) + trailer.encode()
    )
