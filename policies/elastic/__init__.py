"""Jobs of more than one size (POLICIES §9): valid sizes, who shrinks, who grows, what becomes of the batch."""
