"""Tantivy: an embedded full text search engine, with its index in a folder."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.arms import manifest
from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.filters import GROUPS
from armwise.arms.retrievers.collection import (
    FIELDS,
    FORMAT_WITH_WORDS,
    EngineParams,
    FillState,
    Row,
    client,
    engine_kind,
    read_passage,
)
from armwise.arms.retrievers.conditions import FactsDialect, filtered, hash_presence
from armwise.arms.tokenizer import words

STATE = "armwise.json"

ANALYZER = "armwise"

LONGEST_WORD = 40

SPLIT_WORD = r"[^\s_]+"
"""A word for the stemmer; `open_file` is two words."""

HEAP_BYTES = 128 << 20
"""Memory of the writer of the index."""


class TantivyParams(EngineParams):
    """Parameters of an arm over an index of Tantivy."""

    path: str = Field(description="Folder of the indexes; each collection is a folder in it.")
    mode: Literal["lexical"] = Field("lexical", description="Always `lexical`: searches by words.")
    backbone: None = Field(None, description="Always null: its collections have words alone.")
    language: str = Field("english", description="Language of the stemmer.")

    @property
    def place(self) -> str:
        """The folder."""
        return self.path


class TantivyClauses(FactsDialect[Any]):
    """Conditions as queries of Tantivy."""

    def __init__(self, module: Any, schema: Any) -> None:
        self._query, self._occur, self._schema = module.Query, module.Occur, schema

    def match_any(self, facts: Sequence[str]) -> Any:
        """Return the condition that a passage has one of these facts."""
        return self._query.term_set_query(self._schema, "facts", list(facts))

    def every(self, parts: Sequence[Any]) -> Any:
        """Return the conjunction of conditions."""
        return self._query.boolean_query([(self._occur.Must, part) for part in parts])

    def some(self, parts: Sequence[Any]) -> Any:
        """Return the disjunction of conditions."""
        return self._query.boolean_query([(self._occur.Should, part) for part in parts])

    def negated(self, part: Any) -> Any:
        """Return the negation of a condition."""
        return self.without(self._query.all_query(), part)

    def without(self, part: Any, other: Any) -> Any:
        """Return the condition that `part` holds and `other` fails."""
        return self._query.boolean_query([(self._occur.Must, part), (self._occur.MustNot, other)])

    def allowed(self, wanted: Any, query: Query, searcher: Any) -> Any:
        """Return the condition that a passage is `wanted`, passes the filter, and is visible to its caller.

        Hidden passages are excluded, since a condition for the visible ones would be evaluated on most of the
        index.
        """
        if query.where is not None:
            condition = filtered(query.where, self)
            wanted = self.every([wanted, self._query.const_score_query(condition, 0.0)])
        restricted = hash_presence(GROUPS)
        if not searcher.doc_freq("facts", restricted):
            return wanted
        hidden = self.match_any([restricted])
        if query.groups:
            hidden = self.without(hidden, self.match_one(GROUPS, sorted(query.groups)))
        return self.without(wanted, hidden)


class TantivyIndex:
    """An index of Tantivy in a folder."""

    batch = 10_000
    row_format = FORMAT_WITH_WORDS

    def __init__(self, params: TantivyParams) -> None:
        self._module: Any = client("tantivy", "tantivy")
        self._folder = Path(params.path).expanduser() / params.collection
        module = self._module
        self._analyzer = (
            module.TextAnalyzerBuilder(module.Tokenizer.regex(SPLIT_WORD))
            .filter(module.Filter.remove_long(LONGEST_WORD))
            .filter(module.Filter.stemmer(params.language))
            .build()
        )
        self._schema = _schema(module)
        self._clauses = TantivyClauses(module, self._schema)
        self._lock = threading.Lock()
        self._opened: Any = None

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by BM25."""
        module, index = self._module, self._index()
        stems = list(dict.fromkeys(self._analyzer.analyze(_split(query.text))))
        if not stems:
            return []
        term = module.Query.term_query
        any_word = self._clauses.some(
            [term(self._schema, "search", stem, index_option="freq") for stem in stems]
        )
        searcher = index.searcher()
        hits = searcher.search(self._clauses.allowed(any_word, query, searcher), k, count=False).hits
        return [read_passage(_fields(searcher.doc(address)), score) for score, address in hits]

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Raise ArmError: Tantivy has no vectors."""
        del vector, query, k
        raise ArmError("Tantivy has no vectors")

    def _index(self) -> Any:
        """Return the index. Raises ArmError if it is missing or damaged."""
        with self._lock:
            if self._opened is None:
                self._require_whole()
                if not self._there():
                    raise ArmError(f"no index in {self._folder}: armwise ingest --into this arm")
                self._opened = self._module.Index(self._schema, str(self._folder))
                self._opened.register_tokenizer(ANALYZER, self._analyzer)
            return self._opened

    def create(self, dim: int | None) -> None:
        """Create the index."""
        del dim
        self._folder.mkdir(parents=True, exist_ok=True)
        self._module.Index(self._schema, str(self._folder))

    def problems(self, *, contents: bool) -> list[str]:
        """Return the files that changed since the index was filled; empty while it is being filled."""
        if not (self._folder / manifest.MANIFEST).exists():
            return []
        return manifest.problems(self._folder, contents=contents)

    def discard(self) -> None:
        """Remove the folder."""
        self._opened = None
        shutil.rmtree(self._folder)

    def _require_whole(self) -> None:
        """Check the sizes of the files. Raises ArmError if the folder is damaged."""
        if problems := self.problems(contents=False):
            what = f"the index in {self._folder}: {', '.join(problems)}"
            raise ArmError(f"{what}; `armwise ingest --into` this arm fills it again")

    def state(self) -> FillState | None:
        """Return the state that was stored last. Raises ArmError if a file is damaged."""
        self._require_whole()
        path = self._folder / STATE
        return FillState.loaded(path.read_bytes()) if path.exists() else None

    def keep(self, state: FillState) -> None:
        """Store a state in the folder of the index; if it is complete, also the digests of the files."""
        (self._folder / manifest.MANIFEST).unlink(missing_ok=True)
        unfinished = self._folder / f"{STATE}.part"
        unfinished.write_text(state.dumped(), encoding="utf-8")
        unfinished.replace(self._folder / STATE)
        if state.version == state.next:
            files = (path.name for path in self._folder.iterdir() if path.is_file())
            manifest.write(self._folder, names=[name for name in files if not name.endswith(".lock")])

    def count(self) -> int:
        """Return the number of documents."""
        return int(self._searcher().num_docs) if self._there() else 0

    def _there(self) -> bool:
        return self._folder.is_dir() and bool(self._module.Index.exists(str(self._folder)))

    def _searcher(self) -> Any:
        index = self._index()
        index.reload()
        return index.searcher()

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of documents."""
        searcher = self._searcher()
        id_query = self._module.Query.term_set_query(self._schema, "id", list(ids))
        documents = [
            searcher.doc(at) for _, at in searcher.search(id_query, max(1, len(ids)), count=False).hits
        ]
        return {document.get_first("id"): document.get_first("digest") for document in documents}

    def ids(self) -> Iterator[str]:
        """Yield every id."""
        # by a query: the terms of deleted documents remain until their segment is merged
        present = self._module.Query.all_query()
        yield from (name for name, _ in self._searcher().terms_with_prefix("id", "", present))

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace documents, and commit."""
        documents = [{**row.document, "search": _split(row.search), "facts": row.facts} for row in rows]
        self._change([row.passage.id for row in rows], documents)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents, and commit."""
        self._change(ids, [])

    def _change(self, gone: Sequence[str], documents: Sequence[dict[str, Any]]) -> None:
        writer = self._index().writer(heap_size=HEAP_BYTES, num_threads=1)
        for name in gone:
            writer.delete_documents_by_term("id", name)
        for document in documents:
            writer.add_document(self._module.Document.from_dict(document, self._schema))
        writer.commit()
        writer.wait_merging_threads()

    def finish(self) -> None:
        """Make the written documents visible to this process."""
        self._index().reload()


def _split(text: str) -> str:
    """Return the words of a text, separated by blanks."""
    return " ".join(words(text))


def _schema(module: Any) -> Any:
    made = module.SchemaBuilder()
    made.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    made.add_text_field("search", tokenizer_name=ANALYZER, index_option="freq")
    made.add_text_field("facts", tokenizer_name="raw", index_option="basic")
    for name in ("title", "text", "metadata", "digest"):
        made.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
    return made.build()


def _fields(document: Any) -> dict[str, Any]:
    return {name: document.get_first(name) for name in FIELDS}


KIND = engine_kind("tantivy", "Tantivy", TantivyParams, TantivyIndex, {"path": "/path/of/tantivy"})
