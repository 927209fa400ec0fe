"""Who is considered first. An order never says who may start."""
