"""The HTTP layer: one file a dialect."""
