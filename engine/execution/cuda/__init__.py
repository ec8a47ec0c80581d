"""The GPU's side: loading, runner, and the memory that the KV lies in."""
