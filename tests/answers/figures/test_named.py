"""Whatever tells runs apart stands in the picture: in a legend, at an axis, or in the caption."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from dynabro_cli.answers.analysis.columns import differences_note
from tests.answers.figures.grids import AT_GRADIENT, SMALL, fill, planned
from tests.cli.conftest import Dynabro
from tests.runs.store import made


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
        (("cwtm", "nnm+cwtm"), {"cwtm", "nnm+cwtm"}),
        *(
            pytest.param(rules, set(rules), marks=pytest.mark.thorough)
            for rules in (
                ("nnm+gm", "nnm+cwtm"),
                ("nnm+gm", "bucketing:s=1+cwtm"),
                ("gm", "cwtm"),
            )
        ),
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


def test_worst_cases_in_which_all_runs_diverge_have_no_winner(
    folder: Path, dynabro: Dynabro
) -> None:
    """The row that is named is then the one with the best ranks."""
    rules = (("aggregator=gm",), ("aggregator=cwtm",))
    attacks = ("alie", "ipm")
    store(folder, *((*rule, "seeds=0..3", f"attack={name}") for rule in rules for name in attacks))
    for change in (
        "status = 'diverged' WHERE attack = 'ipm'",
        "final_accuracy = 0.6 + 0.2 * (aggregator = 'cwtm') WHERE attack = 'alie'",
    ):
        made.change(folder / "results.db", f"UPDATE runs SET {change}")
    err = " ".join(dynabro("compare", "--all", "rule").err.split())
    assert (
        "no row withstands every column: in the best worst case, cwtm with 0.1 under ipm, all runs "
        "diverge. cwtm is best, or tied with the best, in 2 of 2 columns." in err
    )
    made.change(folder / "results.db", "UPDATE runs SET status = 'finished' WHERE seed = 0")
    assert "no row withstands" not in dynabro("compare", "--all", "rule").err


def test_a_test_that_does_not_exist_names_no_winner(folder: Path, dynabro: Dynabro) -> None:
    store(folder, ("aggregator=gm", "seeds=0"), ("aggregator=cwtm", "seeds=0"))
    err = dynabro("compare", "--all", "rule").err
    assert "no test separates the best worst cases" in err
    assert "(no paired test)" in err
    assert "has the best" not in err


VARIANTS = {
    "rules and their rates": (
        ("aggregator=gm", "learning_rate=0.1"),
        ("aggregator=cwtm", "pre_aggregators=nnm", "learning_rate=0.2"),
        ("aggregator=cwmed", "learning_rate=0.1"),
    ),
    "methods and their batches": (
        ("method=sgd", "batch_size=2"),
        ("method=momentum:beta=0.9", "batch_size=3", "participation=0.8"),
    ),
    "partitions that follow from two fields": (
        ("model=logistic", "participation=1", "data=iid"),
        ("model=mlp", "participation=0.8", "data=iid"),
        ("model=logistic", "participation=0.8", "data=dirichlet:alpha=1"),
    ),
    "parameters of attacks": (
        ("attack=foe:epsilon=0.1", "aggregator=gm", "lr_drop=0.5:0.1"),
        ("attack=foe:epsilon=10", "aggregator=cwtm", "pre_aggregators=nnm"),
    ),
}
"""Settings that differ together."""


def named_in(report: str) -> tuple[list[str], list[str], list[str]]:
    """The fields and the notes of a report's charts, and the labels of its cells."""
    script = report[report.index("{", report.index('id="data"')) :]
    data = json.JSONDecoder().raw_decode(script)[0]
    (task,), columns = data["content"]["tasks"], data["content"]["fields"]
    (chart,) = data["charts"]
    assert " ".join(chart["scores"]["title"]["text"]) == " ".join(task["notes"])
    labels = []
    for cell in data["content"]["cells"]:
        values = {
            column["name"]: column["values"][place]
            for column, place in zip(columns, cell["at"], strict=True)
        }
        labels.append(", ".join(values[name] for name in task["fields"]))
    return task["fields"], task["notes"], labels


@pytest.mark.parametrize("variants", VARIANTS.values(), ids=VARIANTS)
def test_a_report_names_every_field_that_differs(
    variants: tuple[tuple[str, ...], ...], folder: Path, dynabro: Dynabro
) -> None:
    store(folder, *variants)
    assert dynabro("report", "mine", "--out", "page.html").code == 0
    fields, notes, labels = named_in(Path("page.html").read_text(encoding="utf-8"))
    assert len(set(labels)) == len(labels)
    names = {
        **{name: name for name in ("aggregator", "pre_aggregators", "method", "attack", "model")},
        "learning_rate": "learning rate",
        "batch_size": "batch size",
        "data": "partition",
        "participation": "participation",
        "lr_drop": "learning rate drop",
    }
    stored = made.read(folder / "results.db", f"SELECT {', '.join(names)} FROM runs")
    values = dict(zip(names.values(), map(set, zip(*stored, strict=True)), strict=True))
    chained = values["pre_aggregators"] != {"none"}
    for name in (name for name, several in values.items() if len(several) > 1):
        rule = chained and name in ("aggregator", "pre_aggregators")
        words = "rule" if rule else name
        assert words in fields or any(words in line for line in notes), name
    assert ("rule" in fields) is chained
    assert not chained or any("nnm+cwtm" in label for label in labels)


def test_a_difference_that_two_fields_determine_is_named_by_both() -> None:
    runs = pd.DataFrame(
        {
            "model": ["logistic", "mlp", "logistic"],
            "participation": [1.0, 0.8, 0.8],
            "data": ["iid", "iid", "dirichlet:alpha=1"],
            "pre_aggregators": "none",
            "spec": [{}] * 3,
        }
    )
    (line,) = differences_note(runs, ["model", "participation"], ["data"])
    assert line == (
        "partition differs: iid for logistic with participation 1, mlp with participation 0.8; "
        "dirichlet:alpha=1 for logistic with participation 0.8"
    )


def test_rows_of_a_comparison_name_the_rule_and_what_follows(
    folder: Path, dynabro: Dynabro
) -> None:
    chain = ("aggregator=cwtm", "pre_aggregators=nnm", "participation=0.8")
    store(
        folder,
        *(
            (f"method={method}", *rule, "attack=alie")
            for method in ("sgd", "momentum:beta=0.9")
            for rule in (("aggregator=gm",), chain, ("aggregator=cwmed",))
        ),
    )
    two = dynabro("compare", "sgd", "momentum:beta=0.9")
    assert [line.split()[0] for line in two.out.splitlines()] == [
        *("rule", "--------", "cwmed", "gm", "nnm+cwtm")
    ]
    assert "participation differs: 1 for gm, cwmed; 0.8 for nnm+cwtm\n" in two.err
    every = dynabro("compare", "--all", "method")
    assert "\nnnm+cwtm  SGD" in every.out
    assert "rule differs" not in every.err
    # the sides have other rules: their common chain alone is a label
    rules = dynabro("compare", "aggregator=gm", "aggregator=cwmed")
    assert rules.out.split()[:2] == ["method", "n"]


def test_missing_cells_are_named_with_their_rule(folder: Path, dynabro: Dynabro) -> None:
    rows = planned("text-switching", *SMALL, "seeds=0..1")
    rest = [row for row in rows if row["pre_aggregators"] == "none"]
    assert 0 < len(rest) < len(rows)
    fill(folder / "results.db", rest)
    settings = [word for text in (*SMALL, "seeds=0..1") for word in ("--set", text)]
    err = dynabro("plot", "text-switching", *settings).err
    assert "no run at all of: " in err
    assert "nnm+" in err.partition("no run at all of: ")[2]
