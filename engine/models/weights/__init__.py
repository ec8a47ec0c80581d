"""Model files: reading GGUF, shards, and what a damaged file is refused with."""
