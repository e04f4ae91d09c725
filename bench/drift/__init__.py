"""The drift gauntlet: plant faults of every family in a real env and ask `envsmith verify` to name each one."""
