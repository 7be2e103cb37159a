"""What users import from `armwise` itself."""

import subprocess
import sys

import pytest

import armwise


def test_every_name_of_the_face_is_there_and_comes_from_one_package() -> None:
    names = [name for names in armwise.ROOMS.values() for name in names]
    assert sorted(names) == sorted(armwise.__all__)
    assert len(names) == len(set(names))
    for room, of_room in armwise.ROOMS.items():
        module = __import__(f"armwise.{room}", fromlist=["*"])
        for name in of_room:
            assert getattr(armwise, name) is getattr(module, name), name
            assert name in dir(armwise)


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'armwise' has no attribute 'Clientt'"):
        _ = armwise.Clientt


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import armwise", ("numpy", "httpx", "pydantic")),
        ("from armwise import Client", ("numpy", "scipy", "sqlalchemy")),
        ("from armwise import ips, snips", ("httpx", "sqlalchemy", "ray")),
    ],
)
def test_a_name_loads_what_it_needs_alone(code: str, absent: tuple[str, ...]) -> None:
    script = f"import sys\n{code}\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
