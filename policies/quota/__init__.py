"""Guarantee, ceiling, borrowing, lending and reclaim, at every level of the tenant tree (POLICIES §3)."""
