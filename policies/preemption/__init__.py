"""Who gives way, at what cost, as a set that frees the shape the waiter needs (POLICIES §7)."""
