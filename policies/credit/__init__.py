"""GPU time owed to a tenant whose job was preempted for another tenant's (POLICIES §8)."""
