"""What is wrong with a file or a folder is said with its place, and what would be right."""

import errno
import os
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import ConfigError, load, make_home
from armwise.agent.doctor import check_home
from armwise.agent.file_errors import describe_file_error
from tests.agent.fakes import CONFIG


def caught(path: Path, *, made: bool) -> OSError:
    with pytest.raises(OSError) as found:  # noqa: PT011 - each has its number
        path.mkdir(parents=True) if made else path.read_text()
    return found.value


def test_a_file_where_a_folder_is_needed_is_named_also_above_the_place(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    expected = f"{tmp_path / 'taken'} is no folder, and one is needed: move it away, or name another place"
    for path in (tmp_path / "taken", tmp_path / "taken" / "more", tmp_path / "taken" / "more" / "still"):
        assert describe_file_error(caught(path, made=True)) == expected
    assert describe_file_error(caught(tmp_path / "taken" / "file", made=False)) == expected


def test_a_folder_where_a_file_is_needed_is_said(tmp_path: Path) -> None:
    assert describe_file_error(caught(tmp_path, made=False)).startswith(
        "a folder is there, and a file is needed"
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, f"keep this user (uid {os.geteuid()}) out"),
        (errno.EPERM, "forbids that: name another place"),
        (errno.EROFS, "can only be read: name another place"),
        (errno.ENOSPC, "full: free space"),
        (errno.EDQUOT, "full: free space"),
        (errno.ENOENT, "No such file"),
    ],
)
def test_each_refusal_of_the_system_says_what_would_be_right(tmp_path: Path, number: int, said: str) -> None:
    text = describe_file_error(OSError(number, os.strerror(number), str(tmp_path / "new" / "file")))
    assert said in text
    assert "[Errno" not in text
    assert (str(tmp_path) in text) == (number in (errno.EACCES, errno.EPERM)), "the place that is there"


def test_an_error_without_a_file_keeps_its_message() -> None:
    assert describe_file_error(OSError("the server hung up")) == "the server hung up"


# -- of a service ------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    (tmp_path / "corpus.jsonl").write_text('{"id": "p1", "text": "The sea is salt."}\n')
    args = {
        **CONFIG,
        "home": str(tmp_path / "home"),
        "corpus": {"name": "small", "source": str(tmp_path / "corpus.jsonl")},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path


def refusals(*words: object) -> list[str]:
    """Run a verb that fails, and return its lines about what is wrong."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code in (1, 2), result.output
    assert "[Errno" not in result.output
    return [line for line in result.output.splitlines() if re.search("is no folder|a folder is there", line)]


@pytest.mark.parametrize("taken", ["home", "home/corpora", "home/indexes"])
def test_a_file_in_the_place_of_a_folder_of_the_home_is_refused_and_found_by_the_doctor(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr("armwise.agent.cli.serve.require_free_port", lambda *_, **__: None)
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).touch()
    place = f"{tmp_path / taken} is no folder, and one is needed"
    (line,) = refusals("serve", "--prepare-only", "-c", config)
    assert place in line
    found = refusals("doctor", "-c", config)
    (finding,) = [line for line in found if f"the home {tmp_path / 'home'}: {place}" in line]
    assert finding.endswith("`home` of the configuration, or ARMWISE_HOME, names another")


@pytest.mark.parametrize(("refused", "closed"), [(os.W_OK, True), (os.X_OK, True), (os.R_OK, False)])
def test_a_home_that_this_user_may_not_write_is_found_by_the_doctor(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, closed: bool
) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path or not mode & refused)
    findings = [str(finding) for finding in check_home(load(config))]
    assert len(findings) == closed
    for finding in findings:
        assert finding.startswith(
            f"problem: the home {tmp_path / 'home'}: the permissions of {tmp_path} keep"
        )


def test_a_folder_in_the_place_of_a_configuration_is_named(tmp_path: Path) -> None:
    (line,) = refusals("serve", "--prepare-only", "-c", tmp_path)
    assert line.startswith(f"{tmp_path}: a folder is there, and a file is needed")


def test_a_home_that_cannot_be_closed_to_others_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, f"no mode {mode:o}", str(path))

    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home").chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    result = CliRunner().invoke(app, ["key", "create", "--name", "me", "-c", str(config)])
    assert result.exit_code == 1
    assert result.output.startswith(f"{tmp_path / 'home'}: the file system of {tmp_path / 'home'}")


def test_a_home_that_cannot_be_made_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "denied", str(path))

    settings = load(config)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match=r"^the home .*keep this user .*ARMWISE_HOME, names another$"):
        make_home(settings)
