"""Finished blocks: kept whole, given back as they were, and never to another job."""

import os
from pathlib import Path

import pytest

from armwise.arms.lab.jobs.checkpoint import JobError, open_blocks

IDENTITY = {"corpus": "c0ffee", "measure": "R@4"}


FIRST, SECOND = b"\x00first", b"second\n"


def test_what_a_killed_writer_left_is_no_block(tmp_path: Path) -> None:
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        blocks.write(0, FIRST)
        whole = (tmp_path / "b.blocks" / "000000.block").read_bytes()
        (tmp_path / "b.blocks" / "000001.block.part").write_bytes(whole[:100])
        assert blocks.list_finished() == {0}
        blocks.write(1, SECOND)
        assert blocks.read(1) == SECOND


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_is_interrupted_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def no_room(*_: object) -> None:
        raise OSError("no room")

    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        blocks.write(0, FIRST)
        blocks.write_notes({"a": 0.25})
        with monkeypatch.context() as broken:
            broken.setattr(os, step, no_room)
            for write in (
                lambda: blocks.write(0, SECOND),
                lambda: blocks.write(1, SECOND),
                lambda: blocks.write_notes({"a": 9.0}),
            ):
                with pytest.raises(OSError, match="no room"):
                    write()
        assert blocks.list_finished() == {0}
        assert blocks.read(0) == FIRST
        assert blocks.read_notes() == {"a": 0.25}


def test_two_processes_cannot_work_on_one_folder(tmp_path: Path) -> None:
    with (
        open_blocks(tmp_path / "b", IDENTITY),
        pytest.raises(JobError, match="another process is working on it"),
        open_blocks(tmp_path / "b", IDENTITY),
    ):
        pass


@pytest.mark.parametrize("how", ["halved", "flipped", "first byte", "emptied"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_block_is_made_again_and_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, number: int
) -> None:
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        blocks.write(0, FIRST)
        blocks.write(1, SECOND)
        blocks.write_notes({"a": 0.25})
    path = tmp_path / f"b.blocks/00000{number}.block"
    content = path.read_bytes()
    changed = {
        "halved": content[: len(content) // 2],
        "flipped": content[:-1] + b"?",
        "first byte": b"?" + content[1:],
        "emptied": b"",
    }
    path.write_bytes(changed[how])
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        assert blocks.list_finished() == {1 - number}
        assert blocks.read_notes() == {"a": 0.25}
        blocks.write(number, b"again")
        assert blocks.read(number) == b"again"
    assert f"00000{number}.block is damaged" in caplog.text


def test_damaged_notes_are_unknown_again(tmp_path: Path) -> None:
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        blocks.write(0, FIRST)
        blocks.write_notes({"a": 0.25})
    path = tmp_path / "b.blocks/notes"
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        assert blocks.read_notes() is None
        assert blocks.list_finished() == {0}


@pytest.mark.parametrize("content", [b"{", b"[1]", None])
def test_blocks_without_a_readable_identity_are_refused(tmp_path: Path, content: bytes | None) -> None:
    with open_blocks(tmp_path / "b", IDENTITY) as blocks:
        blocks.write(0, FIRST)
    path = tmp_path / "b.blocks/identity.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    expected = r"identity\.json is missing or damaged .*: delete .*b\.blocks to start again"
    with pytest.raises(JobError, match=expected), open_blocks(tmp_path / "b", IDENTITY):
        pass
