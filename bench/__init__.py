"""Benchmarks: one module a row, each against a target of the design and, where one can run beside it, a peer."""
