"""Effects: programs, files, network and devices. Tools know no recipe and no lock."""
