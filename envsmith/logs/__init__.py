"""Reading of logs: lines out of bytes, prefixes, the first effective error, series of metrics and what is expected."""
