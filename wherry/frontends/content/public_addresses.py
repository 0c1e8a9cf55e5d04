"""May a server connect to this address on behalf of a client that it does not know?

Only where everyone could: what it says is of no use to a client then, but to reach what only this
machine can reach.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

#: What of IPv6 is given out to be used in public, and parts of it that lead elsewhere: to IPv4
#: (6to4, Teredo), or nowhere (documentation).
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
#: Beside what `ipaddress` knows in every Python: shared by providers, for protocols, for tests.
_NOT_PUBLIC_4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "161.26.0.0/16",  # IBM Cloud's services, as 166.8.0.0/14: only its machines reach them
            "166.8.0.0/14",
            "168.63.129.16/32",  # Azure's own, which each of its machines can reach
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
        ),
    )
)


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet; False for what is no address, and for all
    that stand for another one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        return ip in _GLOBAL_UNICAST and not any(ip in network for network in _NOT_PUBLIC_6)
    hidden = ip.is_private or ip.is_loopback or ip.is_link_local or ip.is_multicast
    return not hidden and not any(ip in network for network in _NOT_PUBLIC_4)


def is_own(address: str) -> bool:
    """Whether this machine has an address that `is_public`. Nothing is sent."""
    family, none = (
        (socket.AF_INET6, "2001:db8::1") if ":" in address else (socket.AF_INET, "192.0.2.1")
    )
    if not _can_bind(family, address):
        return False
    if not _can_bind(family, none):
        return True
    # The system lets every address be bound (ip_nonlocal_bind). What is sent to an address of the
    # machine comes from the same.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 80))
        except OSError:
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address)


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
