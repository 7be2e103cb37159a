"""The arithmetic of this process: the kernel of BLAS, the instructions that numpy uses, and the libraries.

With the same arithmetic, equal logs give bitwise equal states. That is not promised with another one, whose
kernel may sum in another order.
"""

from functools import cache
from importlib import metadata

import numpy as np
from threadpoolctl import threadpool_info

LIBRARIES = ("numpy", "scipy", "vowpalwabbit", "river", "xgboost-cpu", "torch")
"""Libraries whose results enter states; those that are installed are named."""


@cache
def arithmetic() -> str:
    """Describe the arithmetic, such as `openblas Zen; AVX2; numpy 2.4.2, scipy 1.18.0`."""
    blas = sorted(
        (library for library in threadpool_info() if library["user_api"] == "blas"),
        key=lambda library: ("numpy" not in library["filepath"], library["filepath"]),
    )
    kernel = f"{blas[0]['internal_api']} {blas[0].get('architecture', '')}".strip() if blas else "no BLAS"
    instructions = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])[-1:] or ["baseline"]
    libraries = ", ".join(filter(None, map(_describe_package, LIBRARIES)))
    return f"{kernel}; {instructions[0]}; {libraries}"


def _describe_package(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""
