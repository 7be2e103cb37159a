"""The bytes of a policy's state: a header with a digest, and plain data in place of a pickle.

seal, unseal    one line of JSON with the settings of the policy and a digest of the body, then the body
pack, unpack    JSON facts and arrays as a body; equal ones give equal bytes
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.arms import extras

HEADER_CHARS = 300
"""Bytes of a refused header that a message quotes."""


def seal(made_by: Mapping[str, Any], body: bytes) -> bytes:
    """Return a saved state: the settings and a digest on one line, then the body.

    >>> seal({"kind": "coin"}, b"heads").splitlines()
    [b'{"blake2b": "413288f2f678eced61e80eb7456b07c2", "kind": "coin"}', b'heads']
    """
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return _line({**made_by, "blake2b": digest}) + b"\n" + body


def unseal(state: bytes, made_by: Mapping[str, Any]) -> bytes:
    """Return the body of a state.

    Raises:
        PolicyError: The state is damaged, or of other settings.

    >>> unseal(seal({"kind": "coin"}, b"heads"), {"kind": "coin"})
    b'heads'
    """
    header, _, body = state.partition(b"\n")
    if seal(made_by, body) != state:
        theirs, ours = header[:HEADER_CHARS].decode(errors="replace"), _line(made_by).decode()
        raise PolicyError(f"state of {theirs or 'nothing'} is damaged, or not of {ours}")
    return body


@extras.explain_missing()
def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return facts, which must be JSON, and arrays as one byte string."""
    from safetensors.numpy import save  # here: a policy that only decides has no need of it

    return json.dumps(facts).encode() + b"\n" + save(dict(arrays))


@extras.explain_missing()
def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the arrays of a body; the arrays are writable.

    Raises:
        PolicyError: The body is not from `pack`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    facts, _, arrays = body.partition(b"\n")
    try:
        return json.loads(facts), {name: array.copy() for name, array in load(arrays).items()}
    except (ValueError, SafetensorError) as error:
        raise PolicyError(f"state with the facts {facts[:HEADER_CHARS]!r} cannot be read: {error}") from error


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, default=str).encode()
