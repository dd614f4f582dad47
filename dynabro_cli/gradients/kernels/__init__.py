"""Kernels of the layers: on a CPU a source file in C++ and a module that calls it with tensors, on
a GPU ``*_kernel.py``.
"""
