r"""The text of PDF, HTML and DOCX files: the process that `armwise.arms.corpus.readers` starts.

A file may be made to fill the memory of its parser, to loop in it or to crash it, so parsers run in a process
of their own, with a limit of memory, and are killed after a time. It imports nothing of this package, and is
given no variable of the environment that it does not need. It reads one request a line from standard input
and writes one reply a line to standard output, in JSON:

    {"path": "/data/report.pdf", "pages": 10000, ...}
    {"title": "Report", "missing": "",
     "parts": [{"page": 1, "text": "Sales\n\nThey grew.", "headings": [[0, "Sales"]]}]}
    {"problem": "needs a password"}

PDFium and libxml2 do the work. Libraries that read all formats lost text, guessed encodings or showed what is
hidden on the files of our tests, and are larger than both together.
"""

import contextlib
import itertools
import json
import os
import posixpath
import re
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_HEADING = 200
"""Characters of a title or a heading; the rest is cut off."""

MAX_MEMBERS = 10_000
"""Files within a DOCX file."""

SNIFFED_BYTES = 1024
"""Where HTML names its encoding. Source: HTML, 13.2.3.2, Determining the character encoding."""

SKIPPED = re.compile(
    "script|style|noscript|template|head|nav|footer|aside|form|button|select|iframe|object|svg|math"
)
"""Elements of HTML that are not part of its text."""

HEADINGS = re.compile("h[1-6]")

LINES = re.compile("br|li|tr|dt|dd")
"""Elements that begin a line."""

BLOCKS = re.compile(
    "h[1-6]|address|article|blockquote|body|caption|details|div|dl|fieldset|figcaption|figure|header|hr|main|ol|p"
    "|pre|section|summary|table|ul"
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

CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
"""Elements of WordprocessingML that stand for a character."""

Limits = dict[str, Any]


class UnreadableDocumentError(Exception):
    """A file cannot be read, or is too large."""


class Piece(NamedTuple):
    """A piece of a document.

    Attributes:
        text: The text.
        kind: `paragraph`, `heading` or `line`, which are text; or `title`, `section` and `missing`, which are
            not: a title, the heading of what follows, and what cannot be read.
        page: Number of its page, if it has one.
    """

    text: str
    kind: str = "paragraph"
    page: int | None = None


def clean(text: str) -> str:
    r"""Return a text without control characters, hyphens of line breaks and long gaps.

    >>> clean("infor\x02\nmation\x00\r\n \n\n here ")
    'information\n\nhere'
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return BLANK_LINES.sub("\n\n", CONTROLS.sub("", HYPHENATED.sub("", text))).strip()


def read_pdf(path: Path, limits: Limits) -> Iterator[Piece]:
    """Read the pages as a viewer shows them, forms included, each under the heading of the outline."""
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
        yield Piece(document.get_metadata_value("Title"), "title")
        headings = dict[int, str]()
        for entry in itertools.islice(document.get_toc(max_depth=15), limits["pages"]):
            target = entry.get_dest()
            if target is not None and target.get_index() is not None:
                headings.setdefault(target.get_index(), entry.get_title())
        empty, scanned = True, list[int]()
        for number in range(n_pages):
            yield Piece(headings.get(number, ""), "section")
            if document.formenv:
                with contextlib.closing(document[number]) as page, contextlib.suppress(pypdfium2.PdfiumError):
                    page.flatten()  # so that the values of its form are text
            with contextlib.closing(document[number]) as page:
                with contextlib.closing(page.get_textpage()) as text_page:
                    words = clean(text_page.get_text_bounded())
                yield Piece(words, page=number + 1)
                empty = empty and not words
                if not words and any(page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE])):
                    scanned.append(number + 1)
        if n_pages and empty:
            raise UnreadableDocumentError(f"has no text on any of its pages ({n_pages:,}); {OCR}")
        if scanned:
            pages = textwrap.shorten(_ranges(scanned), MAX_HEADING, placeholder=" and more")
            yield Piece(f"has no text but pictures on pages {pages} of {n_pages:,}; {OCR}", "missing")


def _ranges(numbers: Iterable[int]) -> str:
    """Return rising numbers in words.

    >>> _ranges([1, 3, 4, 5, 9])
    '1, 3-5, 9'
    """
    runs = itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ranges = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)


def read_docx(path: Path, limits: Limits) -> Iterator[Piece]:
    """Read what Word shows: insertions, content controls, text boxes and notes; nothing deleted or hidden.

    Text boxes and notes come after the paragraph that has them.
    """
    try:
        packed = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise UnreadableDocumentError(f"is not a DOCX: {error}") from error
    with packed:
        members = packed.infolist()
        if len(members) > MAX_MEMBERS or sum(one.file_size for one in members) > limits["unpacked_bytes"]:
            raise UnreadableDocumentError(
                f"holds more than {MAX_MEMBERS:,} files or {limits['unpacked_bytes']:,} bytes unpacked"
            )
        package = _read_related(packed, "")
        main = package.get("officeDocument", "")
        body = _tree(packed, main)
        if body is None or body.tag != "document":
            raise UnreadableDocumentError("is not a DOCX: it has no document of Word")
        related = _read_related(packed, main)
        about = _tree(packed, package.get("core-properties", ""))
        title = "" if about is None else about.findtext("title")
        styles = dict[str, Any]()
        if (sheet := _tree(packed, related.get("styles", ""))) is not None:
            styles = {style.get("styleId"): style for style in sheet.iter("style")}
        notes = dict[Any, Any]()
        for kind in ("footnote", "endnote"):
            if (tree := _tree(packed, related.get(f"{kind}s", ""))) is not None:
                _remove_unseen(tree, styles)
                notes |= {(f"{kind}Reference", note.get("id")): note for note in tree.iter(kind)}
    yield Piece(title or "", "title")
    _remove_unseen(body, styles)
    yield from _blocks(body, styles, notes)


def _read_related(packed: zipfile.ZipFile, part: str) -> dict[str, str]:
    """Return the members that a part of a DOCX file refers to, by the kind of their relationship."""
    folder, name = posixpath.split(part)
    tree = _tree(packed, posixpath.join(folder, "_rels", f"{name}.rels"))
    return {
        str(one.get("Type")).rpartition("/")[2]: posixpath.normpath(
            posixpath.join("/", folder, str(one.get("Target")))
        ).lstrip("/")
        for one in (() if tree is None else tree)
    }


def _tree(packed: zipfile.ZipFile, member: str) -> Any:
    """Return the root of a member, all names without their namespaces; None: there is no such member."""
    from lxml import etree

    if member not in packed.namelist():
        return None
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    root = etree.fromstring(packed.read(member), parser)
    for element in root.iter("*"):
        element.tag = etree.QName(element).localname
        for name, value in element.attrib.items():
            element.set(etree.QName(name).localname, value)
    return root


def _remove_unseen(root: Any, styles: dict[str, Any]) -> None:
    """Remove what Word does not show: what is deleted or hidden, and the second form of what has two."""
    from lxml import etree

    rows = [
        row
        for row in root.iter("tr")
        if any(row.find(f"trPr/{how}") is not None for how in ("del", "hidden"))
    ]
    runs = [run for run in root.iter("r") if _is_hidden(run, styles)]
    forms = [form for both in root.iter("AlternateContent") for form in both[1:]]
    for element in (*rows, *runs, *forms):
        element.getparent().remove(element)
    etree.strip_elements(root, "del", "moveFrom", "rt", with_tail=False)


def _is_hidden(run: Any, styles: dict[str, Any]) -> bool:
    """Return whether a run is hidden by itself, or by its style or that of its paragraph."""
    own = run.find("rPr/vanish")
    if own is not None:
        return _is_on(own)
    paragraph = next(run.iterancestors("p"), None)
    names = [_value(run, "rPr/rStyle"), "" if paragraph is None else _value(paragraph, "pPr/pStyle")]
    return any(_hides(name, styles) for name in names)


def _hides(name: str, styles: dict[str, Any]) -> bool:
    """Return whether a style hides text, or one that it is based on."""
    passed = set()
    while name in styles and name not in passed:
        passed.add(name)
        vanish = styles[name].find("rPr/vanish")
        if vanish is not None:
            return _is_on(vanish)
        name = _value(styles[name], "basedOn")
    return False


def _is_on(switch: Any) -> bool:
    return switch.get("val") not in ("0", "false", "off")


def _value(element: Any, path: str) -> str:
    setting = element.find(path)
    return "" if setting is None else setting.get("val", "")


def _nearest(container: Any, *tags: str) -> Iterator[Any]:
    """Yield the elements below another that have one of some tags, and are not within each other."""
    for element in container:
        if element.tag in tags:
            yield element
        else:
            yield from _nearest(element, *tags)


def _blocks(container: Any, styles: dict[str, Any], notes: dict[Any, Any]) -> Iterator[Piece]:
    """Yield the paragraphs and tables of a body, a cell, a text box or a note."""
    apart_tags = ("txbxContent", "footnoteReference", "endnoteReference")
    for block in _nearest(container, "p", "tbl"):
        if block.tag == "tbl":
            for n, row in enumerate(_nearest(block, "tr")):
                cells = (_blocks(cell, styles, notes) for cell in _nearest(row, "tc"))
                texts = (" ".join(" ".join(inner.text for inner in cell).split()) for cell in cells)
                yield Piece(" | ".join(texts), "line" if n else "paragraph")
            continue
        words, apart = "", list[Any]()
        for element in _nearest(block, "t", "pPr", *CHARACTERS, *apart_tags):
            if element.tag == "t":
                words += element.text or ""
            elif element.tag == "txbxContent":
                apart.append(element)
            elif (note := (element.tag, element.get("id"))) in notes:
                apart.append(notes.pop(note))  # once: a note may refer to itself
            else:
                words += CHARACTERS.get(element.tag, "")
        name = _value(block, "pPr/pStyle")
        style = _value(styles[name], "name").lower() if name in styles else ""  # English in every Word
        yield Piece(words, "heading" if style.startswith(("title", "heading")) else "paragraph")
        for other in apart:
            yield from _blocks(other, styles, notes)


def read_html(path: Path, limits: Limits) -> Iterator[Piece]:
    """Read what a browser shows of the main part of a page."""
    from lxml import etree, html

    content = path.read_bytes()
    if len(content) > limits["html_bytes"]:
        raise UnreadableDocumentError(
            f"has {len(content):,} bytes; HTML may have at most {limits['html_bytes']:,}"
        )
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True)
    root = etree.fromstring(decode_page(content).encode(errors="replace"), parser)
    if root is None:  # blank
        return
    mains = root.xpath("//main") or root.xpath("//article")
    yield Piece(root.findtext(".//head/title") or "", "title")
    yield from _paragraphs(etree.iterwalk(mains[0] if len(mains) == 1 else root, events=("start", "end")))


def decode_page(content: bytes) -> str:
    r"""Return a page of HTML as text: by its byte order mark, as UTF-8, by its label, or as the Web does.

    UTF-8 comes before the label, which saved pages often have of another time.

    Source: WHATWG, Encoding, 4.2 Names and labels; HTML, 13.2.3.2 Determining the character encoding.

    >>> decode_page(b"caf\xe9"), decode_page("caf\xe9".encode("utf-16")), decode_page("caf\xe9".encode())
    ('caf\xe9', 'caf\xe9', 'caf\xe9')

    Raises:
        UnreadableDocumentError: Browsers do not read its encoding either.
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


def _paragraphs(events: Iterable[tuple[str, Any]]) -> Iterator[Piece]:
    """Yield the paragraphs, lines and headings of the elements of a page."""
    words: list[str] = []
    kind, verbatim = "paragraph", 0
    for event, element in events:
        tag = element.tag if isinstance(element.tag, str) else ""
        begins = event == "start"
        hidden = (
            SKIPPED.fullmatch(tag) or "hidden" in element.attrib or HIDDEN.search(element.get("style", ""))
        )
        if BLOCKS.fullmatch(tag) or LINES.fullmatch(tag):
            shown = "".join(words).strip()
            if shown:
                yield Piece(shown, kind)
                words, kind = [], "paragraph"
            if begins:
                kind = "heading" if HEADINGS.fullmatch(tag) else "line" if LINES.fullmatch(tag) else kind
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
    yield Piece("".join(words), kind)


READERS: dict[str, Callable[[Path, Limits], Iterator[Piece]]] = {
    ".pdf": read_pdf,
    ".docx": read_docx,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
}


def read(path: Path, limits: Limits) -> dict[str, Any]:
    """Return the reply for a file."""
    try:
        return assemble(READERS[path.suffix.lower()](path, limits), limits["chars"])
    except UnreadableDocumentError as error:
        return {"problem": clean(str(error))}
    except ImportError as error:
        return {"problem": f"needs {error.name}", "module": error.name}
    except MemoryError:
        return {"problem": f"needs more than {limits['memory_bytes'] >> 20:,} MiB of memory"}
    except Exception as error:  # noqa: BLE001 (of parsers that are not ours, about files of others)
        reason = clean(str(error)).partition("\n")[0][:200]
        return {"problem": f"cannot be read: {type(error).__name__}: {reason}"}


def assemble(blocks: Iterable[Piece], limit: int) -> dict[str, Any]:
    r"""Return the parts of a document: its pages, or the whole if it has none.

    Args:
        blocks: The pieces in order.
        limit: Most characters of text.

    Raises:
        UnreadableDocumentError: It has more.

    >>> assemble([Piece("Grow."), Piece("Soon.", "line"), Piece("Costs", "heading")], 99)["parts"]
    [{'page': None, 'text': 'Grow.\nSoon.\n\nCosts', 'headings': [[13, 'Costs']]}]
    """
    title = first = heading = missing = ""
    total = length = 0
    parts: list[dict[str, Any]] = []
    for block in blocks:
        text = clean(block.text)
        line = " ".join(text.split())[:MAX_HEADING]
        if block.kind == "title":
            title = line
        elif block.kind == "missing":
            missing = text
        elif block.kind == "section":
            heading = line or heading
        elif text:
            total += len(text)
            if total > limit:
                raise UnreadableDocumentError(f"has more than {limit:,} characters of text")
            if not parts or parts[-1]["page"] != block.page:
                parts.append({"page": block.page, "text": [], "headings": [[0, heading]] if heading else []})
                length = 0
            part = parts[-1]
            border = "" if not length else "\n" if block.kind == "line" else "\n\n"
            if block.kind == "heading":
                first, heading = first or line, line
                part["headings"].append([length + len(border), line])
            part["text"].append(border + text)
            length += len(border) + len(text)
    for part in parts:
        part["text"] = "".join(part["text"])
    return {"title": title or first, "parts": parts, "missing": missing}


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
