"""`python -m envsmith`."""

from envsmith.cli import main

if __name__ == "__main__":
    main()
