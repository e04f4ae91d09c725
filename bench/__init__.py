"""Measurements and trials for people; nothing of this is shipped."""
