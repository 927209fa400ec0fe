"""Which addresses a webhook may go to: public ones, and networks that operators allow. Pure."""

import ipaddress
from collections.abc import Sequence
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks as settings write them. ValueError names the one that is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def may_reach(text: str, allowed: Sequence[Network]) -> bool:
    """Whether a resolved address may be connected to. One that carries another inside is judged by that."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if any(address.version == network.version and address in network for network in allowed):
        return True
    if (inner := _inside(address)) is not None:
        return may_reach(str(inner), allowed)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inside(address: Address) -> Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
