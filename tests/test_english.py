"""Plain technical English: odd words and odd phrases do not come back.

CONTRIBUTING.md has the terms that are written instead. Phrases are searched in pages, templates and
string literals (messages, help, descriptions), not in comments.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WORDS = {
    "whoever": "the learner, the caller, a replica",
    "tell": "report, return, show; a progress callback is `on_progress`",
    "tells": "reports, returns, shows",
    "told": "reported; `params`",
    "heard": "applied, received",
    "hears": "applies, receives",
    "lookout": "version watcher",
    "hired": "worker pool",
    "outset": "snapshot",
    "in force": "active",
    "until another word": "until the next promote or rollback",
    "gives way": "lowers its priority",
}
"""What is not written, and what is written instead."""

EXEMPT = {
    "CONTRIBUTING.md": "lists the words",
}

PAGES = [
    *(
        path
        for package in ("agent", "arms", "feedback", "examples")
        for path in (ROOT / package).rglob("*.py")
    ),
    *(path for name in ("agent", "examples") for path in (ROOT / name).rglob("*.html")),
    *(path for path in (ROOT / "docs").rglob("*.md")),
    *ROOT.glob("*.md"),
]


def words_in(text: str) -> list[str]:
    """Return the words of the list that a text contains, in identifiers too.

    `.tell()` of a file is not one, nor is what cannot be told apart.

    >>> words_in("def told(): return file.tell()")
    ['told']
    >>> words_in("two arms cannot be told apart")
    []
    >>> words_in("retell, the_told_words, storyteller")
    ['told']
    """
    plain = text.replace(".tell()", "").replace("_", " ").lower().replace("told apart", "")
    return [word for word in WORDS if re.search(rf"\b{word}\b", plain)]


def test_pages_are_written_in_the_terms_of_the_field() -> None:
    assert len(PAGES) > 500
    found = [
        f"{name}: {word!r}: write {WORDS[word]}"
        for path in PAGES
        if (name := str(path.relative_to(ROOT))) not in EXEMPT
        for word in words_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_setting_is_described_by_a_sentence_that_says_what_it_is() -> None:
    """The reference has an item of a list for each setting."""
    rows = [
        (page.stem, *row.groups())
        for page in (ROOT / "docs/reference/configuration").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if (row := re.match(r"- `(\w+)(?:: [^`]+)?`(?: \(.*?\))?:(.*)", line))
    ]
    assert len(rows) > 250
    wrong = re.compile(r"^ *$|^ (Of|Its|No|None|Never) |[^.]$|\b(is|are) no\b|likewise")
    found = [f"{page}: {key}:{about}" for page, key, about in rows if wrong.search(about)]
    assert not found, "\n".join(found)


def test_a_description_begins_with_what_it_describes_and_not_with_whose_it_is() -> None:
    """As "Seed that shuffles questions into folds." and not "Of the folds."."""
    begins = re.compile(
        r"""^\s+[a-z_]+:[ ](?:Of|Its)[ ]        # an attribute or an argument in a docstring
        |\"\"\"(?:Of|Its)[ ]                    # a constant
        |(?:description|help)=f?"(?:Of|Its)[ ]  # a setting or an option""",
        re.MULTILINE | re.VERBOSE,
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0].strip()}"
        for path in PAGES
        if path.suffix == ".py"
        for match in begins.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


PHRASES = {
    r"likewise": "also, too, in the same way",
    r"in the place of": "instead of",
    r"(?:that|those) of": "repeat the noun, or write 's",
    r"(?:of|by) which(?! arm)": "two sentences",
    r"as are": "two sentences",
    r"one of [^,.;:|]{3,50} each": "name each one",
    r"(?:per|a) core second": "per core and second",
    r"one (?!and|as|at|by|for|from|in|is|of|on|or|than|to|with|without)\w+ an? "
    r"(?:arm|core|decision|key|log|metric|model|policy|process|question|replica|row)": "one ... per ...",
    r"a (?!bit|little|lot)\w+ less(?! than)": "one ... fewer",
    r"alike": "equally, in the same way, both",
    r"beside(?!/)": "next to, compared with, as well as",
    r"(?<!leave it )(?<!leaves it )(?<!let )(?<!chance )alone"
    r"(?! (?:are|can|cannot|could|do|does|has|have|is|was|would)\b)": "only",
    r"where (?:it|there|they) (?:are|is|has|have|was|were) (?:no|none|not)": "if",
    r"where (?:neither|no|none|nothing|one|that|this) (?:is|are|was|were|has|have|does|do|fails?)": "if",
    r"where (?:none|nothing|it is|that is (?:not|so))": "if",
    r"(?<!is )behind it": "in the background",
    r"(?-i:(?:^|(?<=[.!?|] ))Of (?!course|[0-9]))": "begin with what the sentence is about",
}
"""What nobody says, as a pattern between words, and what is written instead."""

SAID = {
    "CHANGELOG.md": "a record of what was written then",
    "arms/llm/prompts.py": "prompts: other words would change answers and their figures",
    "arms/llm/judge.py": "prompts",
    "arms/llm/translate/messages.py": "descriptions of tools, which models read",
    "arms/lab/scoring/correctness.py": "prompts",
    "arms/lab/synthesis/prompting.py": "prompts",
    "agent/proof/receipt.py": "names the option `--beside`",
}
"""Files in which such a phrase may stand, and why."""

FOUND = re.compile(
    "|".join(rf"\b(?P<_{n}>{phrase})\b" for n, phrase in enumerate(PHRASES)), re.IGNORECASE | re.MULTILINE
)


def phrases_in(text: str) -> list[str]:
    """Return what of the list is in a text, each with the words around it and what is written instead.

    >>> phrases_in("Latency is that of the slowest arm. Besides, leave it alone.")
    ["... Latency is that of the slowest arm. ...: write repeat the noun, or write 's"]
    >>> phrases_in("one learner per log; so that often, of course"), phrases_in("Of these, two")[0][:20]
    ([], '... Of these, two ..')
    """
    instead = list(PHRASES.values())
    return [
        f"... {text[max(0, match.start() - 30) : match.end() + 20].strip()} ...: "
        f"write {instead[int((match.lastgroup or '_0')[1:])]}"
        for match in FOUND.finditer(text)
    ]


def prose_of_page(text: str) -> str:
    r"""Return what a page says, a paragraph, an item or a row per line: without code, comments and addresses.

    >>> prose_of_page("A [page](of-which.md) of `y` in\ntwo lines.\n```sh\nbeside\n```\n- one\n- two")
    'A page of x in two lines.\n- one\n- two'
    """
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2[ ]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "x", text)
    text = re.sub(r"!?\[([^]]*)\](?:\([^)]*\)|\[[^]]*\])", r"\1", text)
    lines: list[str] = []
    goes_on = False
    for line in text.splitlines():
        begins = re.match(r"\s*(?:[-*+|#>]|\d+\.)", line)
        if line.strip() and goes_on and not begins:
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
        goes_on = bool(line.strip())
    return "\n".join(lines)


def texts_of_code(source: str) -> Iterator[str]:
    r"""Yield the string literals of code, and those docstrings that are help or describe routes.

    >>> code = "def f():\n 'Not read.'\n raise E(f'no {x!r} beside ' 'it')\n@app.get()\ndef g():\n 'Help.'"
    >>> list(texts_of_code(code))
    ['Help.', 'no {} beside it']
    """
    skipped = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.JoinedStr):
            skipped.update(part for part in node.values if isinstance(part, ast.Constant))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {
                getattr(one.func, "attr", "") for one in node.decorator_list if isinstance(one, ast.Call)
            }
            if names & {"command", "callback", "get", "post", "put", "patch", "delete", "tool"}:
                yield re.sub(r"\s+", " ", ast.get_docstring(node) or "")
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and node not in skipped and " " in str(node.value):
            yield str(node.value)


def text_of_template(source: str) -> str:
    """Return the words that a template shows, those of its attributes included.

    >>> text_of_template('{# no #}<p title="Save it">{% if x %}Run{% endif %} {{ y }}</p><style>p{}</style>')
    'Save it Run x'
    """
    for code in (r"\{#.*?#\}", r"\{%.*?%\}", r"<(script|style)\b.*?</\1>"):
        source = re.sub(code, " ", source, flags=re.DOTALL)
    source = re.sub(r"\{\{.*?\}\}", "x", source, flags=re.DOTALL)
    shown = r'\b(?:title|aria-label|placeholder|alt)="([^"]*)"'
    source = re.sub(r"<[^>]*>", lambda tag: f" {' '.join(re.findall(shown, tag[0]))} ", source)
    return re.sub(r"\s+", " ", source).strip()


@cache
def texts(path: Path) -> tuple[str, ...]:
    """Return what a file says to its readers."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return (prose_of_page(source),)
    return tuple(texts_of_code(source)) if path.suffix == ".py" else (text_of_template(source),)


READ = {
    "pages": [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")],
    "messages": [path for name in ("agent", "arms", "feedback") for path in (ROOT / name).rglob("*.py")],
    "templates": [path for name in ("agent", "examples") for path in (ROOT / name).rglob("*.html")],
}


@pytest.mark.parametrize("kind", READ)
def test_nothing_is_written_that_nobody_would_say(kind: str) -> None:
    assert len(READ[kind]) > 5
    found = [
        f"{name}: {phrase}"
        for path in sorted(READ[kind])
        if (name := str(path.relative_to(ROOT))) not in SAID
        for text in texts(path)
        for phrase in phrases_in(text)
    ]
    assert not found, f"{len(found)} phrases\n" + "\n".join(found)
