"""Stand-ins for layers that keep the workers' gradients separate, and those with kernels."""
