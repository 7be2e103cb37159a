"""Runs a command in a network of its own, where every address leads back to it, and lists where packets went.

    unshare --net --mount python -m tests.live.outgoing REPORT COMMAND [ARGUMENT]...

The network has a loopback device alone, to which all addresses of IPv4 and IPv6 belong: a name that is looked
up, a connection or a datagram for another machine does not get far, but it leaves the process, and a packet
socket sees it. REPORT gets a line for each place, such as `17 192.0.2.53`: the number of the protocol and the
address. The exit code is that of the command. Takes root, or the root of a user namespace, and `ip`.
"""

import ctypes
import ipaddress
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

RESOLVER = "192.0.2.53"
"""Address of the name server inside; of a block that belongs to nobody."""

CONTROL = ("192.0.2.1", "2001:db8::1")
"""Where the script sends a datagram to at the end, to show that it would have been seen."""

CONTROL_S = 10.0
"""How long the last control may take to be seen; without it the report shows that packets were missed."""

DISCARD = 9
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
SO_ATTACH_FILTER = 26
READ_BYTE, READ_HALF, READ_WORD, EQUAL, RETURN = 0x30, 0x28, 0x20, 0x15, 0x06
"""Instructions of the classic filter of packets, with absolute offsets from the start of the IP header."""

PROTOCOL = 0xFFFFF000
"""Offset at which the filter reads the protocol of the packet."""

ALL = 0xFFFF

UNREACHABLE = (1, 3)
"""Protocol and type of the answer of this network itself to a datagram of IPv4 that nobody listens for."""

PASSES_OTHERS = (
    (READ_HALF, 0, 0, PROTOCOL),
    (EQUAL, 0, 3, ETH_P_IP),
    (READ_BYTE, 0, 0, 16),  # first byte of the destination
    (EQUAL, 10, 0, 127),
    (RETURN, 0, 0, ALL),
    (EQUAL, 0, 8, ETH_P_IPV6),
    (READ_WORD, 0, 0, 24),  # the destination, word by word: ::1 is 0, 0, 0, 1
    (EQUAL, 0, 5, 0),
    (READ_WORD, 0, 0, 28),
    (EQUAL, 0, 3, 0),
    (READ_WORD, 0, 0, 32),
    (EQUAL, 0, 1, 0),
    (READ_WORD, 0, 0, 36),
    (EQUAL, 0, 1, 1),
    (RETURN, 0, 0, 0),
    (RETURN, 0, 0, ALL),
)
"""The filter: packets whose destination is no loopback address."""


def open_network() -> None:
    """Bring the loopback device up, and make all addresses its own."""
    for arguments in (
        ("link", "set", "lo", "up"),
        ("route", "add", "local", "0.0.0.0/0", "dev", "lo"),
        ("-6", "route", "add", "local", "::/0", "dev", "lo"),
    ):
        subprocess.run(["ip", *arguments], check=True)


def name_a_server(folder: Path) -> None:
    """Have names looked up at `RESOLVER`: a server on a loopback address would not be seen."""
    mine = folder / "resolv.conf"
    mine.write_text(f"nameserver {RESOLVER}\n")
    subprocess.run(["mount", "--bind", str(mine), "/etc/resolv.conf"], check=True)


def watched() -> socket.socket:
    """Return a socket that receives every packet to another machine."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # nothing yet: the filter comes first
    program = b"".join(struct.pack("HBBI", *step) for step in PASSES_OTHERS)
    kept = ctypes.create_string_buffer(program)
    found.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(PASSES_OTHERS), ctypes.addressof(kept))
    )
    found.bind(("lo", ETH_P_ALL))
    return found


def places(packets: socket.socket) -> Iterator[str]:
    """Yield protocol and destination of each packet that left, until the last control is seen."""
    while True:
        packet, (_, protocol, kind, *_) = packets.recvfrom(128)
        if kind != socket.PACKET_OUTGOING:
            continue
        old = protocol == ETH_P_IP
        carried, to = (packet[9], packet[16:20]) if old else (packet[6], packet[24:40])
        if old and (carried, packet[20]) == UNREACHABLE:
            continue
        to = ipaddress.ip_address(to)
        yield f"{carried} {to}"
        if str(to) == CONTROL[-1]:
            return


def main(report: Path, command: list[str]) -> int:
    """Run the command; write the report."""
    open_network()
    name_a_server(report.parent)
    packets, found = watched(), list[str]()
    listening = threading.Thread(target=lambda: found.extend(places(packets)), daemon=True)
    listening.start()
    code = subprocess.run(command, check=False).returncode
    for address in CONTROL:
        family = socket.AF_INET if "." in address else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as control:
            control.sendto(b"", (address, DISCARD))
    listening.join(CONTROL_S)
    report.write_text("".join(f"{place}\n" for place in dict.fromkeys(found)))
    return code


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
