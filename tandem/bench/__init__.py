"""The bench: totals a level, each text against its alone text, and concurrency proven from health."""
