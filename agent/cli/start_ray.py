"""Start Ray with the processes that one machine needs, and run a Serve configuration: `serve run`.

Without the dashboard, eleven processes fewer. Ray's own processes listen on every address of the machine,
which no setting changes: so they answer only to the token of this run. Where RAY_ADDRESS names a cluster,
that one is used as it is.
"""

import os
import secrets
import sys

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""

LOOPBACK = "127.0.0.1"
"""Where Ray's own processes listen: none of them is for others."""


def main(config: str) -> None:
    """Run a Serve configuration until the process is interrupted."""
    own = "RAY_ADDRESS" not in os.environ
    if own:
        for name, value in private().items():
            os.environ.setdefault(name, value)
    import ray  # reads the environment
    from ray.serve.scripts import cli

    if own:
        ray.init(
            namespace="serve",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=LOOPBACK,
        )
    cli(["run", config])


def private() -> dict[str, str]:
    """Return the environment of a Ray that only this service uses."""
    return {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # fewer threads between a request and its answer
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # which that would switch on, with a proxy of Ray's own
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_enable_metrics_collection": "0",  # its exporter listens on every address, without a token
    }


if __name__ == "__main__":
    main(sys.argv[1])
