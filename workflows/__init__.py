"""Temporal workflows decide, activities do. The row is the truth, a signal is a hint."""
