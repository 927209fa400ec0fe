"""Where a job may go and where it fits: filters, room per pool and node shape, best fit, shadow slots."""
