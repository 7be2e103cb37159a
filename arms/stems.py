"""Words of a keyword index: stems in the language of its source, so that "invoice" finds "Invoices".

The names of programs, parts and products are indexed as they are written (`armwise.arms.tokenizer`).

Source: Porter 2001, Snowball: a language for stemming algorithms, https://snowballstem.org.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Literal

from armwise.arms.tokenizer import (
    CACHED_RUNS,
    STOP_WORDS,
    VERSION,
    RunReader,
    StopWords,
    read_run,
    read_runs,
    words,
)

Language = Literal[
    "none", "czech", "danish", "dutch", "english", "finnish", "french", "german", "hungarian", "italian",
    "norwegian", "polish", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
]  # fmt: skip
"""Language of the stems; `none` leaves every word as it is."""

CACHED_STEMS = 1 << 17
"""Most words of a language whose stems are kept: more than most sources have."""

SAMPLE = 500
"""Passages from which the language of a source is found."""

FREQUENT: dict[Language, str] = {
    "czech": "je se na v že s z do to ale jako by pro nebo",
    "danish": "og i at det er en til af på for ikke den der med",
    "dutch": "de het een en van is dat niet te met voor zijn op ook",
    "english": "the of and to in is that for with was as by or are",
    "finnish": "ja on ei että se oli ovat mutta kun tai myös joka ole hän",
    "french": "le la les des et est une dans que pour pas du au qui",
    "german": "der die das und ist nicht ein eine den von zu mit auf für",
    "hungarian": "a az és hogy nem is egy ez van volt meg csak vagy de",
    "italian": "il la che di è e un una per non con del della sono",
    "norwegian": "og i det er en til av på for ikke som å med har",
    "polish": "i w na nie się z do jest to że o jak przez oraz",
    "portuguese": "o a os as e é um uma que para com não do da",
    "romanian": "și în de la este un o nu cu pe care din pentru sunt",
    "russian": "и в не на что с по это как его к от для из",  # noqa: RUF001 - they are Russian
    "spanish": "el la los las y es una que por con para del se en",
    "swedish": "och i att det är en till av på för inte den som med",
    "turkish": "ve bir bu da de için ile olan olarak çok gibi daha ne en",
}
"""Fourteen of the most frequent words of each language."""


def find_index_version() -> str:
    """Return the version of the words of an index, part of its identity: a package may change its stems."""
    return f"{VERSION}-{version('PyStemmer')}"


def index_words(
    text: str, language: Language, stop_words: StopWords = "none", *, question: bool = False
) -> list[str]:
    """Return the words of a text as an index has them: stems, and names in full.

    Args:
        text: The text.
        language: Language of the stems, that of the index.
        stop_words: Words to leave out.
        question: Whether to add the words themselves, for names that are written without capitals.

    >>> index_words("Invoices of parseInvoices", "english", "english")
    ['invoic', 'pars', 'invoic', 'parseinvoices']
    """
    return read_runs(text, _reader(language, stop_words, question))


@cache
def _reader(language: Language, stop_words: StopWords, question: bool) -> RunReader:
    left_out, stem = STOP_WORDS[stop_words], _stemmer(language)

    @lru_cache(CACHED_RUNS)
    def read(run: str) -> tuple[str, ...]:
        plain, names = read_run(run)
        kept = [word for word in plain if word not in left_out]
        stems = list(map(stem, kept))
        added = [word for word in kept if word not in stems] if question else []
        return (*stems, *names, *added)

    return read


def find_language(texts: Iterable[str]) -> Language:
    """Return the language of most frequent words in some texts; English if no other has more.

    >>> find_language(["Die Rechnung ist nicht bezahlt."]), find_language(["ERR-5 pump"])
    ('german', 'english')
    """
    counts = Counter(word for text in texts for word in words(text))
    return max(
        FREQUENT,
        key=lambda language: (sum(counts[w] for w in FREQUENT[language].split()), language == "english"),
    )


@cache
def _stemmer(language: Language) -> Callable[[str], str]:
    if language == "none":
        return str
    import Stemmer  # here: the small installation reads files without it

    @lru_cache(CACHED_STEMS)
    def stem(word: str) -> str:
        if any(map(str.isdigit, word)):  # the name of a part, a version or a year
            return word
        found: str = Stemmer.Stemmer(language, 0).stemWord(word)  # one for each word: threads cannot share it
        return found

    return stem
