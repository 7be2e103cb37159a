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

from armwise.feedback.events import Example
from armwise.feedback.jsonl import (
    ExchangeError,
    Header,
    appearing,
    read_export,
    read_headers,
    write_export,
)
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.exported import any_example, example

RULE = RewardRule(metrics={"right": Metric()})
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


def test_dollars_of_searches_come_back_beside_the_tokens_of_their_model(tmp_path: Path) -> None:
    tokens = {"default": (0, 0, 0, 0.002), "large": (9, 4, 2)}
    (back,) = read_export(stored(tmp_path, written([replace(example(3), tokens_by_model=tokens)])))
    assert back.tokens_by_model == tokens


def test_a_decision_without_a_known_propensity_is_read_and_has_none(tmp_path: Path) -> None:
    unknown = replace(example(3), decision=replace(example(3).decision, probabilities=(), floor=None))
    (back,) = read_export(stored(tmp_path, written([unknown])))
    assert back == unknown
    assert math.isnan(back.decision.propensity)


def test_the_part_of_an_incumbent_comes_back_and_has_a_number_for_each_arm(tmp_path: Path) -> None:
    shared = replace(example(3).decision, incumbent=(0.0, 1.0, 0.0), incumbent_share=0.75)
    (back,) = read_export(stored(tmp_path, written([replace(example(3), decision=shared)])))
    assert back.decision == shared
    for change, message in (
        ({"incumbent": (0.5, 0.5)}, "decision.incumbent has 2 numbers for 3 arms"),
        ({"incumbent_share": 1.5}, r"decision.incumbent_share is 1.5; it must be in \[0, 1\]"),
    ):
        wrong = replace(example(3), decision=replace(shared, **change))  # type: ignore[arg-type]
        with pytest.raises(ExchangeError, match=message):
            list(read_export(stored(tmp_path, written([wrong]))))


def test_what_caches_lacked_comes_back_and_has_a_number_for_each_arm(tmp_path: Path) -> None:
    made = replace(example(3).decision, miss_costs=(0.0, 0.25, 0.5), usd_weight=2.0)
    (back,) = read_export(stored(tmp_path, written([replace(example(3), decision=made)])))
    assert back.decision == made
    for change, message in (
        ({"miss_costs": (0.5, 0.5)}, "decision.miss_costs has 2 numbers for 3 arms"),
        ({"miss_costs": (0.5, -0.5, 0.0)}, "decision.miss_costs has -0.5; it must be finite and not below 0"),
        ({"usd_weight": -1.0}, "decision.usd_weight has -1.0; it must be finite and not below 0"),
    ):
        wrong = replace(example(3), decision=replace(made, **change))  # type: ignore[arg-type]
        with pytest.raises(ExchangeError, match=message):
            list(read_export(stored(tmp_path, written([wrong]))))


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
    packed = gzip.compress(written(january)) + gzip.compress(written(february))
    assert list(read_export(stored(tmp_path, packed, "log.jsonl.gz"))) == january + february


def test_each_of_the_files_that_follow_each_other_has_its_header(tmp_path: Path) -> None:
    content = written([example(1)]) + written([example(2)])
    assert list(read_headers(stored(tmp_path, content))) == [HEADER, HEADER]


def test_positions_of_another_log_go_on_after_the_first(tmp_path: Path) -> None:
    path = stored(tmp_path, written([example(1), example(2)]) + written([example(1), example(5)]))
    assert [one.seq for one in read_export(path)] == [1, 2, 3, 7]
    assert [one.decision.id for one in read_export(path)] == ["d-1", "d-2", "d-1", "d-5"]
    path = stored(tmp_path, written([example(1), example(2)]) + written([example(2), example(3)]))
    assert [one.seq for one in read_export(path)] == [1, 2, 4, 5], "where the second begins at the last one"


def test_a_file_without_its_end_was_cut_off(tmp_path: Path) -> None:
    whole = written([example(1), example(2)])
    lines = whole.splitlines(keepends=True)
    assert refusal(tmp_path, b"".join(lines[:3])) == (
        'line 3: the file was cut off: a last line {"end": 2} was expected'
    )
    assert refusal(tmp_path, b"".join(lines[:2]) + lines[2][:50]).startswith(
        "line 3: no JSON: EOF while parsing"
    )
    assert "cut off" in refusal(tmp_path, b"".join(lines[:3]) + whole)
    assert (
        refusal(tmp_path, lines[0] + lines[1] + lines[3])
        == "line 3: 2 examples were written, and 1 stand above"
    )
    packed = stored(tmp_path, gzip.compress(whole)[:-30], "log.jsonl.gz")
    with pytest.raises(ExchangeError, match=r"log\.jsonl\.gz cannot be read"):
        list(read_export(packed))


def with_schema(number: object) -> bytes:
    return written([]).replace(b'"schema":1', b'"schema":' + orjson.dumps(number))


def test_a_schema_that_is_not_known_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, with_schema(2)) == (
        "line 1: schema 2 is not known here, 1 is: it was written by a newer Armwise"
    )
    assert refusal(tmp_path, with_schema("x")) == "line 1: schema 'x' is not known here, 1 is"


def test_two_schemas_in_one_file_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, written([example(1)]) + with_schema(2)) == (
        "line 4: schema 2 follows schema 1: all parts of a file must have the same one"
    )


def test_what_is_no_export_is_told_so(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"") == " is empty: the first line of an export was expected"
    assert refusal(tmp_path, b'{"question": "who?"}\n').startswith(
        'line 1: \'{"question": "who?"}\' begins no export, {"format": "armwise-log", ...} does'
    )
    assert refusal(tmp_path, b"a" * 1_000_000).startswith(f"line 1: '{'a' * 30}' begins no export")
    assert "begins no export" in refusal(tmp_path, b"\xff\xfe\n")
    assert (
        refusal(tmp_path, b'{"format":"armwise-log","schema":1,"written_at":0}\n')
        == "line 1: reward is missing"
    )
    with pytest.raises(ExchangeError, match=r"none\.jsonl cannot be read: .*No such file"):
        list(read_export(tmp_path / "none.jsonl"))


Spoil = Callable[[bytes], bytes]


def put(old: str, new: str) -> Spoil:
    def spoil(line: bytes) -> bytes:
        assert old.encode() in line
        return line.replace(old.encode(), new.encode())

    return spoil


P = '"probabilities":[0.25,0.625,0.125]'


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (put('"drawn":"dense"', '"drawn":7'), "decision.drawn is 7: Input should be a valid string"),
        (put('"drawn":"dense",', ""), "decision.drawn is missing"),
        (
            put('"drawn":"dense"', '"drawn":"x"'),
            "decision.drawn 'x' is not one of the arms bm25, dense, none",
        ),
        (put('"none"]', '"bm25"]'), "an arm occurs twice among bm25, dense, bm25"),
        (
            put(P, '"probabilities":[0.5,0.5]'),
            "decision.probabilities has 2 numbers for 3 arms; one an arm is right",
        ),
        (put(P, '"probabilities":[0.625]'), "decision.probabilities has 1 numbers for 3 arms"),
        (put(P, '"probabilities":[0.5,0.0,0.5]'), "the probability of the drawn arm 'dense' is 0.0"),
        (
            put(P, '"probabilities":[0.0,1.5,0.0]'),
            "the probability of arm 'dense' is 1.5; it must be in [0, 1]",
        ),
        (put(P, '"probabilities":[0.25,0.5,0.125]'), "the probabilities sum to 0.875 and not to 1"),
        (put(P, '"probabilities":null'), "decision.probabilities is None"),
        (put('"seq":1', '"seq":0'), "seq is 0; positions begin with 1"),
        (put('"floor":0.01', '"floor":2.0'), "decision.floor is 2.0; it must be in [0, 1]"),
        (put('"share":0.0', '"share":1.0'), "decision.share is 1.0; it must be in [0, 1)"),
        (put('"price":0.0', '"price":-1.0'), "decision.price has -1.0; it must be finite and not below 0"),
        (put('"costs":[]', '"costs":[1.0]'), "decision.costs has 1 numbers for"),
        (
            put('"cost_weight":null', '"cost_weight":-0.5'),
            "decision.cost_weight has -0.5; it must be finite and not below 0",
        ),
        (put('"shadow":[]', '"shadow":[1.0]'), "decision.shadow has 1 numbers for 3 arms"),
        (put('"steps":1,', '"steps":-1,'), "cost.steps is -1; it must be finite and not below 0"),
        (put('"usd":0.001', '"usd":1e999'), "cost.usd is inf"),
        *(
            (
                put('"tokens_by_model":{}', f'"tokens_by_model":{{"m":[9,4,2],"n":{bad}}}'),
                "tokens_by_model of 'n' has -1; it must be finite and not below 0",
            )
            for bad in ("[-1,0,0]", "[5,-1,5]", "[5,0,-1]")
        ),
        *(
            (
                put('"tokens_by_model":{}', f'"tokens_by_model":{{"m":[9,4,2,0.5],"n":[5,0,0,{bad}]}}'),
                f"tokens_by_model of 'n' has {told}; it must be finite and not below 0",
            )
            for bad, told in (("-0.5", "-0.5"), ("1e999", "inf"))
        ),
        (put('"right":1.0', '"right":NaN'), "metrics must be finite, got nan"),
        (put('"w=river":1.0', '"w=river":1e999'), "decision.context.features must be finite, got inf"),
        (put('"score":0.5', '"score":1e999'), "decision.context.arms.dense must be finite, got inf"),
        (put('"mode":"explore"', '"mode":"guess"'), "decision.mode is 'guess': Input should be"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, spoil: Spoil, told: str) -> None:
    first, line, last = written([example(1)]).splitlines(keepends=True)
    assert refusal(tmp_path, first + spoil(line) + last).startswith(f"line 2: {told}")


def test_a_position_that_does_not_rise_is_named(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, written([example(2), example(2)])) == "line 3: seq 2 does not rise: 2 stands above"
    )


def test_it_is_read_one_example_at_a_time(tmp_path: Path) -> None:
    path = stored(tmp_path, written([example(1)]) + b"no export\n")
    examples = read_export(path)
    assert next(examples) == example(1)
    with pytest.raises(ExchangeError, match="line 4"):
        next(examples)
