"""Compiled kernels of the layers on a CPU: each is a source file in C++ and a module that calls it with tensors."""
