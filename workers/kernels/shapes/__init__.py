"""Checks of tensors that the kernels of several platforms share."""
