"""Functions of the layers: in C++ with a module that calls it, or in Triton (``*_kernel.py``)."""
