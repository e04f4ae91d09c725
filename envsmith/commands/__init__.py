"""One verb a file: read, call the core, call tools, return a Result."""
