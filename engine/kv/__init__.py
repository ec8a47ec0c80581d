"""Where KV rows live."""
