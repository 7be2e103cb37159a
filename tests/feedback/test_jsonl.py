"""JSON lines: every digit comes back, and a file that is not whole or not ours is told so by line."""

import gzip
import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback.events import LABELS, Context, Decision, Example, Mode
from armwise.feedback.jsonl import (
    ExchangeError,
    Header,
    appearing,
    find_examples,
    read_export,
    read_headers,
    write_export,
)
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.exported import any_example, example
from tests.steps import change

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()})
HEADER = Header(written_at=1.5, arms=("bm25", "dense", "none"), reward=RULE)


def written(examples: Iterable[Example]) -> bytes:
    file = io.BytesIO()
    write_export(examples, file, HEADER)
    return file.getvalue()


def stored(folder: Path, content: bytes, name: str = "log.jsonl") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def refusal(folder: Path, content: bytes) -> str:
    """Read a file that cannot be read, and return what is said of it after its name."""
    with pytest.raises(ExchangeError) as refused:
        list(read_export(stored(folder, content)))
    told = str(refused.value)
    assert told.startswith(f"{folder / 'log.jsonl'}")
    return told.removeprefix(f"{folder / 'log.jsonl'}").removeprefix(", ")


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(any_example(), max_size=4))
@pytest.mark.slow
def test_what_was_written_is_read_to_the_last_digit(tmp_path: Path, found: list[Example]) -> None:
    examples = [replace(one, seq=seq) for seq, one in enumerate(found, start=3)]
    assert list(read_export(stored(tmp_path, written(examples)))) == examples


def test_a_decision_without_a_known_propensity_is_read_and_has_none(tmp_path: Path) -> None:
    unknown = replace(example(3), decision=change(example(3).decision, probabilities=(), floor=None))
    (back,) = read_export(stored(tmp_path, written([unknown])))
    assert back == unknown
    assert math.isnan(back.decision.propensity)


MADE = example(3).decision


@pytest.mark.parametrize(
    "sent",
    [
        replace(example(3), tokens_by_model={"default": (0, 0, 0, 0.002), "large": (9, 4, 2)}),
        replace(example(3), decision=change(MADE, incumbent=(0.0, 1.0, 0.0), incumbent_share=0.75)),
        replace(example(3), decision=change(MADE, miss_costs=(0.0, 0.25, 0.5), usd_weight=2.0)),
    ],
    ids=["tokens", "incumbent", "caches"],
)
def test_what_few_decisions_have_comes_back(tmp_path: Path, sent: Example) -> None:
    assert list(read_export(stored(tmp_path, written([sent])))) == [sent]


def test_the_first_line_says_what_follows(tmp_path: Path) -> None:
    assert list(read_headers(stored(tmp_path, written([])))) == [HEADER]
    assert orjson.loads(written([]).splitlines()[0])["schema"] == 1


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    examples = [example(1), example(2)]
    with appearing(path) as file:
        write_export(examples, file, HEADER)
        assert not path.exists()
    assert list(read_export(path)) == examples
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("stopped_by", [OSError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_file_that_fails_leaves_what_was_there(
    tmp_path: Path, name: str, stopped_by: type[BaseException]
) -> None:
    def examples() -> Iterator[Example]:
        yield example(1)
        raise stopped_by

    path = stored(tmp_path, b"before", name)
    with pytest.raises(stopped_by), appearing(path) as file:
        write_export(examples(), file, HEADER)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"before", [path])


def test_files_that_follow_each_other_are_one_log(tmp_path: Path) -> None:
    january, february = [example(1), example(2)], [example(3), example(4)]
    path = stored(tmp_path, written(january) + written(february))
    assert list(read_export(path)) == january + february
    assert list(read_headers(path)) == [HEADER, HEADER]
    packed = gzip.compress(written(january)) + gzip.compress(written(february))
    assert list(read_export(stored(tmp_path, packed, "log.jsonl.gz"))) == january + february


def test_positions_of_another_log_go_on_after_the_first(tmp_path: Path) -> None:
    path = stored(tmp_path, written([example(1), example(2)]) + written([example(1), example(5)]))
    assert [one.seq for one in read_export(path)] == [1, 2, 3, 7]
    assert [one.decision.id for one in read_export(path)] == ["d-1", "d-2", "d-1", "d-5"]
    path = stored(tmp_path, written([example(1), example(2)]) + written([example(2), example(3)]))
    assert [one.seq for one in read_export(path)] == [1, 2, 4, 5], "where the second begins at the last one"


def with_schema(number: object) -> bytes:
    return written([]).replace(b'"schema":1', b'"schema":' + orjson.dumps(number))


WHOLE = written([example(1), example(2)])
FIRST, *MORE, LAST = WHOLE.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FIRST + b"".join(MORE), 'line 3: the file was cut off: its last line must be {"end": 2}'),
        (FIRST + MORE[0] + MORE[1][:50], "line 3: not JSON"),
        (FIRST + b"".join(MORE) + WHOLE, "cut off"),
        (FIRST + MORE[0] + LAST, "line 3: the export has 1 examples, but its last line says 2"),
        (with_schema(2), "line 1: unknown schema 2; this version reads 1: it was written by a newer"),
        (with_schema("x"), "line 1: unknown schema 'x'"),
        (written([example(1)]) + with_schema(2), "line 4: schema 2 follows schema 1"),
        (b"", "is empty"),
        (b'{"question": "who?"}\n', 'line 1: \'{"question": "who?"}\' does not begin an export'),
        (b"a" * 1_000_000, f"line 1: '{'a' * 30}' does not begin an export"),
        (b"\xff\xfe\n", "does not begin an export"),
        (b'{"format":"armwise-log","schema":1,"written_at":0}\n', "line 1: reward is missing"),
        (written([example(2), example(2)]), "line 3: seq must rise, but 2 follows 2"),
    ],
    ids=range(13),
)
def test_what_is_no_whole_export_is_refused_by_line(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    packed = stored(tmp_path, gzip.compress(WHOLE)[:-30], "log.jsonl.gz")
    for path in (packed, tmp_path / "none.jsonl"):
        with pytest.raises(ExchangeError, match=f"{path.name} cannot be read"):
            list(read_export(path))


Spoil = Callable[[bytes], bytes]


def put(old: str, new: str) -> Spoil:
    def spoil(line: bytes) -> bytes:
        assert old.encode() in line
        return line.replace(old.encode(), new.encode())

    return spoil


P = '"probabilities":[0.25,0.625,0.125]'


BELOW_0 = "it must be finite and not below 0"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (put('"drawn":"dense"', '"drawn":7'), "decision.drawn is 7"),
        (put('"drawn":"dense",', ""), "decision.drawn is missing"),
        (put('"drawn":"dense"', '"drawn":"x"'), "decision.drawn 'x' is not one of the arms"),
        (put('"none"]', '"bm25"]'), "an arm occurs twice among bm25, dense, bm25"),
        (put(P, '"probabilities":[0.5,0.5]'), "decision.probabilities has 2 numbers for 3 arms"),
        (put(P, '"probabilities":[0.625]'), "decision.probabilities has 1 numbers for 3 arms"),
        (put(P, '"probabilities":[0.5,0.0,0.5]'), "the probability of the drawn arm 'dense' is 0.0"),
        (put(P, '"probabilities":[0.0,1.5,0.0]'), "the probability of arm 'dense' is 1.5"),
        (put(P, '"probabilities":[0.25,0.5,0.125]'), "the probabilities sum to 0.875"),
        (put(P, '"probabilities":null'), "decision.probabilities is None"),
        (put('"seq":1', '"seq":0'), "seq is 0"),
        (put('"least":0.01', '"least":2.0'), "decision.steps.floor.least is 2.0"),
        (put('"least":0.01', '"least":"0.5"'), "decision.steps.floor.least is '0.5'"),
        *(
            (put('"steps":{', f'"steps":{{{record},'), told)
            for record, told in (
                ('"canary":{"share":1.0}', "decision.steps.canary.share is 1.0"),
                ('"canary":{"scores":{"a":1e999}}', "decision.steps must be finite, got inf"),
                ('"incumbent":{"pmf":{"dense":1.0}}', "decision.steps.incumbent.pmf has other arms"),
                ('"incumbent":{"shadow":{"dense":1.0}}', "decision.steps.incumbent.shadow has other arms"),
                ('"incumbent":{"share":1.5}', "decision.steps.incumbent.share is 1.5"),
                ('"incumbent":{"share":"x"}', "decision.steps.incumbent.share is 'x'"),
                ('"incumbent":[]', "decision.steps.incumbent is []"),
                ('"budget":{"price":-1.0}', "decision.steps.budget.price is -1.0"),
                ('"budget":{"costs":{"dense":-1.0}}', "decision.steps.budget.costs.dense is -1.0"),
                ('"cache":{"usd":{"dense":-0.5}}', "decision.steps.cache.usd.dense is -0.5"),
                ('"cache":{"usd_weight":-1.0}', "decision.steps.cache.usd_weight is -1.0"),
                ('"own":{"any":[1e999]}', "decision.steps must be finite, got inf"),
            )
        ),
        (put('"steps":1,', '"steps":-1,'), f"cost.steps is -1; {BELOW_0}"),
        (put('"usd":0.001', '"usd":1e999'), "cost.usd is inf"),
        *(
            (put('"tokens_by_model":{}', f'"tokens_by_model":{{"m":[9,4,2],"n":{bad}}}'), f"'n' has {told}")
            for bad, told in (
                ("[-1,0,0]", "-1"),
                ("[5,-1,5]", "-1"),
                ("[5,0,-1]", "-1"),
                ("[5,0,0,-0.5]", "-0.5"),
                ("[5,0,0,1e999]", "inf"),
            )
        ),
        (put('"right":1.0', '"right":NaN'), "metrics must be finite, got nan"),
        (put('"w=river":1.0', '"w=river":1e999'), "decision.context.features must be finite, got inf"),
        (put('"score":0.5', '"score":1e999'), "decision.context.arms.dense must be finite, got inf"),
        (put('"decided_at":17', '"decided_at":99917'), "expected a time up to the year 9999"),
        (put('"mode":"explore"', '"mode":"guess"'), "decision.mode is 'guess'"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, spoil: Spoil, words: str) -> None:
    first, line, last = written([example(1)]).splitlines(keepends=True)
    told = refusal(tmp_path, first + spoil(line) + last)
    assert told.startswith("line 2: ")
    assert words in told


def test_draws_are_found_without_reading_them_as_by_reading_them(tmp_path: Path) -> None:
    """A mode may be written with escapes or blanks, and a text may say what a mode does."""
    forced = written([example(2, mode=Mode.FORCED)])
    lines = [
        *written(
            [example(1), example(2, policy=LABELS), example(3, context=Context('"forced"'))]
        ).splitlines()[1:-1],
        forced.splitlines()[1].replace(b'"seq":2', b'"seq":4').replace(b'"forced"', b'"f\\u006frced"'),
        forced.splitlines()[1].replace(b'"seq":2', b'"seq":5').replace(b'"mode":', b'"mode" : '),
        written([example(6, mode=Mode.GREEDY)]).splitlines()[1],
    ]
    head, *_, end = written([example(n) for n in range(1, 7)]).splitlines()
    path = stored(tmp_path, b"\n".join([head, *lines, end, b""]))

    def is_draw(made: Decision) -> bool:
        return made.mode is Mode.EXPLORE and made.policy != LABELS

    assert [*find_examples(path, is_draw, plainly=True)] == [2, 4]
    assert [*find_examples(path, is_draw, plainly=False)] == [2, 4]
