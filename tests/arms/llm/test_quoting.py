"""What of a passage is quoted."""

from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.llm.quoting import MOST_WORDS, quote
from armwise.arms.llm.writing import Answering, WritingSpec

RIVERS = Passage(
    "p1", "Rivers", "The Rhine rises in Graub\u00fcnden. The Danube runs through Vienna. It ends in a delta."
)


def test_a_quotation_begins_with_the_nearest_sentence() -> None:
    said = quote("Which river runs through Vienna?", [RIVERS])
    assert said == "The Danube runs through Vienna. It ends in a delta.\n\n(Quoted from [1] Rivers.)"


def test_other_forms_of_a_word_are_the_word_as_in_keyword_search() -> None:
    assert quote("end of a river", [RIVERS]).startswith("It ends in a delta.")


def test_passages_with_hardly_a_word_of_the_question_are_no_answer() -> None:
    nothing = "Nothing found in manuals about this."
    other = Passage("p2", "Cups", "They are made of clay.")
    assert quote("Who won the world cup final?", [RIVERS], ["manuals"]) == nothing
    assert quote("Who won the world cup final?", [RIVERS, other], ["manuals"]) == nothing, "one word of four"
    assert quote("", [], ["manuals"]) == nothing
    assert quote("Who made a cup?", [RIVERS, other]).endswith(
        "(Quoted from [1] Rivers, which has no word of the question.)"
    )
    for question in ("Which rivers?", "Is it?", "Where does the Danube end, in a lake?"):
        assert "(Quoted from [1] Rivers.)" in quote(question, [RIVERS]), question


def test_sentences_are_taken_whole_as_far_as_there_is_room() -> None:
    assert quote("Danube Vienna", [RIVERS], most_words=8).startswith("The Danube runs through Vienna.\n")
    assert quote("Danube Vienna", [RIVERS], most_words=10).startswith(
        "The Danube runs through Vienna. It ends in a delta.\n"
    )
    assert quote("Danube Vienna", [RIVERS], most_words=4).startswith("The Danube runs through ...\n")


def test_an_arm_with_a_model_of_its_own_asks_it() -> None:
    quoting = Answering(quote=True)
    assert quoting.over(WritingSpec(passages=2)).quote
    assert not quoting.over(WritingSpec(llm="large")).quote
    assert not Answering().over(WritingSpec(passages=2)).quote


@given(st.text(max_size=60), st.text(max_size=400), st.integers(1, MOST_WORDS))
def test_no_more_words_than_allowed_are_quoted(question: str, text: str, most: int) -> None:
    answer = quote(question, [Passage("p", "", text)], most_words=most)
    if answer == "Nothing found in the documents about this.":
        return
    said, _, source = answer.rpartition("\n\n")
    assert source in ("(Quoted from [1].)", "(Quoted from [1], which has no word of the question.)")
    quoted = said.removesuffix(" ...").split()
    assert len(quoted) <= most
    assert " ".join(quoted) in " ".join(text.split())
