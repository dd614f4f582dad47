"""The command line of the benchmarks: ``python -m benchmarks NAME``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli import RunSpec
from dynabro_cli.core.errors import DynabroError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

DataDir = Annotated[Path | None, typer.Option(envvar="DYNABRO_DATA", help="Folder of data sets.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of a process. [default: torch's]")
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu or cuda.")]
Repeats = Annotated[int, typer.Option(min=1, help="Times that each side is measured.")]


@app.callback()
def benchmarks() -> None:
    """Measurements that anyone can repeat: both sides run in the same call, in turn."""


@app.command()
def iteration(
    case: Annotated[
        list[str] | None,
        typer.Option(help="cwtm, nnm+cwtm, ..., paper, or small; repeat for more. [default: all]"),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="One process a core, of one thread, all at once.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes of --sweep. [default: cores]")
    ] = None,
    threads: Threads = None,
    repeats: Repeats = 5,
    length: Annotated[
        int, typer.Option(min=1, help="Iterations that ByzFL makes in its turn.")
    ] = 8,
    compile: Annotated[str, typer.Option(help="auto, on or off, for ours.")] = "auto",  # noqa: A002
    device: Device = "cpu",
    data_dir: DataDir = None,
) -> None:
    """Our full iteration on MNIST against ByzFL's."""
    from benchmarks.iteration import How, measure
    from benchmarks.measuring import cores
    from benchmarks.peers import need_byzfl

    need_byzfl()
    count, threads = (processes or cores(), 1) if sweep else (1, threads)
    print(measure(case or [], How(data_dir, device, threads, count, repeats, length, compile)))


@app.command()
def separation(
    draws: Annotated[int, typer.Option(min=100, help="Simulated comparisons of each row.")] = 4000,
) -> None:
    """Count how often paired tests separate equal methods."""
    from benchmarks.separation import measure

    print(measure(draws))


@app.command()
def scaling(
    workers: Annotated[list[int], typer.Option(min=3, help="m; repeat for more.")] = [  # noqa: B006
        5,
        17,
        50,
        100,
    ],
    dimension: Annotated[list[int], typer.Option(min=100, help="d; repeat for more.")] = [  # noqa: B006
        10**5,
        10**6,
        10**7,
    ],
    rule: Annotated[str, typer.Option(help="Aggregation rule.")] = "cwtm",
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a turn.")] = 2,
    compile: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",  # noqa: A002
    threads: Threads = None,
    repeats: Repeats = 3,
) -> None:
    """Our iteration with growing numbers of workers and parameters."""
    from benchmarks.scaling import How, measure

    print(measure(workers, dimension, How(rule, batch_size, threads, repeats, rounds, compile)))


@app.command()
def aggregators(
    m: Annotated[int, typer.Option(min=3)] = 17,
    d: Annotated[int, typer.Option(min=1)] = 431_080,
    f: Annotated[int, typer.Option(min=0)] = 8,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Such as cwtm or nnm+gm; repeat for more. [default: all]"),
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Compile our rules, too.")] = True,
    threads: Threads = None,
    repeats: Repeats = 15,
    device: Device = "cpu",
) -> None:
    """Every aggregation rule against ByzFL's and ByzPy's, on one matrix."""
    import torch

    from benchmarks.aggregators import measure
    from benchmarks.peers import need_byzfl

    need_byzfl()
    if threads is not None:
        torch.set_num_threads(threads)
    print(measure(m, d, f, repeats, device, rules=rule or [], compiled=compiled))


@app.command()
def run(
    task: str = "mnist",
    method: Annotated[str, typer.Option(help="sgd has the most rows.")] = "sgd",
    budget: Annotated[int, typer.Option(min=1)] = 200,
    threads: Threads = None,
    repeats: Repeats = 3,
    device: Device = "cpu",
    data_dir: DataDir = None,
) -> None:
    """A whole run with the database on and off, and the share of its evaluations."""
    from benchmarks.run import measure

    print(
        measure(
            RunSpec(task=task, method=method, budget=budget), repeats, data_dir, device, threads
        )
    )


@app.command()
def profile(
    task: Annotated[
        list[str] | None,
        typer.Option(help="mnist, digits, small or cifar10; repeat for more. [default: all]"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of a run.")] = 200,
    compile: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",  # noqa: A002
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """Shares of a run: gradients, server, batches, recorder, evaluations, and the rest."""
    from benchmarks.measuring import chosen
    from benchmarks.profile import How, measure

    print(
        measure(
            chosen(task, ["mnist", "digits", "small", "cifar10"], "task"),
            How(data_dir, threads, compile, rounds),
        )
    )


@app.command()
def floor(
    model: Annotated[
        list[str] | None,
        typer.Option(help="cnn-mnist, cnn-cifar, ...; repeat for more. [default: all]"),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="m. [default: the paper's]")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="B. [default: the paper's]")] = None,
    size: Annotated[
        int, typer.Option(min=8, help="Of the matrices that tell the machine's rate.")
    ] = 2048,
    threads: Threads = None,
    repeats: Repeats = 5,
    compile: Annotated[str, typer.Option(help="auto, on or off, for the kernels.")] = "auto",  # noqa: A002
    device: Device = "cpu",
) -> None:
    """The workers' gradients against the time of their multiplications alone, and against
    torch.func.vmap.
    """
    from benchmarks.floor import cases, measure

    print(measure(cases(model or [], workers, batch_size), size, repeats, device, threads, compile))


@app.command()
def precision(
    model: Annotated[str, typer.Option(help="cnn-cifar, cnn-mnist, ...")] = "cnn-cifar",
    workers: Annotated[
        int, typer.Option(min=1, help="m; three of CIFAR-10's share a pass on a CPU.")
    ] = 3,
    batch_size: Annotated[int | None, typer.Option(min=1, help="B. [default: the paper's]")] = None,
    threads: Threads = None,
    repeats: Repeats = 5,
) -> None:
    """The workers' gradients on a CPU in fp32 and in bf16: times, and the errors of bf16."""
    from benchmarks.floor import cases
    from benchmarks.precision import measure

    print(measure(cases([model], workers, batch_size), repeats, threads))


@app.command()
def layers(
    model: Annotated[str, typer.Option(help="cnn-cifar, cnn-mnist, ...")] = "cnn-cifar",
    workers: Annotated[
        int, typer.Option(min=1, help="m; three of CIFAR-10's share a pass on a CPU.")
    ] = 3,
    batch_size: Annotated[int | None, typer.Option(min=1, help="B. [default: the paper's]")] = None,
    threads: Threads = None,
    repeats: Repeats = 5,
) -> None:
    """The convolutions of a network: operations per second of the forward pass and of both
    gradients.
    """
    from benchmarks.floor import cases
    from benchmarks.layers import measure

    print(measure(cases([model], workers, batch_size)[0], repeats, threads))


@app.command()
def memory(
    task: str = "mnist",
    budget: Annotated[int, typer.Option(min=1)] = 32,
    level: Annotated[
        int,
        typer.Option(min=1, max=10, help="Of the round on CIFAR-10's shape: 2^level mini-batches."),
    ] = 7,
    workers: Annotated[int, typer.Option(min=3)] = 25,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    compile: Annotated[str, typer.Option(help="on or off.")] = "on",  # noqa: A002
    threads: Threads = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
) -> None:
    """The peak memory of a run."""
    from benchmarks.memory import How, measure

    print(
        measure(task, budget, level, workers, batch_size, How(data_dir, device, threads, compile))
    )


@app.command()
def overhead(
    task: Annotated[str, typer.Option(help="quadratic, digits, ...")] = "quadratic",
    runs: Annotated[int, typer.Option(min=1, help="Runs of the sweep.")] = 200,
    budget: Annotated[int, typer.Option(min=1, help="Of each run.")] = 20,
    repeats: Repeats = 5,
) -> None:
    """Measure the cost of a sweep of tiny runs besides its simulations."""
    from benchmarks.overhead import measure

    print(measure(task, runs, budget, repeats))


@app.command()
def search(
    name: Annotated[
        str, typer.Argument(help="A search of dynabro list searches.")
    ] = "worst-adversary",
    trials: Annotated[int, typer.Option(min=20, help="Trials of the search.")] = 1000,
    repeats: Repeats = 1,
) -> None:
    """Measure the time that Optuna needs per trial."""
    from benchmarks.search import measure

    print(measure(name, trials, repeats))


@app.command()
def start(
    repeats: Repeats = 5,
    other: Annotated[
        Path | None,
        typer.Option(help="Python of another environment with dynabro, in the same turns."),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="The first round of a run, and its imports.")
    ] = False,
    checkout: Annotated[
        Path | None, typer.Option(help="With --first: another checkout, in the same turns.")
    ] = None,
) -> None:
    """Measure the time before the first line: commands that do not compute, or the first round."""
    from benchmarks.start import first_round, measure

    print(first_round(repeats, checkout) if first else measure(repeats, other))


@app.command()
def bigdb(
    runs: Annotated[int, typer.Option(min=2736, help="Runs in the database.")] = 20_000,
    points: Annotated[int, typer.Option(min=1, help="Points of the larger dry-run.")] = 5_472,
    repeats: Repeats = 5,
    keep: Annotated[Path | None, typer.Option(help="Make the database here, and leave it.")] = None,
) -> None:
    """The commands that read a database of many runs, or find a sweep stored in it."""
    from benchmarks.bigdb import measure

    print(measure(runs, points, repeats, keep))


@app.command()
def gpu(
    out: Annotated[Path, typer.Option(help="Folder for gpu.jsonl, gpu.md and log.txt.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit, after imports.")] = 6.5,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the command.")] = "cuda",
    tiny: Annotated[bool, typer.Option("--tiny", help="Sizes of a trial.")] = False,
) -> None:
    """Answer eight questions about a GPU; exit with 1 if a check has no result."""
    from benchmarks.gpu.checks import How, checks
    from benchmarks.gpu.drive import measure

    # all processes find what one of them has compiled; a home may be read-only
    os.environ.setdefault("TRITON_CACHE_DIR", str(out.resolve() / "triton"))
    sys.exit(0 if measure(out, checks(How(device, tiny)), minutes) else 1)


@app.command(name="digests")
def digests_(
    commits: Annotated[
        list[str] | None,
        typer.Argument(help="Earlier commits besides those in the table, such as 508112c."),
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option(
            help="A part, such as attacks/sf, or engine, whose numbers have changed on purpose, "
            "perhaps only with some parameters; repeat for more."
        ),
    ] = None,
    data_dir: DataDir = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the table that dynabro reads.")
    ] = False,
) -> None:
    """Compare the numbers of each shipped part here and in earlier commits, for their digests."""
    from benchmarks.digests import measure

    print(measure(commits or [], changed or [], data_dir, write))


@app.command()
def same(
    other: Annotated[
        Path, typer.Argument(help="Another checkout, such as by git worktree add FOLDER COMMIT.")
    ],
    repeats: Repeats = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a process.")] = 1,
    compile_: Annotated[
        str, typer.Option("--compile", help="Compile kernels: on, off or auto.")
    ] = "off",
    small: Annotated[
        bool, typer.Option("--small", help="Small networks instead, of 17 workers.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Compare numbers and CPU time of short runs with another checkout's; exit with 1 if numbers
    differ.
    """
    from benchmarks.same import measure

    text, equal = measure(other, repeats, threads, compile_, data_dir, small)
    print(text)
    sys.exit(0 if equal else 1)


@app.command()
def capability(
    sweep: Annotated[
        list[str] | None,
        typer.Argument(help="Shipped sweeps. [default: all, without CIFAR-10]"),
    ] = None,
    without: Annotated[
        str, typer.Option(help="ATEN_CPU_CAPABILITY of the second run: avx2 or default.")
    ] = "avx2",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a process.")] = 1,
    small: Annotated[
        bool, typer.Option("--small", help="Cut each run to 60 computations, for a quick look.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Make a run of each sweep with and without some vector instructions: what differs."""
    from benchmarks.capability import measure, sweeps_of

    for line in measure(sweeps_of(sweep or []), without, threads, data_dir, small):
        print(line, flush=True)


@app.command()
def launches(
    rule: Annotated[list[str], typer.Option(help="Aggregation rule; repeat for more.")] = [  # noqa: B006
        "cwtm",
        "gm",
    ],
    method: Annotated[str, typer.Option(help="Of one computation a round.")] = "momentum:beta=0.9",
) -> None:
    """Count the operations that a round launches on a GPU, and the bytes that they move; no GPU is
    needed.
    """
    from benchmarks.launches import measure

    print(measure(rule, method))


@app.command()
def kernels(
    case: Annotated[
        list[str] | None,
        typer.Option(help="mnist-cwtm, digits-cwtm, ...; repeat for more. [default: all]"),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Left out; repeat for more. [default: each in turn]")
    ] = None,
    repeats: Repeats = 5,
) -> None:
    """Measure what each compiled kernel brings: a round with all of them, and without one."""
    from benchmarks.kernels import CELLS, KERNELS, measure
    from benchmarks.measuring import chosen

    cells, names = chosen(case, list(CELLS), "case"), chosen(kernel, KERNELS, "kernel")
    for line in measure(cells, names, repeats):
        print(line, flush=True)


@app.command()
def distributed(
    ranks: Annotated[list[int], typer.Option(min=2, help="m; repeat for more.")] = [2, 4, 8],  # noqa: B006
    millions: Annotated[
        list[float], typer.Option(help="Of parameters: 0.13, 2.1 or 8; repeat for more.")
    ] = [0.13, 2.1, 8.0],  # noqa: B006
    rule: Annotated[str, typer.Option(help="Rule that works coordinate by coordinate.")] = "cwtm",
    repeats: Repeats = 15,
) -> None:
    """A backward pass on several ranks: all-reduce, the rule on gathered messages, and the hook."""
    from benchmarks.distributed import WIDTHS, measure
    from benchmarks.measuring import chosen

    chosen([f"{size:g}" for size in millions], [f"{size:g}" for size in WIDTHS], "size")
    print(measure(ranks, millions, rule, repeats))


@app.command()
def counts() -> None:
    """Count rules and attacks here, and in the installed peers."""
    from benchmarks.counts import count

    print(count())


def main() -> None:
    """Run the command line; an expected error is a line on stderr and an exit code."""
    try:
        app()
    except DynabroError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
