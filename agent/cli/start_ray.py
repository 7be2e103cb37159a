"""Start Ray with the processes that one machine needs, and run a Serve configuration: `serve run`.

Without the dashboard, eleven processes fewer. Ray's own processes listen on the loopback address, but for a
port of each replica, which listens on all of them; they answer only to the token of this run. Where
RAY_ADDRESS names a cluster, that one is used as it is.
"""

import os
import secrets
import sys
import tempfile
from pathlib import Path

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""


def main(config: str) -> None:
    """Run a Serve configuration until the process is interrupted."""
    if "RAY_ADDRESS" in os.environ:
        _run(config, own=False)
        return
    with tempfile.TemporaryDirectory(prefix="armwise-ray-", ignore_cleanup_errors=True) as folder:
        for name, value in private(Path(folder)).items():
            os.environ.setdefault(name, value)
        _run(config, own=True)


def _run(config: str, *, own: bool) -> None:
    import ray  # reads the environment
    from ray.serve.scripts import cli

    if own:
        ray.init(
            namespace="serve",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )
    cli(["run", config])


def private(folder: Path) -> dict[str, str]:
    """Return the environment of a Ray that only this service uses; its token is in a file of this user alone.

    Args:
        folder: Where the token is written, unless the environment names one.
    """
    token = {}
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        path = folder / "token"
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(32))
        token = {"RAY_AUTH_TOKEN_PATH": str(path)}
    return {
        **token,
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # fewer threads between a request and its answer
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # which that would switch on, with a proxy of Ray's own
        # As on a laptop with another system: this node is 127.0.0.1, and so its processes listen there alone.
        # An address given to ray.init does not do this: Ray replaces a loopback one by that of the network.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_enable_metrics_collection": "0",  # its exporter listens on every address, without a token
    }


if __name__ == "__main__":
    main(sys.argv[1])
