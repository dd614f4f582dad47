"""Whatever tells runs apart stands in the picture: in a legend, at an axis, or in the caption."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.cli.conftest import Dynabro
from tests.figures.grids import AT_GRADIENT, SMALL, fill, planned
from tests.store import made


def store(folder: Path, *variants: tuple[str, ...]) -> None:
    """Store the runs of each variant under two attacks, or under its own, with two seeds."""
    rows = {}
    for settings in variants:
        attacks = () if any(text.startswith("attack=") for text in settings) else ("alie", "ipm")
        for attack in attacks or ("",):
            among = (f"attack={attack}",) if attack else ()
            fixed = ("method=sgd", "learning_rate=0.05", "switching=static", "seeds=0..1")
            given = {text.partition("=")[0]: text for text in (*fixed, *among, *settings)}
            for row in planned("digits-periodic", *SMALL, AT_GRADIENT[1], *given.values()):
                rows[row["run_key"]] = row
    fill(folder / "results.db", list(rows.values()))
    made.change(folder / "results.db", "UPDATE runs SET sweep = 'mine'")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (("gm", "nnm+cwtm", "cwmed"), {"gm", "nnm+cwtm", "cwmed"}),
        (("nnm+gm", "nnm+cwtm"), {"nnm+gm", "nnm+cwtm"}),
        (("cwtm", "nnm+cwtm"), {"cwtm", "nnm+cwtm"}),
        (("nnm+gm", "bucketing:s=1+cwtm"), {"nnm+gm", "bucketing:s=1+cwtm"}),
        (("gm", "cwtm"), {"gm", "cwtm"}),
    ],
)
def test_a_rule_is_named_with_its_pre_aggregators(
    rules: tuple[str, ...], expected: set[str], folder: Path, dynabro: Dynabro
) -> None:
    chains = [rule.rpartition("+") for rule in rules]
    store(
        folder,
        *(
            (f"aggregator={name}", f"pre_aggregators={chain or 'none'}")
            for chain, _, name in chains
        ),
    )
    for words in (["mine"], ["final", "--x", "attack", "--hue", "aggregator"]):
        assert dynabro("plot", *words, "--name", "drawn").code == 0
        assert set(pd.read_csv("plots/drawn.csv")["series"]) == expected
    for words in (["matrix", "mine"], ["matrix", "--hue", "aggregator"]):
        assert dynabro("plot", *words, "--name", "drawn").code == 0
        assert set(pd.read_csv("plots/drawn.csv")["row"]) == expected
    chained = any("+" in rule for rule in rules)
    assert dynabro("plot", "heatmap", "--name", "drawn").code == 0
    drawn = pd.read_csv("plots/drawn.csv")
    assert set(drawn["rule" if chained else "aggregator"]) == expected


@pytest.mark.parametrize(
    ("variants", "line"),
    [
        (
            (("aggregator=gm", "learning_rate=0.1"), ("aggregator=cwtm", "learning_rate=0.2")),
            "learning rates differ: 0.2 for cwtm; 0.1 for gm",
        ),
        (
            (("aggregator=gm", "batch_size=2"), ("aggregator=cwtm", "batch_size=3")),
            "batch size differs: 3 for cwtm; 2 for gm",
        ),
        (
            (("method=sgd", "attack=sf"), ("method=dynabro", "attack=ipm")),
            "attack differs: sf for SGD; ipm for DynaBRO",
        ),
        (
            (
                ("switching=static", "weight_decay=0.1"),
                ("switching=periodic:K=5", "weight_decay=0.2"),
            ),
            "weight decay differs: 0.2 for K = 5; 0.1 for K = \N{INFINITY}",
        ),
    ],
)
def test_a_field_that_follows_from_another_is_in_the_caption(
    variants: tuple[tuple[str, ...], ...],
    line: str,
    folder: Path,
    dynabro: Dynabro,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(folder, *variants)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    assert dynabro("plot", "mine").code == 0
    name, _, groups = line.partition(": ")
    written = " ".join(figures[0].get_suptitle().split())
    assert name in written
    for group in groups.split("; "):
        assert group in written


@pytest.mark.parametrize(
    ("spread", "sentence"),
    [
        (0.001, "gm has the best worst case, 0.7 under alie; cwtm follows with 0.6 under alie (pa"),
        (0.4, "no test separates the best worst cases: gm with 0.7 under alie, and cwtm with"),
    ],
)
@pytest.mark.parametrize("attacks", [("alie", "ipm"), ("alie",)])
def test_a_winner_needs_a_test(
    spread: float, sentence: str, attacks: tuple[str, ...], folder: Path, dynabro: Dynabro
) -> None:
    rules = (("aggregator=gm",), ("aggregator=cwtm",))
    store(folder, *((*rule, "seeds=0..3", f"attack={name}") for rule in rules for name in attacks))
    for rule, mean in (("gm", 0.7), ("cwtm", 0.6)):
        sign = 1 if rule == "gm" else -1
        made.change(
            folder / "results.db",
            f"UPDATE runs SET final_accuracy = {mean} + {sign * spread / 2} * (seed - 1.5) / 1.5 + "
            f"0.1 * (attack = 'ipm') WHERE aggregator = '{rule}'",
        )
    err = " ".join(dynabro("compare", "--all", "rule").err.split())
    if len(attacks) == 1:
        sentence = sentence.replace(" under alie", "").replace(
            "has the best worst case,", "is best, with"
        )
        sentence = sentence.replace("best worst cases", "best two")
    assert sentence in err
    assert f"after Holm over {len(attacks)} test" in err


def test_a_test_that_does_not_exist_names_no_winner(folder: Path, dynabro: Dynabro) -> None:
    store(folder, ("aggregator=gm", "seeds=0"), ("aggregator=cwtm", "seeds=0"))
    err = dynabro("compare", "--all", "rule").err
    assert "no test separates the best worst cases" in err
    assert "(no paired test)" in err
    assert "has the best" not in err
