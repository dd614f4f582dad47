"""Stand-ins for layers that keep the workers' gradients separate."""
