"""Draw ``round.svg``, the picture of the glossary: workers, rounds, switches, and where an attack
enters. Also store the pictures of ``first-comparison.md``, if they are given.

Run ``python docs/picture.py [FOLDER]`` after a change; FOLDER/plots has what the page's commands
have drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from dynabro_cli import make_switching

FILE = Path(__file__).with_name("round.svg")
STEPS_FOLDER = Path(__file__).with_name("first-comparison")
SIZE = (900, 520)
HONEST, BYZANTINE, INK, SERVER = "#d6e4f2", "#c0392b", "#222222", "#eeeeee"
WORKERS, F, ROUNDS, K = 5, 2, 12, 4
CELL, LEFT, TOP = 44, 110, 70
STEPS = ("mini-batch", "gradient", "momentum", "message")
ENTRIES = {"data": 0, "gradient": 1, "state": 2, "message": 3}
"""Values of --attack-entry by the step of a worker that they change."""
ABOUT = {
    "data": ("changes the", "training data"),
    "gradient": ("before the", "momentum"),
    "state": ("the message, and", "the momentum"),
    "message": ("only this", "message"),
}


def store(plots: Path) -> None:
    """Store the pictures of the steps of the first comparison, in few colours and small."""
    for path in sorted(plots.glob("step-*.png")):
        with Image.open(path) as large:
            image = large.convert("RGB")
        image = image.resize(
            (700, round(700 * image.height / image.width)), Image.Resampling.LANCZOS
        )
        image.quantize(32).save(STEPS_FOLDER / path.name, optimize=True)


def picture() -> str:
    """Return the picture as SVG."""
    width, height = SIZE
    parts = [*timeline(), *worker()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            '<g font-family="sans-serif" font-size="14">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</g>\n</svg>\n",
        ]
    )


def timeline() -> Iterator[str]:
    """Yield the upper half: which workers are Byzantine in which round."""
    yield text(
        20, 28, f"Who is Byzantine? m = {WORKERS}, f = {F}, --switching periodic:K={K}", bold=True
    )
    strategy = make_switching(f"periodic:K={K}", workers=WORKERS, byzantine=F, seed=3)
    masks = [strategy.mask(tick).tolist() for tick in range(ROUNDS)]
    for tick, mask in enumerate(masks):
        x = LEFT + tick * CELL
        yield text(x + CELL / 2, TOP - 8, str(tick + 1), anchor="middle")
        for number, byzantine in enumerate(mask):
            fill = BYZANTINE if byzantine else HONEST
            yield box(x + 2, TOP + 32 * number, CELL - 4, 28, fill)
        if tick and mask != masks[tick - 1]:
            yield (
                f'<path d="M{x} {TOP - 4}V{TOP + 32 * WORKERS + 6}" stroke="{INK}" '
                'stroke-width="2" stroke-dasharray="5 4"/>'
            )
            yield text(x, TOP + 32 * WORKERS + 22, "switch", anchor="middle")
    yield text(LEFT - 12, TOP - 8, "round", anchor="end")
    for number in range(WORKERS):
        yield text(LEFT - 12, TOP + 32 * number + 19, f"worker {number + 1}", anchor="end")
    x = LEFT + ROUNDS * CELL + 20
    yield box(x, TOP + 20, 18, 18, HONEST)
    yield text(x + 26, TOP + 34, "honest")
    yield box(x, TOP + 50, 18, 18, BYZANTINE)
    yield text(x + 26, TOP + 64, "Byzantine: the attack acts")


def worker() -> Iterator[str]:
    """Yield the lower half: one round of one worker, the server, and where an attack enters."""
    top = 320
    yield text(
        20,
        top - 18,
        "Where does the attack enter? One round of a worker that is Byzantine in it",
        bold=True,
    )
    for number, step in enumerate(STEPS):
        x = 20 + 128 * number
        yield box(x, top, 98, 44, HONEST)
        yield text(x + 49, top + 27, step, anchor="middle")
        yield arrow(x + 98, top + 22, x + 126, top + 22)
    for entry, number in ENTRIES.items():
        x = 20 + 128 * number + 49
        yield arrow(x, top + 96, x, top + 48, BYZANTINE)
        yield text(x, top + 114, entry, anchor="middle", fill=BYZANTINE, bold=True)
        for line, words in enumerate(ABOUT[entry]):
            yield text(x, top + 134 + 18 * line, words, anchor="middle")
    yield text(
        20,
        top + 186,
        "--attack-entry: gradient is the default. "
        "computation is the same for each single gradient of a long round.",
    )
    x = 20 + 128 * len(STEPS)
    for number, words in enumerate(("pre-aggregator,", "new model,")):
        yield box(x, top, 118, 44, SERVER)
        yield text(x + 59, top + 19, words, anchor="middle")
        yield text(x + 59, top + 36, ("aggregator", "next round")[number], anchor="middle")
        if not number:
            yield arrow(x + 118, top + 22, x + 146, top + 22)
        x += 148
    yield text(20 + 128 * len(STEPS) + 133, top + 66, "server", anchor="middle")


def text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, bold: bool = False
) -> str:
    """Return a line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}"{weight}>{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, colour: str = INK) -> str:
    """Return a horizontal or vertical arrow, which points to the right or upwards."""
    head = (
        f"M{to_x - 6:g} {to_y - 4:g}l6 4l-6 4"
        if y == to_y
        else f"M{to_x - 4:g} {to_y + 6:g}l4 -6l4 6"
    )
    path = f"M{x:g} {y:g}L{to_x:g} {to_y:g}{head}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
    for folder in sys.argv[1:]:
        store(Path(folder, "plots"))
