"""Weights from files, in the forms that the kernels run."""
