"""Names of other libraries: what they mean here, what is said about it, and what a misspelt name
never suggests.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from dynabro_cli import make_aggregator, make_attack, make_pre_aggregator
from dynabro_cli.answers.analysis.pairs import side
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration.aliases import ALIASES, names_of, squashed
from tests.cli.conftest import Dynabro
from tests.cli.conftest import dynabro as dynabro
from tests.cli.conftest import folder as folder
from tests.own import fresh
from tests.runs.store.made import read
from tests.tables import each_row

QUICK = ("run", "--task", "quadratic", "--method", "sgd", "--budget", "20", "--quiet")
NEEDED = {
    "centered-clipping": "tau=1",
    "clipping": "c=1",
    "gamma": "similarity=0.5",
    "dirichlet": "alpha=1",
}
"""Parameters without a default."""
PACKAGES = sorted(ALIASES)
MEANT = [
    ("aggregators", "median", "cwmed", "midpoint"),
    ("aggregators", "coordinate-wise median", "cwmed", "midpoint"),
    ("aggregators", "CoordinateWiseMedian", "cwmed", "midpoint"),
    ("aggregators", "TrMean", "cwtm", ""),
    ("aggregators", "tr_mean:f=1", "cwtm:f=1", ""),
    ("aggregators", "trimmed_mean", "cwtm", ""),
    ("aggregators", "trimmed-mean", "cwtm", ""),
    ("aggregators", "Trimmedmean", "cwtm", ""),
    ("aggregators", "Average", "mean", ""),
    ("aggregators", "Krum", "krum", "krum:neighbours=m-f-1"),
    ("aggregators", "multi_krum:q=2", "multi-krum:q=2", "neighbours=m-f-1"),
    ("aggregators", "GeometricMedian", "gm", "rfa"),
    ("aggregators", "geometric_median", "gm", "rfa"),
    ("aggregators", "CenteredClipping:tau=3", "centered-clipping:tau=3", "ByzPy forgets"),
    ("aggregators", "MinimumDiameterAveraging", "mda", ""),
    ("aggregators", "MoNNA", "monna", ""),
    ("aggregators", "Meamed", "meamed", ""),
    ("pre_aggregators", "NearestNeighborMixing", "nnm", ""),
    ("pre_aggregators", "NNM", "nnm", ""),
    ("attacks", "SignFlipping", "ipm:epsilon=1", "Each worker's own negative gradient is sf"),
    ("attacks", "SignFlipAttack", "sf", ""),
    ("attacks", "ALittleIsEnough", "alie", "alie:z=-1.5"),
    ("attacks", "a_little_is_enough", "alie", "alie:z=-1.5"),
    ("attacks", "InnerProductManipulation:epsilon=2", "ipm:epsilon=2", "ipm:epsilon=2"),
    ("attacks", "Optimal_InnerProductManipulation", "optimal-ipm", "--attack-entry message"),
    ("attacks", "LabelFlipping", "label-flip", "mean of the honest"),
    ("attacks", "NoAttack", "none", ""),
    ("methods", "heavy_ball", "momentum:form=heavy-ball", ""),
    ("methods", "Momentum:beta=0.5", "momentum:beta=0.5", "form=heavy-ball"),
    ("models", "cnn_mnist", "cnn-mnist", "cnn-mnist-50"),
    ("partitions", "extreme_niid", "sorted", "honest"),
    ("tasks", "FashionMNIST", "fashion-mnist", ""),
]


@each_row(("package", "typed", "text", "note"), MEANT)
def test_a_name_of_another_library_is_ours(package: str, typed: str, text: str, note: str) -> None:
    registry = REGISTRIES[package]
    registry._parsed.pop(typed, None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert registry.parse(typed).text == text
    assert [note in str(warning.message) for warning in told] == ([True] if note else [])


@each_row("package", PACKAGES)
def test_every_alias_is_a_component_that_can_be_made_and_no_two_are_one_name(package: str) -> None:
    registry = REGISTRIES[package]
    ours = {squashed(name): name for name in registry.entries()}
    assert len({squashed(name) for name in names_of(package)}) == len(names_of(package))
    for name, alias in names_of(package).items():
        # else the name would not be found
        assert not alias.text or ours.get(squashed(name), alias.text) == alias.text, name
        assert alias.text or "Try: " in alias.note, name
        own = alias.text.partition(":")[0]
        texts = [f"{alias.text}:{NEEDED[own]}" if own in NEEDED else alias.text]
        written = re.findall(rf"\b({'|'.join(registry.entries())}):(\w+)=([^\s,;):]*)", alias.note)
        texts += [
            f"{component}:{key}={value.rstrip('.')}"
            for component, key, value in written
            if value not in ("", "...")
        ]
        for text in filter(None, texts):
            registry.parse(text)
        for advice in alias.parameters.values():
            component, _, rest = advice.partition(",")[0].partition(" ")[0].partition(":")
            keys = [info.key for info in registry.entry(component).infos]
            assert not rest or rest.partition("=")[0] in keys, advice


def test_what_a_note_says_to_type_is_the_definition_of_the_other_library() -> None:
    own = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0], [9.0, 9.0]])
    byzantine = torch.tensor([False, False, False, True])
    mean, deviation = own[:3].mean(0), own[:3].std(0)
    for text, sent in (
        ("SignFlipping", -mean),
        ("alie:z=-1.5", mean + 1.5 * deviation),
        ("foe:epsilon=2", (1 - 3) * mean),
        ("ipm:epsilon=2", -2 * mean),
    ):
        messages = make_attack(text, workers=4)(own, byzantine)
        torch.testing.assert_close(messages[3], sent)
        assert torch.equal(messages[:3], own[:3])
    messages = torch.tensor([[0.0], [1.0], [1.1], [1.3], [2.9], [3.0], [3.1]])
    # m - f - 1 = 4
    by_three = (
        torch.cdist(messages, messages).square().sort(1).values[:, 1 : 7 - 2].mean(1).argmin()
    )
    assert torch.equal(
        make_aggregator("krum:neighbours=m-f-1", workers=7, byzantine=2)(messages),
        messages[by_three],
    )
    z = torch.zeros(1)
    for _ in range(3):
        weights = 1 / (messages - z).norm(dim=1).clamp_min(0.1)
        z = (messages * weights[:, None]).sum(0) / weights.sum()
    torch.testing.assert_close(make_aggregator("rfa", workers=7, byzantine=2)(messages), z)


@each_row(
    ("package", "typed", "problem"),
    [
        (
            "attacks",
            "ALittleIsEnough:tau=1.5",
            "tau=1.5 is another library's parameter. Try: alie:z= with -tau",
        ),
        ("attacks", "ipm:tau=2", "tau=2 is another library's parameter. Try: ipm:epsilon="),
        (
            "aggregators",
            "GeometricMedian:nu=0.1",
            "nu=0.1 is another library's parameter. Try: rfa:nu=",
        ),
        ("aggregators", "monna:idx=1", "Try: monna:pivot="),
        ("aggregators", "Clippedclustering", "Blades' rule does not exist here. Try: signguard"),
        ("attacks", "noise_adversary", "Try: gaussian:sigma=0.1"),
    ],
)
def test_what_is_not_the_same_here_is_refused_with_what_to_type(
    package: str, typed: str, problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        REGISTRIES[package].parse(typed)
    assert problem in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(("package", "never"), [("aggregators", "mean"), ("attacks", "none")])
def test_no_misspelt_name_is_answered_with_no_defence_or_no_attack(
    package: str, never: str
) -> None:
    registry = REGISTRIES[package]
    offered = {registry.find(name).partition(":")[0] for name in registry.suggestible()}
    assert offered == set(registry.entries()) - {never}
    for name in registry.suggestible():
        for typo in (name[1:], f"{name[:2]}{name[1:]}", f"{name[:-2]}{name[-1]}"):
            if not registry.find(typo):
                with pytest.raises(SpecError) as caught:
                    registry.entry(typo)
                hint = re.search(r"did you mean '(.*?)[:']", str(caught.value))
                assert hint is None or hint[1] in offered, typo


def test_every_place_that_reads_a_component(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(
        *QUICK,
        "--aggregator",
        "NNM+KRUM",
        "--attack",
        "sign-flipping",
        "--workers",
        "7",
        "--byzantine",
        "2",
    )
    assert outcome.code == 0
    assert [line.partition(" here: ")[0] for line in outcome.problems] == [
        "warning: attack 'sign-flipping' is ipm:epsilon=1",
        "warning: aggregator 'KRUM' is krum",
    ]
    Path("mine.yaml").write_text(
        "{name: mine, base: {task: quadratic, method: SGD, budget: 20, workers: 7, byzantine: "
        "2, attack: ipm:epsilon=1}, "
        "grid: {aggregator: [nnm+krum, NearestNeighborMixing+krum, trimmed-mean]}, exclude: "
        "[{aggregator: TrMean}]}"
    )
    assert "1 runs planned" in dynabro("sweep", "mine.yaml", "--dry-run").out.replace(
        "1 run ", "1 runs "
    )
    assert read(folder / "results.db", "SELECT aggregator, pre_aggregators, attack FROM runs") == [
        ("krum", "nnm", "ipm:epsilon=1")
    ]
    assert dynabro("show", "trimmed-mean").out.startswith("aggregators/cwtm\n")
    assert dynabro("show", "attacks/ALittleIsEnough").out.startswith("attacks/alie\n")
    assert "Try: signguard" in dynabro("show", "clipped_clustering").err
    assert "did you mean 'aggregators/cwmed'" in dynabro("show", "medain").err
    assert side("TrMean SignFlipAttack", REGISTRIES) == {"aggregator": "cwtm", "attack": "sf"}
    messages = torch.tensor([[1.0], [2.0], [9.0]])
    assert make_aggregator("TrMean", workers=3, byzantine=1)(messages) == 2
    assert make_pre_aggregator("Clipping:c=2", workers=3, byzantine=1)(
        messages
    ).flatten().tolist() == [1, 2, 2]
    assert (
        REGISTRIES["attacks"].parse("mixed:parts=SignFlip/IPM:epsilon=1").text
        == "mixed:parts=sf/ipm:epsilon=1"
    )
    assert REGISTRIES["aggregators"].parse("ctma:rule=TrMean").text == "ctma"


def test_a_plugins_own_name_comes_first(dynabro: Dynabro, folder: Path) -> None:
    Path("own.py").write_text(
        "from dynabro_cli.plugins import aggregator\n\n"
        "@aggregator('TrMean', reference='own')\n"
        'def own(messages):\n    """Own."""\n    return messages[0]\n'
    )
    with fresh():
        for name in ("TrMean", "tr-mean"):
            assert dynabro("show", f"aggregators/{name}", "--plugin", "own.py").out.startswith(
                "aggregators/TrMean\n\nOwn."
            )
        assert dynabro("show", "trimmed-mean", "--plugin", "own.py").out.startswith(
            "aggregators/cwtm"
        )
