"""A request names the service by a name of it, by an address, or as this machine, and by nothing else."""

import pytest

from armwise.agent.access import Hosts, count_as, require_closed
from armwise.agent.access.hosts import OpenServiceError, UnknownHostError

NAMES = ("api.example.com", "*.Shop.example")


@pytest.mark.parametrize(
    "header",
    [
        *("api.example.com", "API.EXAMPLE.COM:8000", "api.example.com.", "api.example.com.:8000"),
        *("eu.shop.example", "a.b.shop.example:1"),
        *("localhost", "localhost:8000", "armwise.localhost", "10.0.0.7", "10.0.0.7:80", "[::1]", "[::1]:80"),
    ],
)
def test_a_name_of_the_service_and_every_address_are_accepted(header: str) -> None:
    Hosts(NAMES).check(header)


@pytest.mark.parametrize(
    "header",
    [
        *("example.com", "xapi.example.com", "api.example.com.evil.test", "api-example.com", "other.test"),
        *("shop.example", "evilshop.example", "shop.example.evil.test"),
        *("evillocalhost", "localhost.evil.test", "", ":80", "10.0.0.7.evil.test"),
    ],
)
def test_another_name_is_refused_and_named(header: str) -> None:
    with pytest.raises(UnknownHostError, match="if it should be, add it to `hosts`"):
        Hosts(NAMES).check(header)


def test_any_name_may_be_accepted() -> None:
    Hosts(["*"]).check("anything.test")
    assert not Hosts(["*"]).has_page("https://anything.test", "api.example.com"), (
        "of the service, not of pages"
    )


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("https://eu.shop.example", "10.0.0.7", True),
        ("https://evilshop.example", "10.0.0.7", False),
        ("http://10.0.0.7:8000", "10.0.0.7:8000", True),
        ("http://10.0.0.7:8001", "10.0.0.7:8000", False),
        ("http://[2001:DB8::1]:80", "[2001:db8::1]:80", True),
        ("http://[2001:db8::1]:80", "[2001:DB8::1]:80", True),
        ("http://127.0.0.1:3000", "api.example.com", True),
        ("http://localhost:3000", "api.example.com", True),
        ("null", "api.example.com", False),
        ("null", "", False),
        ("", "", False),
    ],
)
def test_a_page_is_of_the_service_or_of_this_machine(origin: str, host: str, expected: bool) -> None:
    assert Hosts(NAMES).has_page(origin, host) is expected


@pytest.mark.parametrize(
    ("host", "is_open", "allowed", "refused"),
    [
        ("0.0.0.0", True, False, True),
        ("::", True, False, True),
        ("10.0.0.7", True, False, True),
        ("db.internal", True, False, True),
        ("0.0.0.0", True, True, False),
        ("0.0.0.0", False, False, False),
        ("127.0.0.1", True, False, False),
        ("[::1]", True, False, False),
        ("localhost", True, False, False),
    ],
)
def test_a_service_without_keys_listens_to_this_machine_alone_unless_it_may(
    host: str, is_open: bool, allowed: bool, refused: bool
) -> None:
    if not refused:
        require_closed(host, is_open=is_open, allowed=allowed)
        return
    with pytest.raises(OpenServiceError, match=f"would listen on {host} without any key"):
        require_closed(host, is_open=is_open, allowed=allowed)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, None),
    ],
)
def test_an_ipv6_client_counts_as_its_network(address: str | None, counted: str | None) -> None:
    assert count_as(address) == counted
