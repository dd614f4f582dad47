"""Components of one's own as functions: their parameters, what the run gives them, and what is
wrong with what they return.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from dynabro_cli import (
    RunSpec,
    make_aggregator,
    make_attack,
    make_pre_aggregator,
    make_switching,
    plugins,
    simulate,
)
from dynabro_cli.answers.analysis.pairs import side
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import TaskSetting
from dynabro_cli.components.tasks._arrays import images_of
from dynabro_cli.core.errors import NotFoundError, PluginError, SpecError
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.plugins import (
    Range,
    aggregator,
    attack,
    model,
    partition,
    pre_aggregator,
    switching,
    task,
)
from tests.own import fresh

MESSAGES = torch.arange(10.0).view(5, 2)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


def test_keyword_only_arguments_are_parameters_with_a_range() -> None:
    @aggregator("own-first", reference="here")
    def first(
        messages: Any,
        *,
        f: int,
        keep: Annotated[float, Range(above=0, maximum=1, help="share")] = 0.5,
        up=2,
    ) -> Any:
        """First messages."""
        return messages[: max(1, int(keep * (len(messages) - f)))].mean(0) + up

    assert first(MESSAGES, f=1).tolist() == [3.0, 4.0], "the function itself stays as it is"
    assert make_aggregator("own-first:keep=1,up=0", workers=5, byzantine=1)(MESSAGES).tolist() == [
        3.0,
        4.0,
    ]
    entry = REGISTRIES["aggregators"].entry("own-first")
    assert next((info.key, info.default, info.limits["help"]) for info in entry.infos) == (
        "keep",
        0.5,
        "share",
    )
    assert (entry.summary, entry.reference) == ("First messages.", "here")
    with pytest.raises(SpecError, match="keep must be a number > 0 and <= 1"):
        make_aggregator("own-first:keep=2", workers=5, byzantine=1)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (lambda g: g, r"returned torch.float32 \[5, 2\]; expected torch.float32 \[d\] = \[2\]"),
        (lambda g: g.double().mean(0), r"returned torch.float64 \[2\]; expected torch.float32"),
        (lambda _: 0.0, r"returned float; expected"),
        (lambda g: g.add_(1).mean(0), r"changed the vectors that it was given"),
    ],
)
def test_a_wrong_aggregate_names_the_rule(returned: Any, problem: str) -> None:
    aggregator("own-wrong")(lambda messages: returned(messages))
    with pytest.raises(PluginError, match=f"aggregator 'own-wrong' {problem}"):
        make_aggregator("own-wrong", workers=5, byzantine=1)(MESSAGES.clone())
    with pytest.raises(PluginError, match="aggregator 'own-wrong' "):
        list(simulate(RunSpec(aggregator="own-wrong", model="logistic", method="sgd", budget=2)))


def test_an_attack_sends_a_vector_a_matrix_or_a_number() -> None:
    attack("own-number")(lambda own, byzantine: 7)
    attack("own-vector")(lambda own, byzantine: own.mean(0))
    attack("own-matrix")(lambda own, byzantine: -own)
    attack("own-drawn")(lambda own, byzantine, *, generator: float(generator.random()))
    mask = torch.tensor([True, False, False, False, True])
    sent = {
        name: make_attack(f"own-{name}", workers=5)(MESSAGES, mask)[4].tolist()
        for name in ("number", "vector", "matrix")
    }
    assert sent == {"number": [7.0, 7.0], "vector": [4.0, 5.0], "matrix": [-8.0, -9.0]}
    drawing = make_attack("own-drawn", workers=5)
    assert drawing(MESSAGES, mask)[4].tolist() != drawing(MESSAGES, mask)[4].tolist(), (
        "every call is a round"
    )
    attack("own-wrong")(lambda own, byzantine: own[:2])
    with pytest.raises(
        PluginError,
        match=r"attack 'own-wrong' returned torch.float32 \[2, 2\]; expected .*\[d\] = \[2\] or ",
    ):
        make_attack("own-wrong", workers=5)(MESSAGES, mask)


def test_a_stage_and_a_strategy_are_checked() -> None:
    pre_aggregator("own-half")(lambda messages: messages / 2)
    pre_aggregator("own-few")(lambda messages: messages[:1])
    assert torch.equal(
        make_pre_aggregator("own-half", workers=5, byzantine=1)(MESSAGES), MESSAGES / 2
    )
    with pytest.raises(PluginError, match=r"expected torch.float32 \[m, d\] = \[5, 2\]"):
        make_pre_aggregator("own-few", workers=5, byzantine=1)(MESSAGES)
    switching("own-first")(lambda tick, *, m, f: [worker < f for worker in range(m)])
    switching("own-drawn")(lambda tick, *, m, generator: generator.random(m) < 0.5)
    switching("own-wrong")(lambda tick: [0, 1])
    assert make_switching("own-first", workers=3, byzantine=1).mask(4).tolist() == [
        True,
        False,
        False,
    ]
    drawn = [
        make_switching("own-drawn", workers=40, byzantine=1, seed=0).mask(tick).tolist()
        for tick in (0, 1, 0)
    ]
    assert drawn[0] == drawn[2] != drawn[1]
    with pytest.raises(
        PluginError,
        match=r"switching 'own-wrong' returned torch.int64 \[2\]; expected bool \[m\] = \[3\]",
    ):
        make_switching("own-wrong", workers=3, byzantine=1).mask(0)


@pytest.mark.thorough
def test_a_run_of_own_parts() -> None:
    @model("own-net")
    def net(shape: Any, *, width: int = 4) -> Any:
        """One layer."""
        k = shape.channels * shape.height * shape.width
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(k, width), torch.nn.Linear(width, shape.classes)
        )

    @task("own-clouds")
    def clouds() -> Any:
        """Two clouds."""
        draws = np.random.default_rng(0)
        labels = draws.integers(2, size=300)
        return draws.normal(size=(300, 5)) + 3 * labels[:, None], labels

    partition("own-chunks")(lambda labels, *, m: np.array_split(np.arange(len(labels)), m))
    spec = RunSpec(
        task="own-clouds",
        model="own-net:width=3",
        data="own-chunks",
        workers=5,
        method="sgd",
        budget=200,
    )
    *_, last = simulate(spec)
    assert last.accuracy > 0.9
    partition("own-twice")(lambda labels, *, m: [np.arange(len(labels))] * m)
    with pytest.raises(
        PluginError, match="partition 'own-twice' returned 5 arrays with 1200 samples; expected 5 "
    ):
        list(
            simulate(
                RunSpec(task="own-clouds", model="own-net", data="own-twice", workers=5, budget=2)
            )
        )
    model("own-none")(lambda shape: 3)
    with pytest.raises(
        PluginError, match=r"model 'own-none' returned int; expected torch\.nn\.Module"
    ):
        list(simulate(RunSpec(task="digits", model="own-none", budget=2)))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            lambda messages, *, generator: messages,
            "generator is not known to it. Try: m, f, seed, server, or a factory",
        ),
        (
            lambda messages, *, table={}: messages,
            "table is of type <class 'dict'>, which no text can set",
        ),
    ],
)
def test_an_argument_that_nothing_can_set_is_refused_at_once(function: Any, problem: str) -> None:
    with pytest.raises(TypeError, match="aggregator 'own-odd': ") as caught:
        aggregator("own-odd")(function)
    assert problem in str(caught.value)


# --- texts with blanks and commas


@pytest.mark.parametrize("note", ["a b", "nnm+x: y, 1e+2", """it's "so", ok""", "", " "])
def test_a_text_may_have_blanks_and_separators(note: str) -> None:
    """In a chain, and as a part of another component; read again from the canonical text, as worker
    processes do.
    """

    @aggregator("own-noted")
    def noted(messages: Any, *, note: str = "-") -> Any:
        """Mean, with a note."""
        return messages.mean(0)

    @attack("own-noted")
    def noting(messages: Any, byzantine: Any, *, note: str = "-") -> Any:
        """Nothing, with a note."""
        return messages

    mark, other = ("'", '"')
    for quote in (mark, other):
        own = f"own-noted:note={quote}{note.replace(quote, 2 * quote)}{quote}"
        outer = other if quote == mark else mark
        within = own.replace(outer, 2 * outer)
        spec = resolve(
            RunSpec(
                task="quadratic",
                method="sgd",
                aggregator=f"nnm+ctma:rule={outer}{within}{outer}",
                attack=f"mixed:parts={outer}sf/{within}/sf{outer}",
            )
        ).spec
        again = resolve(RunSpec(**vars(spec)))
        assert again.spec == spec
        assert spec.pre_aggregators == "nnm"
        assert again.aggregator.inner[0].parameters.note == note
        assert [getattr(part.parameters, "note", None) for part in again.attack.inner] == [
            None,
            note,
            None,
        ]
        chain = f"clipping:c=1e+2+own-noted:note={quote}{note.replace(quote, 2 * quote)}{quote}"
        make_aggregator(chain, workers=5, byzantine=1)
        (rule,) = [
            value
            for name, value in side(f"momentum aggregator={chain}", REGISTRIES).items()
            if name == "aggregator"
        ]
        assert REGISTRIES["aggregators"].parse(rule).parameters.note == note


def test_a_quote_that_is_not_closed() -> None:
    with pytest.raises(SpecError) as caught:
        REGISTRIES["tasks"].parse('image-folder:name="a b,size=3')
    assert caught.value.problems[0].startswith(
        """task 'image-folder:name="a b,size=3': 'name="a b' is not of the form key=value. Try: key="value" if it has blanks"""  # noqa: E501
    )


# --- arrays


def save(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "own.npz", **arrays)
    return f"npz:file={folder / 'own.npz'}"


@pytest.mark.thorough
def test_a_file_of_arrays_is_a_task(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    labels = draws.integers(3, size=200)
    text = save(tmp_path, X=draws.normal(size=(200, 4)) + 4 * labels[:, None], y=labels)
    *_, last = simulate(RunSpec(task=text, workers=5, method="sgd", budget=300, learning_rate=0.1))
    assert last.accuracy > 0.9


def test_a_pipe_is_not_a_file_of_arrays(tmp_path: Path) -> None:
    """Reading would wait for its writer."""
    os.mkfifo(tmp_path / "own.npz")
    with pytest.raises(NotFoundError, match=r"own\.npz cannot be read \(.*not a regular file"):
        list(
            simulate(
                RunSpec(task=f"npz:file={tmp_path / 'own.npz'}", workers=5, method="sgd", budget=5)
            )
        )


def test_arrays_become_normalised_images() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    images = images_of((pixels, [0, 1], pixels, [1, 3]), "own").tensors()
    assert (images.train_images.dtype, tuple(images.train_images.shape)) == (
        torch.uint8,
        (2, 1, 3, 3),
    )
    assert (images.shape.classes, images.scale) == (4, 255.0)
    assert images.notes == ("task=own: no training sample has the label 2, 3, of 4 classes",)
    assert images.mean == pytest.approx((8.5 / 255,))
    images = images_of((np.ones((10, 3)), np.zeros(10, int)), "own")
    assert (len(images.train_images), len(images.test_images), images.std) == (8, 2, (1.0,))


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ((np.ones((3, 2)),), "1 arrays were given. Try: (X, y) or"),
        ((np.ones((3, 2)), np.zeros(2, int)), "3 samples and 2 labels"),
        ((np.ones(3), np.zeros(3, int)), "X is float64 [3]. Try: real numbers"),
        ((np.ones((3, 0)), np.zeros(3, int)), "X is float64 [3, 0]"),
        ((np.zeros((3, 2), "M8[D]"), np.zeros(3, int)), "X is datetime64[D] [3, 2]"),
        ((np.array([["a"], ["b"]]), np.zeros(2, int)), "X is <U1 [2, 1]"),
        (([[1, 2], [3]], [0, 1]), "X is not an array (setting an array element"),
        (
            (np.ones((9, 28, 28, 3)), np.zeros(9, int)),
            "X is [9, 28, 28, 3], which looks like [n, h, w, c]",
        ),
        (
            (np.full((3, 2), np.nan), np.zeros(3, int)),
            "X has values that are not finite in single precision",
        ),
        (
            (np.ones((3, 2)), np.zeros(3)),
            (
                "y is float64 [3] from 0.0 to 0.0. Try: whole numbers from 0, one for each sample, "
                "such as y.astype(int)"
            ),
        ),
        (
            (np.ones((3, 2)), np.array(["a", "b", "a"])),
            "y is <U1 [3]. Try: whole numbers from 0, one for each sample",
        ),
        (
            (np.ones((3, 2)), np.eye(3, 2)),
            (
                "y is float64 [3, 2] from 0.0 to 1.0. Try: whole numbers from 0, one for each "
                "sample, such as y.argmax(1)"
            ),
        ),
        ((np.ones((3, 2)), np.array([0, -1, 1])), "y is int64 [3] from -1 to 1"),
        (
            (np.ones((3, 2)), np.array([0, 2**64 - 1, 1], "u8")),
            "y is uint64 [3] from 0 to 18446744073709551615",
        ),
        (
            (np.ones((3, 2)), np.array([0, 3, 1])),
            "y has the label 3, so there are 4 classes of 3 samples",
        ),
        (
            (np.ones((3, 2)), np.array([0, 2_000_000_000, 1])),
            "y has the label 2000000000, so there are 2000000001 classes",
        ),
        (
            (np.ones((3, 2)), np.zeros(3, int), np.ones((3, 5)), np.zeros(3, int)),
            "float32 [3, 1, 1, 2] for training and float32 [3, 1, 1, 5] for the test set do",
        ),
    ],
)
def test_arrays_that_are_no_task(arrays: Any, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        images_of(arrays, "own")
    assert f"task=own: {problem}" in str(caught.value)


def test_the_order_of_values_in_memory_and_a_column_of_labels_change_nothing() -> None:
    x, y = np.random.default_rng(0).random((10, 2, 3, 5)), np.arange(10) % 2
    usual, other = (
        images_of((x, y), "own").tensors(),
        images_of((np.asfortranarray(x).astype(">f8"), y.astype(">i2")[:, None]), "own").tensors(),
    )
    assert other.train_images.equal(usual.train_images)
    assert other.test_labels.equal(usual.test_labels)
    # too low for pictures with their channels last
    assert images_of((x.reshape(10, 5, 3, 2), y), "own").shape.channels == 5


def test_arrays_of_other_names_are_chosen(tmp_path: Path) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    text = save(tmp_path, a=x, b=y, c=x[:3], d=y[:3])
    images = (
        REGISTRIES["tasks"]
        .parse(f"{text},X=a,y=b,X_test=c,y_test=d")
        .build(TaskSetting(tmp_path))
        .load()
    )
    assert images.train_images.flatten(1).tolist() == x.tolist()
    assert images.test_labels.tolist() == [0, 1, 0]
    with pytest.raises(
        SpecError,
        match=r"own.npz has no array X; it has a, b, c, d. Try: npz:file=.*own.npz,X=NAME,y=NAME",
    ):
        REGISTRIES["tasks"].parse(text).build(TaskSetting(tmp_path)).load()
    for one in ("X_test", "y_test"):
        text = save(tmp_path, X=x, y=y, **{one: x})
        with pytest.raises(
            SpecError,
            match=f"no array {'y_test' if one == 'X_test' else 'X_test'}; it has X, y, {one}",
        ):
            REGISTRIES["tasks"].parse(text).build(TaskSetting(tmp_path)).load()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def as_npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def huge() -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 10)}
    )
    return buffer.getvalue()


LABELS = as_npy(np.zeros(3, int))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist in .*, nor in "),
        (b"", "is not an archive of numpy.savez, or is damaged"),
        (as_npy(np.ones((3, 2))), "is not an archive of numpy.savez, or is damaged"),
        (
            archive(X=as_npy(np.ones((3, 2))), y=LABELS)[:-30],
            "is not an archive of numpy.savez, or is damaged",
        ),
        (archive(X=huge(), y=LABELS), "cannot be read"),
        (archive(X=as_npy(np.array([None, "a"])), y=LABELS), "cannot be read"),
        (archive(X=as_npy(np.ones((3, 2)))[:-8], y=LABELS), "cannot be read"),
    ],
)
def test_files_that_hold_no_arrays(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(NotFoundError, match=f"^task=npz: .*own.npz {problem}") as caught:
        REGISTRIES["tasks"].parse(f"npz:file={tmp_path / 'own.npz'}").build(
            TaskSetting(tmp_path)
        ).load()
    assert len(str(caught.value).splitlines()) == 1


def test_a_public_name_is_there() -> None:
    assert all(hasattr(plugins, name) for name in plugins.__all__)


def test_a_rule_may_ask_for_the_servers_gradient() -> None:
    @aggregator("own-trusting")
    def trusting(messages: Any, *, server: Any, share: float = 0.5) -> Any:
        """Some of the mean, and some of the server's gradient."""
        return share * messages.mean(0) + (1 - share) * server

    server = torch.tensor([1.0, -1.0])
    found = make_aggregator("own-trusting:share=0.25", workers=5, byzantine=1)(
        MESSAGES, server=server
    )
    assert found.tolist() == [0.25 * 4 + 0.75, 0.25 * 5 - 0.75]
    fields = {"aggregator": "own-trusting", "model": "logistic", "method": "sgd", "budget": 2}
    with pytest.raises(SpecError, match="aggregator 'own-trusting' needs samples at the server"):
        list(simulate(RunSpec(**fields)))
    assert list(simulate(RunSpec(**fields, data="iid:server=9")))


def test_a_partition_shares_what_the_server_leaves() -> None:
    @partition("own-halves")
    def halves(labels: Any, *, m: int, first: int = 0) -> Any:
        """Equal parts."""
        return np.array_split(np.roll(np.arange(len(labels)), first), m)

    fields = {"model": "logistic", "method": "sgd", "budget": 2, "workers": 3, "byzantine": 1}
    started = next(iter(simulate(RunSpec(**fields, data="own-halves:first=1,server=37"))))
    assert sum(count for *_, count in started.labels) == 1437 - 37  # type: ignore[union-attr]
    with pytest.raises(TypeError, match="server is not known to it"):
        partition("own-server")(lambda labels, *, server=1: [])
