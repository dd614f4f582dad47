"""The model ``cnn-mnist-50``."""

from __future__ import annotations

from dynabro_cli.components.models._api import REGISTRY, Network, at_least
from dynabro_cli.components.models.cnn_mnist import two_convolutions
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn


@REGISTRY.register(
    "cnn-mnist-50",
    Network,
    reference="Allouah et al., AISTATS 2023; the network of ByzFL's MNIST experiments",
    check=at_least(16),
)
def cnn_mnist_50(parameters: Network, shape: ImageShape) -> nn.Module:
    """The paper's CNN for MNIST with 20 and 50 channels, for comparisons with other libraries; d =
    431,080.
    """
    return two_convolutions(parameters, shape, 20, 50)
