"""Kernels and their launchers, with a torch reference of each."""
