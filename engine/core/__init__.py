"""The engine thread: its loop, and the steps of a turn."""
