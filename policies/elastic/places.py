"""The placement of an attempt at another size. Members keep their order: the last ones go first, new ones come last.

So that a rank means the same member before and after, wherever the members stay.
"""

from dataclasses import replace

from policies.snapshot import Placed


def shrunk(placed: tuple[Placed, ...], group: str, replicas: int) -> tuple[Placed, ...]:
    """Without the last members of the group."""
    return tuple(_first(part, replicas) if part.group == group else part for part in placed)


def without_nodes(placed: tuple[Placed, ...], group: str, gone: frozenset[str], replicas: int) -> tuple[Placed, ...]:
    """The first `replicas` members of the group that are on none of these nodes."""
    found = []
    for part in placed:
        if part.group == group:
            nodes = tuple((node, members) for node, members in part.nodes if node not in gone)
            found.append(_first(replace(part, replicas=sum(members for _, members in nodes), nodes=nodes), replicas))
        else:
            found.append(part)
    return tuple(found)


def grown(placed: tuple[Placed, ...], group: str, more: Placed) -> tuple[Placed, ...]:
    """With further members behind those that are there."""
    return tuple(
        replace(part, replicas=part.replicas + more.replicas, nodes=(*part.nodes, *more.nodes) if part.nodes else ())
        if part.group == group
        else part
        for part in placed
    )


def size_of(placed: tuple[Placed, ...], group: str) -> int:
    """Members of the group."""
    return sum(part.replicas for part in placed if part.group == group)


def _first(part: Placed, replicas: int) -> Placed:
    left = replicas
    nodes = []
    for node, members in part.nodes:
        stay = min(members, left)
        if stay:
            nodes.append((node, stay))
        left -= stay
    return replace(part, replicas=min(replicas, part.replicas), nodes=tuple(nodes))
