"""Survival, measured: a gate of separate processes whose parts are killed -9 while jobs run, and what came of it."""
