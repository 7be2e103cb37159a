"""Run worlds by their seeds.

python -m tests.simulation [--seeds 2000] [--first 1] [--trace] [--sabotage NAME]
"""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have an order, which a seed must give
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
        {**os.environ, "PYTHONHASHSEED": "0"},
    )

from tests.simulation import scheduler

scheduler.install()

if "--sabotage" in sys.argv:
    from tests.simulation import sabotage

    sabotage.plant(sys.argv[sys.argv.index("--sabotage") + 1])

from tests.simulation import connections, disk  # noqa: E402

disk.install(default=True)
connections.install()

from tests.simulation.run import main  # noqa: E402

scheduler.replace_threads("armwise")
main()
