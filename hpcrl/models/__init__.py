"""Models that are made here, or fetched and turned into normal model folders."""
