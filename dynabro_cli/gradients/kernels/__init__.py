"""Compiled kernels of the layers on a CPU: each has a source file in C++ and a module that calls it with tensors."""
