"""How a policy's state becomes bytes: a line that says whose it is, a digest, and arrays without a pickle.

seal, unseal    a body behind one line of JSON: what made it, and a digest of it
pack, unpack    facts and arrays as a body; equal ones give equal bytes
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from agent.policies.base import PolicyError

SHOWN = 300
"""Bytes of a refused header that are shown."""


def seal(made_by: Mapping[str, Any], body: bytes) -> bytes:
    """Return a state: what made it and a digest on one line, and the body after it.

    >>> seal({"kind": "coin"}, b"heads").splitlines()
    [b'{"blake2b": "413288f2f678eced61e80eb7456b07c2", "kind": "coin"}', b'heads']
    """
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return _line({**made_by, "blake2b": digest}) + b"\n" + body


def unseal(state: bytes, made_by: Mapping[str, Any]) -> bytes:
    """Return the body of a state.

    Raises:
        PolicyError: It is damaged, or something else made it.

    >>> unseal(seal({"kind": "coin"}, b"heads"), {"kind": "coin"})
    b'heads'
    """
    header, _, body = state.partition(b"\n")
    if seal(made_by, body) != state:
        theirs, ours = header[:SHOWN].decode(errors="replace"), _line(made_by).decode()
        raise PolicyError(f"state of {theirs or 'nothing'} is damaged, or not of {ours}")
    return body


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return facts, which must be JSON, and arrays as one body."""
    return json.dumps(facts).encode() + b"\n" + save(dict(arrays))


def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the arrays of a body; the arrays may be written to.

    Raises:
        PolicyError: It is no body that `pack` made.
    """
    facts, _, arrays = body.partition(b"\n")
    try:
        return json.loads(facts), {name: array.copy() for name, array in load(arrays).items()}
    except (ValueError, SafetensorError) as error:
        raise PolicyError(f"state with the facts {facts[:SHOWN]!r} cannot be read: {error}") from error


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, default=str).encode()
