r"""The text of PDF, HTML and DOCX files: the process that `armwise.arms.corpus.readers` starts.

A file may be made to fill the memory of its parser, to loop in it or to crash it, so parsers run in a process
of their own, with a limit of memory, and are killed after a time. It imports nothing of this package, and is
given no variable of the environment that it does not need. It reads one request a line from standard input
and writes one reply a line to standard output, in JSON:

    {"path": "/data/report.pdf", "pages": 10000, ...}
    {"title": "Report", "parts": [{"page": 1, "text": "Sales\n\nThey grew.", "headings": [[0, "Sales"]]}]}
    {"problem": "needs a password"}
"""

import contextlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_HEADING = 200
"""Characters of a title or a heading; the rest is cut off."""

MAX_MEMBERS = 10_000
"""Files within a DOCX file."""

MAX_NESTED = 8
"""Tables within cells of tables."""

SNIFFED_BYTES = 1024
"""Where HTML names its encoding. Source: HTML, 13.2.3.2, Determining the character encoding."""

SKIPPED = frozenset(
    (
        "script",
        "style",
        "noscript",
        "template",
        "head",
        "nav",
        "footer",
        "aside",
        "form",
        "button",
        "select",
        "iframe",
        "object",
        "svg",
        "math",
    )
)
"""Elements of HTML that are not part of its text."""

HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))

LINES = frozenset(("br", "li", "tr", "dt", "dd"))
"""Elements that begin a line."""

BLOCKS = HEADINGS | frozenset(
    (
        "address",
        "article",
        "blockquote",
        "body",
        "caption",
        "details",
        "div",
        "dl",
        "fieldset",
        "figcaption",
        "figure",
        "header",
        "hr",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "ul",
    )
)
"""Elements that begin a paragraph."""

CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)

HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

# PDFium has either character for a hyphen at the end of a line
HYPHENATED = re.compile("[\x02\ufffe\xad]\n?")

CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")

BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")

Limits = dict[str, Any]

Part = dict[str, Any]


class UnreadableError(Exception):
    """A file cannot be read, or is too large."""


class Text:
    """The text of a document, part by part: a part is a page, or the whole of a document without any.

    Args:
        limit: Characters of all parts, at most.
    """

    def __init__(self, limit: int) -> None:
        self.parts: list[Part] = []
        self.heading: str | None = None
        self._limit = self._left = limit

    def add(self, text: str, page: int | None = None, *, heading: bool = False, line: bool = False) -> None:
        """Add a paragraph, or a line to the last one. Raises UnreadableError."""
        text = cleaned(text)
        if not text:
            return
        self._left -= len(text)
        if self._left < 0:
            raise UnreadableError(f"has more than {self._limit:,} characters of text")
        if not self.parts or self.parts[-1]["page"] != page:
            carried = [] if self.heading is None else [[0, self.heading]]
            self.parts.append({"page": page, "text": [], "headings": carried, "length": 0})
        part = self.parts[-1]
        border = "" if not part["text"] else "\n" if line else "\n\n"
        if heading:
            self.heading = " ".join(text.split())[:MAX_HEADING]
            part["headings"].append([part["length"] + len(border), self.heading])
        part["text"].append(border + text)
        part["length"] += len(border) + len(text)

    def joined(self) -> list[Part]:
        """Return the parts."""
        return [
            {"page": part["page"], "text": "".join(part["text"]), "headings": part["headings"]}
            for part in self.parts
        ]


def cleaned(text: str) -> str:
    r"""Return a text without control characters, hyphens of line breaks and long gaps.

    >>> cleaned("infor\x02\nmation\x00\r\n \n\n here ")
    'information\n\nhere'
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return BLANK_LINES.sub("\n\n", CONTROLS.sub("", HYPHENATED.sub("", text))).strip()


def read_pdf(path: Path, limits: Limits, text: Text) -> str:
    """Read the pages, each under the heading that the outline has for it. Returns the title."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise UnreadableError("needs a password" if locked else f"is not a PDF: {error}") from error
    with contextlib.closing(document):
        n_pages = len(document)
        if n_pages > limits["pages"]:
            raise UnreadableError(f"has {n_pages:,} pages: at most {limits['pages']:,} are read")
        headings = dict(_outline(document, limits["pages"]))
        for number in range(n_pages):
            text.heading = headings.get(number, text.heading)
            page = document[number]
            text_page = page.get_textpage()
            text.add(text_page.get_text_bounded(), number + 1)
            text_page.close()
            page.close()
        if n_pages and not text.parts:
            raise UnreadableError("has pages and no text: a scanned document must first go through OCR")
        return str(document.get_metadata_value("Title"))


def _outline(document: Any, limit: int) -> Iterator[tuple[int, str]]:
    """Yield page indices, counted from 0, with the first entry of the outline on each."""
    pages = set[int]()
    for n, entry in enumerate(document.get_toc(max_depth=15)):
        if n >= limit:
            return
        target = entry.get_dest()
        page = None if target is None else target.get_index()
        title = " ".join(cleaned(entry.get_title()).split())[:MAX_HEADING]
        if page is not None and title and page not in pages:
            pages.add(page)
            yield page, title


def read_docx(path: Path, limits: Limits, text: Text) -> str:
    """Read paragraphs and tables, with the pages that Word has laid out last. Returns the title."""
    import docx
    from docx.opc.exceptions import PackageNotFoundError
    from docx.table import Table

    try:
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableError(f"is not a DOCX: {error}") from error
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > limits["unpacked_bytes"]:
        raise UnreadableError(
            f"holds more than {MAX_MEMBERS:,} files or {limits['unpacked_bytes']:,} bytes unpacked"
        )
    try:
        document = docx.Document(os.fspath(path))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise UnreadableError(f"is not a DOCX: {error}") from error
    # what a page is, is known only where Word has laid the document out
    page = 1 if document.element.xpath("boolean(.//w:lastRenderedPageBreak)") else None
    title, styles = "", dict[str | None, str]()
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            text.add("\n".join(_rows(block, 0)), page)
            within = int(block._tbl.xpath("count(.//w:lastRenderedPageBreak)"))  # noqa: SLF001 (no other way)
            page = None if page is None else page + within
            continue
        breaks = [] if page is None else block.rendered_page_breaks
        early = bool(breaks) and breaks[0].preceding_paragraph_fragment is None
        style_id = block._p.style  # noqa: SLF001 (the library would look for its name in every paragraph)
        if style_id not in styles:
            styles[style_id] = (block.style.name if block.style is not None else None) or ""
        style = styles[style_id]
        heading = style == "Title" or style.startswith("Heading")
        title = title or (block.text.strip() if heading else "")
        text.add(block.text, None if page is None else page + early, heading=heading)
        page = None if page is None else page + len(breaks)
    # without this member, the library has a title of its own
    named = any(member.filename == "docProps/core.xml" for member in members)
    return str((named and document.core_properties.title) or title)


def _rows(table: Any, depth: int) -> Iterator[str]:
    """Yield the rows of a table, with those of the tables in its cells."""
    for row in table.rows:
        cells = list(dict.fromkeys(row.cells))  # a merged cell is there once for each column
        yield " | ".join(cell.text.strip().replace("\n", " ") for cell in cells)
        if depth < MAX_NESTED:
            for cell in cells:
                for inner in cell.tables:
                    yield from _rows(inner, depth + 1)


def read_html(path: Path, limits: Limits, text: Text) -> str:
    """Read what a browser shows of the main part of a page. Returns the title."""
    from lxml import etree, html

    content = path.read_bytes()
    if len(content) > limits["html_bytes"]:
        raise UnreadableError(
            f"has {len(content):,} bytes: at most {limits['html_bytes']:,} of HTML are read"
        )
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True)
    root = etree.fromstring(decoded(content).encode(errors="replace"), parser)
    if root is None:  # blank
        return ""
    mains = root.xpath("//main") or root.xpath("//article")
    main = mains[0] if len(mains) == 1 else root
    for kind, words in _paragraphs(etree.iterwalk(main, events=("start", "end"))):
        text.add(words, heading=kind == "heading", line=kind == "line")
    first = next((part["headings"][0][1] for part in text.parts if part["headings"]), "")
    return str(root.findtext(".//head/title") or first)


def decoded(content: bytes) -> str:
    r"""Return a page of HTML as text: by its byte order mark, its own words, or as the Web does.

    >>> decoded(b"caf\xe9"), decoded("\ufeffcaf\xe9".encode("utf-16")), decoded("caf\xe9".encode())
    ('caf\xe9', 'caf\xe9', 'caf\xe9')
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace").lstrip("\ufeff")
    named = CHARSET.search(content[:SNIFFED_BYTES])
    for encoding in ("utf-8-sig", named[1].decode() if named else "", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return content.decode(encoding)
    return content.decode("latin-1")


def _paragraphs(events: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs, lines and headings of the elements of a page."""
    words: list[str] = []
    kind, verbatim = "paragraph", 0
    for event, element in events:
        tag = element.tag if isinstance(element.tag, str) else ""
        begins = event == "start"
        hidden = tag in SKIPPED or "hidden" in element.attrib or HIDDEN.search(element.get("style", ""))
        if tag in BLOCKS or tag in LINES:
            shown = "".join(words).strip()
            if shown:
                yield kind, shown
                words, kind = [], "paragraph"
            if begins:
                kind = "heading" if tag in HEADINGS else "line" if tag in LINES else kind
            if tag == "pre":
                verbatim += 1 if begins else -1
        elif tag in ("td", "th") and begins and words:
            words.append(" | ")
        if begins and hidden:
            events.skip_subtree()  # type: ignore[attr-defined]  # of lxml
            continue
        text = element.text if begins else element.tail
        if text and (words or not text.isspace()):
            words.append(text if verbatim else re.sub(r"\s+", " ", text))
    if shown := "".join(words).strip():
        yield kind, shown


READERS: dict[str, Callable[[Path, Limits, Text], str]] = {
    ".pdf": read_pdf,
    ".docx": read_docx,
    ".html": read_html,
    ".htm": read_html,
}


def read(path: Path, limits: Limits) -> dict[str, Any]:
    """Return the reply for a file."""
    text = Text(limits["chars"])
    try:
        title = READERS[path.suffix.lower()](path, limits, text)
    except UnreadableError as error:
        return {"problem": str(error)}
    except ImportError as error:
        return {"problem": f"needs a library ({error.name}): pip install 'armwise[documents]'"}
    except MemoryError:
        return {"problem": f"needs more than {limits['memory_bytes'] >> 20:,} MiB of memory"}
    except Exception as error:  # noqa: BLE001 (of parsers that are not ours, about files of others)
        return {
            "problem": f"cannot be read: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        }
    return {"title": " ".join(cleaned(title).split())[:MAX_HEADING], "parts": text.joined()}


def limit_memory(n_bytes: int) -> None:
    """Make allocations beyond a limit fail, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not a reply
    for line in sys.stdin.buffer:
        request = json.loads(line)
        limit_memory(request["memory_bytes"])
        replies.write(json.dumps(read(Path(request.pop("path")), request)).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
