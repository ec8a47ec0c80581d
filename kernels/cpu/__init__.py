"""The CPU kernels: compiled where a compiler is present, torch otherwise."""
