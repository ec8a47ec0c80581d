"""Snapshots over time: rates, the last half hour in memory, recordings and replay."""
