"""Run the gauntlet: `python -m bench.drift ENV --seed N`."""

from bench.drift.gauntlet import main

raise SystemExit(main())
