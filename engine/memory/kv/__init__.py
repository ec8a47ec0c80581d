"""Where KV rows live: the pool of pages over reserved address ranges."""
