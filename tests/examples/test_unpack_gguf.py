"""Unpacking the weights of a GGUF file."""

from pathlib import Path

import pytest

from armwise.arms.models import ModelNotFoundError
from examples.unpack_gguf import unpack


def test_a_directory_that_exists_is_not_unpacked_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert unpack("package:no_such_package/model.gguf", tmp_path) == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_model_that_cannot_be_found_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no_such_package"):
        unpack("package:no_such_package/model.gguf", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
