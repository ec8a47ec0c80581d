"""Talking to running engines: which engines run, HTTP over their sockets, chat answers as typed streams."""
