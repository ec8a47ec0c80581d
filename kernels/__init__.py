"""Kernels and their launchers, with a torch twin of each."""
