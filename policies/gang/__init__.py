"""All groups of a job start, or none."""
