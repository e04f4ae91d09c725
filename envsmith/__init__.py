"""envsmith: training environments that can be proved right."""

__version__ = "0.1.0"
