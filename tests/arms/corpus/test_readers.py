"""Readers give the passages of every kind of source, and name what is wrong with it."""

import gzip
import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import documents, ingest, readers
from armwise.arms.corpus.chunking import chunks
from armwise.arms.corpus.readers import CorpusError, CorpusRecord, DocumentLimits, open_source
from armwise.arms.places import locate_source
from tests.arms.corpus.files import paragraph, write_docx


def read(source: Path | str, start: int = 0) -> list[CorpusRecord]:
    return list(open_source(source).records(start))


def passages(source: Path | str) -> list[Passage]:
    return [passage for record in read(source) for passage in record.passages]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_json_line_is_a_passage_compressed_or_not(tmp_path: Path, suffix: str) -> None:
    lines = '{"id": "a", "title": "T", "text": "one"}\n\n{"_id": 7, "title": null, "text": "zw\u00f6lf"}'
    path = tmp_path / f"docs{suffix}"
    path.write_bytes(gzip.compress(lines.encode()) if suffix.endswith(".gz") else lines.encode())
    assert passages(path) == [Passage("a", "T", "one"), Passage("7", "", "zw\u00f6lf")]
    assert open_source(path).name == "docs"
    assert read(path)[-1].done == open_source(path).total()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{oops", "not JSON"),
        (b'{"id": "a", "text": "\xff"}', "not UTF-8"),
        (b"[1]", "not a JSON object but list"),
        (b'{"text": "words"}', "non-empty 'id' or '_id', got None"),
        (b'{"id": true, "text": "words"}', "non-empty 'id' or '_id', got True"),
        (b'{"id": "a"}', "passage 'a' needs a non-empty 'text', got None"),
        (b'{"id": "a", "text": " \\n"}', "passage 'a' needs a non-empty 'text'"),
        (b'{"id": "a", "text": "words", "title": 3}', "title of passage 'a' is not text: 3"),
        (
            b'{"id": "a", "text": "words", "title": "\\u0000"}',
            "passage 'a' has a NUL in its id, title or text",
        ),
        (b'{"id": "\\u0000", "text": "words"}', "has a NUL in its id, title or text"),
        (b'{"id": "a", "text": [' + b"1, " * 99 + b"1]}", "got " + repr([1] * 100)[:77] + "..."),
    ],
)
def test_a_bad_line_is_named_and_the_next_is_read(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b'{"id": "x", "text": "fine"}\n' + line + b'\n{"id": "y", "text": "fine"}\n')
    good, bad, after = read(path)
    assert (good.problem, after.problem) == ("", "")
    assert bad.where == "docs.jsonl:2"
    assert problem in bad.problem
    assert bad.passages == ()


def test_a_damaged_gzip_file_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"id": "%d", "text": "words"}\n' % n for n in range(5_000)))
    for damaged in (whole[: len(whole) // 2], whole[:10] + b"\xff" * 50 + whole[60:]):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"docs\.jsonl\.gz:\d+: damaged gzip"):
            read(path)
    path.write_bytes(gzip.compress(b'{"id": "1", "text": "words"}\n')[:-4])
    with pytest.raises(CorpusError, match=r"docs\.jsonl\.gz:1: damaged gzip"):
        read(path)


def test_a_byte_order_mark_begins_a_file_alone(tmp_path: Path) -> None:
    line = b'\xef\xbb\xbf{"id": "%d", "text": "words"}\n'
    (tmp_path / "docs.jsonl").write_bytes(line % 1 + line % 2)
    first, second = read(tmp_path / "docs.jsonl")
    assert [one.id for one in first.passages] == ["1"]
    assert "not JSON" in second.problem


def test_a_beir_folder_is_read_from_its_corpus_file(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "title": "", "text": "one"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "what?"}\n')
    (folder / "README.md").write_text("# Not a passage\n")
    assert passages(folder) == [Passage("d1", "", "one")]
    assert open_source(folder).name == "nano"


def test_a_folder_of_texts_is_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "deep.md").write_bytes(b"```\n# a comment\n```\n## The heading ##\r\n\r\nBody.\r\n")
    (tmp_path / "a.txt").write_text("# only a text\n")
    (tmp_path / "plain.md").write_text("no heading\n")
    (tmp_path / "empty.md").write_text(" \n")
    (tmp_path / ".git" / "notes.md").write_text("hidden")
    (tmp_path / ".hidden.md").write_text("hidden")
    (tmp_path / "~$plan.md").write_text("the mark of a document that is open")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found = passages(tmp_path)
    assert [(passage.id, passage.title) for passage in found] == [
        ("a.txt#0", "a"),
        ("b/deep.md#0", "The heading"),
        ("plain.md#0", "plain"),
    ]
    assert found[1].text == "```\n# a comment\n```\n## The heading ##\n\nBody."
    assert [(one.where, one.problem) for one in read(tmp_path) if one.problem] == [
        ("empty.md", "has no text"),
        ("picture.png", "is image/png, which has no text to read"),
    ]
    assert open_source(tmp_path).total() == read(tmp_path)[-1].done == 75


def test_a_text_that_is_not_utf8_is_read_as_windows_1252(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"fine\r\nfine\ncaf\xe9 \x80 5\n")
    (odd,) = read(tmp_path)
    assert [one.text for one in odd.passages] == ["fine\nfine\ncaf\xe9 \u20ac 5"]
    assert [one.id for one in odd.passages] == ["latin.txt#0"]
    assert (odd.where, odd.problem) == ("latin.txt:3", "is not UTF-8, so the file is read as Windows-1252")
    assert odd.left_out, "no reason to end an ingest"
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"caf\xe9"))
    corpus = ingest(tmp_path, tmp_path.parent / "odd", skip_bad=False)
    assert corpus.list_skipped() == []
    assert [one.partition(": ")[0] for one in corpus.remarks()] == ["latin.txt:3", "packed.gz:1"]


def not_read(line: str, encoding: str, reason: str) -> str:
    left_out = f"the whole file is skipped because line {line}"
    return f"{left_out} has a byte that is not {encoding} ({reason}): save it as UTF-8"


@pytest.mark.parametrize("content", [b"fine\ncaf\xe9 \x81", b"fine\ncaf\xe9 \x1b[0m"])
def test_a_text_in_no_known_encoding_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    (bad,) = read(tmp_path)
    assert (bad.where, bad.passages) == ("odd.txt", ())
    assert bad.problem == not_read("2", "UTF-8", "invalid continuation byte")


def test_source_code_data_and_other_texts_are_read(tmp_path: Path) -> None:
    names = [
        "README",
        "a.JSON",
        "a.adoc",
        "a.py",
        "a.rst",
        "a.ts",
        "a.yaml",
        "a.yml",
        "b.min.js",
        "b.toml",
        "c.jsonl",
        "c.sql",
    ]
    for name in names:
        (tmp_path / name).write_text(f'{{"name": "{name}"}}\n')
    found = passages(tmp_path)
    assert [(one.id, one.text) for one in found] == [(f"{name}#0", f'{{"name": "{name}"}}') for name in names]
    assert [one.title for one in passages(tmp_path / "a.rst")] == ["a"]


def test_a_text_of_no_known_ending_is_read(tmp_path: Path) -> None:
    names = ["NEWS.Debian", "bash_README.Debian", "copyright", "sed_README", "x_README.Bugs"]
    for name in names:
        (tmp_path / name).write_text(f"Of {name}: gr\xfc\xdfe\n", encoding="utf-8")
    assert [one.id for one in passages(tmp_path)] == [f"{name}#0" for name in names]
    assert [one.text for one in passages(tmp_path / "copyright")] == ["Of copyright: gr\xfc\xdfe"]
    (tmp_path / "cut").write_bytes(b"a" + "\xe9".encode() * 4096)
    assert "cut#0" in [one.id for one in passages(tmp_path)], "its first bytes end within a character"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("app.log", b"started"),
        ("server.key", b"-----BEGIN EC PARAMETERS-----\n"),
        ("program", b"\x7fELF\0\0"),
        ("nul", b"words\0words"),
        ("latin", b"caf\xe9 au lait"),
        ("codes", b"\x1b\x02\x03\x04words"),
        ("blank", b" \n"),
        ("sheet.xlsx", b"words"),
        ("all.zip", b"words"),
    ],
)
def test_a_file_of_no_known_ending_may_be_left_out(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = read(tmp_path)
    assert found.problem.startswith("is of no format that is read")
    assert found.left_out


def test_what_is_not_read_of_a_folder_is_listed_with_its_reason(tmp_path: Path) -> None:
    for name, content in {
        "drawing.svg": b"<svg><text>words</text></svg>",
        "empty.pdf": b"",
        "empty.csv": b"",
        "names.csv": b"id,text\n",
        "latin.rst": b"caf\x81\xe9",
        "half.txt": "\u20ac".encode("utf-16")[:-1],
        "id_rsa": b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "late.txt": b"a\n" * 40_000 + b"b\0\n",
        "noise.py": b"x = 1\n\0\xff",
        "song.mp3": b"ID3",
        "sheet.xlsx": b"PK",
        "void.txt": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    found = read(tmp_path)
    assert not any(one.passages for one in found)
    formats = ".csv, .tsv, .pdf, .docx, .html, .htm, .xhtml, text, source code; JSON lines by themselves"
    assert {one.where: one.problem for one in found} == {
        "drawing.svg": "is image/svg+xml, which has no text to read",
        "empty.pdf": "is empty",
        "empty.csv": "is empty",
        "names.csv": "has no rows",
        "latin.rst": not_read("1", "UTF-8", "invalid start byte"),
        "half.txt": not_read("1", "UTF-16-LE", "truncated data"),
        "id_rsa": "is a private key, so it is not read",
        "late.txt": "is not text: line 40001 has a NUL",
        "noise.py": "is not text: line 2 has a NUL",
        "song.mp3": "is audio/mpeg, which has no text to read",
        "void.txt": "is empty",
        "sheet.xlsx": f"is of no format that is read ({formats})",
    }
    assert sorted(one.where for one in found if one.left_out) == [
        "drawing.svg", "empty.csv", "empty.pdf", "sheet.xlsx", "song.mp3", "void.txt",
    ]  # fmt: skip


def test_a_text_in_utf16_is_read_by_its_byte_order_mark(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes("\ufeffGr\xfc\xdfe\r\nan alle".encode(encoding))
        assert [one.text for one in passages(tmp_path)] == ["Gr\xfc\xdfe\nan alle"]


def test_a_compressed_text_is_read_as_what_it_is_unpacked(tmp_path: Path) -> None:
    files = {
        "README.gz": b"Read me.",
        "changelog.Debian.gz": b"armwise (1) stable",
        "guide.txt.GZ": "\ufeffGr\xfc\xdfe".encode("utf-16-le"),
        "plan.md.gz": b"---\nallowed_groups: [board]\n---\n# The plan\n\nGo.",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    found = {one.id: (one.title, one.text, one.metadata) for one in passages(tmp_path)}
    assert found == {
        "README.gz#0": ("README", "Read me.", {"path": "README.gz"}),
        "changelog.Debian.gz#0": ("changelog", "armwise (1) stable", {"path": "changelog.Debian.gz"}),
        "guide.txt.GZ#0": ("guide", "Gr\xfc\xdfe", {"path": "guide.txt.GZ"}),
        "plan.md.gz#0": (
            "The plan",
            "# The plan\n\nGo.",
            {"path": "plan.md.gz", "allowed_groups": ["board"]},
        ),
    }
    assert [one.id for one in passages(tmp_path / "README.gz")] == ["README.gz#0"]


def test_compressed_files_that_are_not_read_are_listed(tmp_path: Path) -> None:
    packed = gzip.compress(b"words and more words")
    for name, content in {
        "all.tar.gz": packed,
        "broken.gz": packed[:10] + b"\xff" + packed[11:],
        "cut.txt.gz": packed[:-9],
        "docs.jsonl.gz": gzip.compress(b'{"id": "a", "text": "words"}'),
        "key.gz": gzip.compress(b"-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        "latin.gz": gzip.compress(b"a\ncaf\xe9 au lait\x81"),
        "plain.gz": b"words",
        "prices.csv.gz": gzip.compress(b"text,allowed_groups\nwords,board\n"),
        "program.gz": gzip.compress(b"\x7fELF\0"),
        "summed.gz": packed[:-8] + bytes(8),
        "void.gz": gzip.compress(b""),
    }.items():
        (tmp_path / name).write_bytes(content)
    found = read(tmp_path)
    assert not any(one.passages for one in found)
    unpack = "of compressed files only texts are read, unpack it"
    reasons = {one.where: one.problem for one in found}
    damaged = {name: reasons.pop(name) for name in ("broken.gz", "cut.txt.gz", "plain.gz", "summed.gz")}
    assert all(reason.startswith("is damaged gzip: ") for reason in damaged.values()), damaged
    assert reasons == {
        "all.tar.gz": f"is a compressed archive: {unpack}",
        "docs.jsonl.gz": f"is a compressed .jsonl file: {unpack}",
        "key.gz": "is a private key, so it is not read",
        "latin.gz": not_read("2", "UTF-8", "invalid continuation byte"),
        "prices.csv.gz": f"is a compressed .csv file: {unpack}",
        "program.gz": "is not text: line 1 has a NUL",
        "void.gz": "has no text",
    }


def test_a_compressed_file_is_unpacked_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LIMITS", DocumentLimits(file_bytes=1 << 20))
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a " * (64 << 20)))
    tracemalloc.start()
    (bomb,) = read(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (bomb.problem, bomb.passages) == ("has more than 1,048,576 bytes unpacked", ())
    assert most < 16 << 20
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a\n" * (1 << 19)))
    assert read(tmp_path)[0].problem == "", "it has just as many"


def test_a_text_of_too_many_bytes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LIMITS", DocumentLimits(file_bytes=9))
    (tmp_path / "a.txt").write_text("ten bytes.")
    (tmp_path / "b.txt").write_text("two lines")
    assert [(one.problem, len(one.passages)) for one in read(tmp_path)] == [
        ("has more than 9 bytes", 0),
        ("", 1),
    ]


def test_a_file_of_no_known_format_changes_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one")
    before = open_source(tmp_path).fingerprint()
    (tmp_path / "passages.db.part").write_bytes(b"SQLite")
    for name in ("armwise.yaml", "armwise.yaml.part", "serve_config.yaml"):
        (tmp_path / name).write_text("applications: []")
    assert open_source(tmp_path).fingerprint() == before
    (tmp_path / "b.png").symlink_to("nowhere.png")
    assert [one.where for one in read(tmp_path)] == ["a.md", "b.png", "passages.db.part"]


def test_reading_goes_on_after_any_record(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "text": "words"}) + "\n" for n in range(10)))
    assert [read(path, start) for start in range(11)] == [read(path)[start:] for start in range(11)]


def test_a_fingerprint_changes_with_each_fact_of_a_source(tmp_path: Path) -> None:
    folder, path = tmp_path / "docs", tmp_path / "docs" / "a.md"
    folder.mkdir()
    seen: list[str] = []

    def is_new() -> bool:
        seen.append(open_source(folder).fingerprint())
        return seen[-1] not in seen[:-1]

    def write(path: Path, text: str, second: int) -> None:
        path.write_text(text)
        os.utime(path, ns=(0, second * 10**9 + 1))

    write(path, "one", 1)
    assert is_new()
    assert not is_new()
    write(path, "one!", 1)
    assert is_new(), "size"
    write(path, "two!", 2)
    assert is_new(), "time"
    os.utime(path, ns=(0, 2 * 10**9 + 2))
    assert is_new(), "nanosecond"
    write(folder / "b.md", "three", 3)
    assert is_new(), "a second file"
    write(folder / "b.md", "four", 3)
    assert is_new(), "of the second file"
    (folder / "b.md").rename(folder / "c.md")
    assert is_new(), "name"
    folder = folder.rename(tmp_path / "moved")
    assert is_new(), "place"
    (folder / "d.md").symlink_to("nowhere.md")
    assert is_new(), "what is left out"


def test_a_source_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=r"no corpus at .*nowhere: expected a file, a folder, 'stdlib' or 'language'"
    ):
        open_source(tmp_path / "nowhere")
    for name, problem in (
        ("docs.xlsx", r"is of no format that is read \(\.csv, .*\.pdf"),
        ("a.png", "is image/png"),
    ):
        (tmp_path / name).write_text("a,b")
        with pytest.raises(CorpusError, match=rf"cannot read .*{name}: it {problem}"):
            open_source(tmp_path / name)


@given(st.lists(st.integers(1, 400), max_size=8), st.sampled_from(["\n\n", "\n \n", "\n\n\n"]))
def test_chunks_cover_every_word_in_order_within_bounds(sizes: list[int], gap: str) -> None:
    numbers = iter(range(sum(sizes)))
    text = gap.join(" ".join(str(next(numbers)) for _ in range(size)) for size in sizes)
    pieces = [[int(word) for word in piece.split()] for piece in chunks(text)]
    assert all(piece == list(range(piece[0], piece[-1] + 1)) for piece in pieces)
    assert {word for piece in pieces for word in piece} == set(range(sum(sizes)))
    assert all(len(piece) <= 240 for piece in pieces)
    overlaps = [left[-1] - right[0] + 1 for left, right in pairwise(pieces)]
    assert all(20 <= overlap <= 60 for overlap in overlaps)
    assert (len(pieces) > 1) is (sum(sizes) > 240)


@pytest.mark.parametrize(("opening", "begin"), [(139, 160), (140, 140), (180, 180), (181, 160)])
def test_a_chunk_begins_with_a_paragraph_near_its_overlap(opening: int, begin: int) -> None:
    words = [f"{n}" for n in range(300)]
    paragraphs = words[:opening], words[opening:200], words[200:]
    first, then = chunks("\n\n".join(" ".join(paragraph) for paragraph in paragraphs))
    assert (first.split()[-1], then.split()[0]) == ("199", str(begin))


@pytest.mark.parametrize(("n", "sizes"), [(0, []), (1, [1]), (240, [240]), (241, [200, 81])])
def test_a_text_is_cut_where_it_has_more_than_240_words(n: int, sizes: list[int]) -> None:
    assert [len(piece.split()) for piece in chunks("word " * n)] == sizes


@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_a_line_of_code_is_no_title(tmp_path: Path, fence: str) -> None:
    (tmp_path / "a.md").write_text(f"{fence}\n# a comment\n{fence}\n# The plan\t#\n")
    assert [passage.title for passage in passages(tmp_path)] == ["The plan"]


def test_front_matter_is_metadata_and_not_text(tmp_path: Path) -> None:
    head = (
        "---\ntitle: A plan\nday: 2024-05-06\nlinks: {a: 1}\npath: other.md\nallowed_groups: [board]\n---\n"
    )
    (tmp_path / "plan.md").write_text(f"{head}# The plan\n\nGrow.")
    (tmp_path / "note.txt").write_text(f"{head}Grow.")
    note, plan = passages(tmp_path)
    assert plan == Passage(
        "plan.md#0",
        "The plan",
        "# The plan\n\nGrow.",
        metadata={"title": "A plan", "day": "2024-05-06", "allowed_groups": ["board"], "path": "plan.md"},
    )
    assert (note.text, note.metadata) == (f"{head}Grow.", {"path": "note.txt"})


def test_groups_are_kept_among_too_many_names(tmp_path: Path) -> None:
    names = "".join(f"name{n}: 1\n" for n in range(70))
    (tmp_path / "a.md").write_text(f"---\n{names}allowed_groups: [board]\n---\nThe plan.")
    (passage,) = passages(tmp_path)
    assert passage.metadata["allowed_groups"] == ["board"]
    assert len(passage.metadata) == 65, "64 names of its own, and its path"


@pytest.mark.parametrize("text", ["---\nA rule, and no map.\n---\nMore.", "---\n---\n", "no rule\n---\n"])
def test_a_rule_at_the_beginning_is_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(text)
    assert [passage.text for passage in passages(tmp_path)] == [text.strip()]


@pytest.mark.parametrize(
    "head",
    [
        "allowed_groups: board\n---\n",
        "allowed_groups:\n---\n",
        "allowed_groups: [1]\n---\n",
        "allowed_groups: [board\n---\n",
        "allowed_groups: [board]\n",
        "allowed_groups: [board]\nday: 2024-99-99\n---\n",
        "- allowed_groups: [board]\n---\n",
        "'allowed_groups': [board]\n...\n",
        "a: " + "[" * 2000 + "\nallowed_groups: [board]\n---\n",
        "".join(f"name{n}: 1\n" for n in range(70)) + "allowed_groups: board\n---\n",
    ],
)
@pytest.mark.slow
def test_groups_that_cannot_be_read_are_never_public(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.md").write_text(f"---\n{head}The plan.")
    (record,) = read(tmp_path)
    assert (record.where, record.passages) == ("a.md", ())
    assert "allowed_groups" in record.problem


def test_a_missing_library_is_named_and_changes_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("one")
    before = open_source(tmp_path).fingerprint()
    without_any = tmp_path / ".documents.py"
    without_any.write_text(
        "import sys\nsys.modules.update(lxml=None, pypdfium2=None, webencodings=None)\n"
        f"exec(open({documents.__file__!r}).read())\n"
    )
    monkeypatch.setattr(documents, "__file__", str(without_any))
    monkeypatch.setattr(readers, "missing", lambda: ["lxml"])
    assert open_source(tmp_path).fingerprint() == before
    for name in ("b.html", "b.pdf"):
        (tmp_path / name).write_bytes(b"<p>one")
    write_docx(tmp_path / "b.docx", paragraph("one"))
    _, *bad = read(tmp_path)
    assert [one.where for one in bad] == ["b.docx", "b.html", "b.pdf"]
    assert all("pip install 'armwise[documents]'" in one.problem for one in bad)
    lacking = open_source(tmp_path).fingerprint()
    monkeypatch.setattr(readers, "missing", list)
    assert open_source(tmp_path).fingerprint() != lacking


# -- what stands in a folder and is none of it ---------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """A folder with one file of its own, beside one that it must not reach."""
    (tmp_path / "secret.md").write_text("root:x:0:0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "plan.md").write_text("another secret")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "own.md").write_text("words of its own")
    return folder


def test_a_link_that_leaves_the_folder_is_listed_and_not_read(guarded: Path) -> None:
    (guarded / "a.md").symlink_to("../secret.md")
    (guarded / "b.csv").symlink_to("/etc/passwd")
    (guarded / "c").symlink_to("../elsewhere")
    (guarded / "d.md").symlink_to("e.md")  # a chain, whose last link leaves
    (guarded / "e.md").symlink_to(guarded / ".." / "docs" / ".." / "secret.md")
    found = read(guarded)
    assert [(one.where, len(one.passages), one.problem) for one in found] == [
        ("own.md", 1, ""),
        *((name, 0, "is a link that leaves the folder, and is not read") for name in ("a.md", "b.csv")),
        *((name, 0, "is a link that leaves the folder, and is not read") for name in ("c", "d.md", "e.md")),
    ]
    assert all(one.left_out for one in found[1:])
    assert not found[0].left_out
    assert [one.where for one in read(guarded, 3)] == ["c", "d.md", "e.md"], (
        "reading goes on after any record"
    )


def test_a_folder_with_a_longer_name_is_not_within(guarded: Path) -> None:
    (guarded.parent / "docs-private").mkdir()
    (guarded.parent / "docs-private" / "x.md").write_text("secret")
    (guarded / "x.md").symlink_to("../docs-private/x.md")
    assert [one.where for one in read(guarded) if one.left_out] == ["x.md"]


def test_a_link_within_the_folder_is_read_unless_hidden(guarded: Path) -> None:
    (guarded / "below").mkdir()
    (guarded / "below" / "deep.md").write_text("deep words")
    (guarded / "also.md").symlink_to("below/deep.md")
    (guarded / "again").symlink_to("below")  # the file has a place of its own
    (guarded / ".env").write_text("KEY=1")
    (guarded / "key.txt").symlink_to(".env")
    found = read(guarded)
    assert [one.where for one in found if one.passages] == ["also.md", "below/deep.md", "own.md"]
    assert [(one.where, one.problem) for one in found if one.left_out] == [
        ("key.txt", "is a link to a hidden file, and is not read")
    ]


def test_a_pipe_a_device_a_loop_and_a_lost_link_are_listed(guarded: Path) -> None:
    os.mkfifo(guarded / "pipe.md")
    (guarded / "zeros.txt").symlink_to("/dev/zero")
    (guarded / "loop.html").symlink_to("loop.html")
    (guarded / "lost.pdf").symlink_to("nowhere.pdf")
    (guarded / "lost.bin").symlink_to("nowhere.bin")
    assert {one.where: one.problem for one in read(guarded) if one.left_out} == {
        "pipe.md": "is not a regular file, and is not read",
        "zeros.txt": "is a link that leaves the folder, and is not read",
        "loop.html": "is a link to nothing",
        "lost.pdf": "is a link to nothing",
        "lost.bin": "is a link to nothing",
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_link_that_is_named_is_followed(guarded: Path, suffix: str) -> None:
    line = b'{"_id": "1", "text": "secret"}\n'
    (guarded.parent / "blob").write_bytes(gzip.compress(line) if suffix.endswith(".gz") else line)
    link = guarded / f"corpus{suffix}"
    link.symlink_to("../blob")
    with pytest.raises(CorpusError, match=r"corpus\.jsonl.* links to a file outside the folder"):
        open_source(guarded)
    assert [one.id for one in passages(link)] == ["1"], "who names it means it"
    link.unlink()
    (guarded / "stored").write_bytes((guarded.parent / "blob").read_bytes())
    link.symlink_to("stored")
    assert [one.id for one in passages(guarded)] == ["1"]


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_source_is_not_the_folder_of_the_configuration(blank: str) -> None:
    with pytest.raises(ValueError, match="names no source"):
        locate_source(blank, Path("/srv"))
