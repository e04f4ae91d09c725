"""Checks: judgements over lock and facts, one module a family; each check is a generator of findings."""
