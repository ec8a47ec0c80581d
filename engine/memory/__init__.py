"""Whether a request fits, and what is given back first."""
