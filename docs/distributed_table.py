"""Print three tables from distributed.csv: the losses by learning rate, the table of
distributed.md, and the same with the learning rate 0.3 for mean and dynabro.
"""

import csv
import math
from pathlib import Path

import numpy as np
from scipy.stats import t

METHODS, SEEDS, RATES = ("mean", "clipping", "cwtm", "dynabro"), "012", ("0.1", "0.3", "1.0", "3.0")
FAULTS, MARGIN = ("0.0", "0.001", "0.01", "0.1"), 0.1
GUESS = math.log(103)  # the loss of a uniform guess: Python 3.11's help pages have 103 characters

with open(Path(__file__).with_name("distributed.csv"), newline="") as file:
    RUNS = {
        (row["method"], row["rate"], row["faults"], row["seed"]): float(row["loss"])
        for row in csv.DictReader(file)
    }


def losses(*run, seeds=SEEDS):
    """The losses that count, by seed: at most the loss of a uniform guess."""
    given = [RUNS[*run, seed] for seed in seeds]
    return np.array([min(loss, GUESS) if math.isfinite(loss) else GUESS for loss in given])


def cell(values):
    """The mean, and the number of runs that are no better than a guess."""
    lost = f", {sum(values == GUESS)} diverged" if GUESS in values else ""
    return f"{values.mean():.2f}{lost}"


def interval(values):
    """Student's 95% interval of the mean."""
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return values.mean() - half, values.mean() + half


def show(*rows):
    """Print a table, the first row as its head."""
    for row in (rows[0], ["---:"] * len(rows[0]), *rows[1:]):
        print("|", " | ".join(row), "|")
    print()


def verdict(shares, rates):
    """The row of a share of faults, with the rates of the methods."""
    of = {method: losses(method, rates[method], shares) for method in METHODS}
    apart = [interval(of["clipping"] - of[robust]) for robust in METHODS[2:]]
    low, high = (max(ends) for ends in zip(*apart, strict=True))
    suffices = "yes" if high <= MARGIN else "no" if low > MARGIN else "undecided"
    means = [cell(of[method]) for method in METHODS]
    return [f"{float(shares):.1%}", *means, *(f"{a:.2f} to {b:.2f}" for a, b in apart), suffices]


pilots = {(m, rate): losses(m, rate, "0.0", seeds=["10"]) for m in METHODS for rate in RATES}
chosen = {m: min(RATES, key=lambda rate, m=m: pilots[m, rate].mean()) for m in METHODS}
show(
    ["learning rate", *METHODS],
    *([rate, *(cell(pilots[method, rate]) for method in METHODS)] for rate in RATES),
)
heads = ["faults", *METHODS, "clipping - cwtm", "clipping - dynabro", "clipping suffices"]
show(heads, *(verdict(share, chosen) for share in FAULTS))
lower = {"mean": "0.3", "dynabro": "0.3"}
show(heads, *(verdict(share, chosen | lower) for share in FAULTS))
