"""Networks: their layers, sizes and output shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

MNIST = ImageShape(1, 28, 28, 10)
CIFAR = ImageShape(3, 32, 32, 10)
DIGITS = ImageShape(1, 8, 8, 10)
PICTURES = [name for name in REGISTRY.entries() if name != "gpt"]
"""Models of images; tests/gradients/test_tokens.py has the model of characters."""


def build(text: str, shape: ImageShape) -> nn.Module:
    model: nn.Module = REGISTRY.parse(text).build(shape)
    return model


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def layers(model: nn.Module) -> list[str]:
    """The layers in order, such as Conv(20), FC(500) and Dropout(0.25)."""
    words = []
    for module in model.children():
        if isinstance(module, nn.Conv2d):
            words.append(f"Conv({module.out_channels})")
        elif isinstance(module, nn.Linear):
            words.append(f"FC({module.out_features})")
        elif isinstance(module, nn.Dropout):
            words.append(f"Dropout({module.p})")
        elif not isinstance(module, nn.Flatten):
            words.append(
                {nn.ReLU: "ReLU", nn.BatchNorm2d: "BatchNorm", nn.MaxPool2d: "MaxPool"}[
                    type(module)
                ]
            )
    return words


@each_row(
    ("text", "shape", "count"),
    [
        ("cnn-mnist", MNIST, 176_050),  # 520 + 10,020 + 160,500 + 5,010
        ("cnn-mnist-50", MNIST, 431_080),
        ("cnn-digits", DIGITS, 13_706),
        ("logistic", MNIST, 7_850),
        ("logistic", DIGITS, 650),
        ("mlp", MNIST, 79_510),
        ("mlp:hidden=5,layers=3", DIGITS, 64 * 5 + 5 + 2 * (25 + 5) + 60),
        # 4 convolutions, 4 batch norms, FC(8192 -> 128), FC(128 -> 10)
        (
            "cnn-cifar",
            CIFAR,
            1_792 + 36_928 + 73_856 + 147_584 + 2 * (64 + 64 + 128 + 128) + 1_048_704 + 1_290,
        ),
        (
            "cnn-cifar:width=0.25",
            CIFAR,
            448 + 2_320 + 4_640 + 9_248 + 2 * (16 + 16 + 32 + 32) + 262_272 + 1_290,
        ),
        # stem 1,728; 3x3 convolutions 4 * 36,864, 73,728 + 3 * 147,456, 294,912 + 3 * 589,824,
        # 1,179,648 + 3 * 2,359,296; shortcuts 8,192 + 32,768 + 131,072; norms 2 * (5 * 64 + 5 *
        # (128 + 256 + 512)); FC 5,130
        (
            "resnet18",
            CIFAR,
            1_728 + 147_456 + 516_096 + 2_064_384 + 8_257_536 + 172_032 + 9_600 + 5_130,
        ),
        ("resnet18:norm=batch", CIFAR, 11_173_962),
    ],
)
def test_number_of_parameters(text: str, shape: ImageShape, count: int) -> None:
    assert size(build(text, shape)) == count


def test_the_mnist_network_is_table_2s() -> None:
    table = "Conv(20)-ReLU-MaxPool-Conv(20)-ReLU-MaxPool-FC(500)-ReLU-FC(10)"
    model = build("cnn-mnist", MNIST)
    assert "-".join(layers(model)) == table
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert {(module.kernel_size, module.padding, module.stride) for module in convolutions} == {
        ((5, 5), (0, 0), (1, 1))
    }


def test_the_cifar_network_is_table_2s() -> None:
    table = (
        "Conv(64)-ReLU-BatchNorm-Conv(64)-ReLU-BatchNorm-MaxPool-Dropout(0.25)-"
        "Conv(128)-ReLU-BatchNorm-Conv(128)-ReLU-BatchNorm-MaxPool-Dropout(0.25)-FC(128)-ReLU-Dropout(0.25)-FC(10)"
    )
    model = build("cnn-cifar", CIFAR)
    assert "-".join(layers(model)) == table
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert {(module.kernel_size, module.padding, module.stride) for module in convolutions} == {
        ((3, 3), (1, 1), (1, 1))
    }


def test_other_networks() -> None:
    wide = "Conv(20)-ReLU-MaxPool-Conv(50)-ReLU-MaxPool-FC(500)-ReLU-FC(10)"
    assert "-".join(layers(build("cnn-mnist-50", MNIST))) == wide
    small = "Conv(16)-ReLU-MaxPool-Conv(32)-ReLU-MaxPool-FC(64)-ReLU-FC(10)"
    assert "-".join(layers(build("cnn-digits", DIGITS))) == small
    assert layers(build("logistic", DIGITS)) == ["FC(10)"]
    assert layers(build("mlp", DIGITS)) == ["FC(100)", "ReLU", "FC(10)"]
    deep = "FC(7)-ReLU-Dropout(0.2)-FC(7)-ReLU-Dropout(0.2)-FC(10)"
    assert "-".join(layers(build("mlp:hidden=7,layers=2,dropout=0.2", DIGITS))) == deep


SHAPES = [
    MNIST,
    CIFAR,
    ImageShape(1, 16, 16, 2),
    ImageShape(3, 17, 30, 100),
]
ODD = ImageShape(4, 33, 21, 7)


@each_row(
    ("name", "shape"),
    [*((name, ODD) for name in PICTURES), *(("cnn-mnist", shape) for shape in SHAPES)],
)
def test_logits_for_every_shape(name: str, shape: ImageShape) -> None:
    images = torch.randn(
        2, shape.channels, shape.height, shape.width, generator=torch.Generator().manual_seed(0)
    )
    model = build(name, shape)
    assert model(images).shape == (2, shape.classes)
    assert isinstance(list(model.modules())[-1], nn.Linear), "softmax belongs to the loss"


@each_row("name", PICTURES)
def test_a_softmax_as_the_last_layer(name: str) -> None:
    images = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        plain = build(name, MNIST).eval()
        torch.manual_seed(1)
        model = build(f"{name}:softmax=true", MNIST).eval()
    torch.testing.assert_close(model(images), plain(images).softmax(1))
    assert size(model) == size(plain)


@each_row(
    ("name", "pixels"),
    [("cnn-mnist", 16), ("cnn-mnist-50", 16), ("cnn-cifar", 4), ("cnn-digits", 4)],
)
def test_images_that_are_too_small(name: str, pixels: int) -> None:
    images = torch.zeros(2, 1, pixels, pixels)
    assert build(name, ImageShape(1, pixels, pixels, 3))(images).shape == (2, 3)
    for height, width in ((pixels - 1, 40), (40, pixels - 1)):
        with pytest.raises(
            SpecError,
            match=f"{name}' needs images of at least {pixels} x {pixels} .*are {height} x {width}",
        ):
            build(name, ImageShape(1, height, width, 3))


@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_single_pixels_will_do_without_convolutions(name: str) -> None:
    assert build(name, ImageShape(2, 1, 1, 3))(torch.zeros(5, 2, 1, 1)).shape == (5, 3)


@each_row("name", PICTURES)
def test_initialisation_is_drawn_from_the_callers_generator(name: str) -> None:
    weights = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            weights.append(
                torch.cat(
                    [parameter.detach().flatten() for parameter in build(name, MNIST).parameters()]
                )
            )
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@each_row(
    "text",
    ["mlp:dropout=1", "mlp:hidden=0", "mlp:layers=0", "cnn-cifar:width=0", "cnn-mnist:softmax=2"],
)
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="is not legal"):
        REGISTRY.parse(text)
