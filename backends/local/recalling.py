"""What a launch's own files say of it, for a gateway whose database has forgotten it. Pure."""

import hashlib
from collections import Counter

from backends.local.records import Record
from backends.types import GroupLaunch, Recalled
from policies.snapshot import Placed


def recalled(record: Record) -> Recalled:
    """Groups where they sit, or where they were to sit; the token as a digest alone."""
    token = record.request.token
    digest = b"" if token is None else hashlib.sha256(token.reveal().encode()).digest()
    return Recalled(tuple(_placed(record, group) for group in record.request.groups), digest)


def _placed(record: Record, group: GroupLaunch) -> Placed:
    ranks = range(group.first_rank, group.first_rank + group.replicas)
    seats = record.placement.seats if record.placement is not None else ()
    nodes = [seat.node for seat in seats if seat.rank in ranks] or list(group.nodes)
    counted = tuple(sorted(Counter(nodes).items()))
    return Placed(group.name, group.pool, group.flavor, group.replicas, group.per_member, counted)
