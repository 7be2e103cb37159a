"""Documents for tests, made of bytes."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"

COMPATIBILITY = "http://schemas.openxmlformats.org/markup-compatibility/2006"

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

STYLES = f"""<w:styles xmlns:w="{WORD}">
<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>
<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>
<w:style w:type="paragraph" w:styleId="Title"><w:name w:val="Title"/></w:style>
<w:style w:type="character" w:styleId="Secret"><w:name w:val="Secret"/><w:rPr><w:vanish/></w:rPr></w:style>
<w:style w:type="character" w:styleId="Child"><w:name w:val="Child"/><w:basedOn w:val="Secret"/></w:style>
<w:style w:type="character" w:styleId="Open"><w:name w:val="Open"/><w:basedOn w:val="Child"/>
 <w:rPr><w:vanish w:val="false"/></w:rPr></w:style>
<w:style w:type="character" w:styleId="Loop"><w:name w:val="Loop"/><w:basedOn w:val="Loop"/></w:style>
</w:styles>"""


def paragraph(text: str, style: str = "Normal") -> str:
    """Return a paragraph of WordprocessingML."""
    own = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>'
    return f"<w:p>{own}<w:r><w:t>{text}</w:t></w:r></w:p>"


def relationships(**targets: str) -> str:
    """Return the relationships of a part: kinds, each with its target."""
    lines = (
        f'<Relationship Id="r{n}" Target="{target}" Type="{OFFICE}/relationships/{kind}"/>'
        for n, (kind, target) in enumerate(targets.items())
    )
    namespace = "http://schemas.openxmlformats.org/package/2006/relationships"
    return f'<?xml version="1.0"?><Relationships xmlns="{namespace}">{"".join(lines)}</Relationships>'


def table(*rows: Sequence[str]) -> str:
    """Return a table of WordprocessingML."""
    grid = "<w:tblGrid>" + "<w:gridCol/>" * len(rows[0]) + "</w:tblGrid>"
    lines = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{grid}{''.join(f'<w:tr>{line}</w:tr>' for line in lines)}</w:tbl>"


def write_docx(
    path: Path | IO[bytes],
    *body: str,
    prologue: str = "",
    extra: dict[str, bytes] | None = None,
    footnotes: str = "",
    endnotes: str = "",
    title: str = "",
    main: str = "word/document.xml",
    root: str = "document",
) -> None:
    """Write a DOCX file with a body and notes of WordprocessingML, a title, and other members."""
    namespaces = f'xmlns:w="{WORD}" xmlns:m="{OFFICE}/math" xmlns:mc="{COMPATIBILITY}"'
    document = f"{prologue}<w:{root} {namespaces}><w:body>{''.join(body)}</w:body></w:{root}>"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        package = {"officeDocument": main, "core-properties": "docProps/core.xml"}
        packed.writestr("_rels/.rels", relationships(**package))
        if title:
            packed.writestr("docProps/core.xml", f'<c xmlns:d="d"><d:title>{title}</d:title></c>')
        parts = {"styles": "styles.xml", "footnotes": "footnotes.xml", "endnotes": "endnotes.xml"}
        packed.writestr(f"word/_rels/{Path(main).name}.rels", relationships(**parts))
        for name, notes in (("footnotes", footnotes), ("endnotes", endnotes)):
            packed.writestr(f"word/{name}.xml", f"<w:{name} {namespaces}>{notes}</w:{name}>")
        packed.writestr("word/styles.xml", STYLES)
        packed.writestr(main, document)
        for name, content in (extra or {}).items():
            packed.writestr(name, content)


PICTURE = "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 "


def scan(*pages: str) -> bytes:
    """Return a PDF whose pages have a text, or a picture where that is empty."""
    n = len(pages)
    kids = " ".join(f"{6 + 2 * i} 0 R" for i in range(n))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {n} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< >>",
        f"{PICTURE} /Length 1 >>\nstream\nx\nendstream",
    ]
    for i, text in enumerate(pages):
        content = f"BT /F1 4 Tf 50 780 Td ({text}) Tj ET" if text else "q 500 0 0 700 50 50 cm /P Do Q"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {7 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> /XObject << /P 5 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    return assembled(objects)


def form(*fields: str) -> bytes:
    """Return a PDF of one page with fields, each of which has what it is more than a place on the page."""
    numbers = " ".join(f"{7 + n} 0 R" for n in range(len(fields)))
    content = "BT /F1 12 Tf 50 780 Td (Application) Tj ET"
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [{numbers}] /DA (/F1 12 Tf) >> >>",
        "<< /Type /Pages /Count 1 /Kids [5 0 R] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 6 0 R "
        f"/Annots [{numbers}] /Resources << /Font << /F1 3 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
    ]
    place = "/Type /Annot /Subtype /Widget /P 5 0 R /Rect [120 700 300 720]"
    return assembled([*objects, *(f"<< {place} {field} >>" for field in fields)])


def pdf(pages: Sequence[Sequence[str]], *, title: str = "", outline: Sequence[tuple[str, int]] = ()) -> bytes:
    """Return a PDF with lines of text on its pages, and entries of an outline with the indices of pages."""
    n, first = len(pages), 5
    kids = " ".join(f"{first + 2 * i} 0 R" for i in range(n))
    entries = first + 2 * n
    found = [
        f"<< /Type /Catalog /Pages 2 0 R /Outlines {entries} 0 R >>",
        f"<< /Type /Pages /Count {n} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>",
    ]
    for i, lines in enumerate(pages):
        drawn = "".join(f"({line}) Tj 0 -20 Td " for line in lines)
        content = f"BT /F1 4 Tf 50 780 Td {drawn}ET"
        found += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {first + 2 * i + 1} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    last = entries + len(outline)
    found.append(f"<< /Type /Outlines /First {entries + 1} 0 R /Last {last} 0 R /Count {len(outline)} >>")
    for at, (heading, page) in enumerate(outline, start=entries + 1):
        after = f" /Next {at + 1} 0 R" if at < last else ""
        found.append(
            f"<< /Title ({heading}) /Parent {entries} 0 R /Dest [{first + 2 * page} 0 R /Fit]{after} >>"
        )
    return assembled(found)


def assembled(objects: Sequence[str]) -> bytes:
    """Return a PDF of these objects: the first is the catalog, the fourth the information."""
    text, places = "%PDF-1.7\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n"
    table_of = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R /Info 4 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    return f"{text}xref\n0 {size}\n0000000000 65535 f \n{table_of}{trailer}".encode("latin-1")
