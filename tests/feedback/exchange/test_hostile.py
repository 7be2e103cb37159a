"""The attacker wrote the file that an operator imports: it is refused in words before it takes memory."""

import gzip
import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.feedback import jsonl
from armwise.feedback.events import Example
from armwise.feedback.exchange import Faults, delimited, imported, obp, read_dsjson, read_obp
from armwise.feedback.jsonl import ExchangeError, Header, read_export, write_export
from tests.agent.attacks import Command
from tests.feedback.exchange.test_dsjson import EVENT

SCALE = (-1.0, 1.0)


def converted(path: Path, out: Path, *, strict: bool = False) -> tuple[list[Example], dict[str, int]]:
    """Convert a file as `armwise import` does, and read what was written."""
    faults = Faults(strict=strict)
    read = read_obp if path.is_dir() or path.suffix == ".npz" else read_dsjson
    rows = list(read(path, imported.REWARD, SCALE, faults))
    with out.open("wb") as file:
        write_export(rows, file, Header(written_at=0.0, reward=imported.make_rule(imported.REWARD, SCALE)))
    assert [one.decision.id for one in read_export(out)] == [one.decision.id for one in rows]
    return rows, dict(faults.counts)


def refusal(path: Path) -> str:
    with pytest.raises(ExchangeError) as refused:
        converted(path, path.parent / "out.jsonl", strict=True)
    assert len(str(refused.value)) < 600
    return str(refused.value)


# -- dsjson --------------------------------------------------------------------------------------


def line(**fields: Any) -> bytes:
    return json.dumps({**EVENT, **fields}).encode()


def nested(depth: int) -> bytes:
    return line(c={**EVENT["c"], "q": 0}).replace(
        b'"q": 0', b'"q": ' + b'{"a":' * depth + b"1" + b"}" * depth
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (line() + b"\n" + b"\0" * 1000 + b"\n" + line(), "line 2: not JSON"),
        (nested(100_000), "line 1: not JSON: recursion limit exceeded"),
        (b"[" * 1_000_000, "line 1: not JSON: recursion limit exceeded"),
        (line().replace(b'"age": 30', b'"age": ' + b"9" * 5000), "line 1: not JSON: number out of range"),
        (line(EventId="\ud800"), "line 1: not JSON"),
        (line(c={**EVENT["c"], "_multi": ["a", "b", "c"]}), "c._multi has an action"),
        (line(c={**EVENT["c"], "_multi": [{}, [1], {}]}), "c._multi has an action"),
        (line(Timestamp="9999-12-31T23:59:59-23:59"), "up to the year 9999 in UTC"),
        (line(Timestamp=1e300), "up to the year 9999 in UTC"),
    ],
    ids=range(9),
)
def test_a_hostile_line_is_refused_with_its_number(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_is_read_up_to_a_length_and_refused_above_it_before_it_fills_the_memory(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 10_000)
    path = tmp_path / ("log.json.gz" if packed else "log.json")
    second = line(EventId="2")
    fits = second[:-1] + b" " * (10_000 - len(second) - 1) + b"}\n"
    for content, fine in ((fits, True), (fits[:-2] + b" }\n", False), (b"a" * 10_000_000, False)):
        path.write_bytes(gzip.compress(line() + b"\n" + content) if packed else line() + b"\n" + content)
        if fine:
            assert len(converted(path, tmp_path / "out.jsonl")[0]) == 2
        else:
            assert refusal(path) == f"{path}, line 2: it has more than 10,000 bytes"


@pytest.mark.parametrize(
    ("event", "version"),
    [
        (line(VWState={"m": "vowpal/" + "9" * 5000}), 0),
        (line(VWState={"m": "vowpal/" + "9" * 19}), 0),
        (line(VWState={"m": "vowpal/\u00b2"}), 0),
        (line(VWState={"m": "vowpal/" + "9" * 18}), 10**18 - 1),
    ],
)
def test_a_number_of_a_version_that_no_log_holds_is_none(tmp_path: Path, event: bytes, version: int) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(event)
    (found,) = converted(path, tmp_path / "out.jsonl")[0]
    assert found.decision.version == version


def test_of_a_key_that_stands_twice_the_last_one_counts_as_for_vw(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(line().replace(b'"EventId": "38c9a0", "a"', b'"EventId": "y", "EventId": "z", "a"'))
    assert [one.decision.id for one in converted(path, tmp_path / "out.jsonl")[0]] == ["z"]


def test_a_decision_of_many_actions_and_deep_names_is_read(tmp_path: Path) -> None:
    path, n = tmp_path / "log.json", 5000
    many = line(
        EventId="many",
        a=list(range(1, n + 1)),
        p=[1 / n] * n,
        _label_Action=1,
        _labelIndex=0,
        _label_probability=1 / n,
        c={"_multi": [{}] * n},
    )
    path.write_bytes(many + b"\n" + nested(150))
    rows, _ = converted(path, tmp_path / "out.jsonl")
    assert [len(one.decision.arms) for one in rows] == [n, 3]


# -- arrays --------------------------------------------------------------------------------------


def npy(value: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(value), **how)
    return file.getvalue()


def declared(shape: tuple[int, ...], kind: str = "<f8", header: str | None = None) -> bytes:
    """Return the beginning of an array, with 100 bytes of it."""
    text = header or f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n" + b"\0" * 100


ARRAYS = {
    "action": npy(np.zeros(3, int)),
    "reward": npy(np.ones(3)),
    "pscore": npy(np.full(3, 0.5)),
    "n_actions": npy(2),
}


def npz(folder: Path, **changes: bytes | None) -> Path:
    path = folder / "feedback.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in {**ARRAYS, **changes}.items():
            if content is not None:
                packed.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("name", ["action", "reward", "pscore", "arms", "context", "pi_b", "n_actions"])
def test_a_pickle_is_never_read(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "ran"
    pickled = npy(np.array([Command(f"touch {trap}")] * 3, dtype=object), allow_pickle=True)
    assert f"{name} must be" in refusal(npz(tmp_path, **{name: pickled}))
    assert len(converted(npz(tmp_path, position=pickled), tmp_path / "out.jsonl")[0]) == 3, (
        "it is passed over"
    )
    assert not trap.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": declared((10**12, 10))}, "(1000000000000, 10), but "),
        ({"context": declared((3, 10**10))}, "declares the shape "),
        ({"context": declared((2**40, 2**40))}, "declares the shape "),
        ({"context": declared((-1, 3))}, "the shape (-1, 3)"),
        ({"arms": declared((2,), "<U1000000000")}, "cannot be read"),
        ({"arms": declared((2,), "<U100000000")}, "declares the shape "),
        ({"context": declared((), header="{'descr': __import__('os').abort()}")}, "cannot be read"),
        ({"context": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1) + b"{"}, "cannot be read: EOF"),
        ({"context": b"\x93NUMPY\x09\x00" + b"\0" * 100}, "format (9, 0)"),
        ({"action": b"garbage"}, "cannot be read"),
        ({"n_actions": npy(10**9)}, "n_actions is 1000000000; expected a number from 1 to 100,000"),
        ({"n_actions": npy(100_001)}, "n_actions is 100001"),
        ({"n_actions": npy(0)}, "n_actions is 0"),
        ({"n_actions": npy(-5)}, "n_actions is -5"),
        ({"n_actions": npy(np.nan)}, "n_actions must be whole numbers, got float64"),
        ({"n_actions": npy(np.arange(4))}, "n_actions is [0 1 2 3]"),
        ({"n_actions": None, "action": npy(np.array([0, 0, 2**62]))}, "a number from 1 to 100,000"),
        ({"n_actions": None, "action": npy(np.array([0, 0, 2**64 - 1], np.uint64))}, "from 1 to 100,000"),
        ({"action": npy(3)}, "action has the shape ()"),
        ({"arms": npy("solo")}, "arms has the shape ()"),
        ({"arms": npy(np.array(["a", "a"]))}, "row 0"),
        ({"reward": npy(np.array(["a", "b", "c"]))}, "reward must be numbers, got <U1"),
        ({"reward": npy(np.zeros(3, dtype=[("a", "f8")]))}, "reward must be numbers"),
        ({"reward": npy(np.array(["2020", "2021", "2022"], "M8[Y]"))}, "reward must be numbers"),
        ({"reward": npy(np.full(3, 1j))}, "reward must be numbers, got complex128"),
        ({"context": npy(np.full((3, 2), np.nan))}, "must be finite, got nan"),
    ],
    ids=range(26),
)
def test_arrays_that_are_made_to_fail_are_refused_before_they_are_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(npz(tmp_path, **changes))


def test_arrays_that_unpack_to_more_than_fits_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obp, "MOST_BYTES", 3 * 8 * 3 + 8 + 800)
    assert len(converted(npz(tmp_path, context=None), tmp_path / "o")[0]) == 3
    assert "its arrays have more than 880 bytes" in refusal(npz(tmp_path, context=npy(np.zeros((3, 34)))))
    assert len(converted(npz(tmp_path, context=npy(np.zeros((3, 33)))), tmp_path / "o")[0]) == 3


def test_as_many_arms_as_are_allowed_are_read(tmp_path: Path) -> None:
    first = next(read_obp(npz(tmp_path, n_actions=npy(100_000)), imported.REWARD, SCALE, Faults()))
    assert len(first.decision.arms) == 100_000


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", npy(np.zeros(3)), b"\x80\x04."])
def test_what_is_no_archive_of_arrays_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "feedback.npz"
    path.write_bytes(content)
    assert "cannot be read" in refusal(path)
    path.write_bytes(npz(tmp_path).read_bytes()[:-60])
    assert "cannot be read" in refusal(path)


def test_members_that_name_places_outside_are_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = npz(folder, **{"../../escaped": npy(1), "/tmp/escaped": npy(1)})
    assert len(converted(path, folder / "out.jsonl")[0]) == 3
    assert not list(tmp_path.rglob("escaped*"))


# -- tables --------------------------------------------------------------------------------------

HEADER = ",timestamp,item_id,position,click,propensity_score,user_feature_0"
ROW = "0,2019-12-31 23:59:59+00:59,0,1,0,0.5,x"


def table(folder: Path, *rows: str, items: str = "item_id\n0\n1\n") -> Path:
    path = folder / "men"
    path.mkdir(exist_ok=True)
    (path / "men.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (path / "item_context.csv").write_text(items)
    return path


@pytest.mark.parametrize(
    ("rows", "items", "words"),
    [
        ([ROW, '"' + "x" * 1_000_000], "item_id\n0\n1\n", "line 3: unexpected end of data"),
        ([ROW.replace("2019", "9999").replace("+00", "-23")], "item_id\n0\n1\n", "timestamp is '9999-"),
        ([ROW], "item_id\n0\n0\n", "lists an item twice"),
    ],
    ids=range(3),
)
def test_tables_that_are_made_to_fail_are_refused(
    tmp_path: Path, rows: list[str], items: str, words: str
) -> None:
    assert words in refusal(table(tmp_path, *rows, items=items))


def test_a_line_of_a_table_is_bounded_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "LONGEST", 1_000)
    fits = ROW[:-1] + "x" * (999 - len(ROW)) + "x"
    assert len(fits) == 999, "with its end, a line of 1,000 characters"
    assert len(converted(table(tmp_path, fits), tmp_path / "out.jsonl")[0]) == 1
    assert "a line has more than 1,000 characters" in refusal(table(tmp_path, ROW, fits + "x"))


def test_a_pipe_in_the_place_of_a_table_is_not_waited_for(tmp_path: Path) -> None:
    path = table(tmp_path, ROW)
    (path / "men.csv").unlink()
    os.mkfifo(path / "men.csv")
    assert "expected a file men.csv or men.csv.gz" in refusal(path)
