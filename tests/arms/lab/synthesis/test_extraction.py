"""Questions made by rules: what they ask, and what answers them."""

import hashlib
import itertools
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus
from armwise.arms.lab.synthesis import STYLES, Extraction, Made
from armwise.arms.lab.synthesis import extraction as extraction_rules
from armwise.arms.lab.synthesis.wording import about, ask, definition, sentences, spans
from armwise.arms.tokenizer import words
from tests.arms.conftest import keep

LIBRARY = (
    Passage(
        "faust", "Faust", "Faust is a tragic play by Johann Wolfgang von Goethe. It was printed in 1808."
    ),
    Passage(
        "werther",
        "The Sorrows of Young Werther",
        "The Sorrows of Young Werther is a sad play of 1774. The play was written by Goethe in Wetzlar.",
    ),
    Passage(
        "wetzlar", "Wetzlar", "Wetzlar is a city in Hesse. The city was founded in 1180 by Konrad Schmidt."
    ),
    Passage("charlotte", "Charlotte Buff", "Charlotte Buff lived in Wetzlar. She was born in 1753."),
    Passage(
        "sed", "sed", "The sed command is a stream editor. It was developed by Lee McMahon at Bell Labs."
    ),
    Passage(
        "untitled", "", "The committee met in March 1999 and elected Jane Roe. Ballots were burned in Kiel."
    ),
    Passage("empty", "", "..."),
)


TOWNS = (
    Passage(
        "kassel",
        "Kassel - History",
        "Kassel is a city in Hesse on the river Fulda. Its 3 castles were built by William IX in the year "
        "1786, and its museum, which opened in June 1779, has shown 200 pictures to 3.5 million visitors. In "
        "1943 the town was destroyed. The Brothers Grimm knew Kassel well and collected tales there.",
    ),
    Passage("kassel-1", "Kassel", "Kassel sent 12 ships to Ghent. They carried large stones for the road."),
    Passage(
        "singer", "XIII (singer)", "XIII is a singer of 1990 from Ghent. She released her first song there."
    ),
    Passage(
        "year", "Roads", "XIII miles of road lead to Ghent. The road was stopped at the old town in 1812."
    ),
    Passage(
        "ghent",
        "Ghent",
        "Ghent is a large city in Belgium. It was founded in 650, stopped its trade with Kassel in 1400, and "
        "it made, as the chronicle of the abbey says at great length and with many words that nobody has "
        "ever counted or read to their end, 40 ships a year until the great flood of 1404 came from the sea.",
    ),
    Passage(
        "grimm",
        "Brothers Grimm",
        "The Brothers Grimm were the authors of tales. He, Jacob, was born in 1785 in Hanau; she, their "
        "sister Charlotte Grimm, was born in 1793 and helped them to select and to write down 86 old tales.",
    ),
    Passage(
        "hanau", "Hanau", "Hanau lies on the Main. This made it a port. It has 3 harbours and 12 bridges."
    ),
    Passage("ship", "", "In 1850 a ship from Ghent arrived. These 12 sailors came from Hanau by Kassel."),
    Passage(
        "sand", "George Sand", "George Sand was a writer of novels, born in 1804. He wrote to George Eliot."
    ),
    Passage(
        "eliot", "George Eliot", "George Eliot was a writer of verse, born in 1819. His film was purchased."
    ),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return keep(tmp_path_factory.mktemp("library"), LIBRARY)


def made(corpus: Corpus, *styles: str, seed: int = 0) -> list[Made]:
    extraction = Extraction(corpus, styles or tuple(STYLES), seed, lambda *_: None)
    return [one for of_passage in extraction.make(range(len(corpus))) for one in of_passage]


@pytest.mark.parametrize("seed", range(4))
def test_the_gold_passages_hold_the_answer(library: Corpus, seed: int) -> None:
    texts = {p.id: f"{p.title} {p.text}" for p in library}
    questions = made(library, seed=seed)
    assert {one.style for one in questions} == set(STYLES)
    for one in questions:
        gold = " ".join(texts[name] for name in one.gold_ids)
        assert set(words(one.question, "english")) & set(words(gold))
        assert all(answer in gold for answer in one.answers if answer != "yes")


def test_an_answer_does_not_stand_in_its_question(library: Corpus) -> None:
    asked = [one for seed in range(6) for one in made(library, "cloze", "link", seed=seed)]
    assert asked
    for one in asked:
        assert not any(answer.lower() in one.question.lower() for answer in one.answers)


def test_a_link_hides_the_title_of_its_second_passage(library: Corpus) -> None:
    titles = {p.id: p.title for p in library}
    found = [one for seed in range(8) for one in made(library, "link", seed=seed)]
    assert {one.gold_ids for one in found} == {("werther", "wetzlar"), ("charlotte", "wetzlar")}
    assert not any(titles[one.gold_ids[1]].lower() in one.question.lower() for one in found)


def test_a_title_that_two_passages_have_is_that_of_the_first(tmp_path: Path) -> None:
    passages = (
        Passage("first", "Wetzlar", "Wetzlar is a city in Hesse."),
        Passage("second", "Wetzlar", "Wetzlar is a station of a railway."),
        Passage("buff", "Charlotte Buff", "Charlotte Buff lived in Wetzlar."),
    )
    corpus = keep(tmp_path, passages)
    extraction = Extraction(corpus, ("link",), 0, lambda *_: None)
    assert list(extraction.find_links(passages[2])) == [("wetzlar", passages[0])]


def test_a_seed_makes_the_same_questions(library: Corpus) -> None:
    assert made(library) == made(library)
    assert made(library, seed=1) != made(library)


MADE = {
    "keywords": "e644f0e55a8f1120",
    "title": "86f92d6a07b8114b",
    "cloze": "b8bc127d3524bdc2",
    "link": "01eaa43fd348735f",
    "compare": "1e8f248aecebca05",
}
"""Digests of the questions of each style: rules of one version make the same of a corpus and a seed."""


@pytest.mark.parametrize("style", STYLES)
def test_the_rules_of_version_2_make_these_questions(tmp_path: Path, style: str) -> None:
    corpus = keep(tmp_path, (*LIBRARY, *TOWNS))
    assert Extraction(corpus, (), 0, lambda *_: None).identity == {"made by": "extraction 2"}
    documents = [one.document() for seed in range(30) for one in made(corpus, style, seed=seed)]
    digest = hashlib.blake2b(orjson.dumps(documents), digest_size=8).hexdigest()
    assert digest == MADE[style], "rules that make others have another version: blocks of two are not mixed"


RARE, KNOWN = ("zwieback", "kohlrabi", "samovar", "cembalo"), ("pumpernickel", "broccoli", "kettle", "violin")


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """2,000 passages: those of `KNOWN` each name four of the goods in turn, those of `RARE` three."""
    goods = dict(enumerate([*RARE] * 3 + [*KNOWN] * 4))
    passages = (
        Passage(f"p{n}", f"Town {n}", f"The people sold {goods.get(n, 'bread')} in Town {n} in 1850.")
        for n in range(2000)
    )
    return keep(tmp_path_factory.mktemp("towns"), passages)


def test_a_word_of_two_passages_in_a_thousand_is_rare(towns: Corpus) -> None:
    extraction = Extraction(towns, ("cloze",), 0, lambda *_: None)
    asked = [one.question.lower() for some in extraction.make(range(28)) for one in some]
    rare, known = ([one for one in asked if any(word in one for word in goods)] for goods in (RARE, KNOWN))
    assert len(asked) == 28
    assert len(known) == 16
    assert 2 <= len(rare) <= 10, "of 12, of which half is left out"


def test_of_a_large_corpus_a_sample_is_read(towns: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extraction_rules.SAMPLED == 100_000

    def reports() -> list[tuple[str, int, int | None]]:
        found: list[tuple[str, int, int | None]] = []
        Extraction(towns, (), 0, lambda *report: found.append(report))
        return found

    assert reports() == [("reading the corpus", n, 2000) for n in (1000, 2000)]
    monkeypatch.setattr(extraction_rules, "SAMPLED", 1500)
    assert reports() == [("reading the corpus", n, 1500) for n in (1000, 1500)]


def test_a_style_does_not_depend_on_the_others(library: Corpus) -> None:
    assert made(library, "cloze") == [one for one in made(library) if one.style == "cloze"]


@pytest.mark.parametrize(
    ("sentence", "asked", "question"),
    [
        ("Faust was written by Goethe in 1808.", "Goethe", "Who was Faust written by in 1808?"),
        ("Faust was written by Goethe in 1808.", "1808", "When was Faust written by Goethe?"),
        ("The company released a record in May 1999.", "May 1999", "When did the company release a record?"),
        ("The river flows through 10 countries today.", "10", None),
        ("The team won 3 games in Rome.", "3", "How many games did the team win in Rome?"),
        ("The treaty was signed at Ghent by both.", "Ghent", "Where was the treaty signed by both?"),
        ("A treaty was signed at the Hague by both.", "Hague", "Where was a treaty signed by both?"),
        ("Marie Curie discovered radium.", "Marie Curie", None),
        ("Marie Curie discovered radium in Paris.", "Marie Curie", "What discovered radium in Paris?"),
        ("It is a 1994 film about a dog.", "1994", None),
        ("The bishop pleaded with Rome in 1404.", "1404", "When did the bishop plead with Rome?"),
        ("The chronicle visited Ghent in 1404.", "1404", "When did the chronicle visit Ghent?"),
        ("The mayor filled a moat in 1404.", "1404", "When did the mayor fill a moat?"),
        ("The bishop passed a gate in 1404.", "1404", "When did the bishop pass a gate?"),
        ("The miller stopped a mill in 1404.", "1404", "When did the miller stop a mill?"),
    ],
)
def test_a_statement_becomes_a_question(sentence: str, asked: str, question: str | None) -> None:
    found = {sentence[s.start : s.end]: s for s in spans(sentence)}
    assert ask(sentence, found[asked]) == question


def test_a_sentence_that_refers_to_another_one_is_left_out() -> None:
    assert about("This was in 1999.", "Faust") is None
    assert about("However, it was in 1999.", "Faust") is None
    assert about("It was in 1999.", "") is None
    assert about("They left.", "The Alps") == "The Alps left."


def test_abbreviations_do_not_end_a_sentence() -> None:
    assert sentences("Dr. J. Smith Jr. left. Then he came.") == ["Dr. J. Smith Jr. left.", "Then he came."]


def test_a_passage_that_defines_nothing_has_no_definition() -> None:
    assert definition("Faust was printed in 1808.") is None


def test_a_clause_is_asked_about_up_to_24_words() -> None:
    def question(n: int) -> str | None:
        sentence = f"The bishop met {' '.join(['kind'] * n)} people in 1404"
        return ask(sentence, next(span for span in spans(sentence) if span.kind == "date"))

    assert question(24 - 5) == f"When did the bishop meet {' '.join(['kind'] * 19)} people?"
    assert question(24 - 4) is None


@given(st.text(max_size=300))
def test_any_text_can_be_cut_and_asked(text: str) -> None:
    for sentence in sentences(text):
        found = spans(sentence)
        assert all(a.end <= b.start for a, b in itertools.pairwise(found))
        for span in found:
            question = ask(sentence, span)
            assert question is None or question.endswith("?")
