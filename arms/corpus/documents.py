r"""The text of PDF, HTML and DOCX files: the process that `armwise.arms.corpus.readers` starts.

A file may be made to fill the memory of its parser, to loop in it or to crash it, so parsers run in a process
of their own, with a limit of memory, and are killed after a time. It imports nothing of this package, and is
given no variable of the environment that it does not need. It reads one request a line from standard input
and writes one reply a line to standard output, in JSON:

    {"path": "/data/report.pdf", "pages": 10000, ...}
    {"title": "Report", "missing": "",
     "parts": [{"page": 1, "text": "Sales\n\nThey grew.", "headings": [[0, "Sales"]]}]}
    {"problem": "needs a password"}

Weighed against it: mammoth and docx2python read DOCX without its pages and with its hidden text; MarkItDown
calls mammoth, installs 29 packages (onnxruntime among them, 230 MB) and has no pages; Docling and
Unstructured install PyTorch (122 and 144 packages).
"""

import contextlib
import ctypes
import json
import os
import re
import sys
import textwrap
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

CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)"
    rb"|\A<\?xml[^>]{0,200}?\sencoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE,
)

DECODED_AS = {"utf-16le": "utf-8", "utf-16be": "utf-8", "x-user-defined": "windows-1252", "gbk": "gb18030"}
"""How a page is decoded whose label means an encoding on the left."""

COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)

HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

# PDFium has either character for a hyphen at the end of a line
HYPHENATED = re.compile("[\x02\ufffe\xad]\n?")

CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")

BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")

OCR = "if scanned, `ocrmypdf --skip-text SCAN.pdf READ.pdf` adds the text by OCR"

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
"""The namespace of WordprocessingML."""

FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"

TEXT_TAGS = (f"{W}t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t")

CHARACTERS = {f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
"""Elements that stand for a character."""

UNSEEN = frozenset(f"{W}{name}" for name in ("del", "moveFrom", "pPr", "rt"))
"""Elements without text that Word shows: what is deleted, settings of a paragraph, the reading of a ruby."""

Limits = dict[str, Any]

Part = dict[str, Any]


class UnreadableDocumentError(Exception):
    """A file cannot be read, or is too large."""


class Text:
    """The text of a document, part by part: a part is a page, or the whole of a document without any.

    Args:
        limit: Characters of all parts, at most.

    Attributes:
        parts: The parts.
        heading: The heading that what is added next is under.
        missing: What of the document could not be read; empty for nothing.
    """

    def __init__(self, limit: int) -> None:
        self.parts: list[Part] = []
        self.heading: str | None = None
        self.missing = ""
        self._limit = self._left = limit

    def add(self, text: str, page: int | None = None, *, heading: bool = False, line: bool = False) -> None:
        """Add a paragraph, or a line to the last one. Raises UnreadableError."""
        text = clean(text)
        if not text:
            return
        self._left -= len(text)
        if self._left < 0:
            raise UnreadableDocumentError(f"has more than {self._limit:,} characters of text")
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

    def join_parts(self) -> list[Part]:
        """Return the parts."""
        return [
            {"page": part["page"], "text": "".join(part["text"]), "headings": part["headings"]}
            for part in self.parts
        ]


def clean(text: str) -> str:
    r"""Return a text without control characters, hyphens of line breaks and long gaps.

    >>> clean("infor\x02\nmation\x00\r\n \n\n here ")
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
        raise UnreadableDocumentError("needs a password" if locked else f"is not a PDF: {error}") from error
    with contextlib.closing(document):
        n_pages = len(document)
        if n_pages > limits["pages"]:
            raise UnreadableDocumentError(f"has {n_pages:,} pages; at most {limits['pages']:,} are allowed")
        document.init_forms()
        headings = dict(_outline(document, limits["pages"]))
        scanned = []
        for number in range(n_pages):
            text.heading = headings.get(number, text.heading)
            with contextlib.closing(document[number]) as page:
                with contextlib.closing(page.get_textpage()) as text_page:
                    words = clean("\n".join([text_page.get_text_bounded(), *_fields(document, page)]))
                text.add(words, number + 1)
                if not words and any(page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE])):
                    scanned.append(number + 1)
        if n_pages and not text.parts:
            raise UnreadableDocumentError(f"has no text on any of its pages ({n_pages:,}); {OCR}")
        if scanned:
            pages = textwrap.shorten(_ranges(scanned), MAX_HEADING, placeholder=" and more")
            text.missing = f"has no text but pictures on pages {pages} of {n_pages:,}; {OCR}"
        return str(document.get_metadata_value("Title"))


def _fields(document: Any, page: Any) -> Iterator[str]:
    """Yield the filled fields of the form on a page, each as a line `name: value`."""
    from pypdfium2 import raw

    form, toggles = document.formenv, (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
    texts = (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
    unseen = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW
    for n in range(raw.FPDFPage_GetAnnotCount(page) if form else 0):
        field = raw.FPDFPage_GetAnnot(page, n)
        kind, value = raw.FPDFAnnot_GetFormFieldType(form, field), ""
        secret = raw.FPDFAnnot_GetFormFieldFlags(form, field) & raw.FPDF_FORMFLAG_TEXT_PASSWORD
        if kind in toggles and raw.FPDFAnnot_IsChecked(form, field):
            value = _field_text(raw.FPDFAnnot_GetFormFieldExportValue, form, field)
        elif kind in texts and not secret:
            value = _field_text(raw.FPDFAnnot_GetFormFieldValue, form, field)
        if value and not raw.FPDFAnnot_GetFlags(field) & unseen:
            label = _field_text(raw.FPDFAnnot_GetFormFieldAlternateName, form, field)
            yield f"{label or _field_text(raw.FPDFAnnot_GetFormFieldName, form, field)}: {value}"
        raw.FPDFPage_CloseAnnot(field)


def _field_text(get: Callable[..., int], form: Any, field: Any) -> str:
    """Return a text that a function of PDFium has of a field of a form."""
    n_bytes = get(form, field, None, 0)
    buffer = (ctypes.c_ushort * (n_bytes // 2))()
    get(form, field, buffer, n_bytes)
    return bytes(buffer).decode("utf-16-le", errors="replace").rstrip("\0").strip()


def _ranges(numbers: Iterable[int]) -> str:
    """Return rising numbers in words.

    >>> _ranges([1, 3, 4, 5, 9])
    '1, 3-5, 9'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def _outline(document: Any, limit: int) -> Iterator[tuple[int, str]]:
    """Yield page indices, counted from 0, with the first entry of the outline on each."""
    pages = set[int]()
    for n, entry in enumerate(document.get_toc(max_depth=15)):
        if n >= limit:
            return
        target = entry.get_dest()
        page = None if target is None else target.get_index()
        title = " ".join(clean(entry.get_title()).split())[:MAX_HEADING]
        if page is not None and title and page not in pages:
            pages.add(page)
            yield page, title


def read_docx(path: Path, limits: Limits, text: Text) -> str:
    """Read what Word shows of a document, with the pages that it has laid out last. Returns the title."""
    import docx
    from docx.opc.exceptions import PackageNotFoundError

    try:
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
    except zipfile.BadZipFile as error:
        raise UnreadableDocumentError(f"is not a DOCX: {error}") from error
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > limits["unpacked_bytes"]:
        raise UnreadableDocumentError(
            f"holds more than {MAX_MEMBERS:,} files or {limits['unpacked_bytes']:,} bytes unpacked"
        )
    try:
        document = docx.Document(os.fspath(path))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise UnreadableDocumentError(f"is not a DOCX: {error}") from error
    word = WordText(document, text)
    for body in document.element.iterchildren(f"{W}body"):
        word.read(body)
    # without this member, the library has a title of its own
    named = any(member.filename == "docProps/core.xml" for member in members)
    return str((named and document.core_properties.title) or word.title)


class WordText:
    """What Word shows of a document: insertions, content controls, results of fields, text boxes and notes.

    Text boxes and notes come after the paragraph that has them. What is deleted or hidden is left out.

    Args:
        document: The document, of python-docx.
        text: Where its text is added.
    """

    def __init__(self, document: Any, text: Text) -> None:
        self.title = ""
        self._text = text
        self._styles = {
            style.get(f"{W}styleId"): style for style in document.styles.element.iter(f"{W}style")
        }
        self._notes = dict(_notes(document))
        # what a page is, is known only where Word has laid the document out
        self._page = 1 if next(document.element.iter(f"{W}lastRenderedPageBreak"), None) is not None else None

    def read(self, container: Any) -> None:
        """Add the paragraphs and tables of a body, a text box or a note. Raises UnreadableError."""
        for block in _find_visible(container, f"{W}p", f"{W}tbl"):
            if block.tag == f"{W}p":
                self._paragraph(block)
            else:
                apart: list[Any] = []
                self._text.add("\n".join(self._rows(block, 0, apart)), self._page)
                self._turn(sum(1 for _ in block.iter(f"{W}lastRenderedPageBreak")))
                self._read_each(apart)

    def _paragraph(self, paragraph: Any) -> None:
        apart: list[Any] = []
        words, breaks, begins_after_one = self._words(paragraph, apart)
        style = self._name(_value(paragraph, "pPr", "pStyle"))
        heading = style == "title" or style.startswith("heading")
        self.title = self.title or (words.strip() if heading else "")
        page = None if self._page is None else self._page + begins_after_one
        self._text.add(words, page, heading=heading)
        self._turn(breaks)
        self._read_each(apart)

    def _read_each(self, apart: Iterable[Any]) -> None:
        for container in apart:
            self.read(container)

    def _turn(self, pages: int) -> None:
        self._page = None if self._page is None else self._page + pages

    def _words(self, paragraph: Any, apart: list[Any]) -> tuple[str, int, bool]:
        """Return the text of a paragraph, its page breaks, and whether the first one is before all text.

        Args:
            paragraph: The paragraph.
            apart: Gets its text boxes and notes.
        """
        words, breaks, begins_after_one = "", 0, False
        kinds = (*TEXT_TAGS, *CHARACTERS, f"{W}lastRenderedPageBreak", f"{W}txbxContent")
        notes = (f"{W}footnoteReference", f"{W}endnoteReference")
        for element in _find_visible(paragraph, *kinds, *notes, hidden=self._is_hidden):
            if element.tag in TEXT_TAGS:
                words += element.text or ""
            elif element.tag == f"{W}lastRenderedPageBreak":
                begins_after_one |= not words.strip()
                breaks += 1
            elif element.tag == f"{W}txbxContent":
                apart.append(element)
            elif element.tag in notes:  # once: a note may refer to itself
                note = self._notes.pop((element.tag, element.get(f"{W}id")), None)
                apart += [] if note is None else [note]
            else:
                words += CHARACTERS[element.tag]
        return words, breaks, begins_after_one

    def _rows(self, table: Any, depth: int, apart: list[Any]) -> Iterator[str]:
        """Yield the rows of a table, with those of the tables in its cells.

        A cell that continues the one above has its text; one over several columns is there once.
        """
        above: dict[int, str] = {}
        for row in _find_visible(table, f"{W}tr"):
            if any(row.find(f"{W}trPr/{W}{name}") is not None for name in ("del", "hidden")):
                continue
            cells, column = list(_find_visible(row, f"{W}tc")), _number(_value(row, "trPr", "gridBefore"), 0)
            texts, inner = [], []
            for cell in cells:
                blocks = list(_find_visible(cell, f"{W}p", f"{W}tbl"))
                lines = [self._words(block, apart)[0] for block in blocks if block.tag == f"{W}p"]
                inner += [block for block in blocks if block.tag == f"{W}tbl"]
                words = "\n".join(lines).strip().replace("\n", " ")
                if cell.find(f"{W}tcPr/{W}vMerge") is not None and not words:
                    words = "" if _value(cell, "tcPr", "vMerge") == "restart" else above.get(column, "")
                above[column] = words
                texts.append(words)
                column += _number(_value(cell, "tcPr", "gridSpan"), 1)
            yield " | ".join(texts)
            for nested in inner if depth < MAX_NESTED else ():
                yield from self._rows(nested, depth + 1, apart)

    def _name(self, style: str) -> str:
        """Return the name of a style in small letters, which is English in any language of Word."""
        return _value(self._styles[style], "name").lower() if style in self._styles else ""

    def _is_hidden(self, run: Any) -> bool:
        """Return whether Word hides a run: by itself, by its style, or by that of its paragraph."""
        vanish = run.find(f"{W}rPr/{W}vanish")
        if vanish is not None:
            return _is_on(vanish)
        paragraph = next(run.iterancestors(f"{W}p"), None)
        style = _value(run, "rPr", "rStyle")
        return self._hides(style) or (
            paragraph is not None and self._hides(_value(paragraph, "pPr", "pStyle"))
        )

    def _hides(self, style: str) -> bool:
        """Return whether a style hides text, or one that it is based on."""
        passed = set()
        while style in self._styles and style not in passed:
            passed.add(style)
            vanish = self._styles[style].find(f"{W}rPr/{W}vanish")
            if vanish is not None:
                return _is_on(vanish)
            style = _value(self._styles[style], "basedOn")
        return False


def _find_visible(
    container: Any, *tags: str, hidden: Callable[[Any], bool] = lambda _: False
) -> Iterator[Any]:
    """Yield the elements below another that have one of some tags, and are not within each other or unseen.

    Args:
        container: The element.
        tags: The tags.
        hidden: Returns whether a run is hidden.
    """
    from lxml import etree

    walk = etree.iterwalk(container, events=("start",))
    next(walk)  # the container
    for _, element in walk:
        again = element.tag == FALLBACK and element.getprevious() is not None
        if again or element.tag in UNSEEN or (element.tag == f"{W}r" and hidden(element)):
            walk.skip_subtree()
        elif element.tag in tags:
            walk.skip_subtree()
            yield element


def _notes(document: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the footnotes and endnotes of a document, each with the tag and the id of its reference."""
    from docx.oxml import parse_xml

    for relationship in document.part.rels.values():
        kind = relationship.reltype.rpartition("/")[2]
        if kind in ("footnotes", "endnotes") and not relationship.is_external:
            kind = kind.removesuffix("s")
            for note in parse_xml(relationship.target_part.blob).iterchildren(f"{W}{kind}"):
                yield (f"{W}{kind}Reference", note.get(f"{W}id")), note


def _value(element: Any, *path: str) -> str:
    """Return the value of a setting of an element; empty where it has none."""
    setting = element.find("/".join(f"{W}{name}" for name in path))
    return "" if setting is None else setting.get(f"{W}val", "")


def _number(value: str, default: int) -> int:
    """Return a count of columns; the default for what is none."""
    return int(value) if value.isdecimal() and len(value) < 5 else default


def _is_on(switch: Any) -> bool:
    return switch.get(f"{W}val") not in ("0", "false", "off")


def read_html(path: Path, limits: Limits, text: Text) -> str:
    """Read what a browser shows of the main part of a page. Returns the title."""
    from lxml import etree, html

    content = path.read_bytes()
    if len(content) > limits["html_bytes"]:
        raise UnreadableDocumentError(
            f"has {len(content):,} bytes; HTML may have at most {limits['html_bytes']:,}"
        )
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True)
    root = etree.fromstring(decode_page(content).encode(errors="replace"), parser)
    if root is None:  # blank
        return ""
    mains = root.xpath("//main") or root.xpath("//article")
    main = mains[0] if len(mains) == 1 else root
    for kind, words in _paragraphs(etree.iterwalk(main, events=("start", "end"))):
        text.add(words, heading=kind == "heading", line=kind == "line")
    first = next((part["headings"][0][1] for part in text.parts if part["headings"]), "")
    return str(root.findtext(".//head/title") or first)


def decode_page(content: bytes) -> str:
    r"""Return a page of HTML as text: by its byte order mark, as UTF-8, by its label, or as the Web does.

    UTF-8 comes before the label, which saved pages often have of another time.

    Source: WHATWG, Encoding, 4.2 Names and labels; HTML, 13.2.3.2 Determining the character encoding.

    >>> decode_page(b"caf\xe9"), decode_page("caf\xe9".encode("utf-16")), decode_page("caf\xe9".encode())
    ('caf\xe9', 'caf\xe9', 'caf\xe9')

    Raises:
        UnreadableError: Browsers do not read its encoding either.
    """
    import webencodings

    with contextlib.suppress(UnicodeDecodeError):
        if not content.isascii():
            return content.decode("utf-8-sig")
    named = CHARSET.search(COMMENT.sub(b"", content[:SNIFFED_BYTES]))
    label = "" if named is None else (named[1] or named[2]).decode("latin-1")
    encoding = webencodings.lookup(label) or webencodings.lookup("windows-1252")
    if encoding.name == "replacement":
        raise UnreadableDocumentError(f"is in {label}, which cannot be read: save it as UTF-8")
    return str(webencodings.decode(content, DECODED_AS.get(encoding.name, encoding))[0])


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
    ".xhtml": read_html,
}


def read(path: Path, limits: Limits) -> dict[str, Any]:
    """Return the reply for a file."""
    text = Text(limits["chars"])
    try:
        title = READERS[path.suffix.lower()](path, limits, text)
    except UnreadableDocumentError as error:
        return {"problem": clean(str(error))}
    except ImportError as error:
        return {"problem": f"needs {error.name}", "module": error.name}
    except MemoryError:
        return {"problem": f"needs more than {limits['memory_bytes'] >> 20:,} MiB of memory"}
    except Exception as error:  # noqa: BLE001 (of parsers that are not ours, about files of others)
        reason = clean(str(error)).partition("\n")[0][:200]
        return {"problem": f"cannot be read: {type(error).__name__}: {reason}"}
    title = " ".join(clean(title).split())[:MAX_HEADING]
    return {"title": title, "parts": text.join_parts(), "missing": text.missing}


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
