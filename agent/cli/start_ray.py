"""Start Ray with the processes that one machine needs, and run a Serve configuration: `serve run`.

Without the dashboard, eleven processes fewer. Where RAY_ADDRESS names a cluster, that one is used as it is.
"""

import os
import sys

import ray
from ray.serve.scripts import cli

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""


def main(config: str) -> None:
    """Run a Serve configuration until the process is interrupted."""
    if "RAY_ADDRESS" not in os.environ:
        ray.init(namespace="serve", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    cli(["run", config])


if __name__ == "__main__":
    main(sys.argv[1])
