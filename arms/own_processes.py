"""Processes of ours: they import nothing of the folder that they run in, and reach this machine directly.

A folder of users may have an `agent/`, a `ray.py` or a `sitecustomize.py`. Python puts the current folder
first on the path of what is started with `-m` or `-c`, and Ray that of its driver on the path of its workers;
none of ours gets it. A proxy of the network (HTTP_PROXY and the like) is not asked for this machine.
"""

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""Names under which processes of ours are reached."""


PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl: the signal that a process gets when its parent ends."""


def python(*words: str) -> list[str]:
    """Return the command of a process of ours, such as `python("-m", "armwise", "serve")`."""
    return [sys.executable, "-P", *words]


def ends_with_its_parent() -> None:
    """Have Linux terminate this process when its parent ends for any reason; for `preexec_fn`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def importable() -> str:
    """Return the PYTHONPATH of a process of ours that imports what this one can.

    The current folder is in it where the user has named it in PYTHONPATH, or this package lies there.
    """
    places = [path for path in sys.path if path]
    with suppress(FileNotFoundError):  # the current folder was removed: nothing is imported from it
        current, ours = Path.cwd(), Path(__file__).parents[2]
        named = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        if current not in (*named, ours):
            places = [path for path in places if Path(path).absolute() != current]
    return os.pathsep.join(places)


def keep_apart(environment: MutableMapping[str, str] | None = None) -> None:
    """Have the processes that inherit an environment import nothing of their folder, and use no proxy here.

    Nor are warnings errors to them: PYTHONWARNINGS is for the code of who sets it, and Ray would not start.
    Texts and paths are UTF-8, whatever the locale.

    Args:
        environment: Changed in place; None for that of this process.

    >>> variables = {"HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": "intranet.example"}
    >>> keep_apart(variables)
    >>> variables["PYTHONSAFEPATH"], variables["NO_PROXY"]
    ('1', 'intranet.example,127.0.0.1,localhost,::1')
    """
    variables = os.environ if environment is None else environment
    variables["PYTHONSAFEPATH"] = "1"
    variables["PYTHONUTF8"] = "1"
    variables.pop("PYTHONWARNINGS", None)
    except_this_machine(variables)


def except_this_machine(variables: MutableMapping[str, str]) -> None:
    """Have what inherits an environment ask this machine without a proxy."""
    known = variables.get("NO_PROXY") or variables.get("no_proxy") or ""
    names = [name.strip() for name in known.split(",") if name.strip()]
    text = ",".join(dict.fromkeys([*names, *THIS_MACHINE]))
    variables["NO_PROXY"] = variables["no_proxy"] = text
