"""TODO: say what this package owns."""
