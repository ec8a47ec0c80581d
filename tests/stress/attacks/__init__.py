"""Bounded attacks on a real engine over loopback: `python -m tests.stress.attacks [NAME...] [--json FILE]`."""
