"""The registry of keys and views."""
