"""The benchmarks run, tiny, and print what they promise; nothing here looks at a time."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dynabro_cli
from benchmarks import __main__ as command_line
from benchmarks import aggregators, counts, floor, iteration, memory, ours
from benchmarks.kernels import CELLS, rounds
from benchmarks.processes import take_turns, workers
from dynabro_cli import RunSpec, __version__
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.machine import native
from dynabro_cli.gradients.engine import WorkerGradients

pytestmark = pytest.mark.thorough

WITHOUT_BYZFL = (
    "byzfl, which this benchmark compares with, is not installed. Try: pip install '.[bench]'"
)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls ``python -m benchmarks`` with arguments; returns its exit code, standard output and
    standard error.
    """

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def rows(text: str) -> list[dict[str, str]]:
    """The rows of the first table in ``text``, by column."""
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def number(text: str) -> float:
    assert re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", text), text
    return float(text)


def test_run_tells_the_shares_of_the_recorder_and_of_evaluations(call: Any) -> None:
    code, out, _ = call("run", "--task", "digits", "--budget", "20", "--repeats", "1")
    assert code == 0
    (row,) = rows(out)
    assert number(row["ratio"]) > 0
    for share in ("in the recorder", "in evaluations"):
        assert 0 < float(row[share].removesuffix("%")) < 100
    assert "torch" in out.splitlines()[0]
    assert re.search(r", \d+ GFLOP/s a core, ", out.splitlines()[0]) or native.compiler() is None


def test_profile_tells_the_share_of_each_part(call: Any) -> None:
    code, out, _ = call(
        "profile", "--task", "digits", "--rounds", "5", "--compile", "off", "--threads", "1"
    )
    assert code == 0
    (row,) = rows(out)
    assert number(row["ms a round"]) > 0
    shares = {
        name: float(cell.removesuffix("%")) for name, cell in row.items() if cell.endswith("%")
    }
    assert {
        "gradients",
        "server",
        "batches",
        "recorder",
        "evaluations",
        "the rest",
    } <= shares.keys()
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert all(shares[name] > 0 for name in ("gradients", "server", "batches", "recorder"))


def test_floor_counts_the_forward_pass(call: Any) -> None:
    code, out, _ = call(
        *(
            "floor",
            "--model",
            "cnn-digits",
            "--workers",
            "3",
            "--batch-size",
            "2",
            "--size",
            "32",
            "--repeats",
            "1",
        )
    )
    assert code == 0
    (row,) = rows(out)
    assert row["gradients"] == "cnn-digits, m = 3, B = 2 (shared pass)"
    assert number(row["forward GFLOP"]) > 0
    assert number(row["ratio"]) > 0


def test_floor_has_vmap_beside_it_if_it_can_be_mapped(call: Any) -> None:
    sizes = (
        "--workers",
        "2",
        "--batch-size",
        "2",
        "--size",
        "32",
        "--repeats",
        "1",
        "--threads",
        "1",
    )
    code, out, _ = call("floor", "--model", "gpt", "--model", "cnn-cifar", *sizes)
    assert code == 0
    found = {row["gradients"].partition(",")[0]: row for row in rows(out)}
    ratio = number(found["gpt"]["vmap, ms"]) / number(found["gpt"]["ms"])
    assert number(found["gpt"]["vmap over ours"]) == pytest.approx(ratio, rel=0.02)
    assert found["cnn-cifar"]["vmap over ours"] == "-"  # it draws, and keeps statistics


def test_vmap_of_the_benchmark_has_our_gradients() -> None:
    case = floor.cases(["gpt"], 2, 3)[0]
    model = REGISTRIES["models"].parse("gpt:width=8,layers=1,heads=2").build(case.shape)
    labels, engine = torch.arange(6).view(2, 3), WorkerGradients(model, 2)
    engine(floor.noise(case), labels, 1, [])
    mapped = torch.cat(
        [one.flatten(1) for one in floor.by_vmap(model, floor.noise(case), labels)().values()], 1
    )
    torch.testing.assert_close(mapped, engine.matrix)


def test_layers_has_a_row_for_each_convolution(call: Any) -> None:
    code, out, _ = call(
        "layers", "--model", "cnn-digits", "--batch-size", "2", "--repeats", "1", "--threads", "1"
    )
    assert code == 0
    first, second = rows(out)
    assert (first["convolution"], second["convolution"]) == (
        "(16, 1, 3, 3) on 8 x 8",
        "(32, 16, 3, 3) on 4 x 4",
    )
    # 2 operations for each of 8 x 8 x 16 outputs of 9 taps, of six images
    assert number(first["GFLOP"]) == pytest.approx(2 * 6 * 8 * 8 * 16 * 9 / 1e9, rel=0.01)
    assert all(
        number(first[part]) > 0
        for part in ("forward, GFLOP/s", "input gradient", "weight gradients")
    )


def test_layers_times_batch_norms_by_torch_and_compiled(call: Any) -> None:
    code, out, _ = call(
        "layers", "--model", "cnn-cifar", "--workers", "1", "--batch-size", "1", "--repeats", "1"
    )
    assert code == 0
    norms = [row for row in out.splitlines() if "channels, " in row]
    assert [row.split("|")[1].strip() for row in norms] == [
        *["64 channels, 32 x 32"] * 2,
        *["128 channels, 16 x 16"] * 2,
    ]
    if native.compiler() is not None:
        assert all(number(cell.strip()) > 0 for row in norms for cell in row.split("|")[2:-1])


def test_precision_tells_the_times_and_the_error_of_bf16(call: Any) -> None:
    code, out, _ = call(
        "precision",
        "--model",
        "cnn-digits",
        "--workers",
        "2",
        "--batch-size",
        "2",
        "--repeats",
        "1",
    )
    assert code == 0
    (row,) = rows(out)
    assert number(row["fp32 over bf16"]) == pytest.approx(
        number(row["fp32, ms"]) / number(row["bf16, ms"]), rel=0.01
    )
    assert 1e-4 < number(row["largest error of a worker's gradient"]) < 0.1


def test_floor_refuses_an_unknown_model(call: Any) -> None:
    code, _, err = call("floor", "--model", "cnn-mnst")
    assert code == 2
    assert err.startswith("benchmarks: no model 'cnn-mnst' (did you mean 'cnn-mnist'?)")


@pytest.mark.slow
def test_memory_reports_a_process_each(call: Any) -> None:
    code, out, _ = call(
        *(
            "memory",
            "--task",
            "digits",
            "--budget",
            "3",
            "--level",
            "1",
            "--workers",
            "3",
            "--batch-size",
            "2",
        ),
        *("--compile", "off", "--threads", "1", "--data-dir", "nowhere"),
    )
    assert code == 0
    table = rows(out)
    assert [row["rounds"] for row in table] == ["1", "3", "1"]
    assert all(number(row["peak RSS, MiB"]) > 10 for row in table)


def test_memory_without_data_says_so() -> None:
    spec = RunSpec(task="image-folder:name=none", model="logistic")
    row = memory._row("a run", spec, memory.How(Path("nowhere"), threads=1, compile="off"))
    assert row == ["a run", "no data", None, None]


def test_scaling_leaves_out_what_does_not_fit(call: Any) -> None:
    code, out, _ = call(
        "scaling",
        "--workers",
        "10000",
        "--dimension",
        "1000000000",
        "--batch-size",
        "2",
        "--rounds",
        "1",
    )
    assert code == 0
    (row,) = rows(out)
    assert row["ms"] == "-"
    assert row["peak RSS, MiB"] == "too little memory here"


def test_scaling_has_a_row_for_each_size(call: Any) -> None:
    code, out, _ = call(
        *("scaling", "--workers", "3", "--dimension", "900", "--batch-size", "2", "--rounds", "1"),
        *("--repeats", "1", "--threads", "1", "--compile", "off"),
    )
    assert code == 0
    (row,) = rows(out)
    assert row["m"] == "3"
    assert number(row["ms"]) > 0


def test_aggregators_without_peers_measure_every_rule_of_ours() -> None:
    names = ("nnm", "cwtm", "nnm+gm", "krum")
    table = rows(aggregators.measure(5, 40, 1, 1, "cpu", rules=names, byzfl=False, compiled=False))
    assert [row["rule"] for row in table] == list(names)
    for row in table:
        assert number(row["ours, ms"]) > 0
        assert row["ByzFL, ms"] == row["compiled, ms"] == "-"


def test_every_rule_is_in_the_list() -> None:
    names = aggregators.all_rules()
    assert {
        "nnm",
        "bucketing",
        "mean",
        "nnm+mean",
        "mfm",
        "nnm+krum",
        "bulyan",
        "centered-clipping",
    } <= set(names)
    bench = aggregators.Bench(
        aggregators.messages(17, 10, 8, "cpu"), 8, 1, byzfl=False, byzpy=False, compiled=False
    )
    for name in names:
        (row,) = aggregators.rows_of(name, bench)
        assert isinstance(row[2], float), row


def test_counts_are_those_of_the_registries_and_of_the_peers_classes(call: Any) -> None:
    code, out, _ = call("counts")
    assert code == 0
    ours = {row[""]: int(row[f"dynabro {__version__}"]) for row in rows(out)}
    assert ours == {kind: len(set(REGISTRIES[kind].entries()) - {"none"}) for kind in counts.KINDS}
    assert "\ndynabro attacks: alie, " in out
    if importlib.util.find_spec("byzfl") is not None:
        assert "\nbyzfl aggregators: Average, " in out


def test_a_rule_that_is_not_legal_here_says_so() -> None:
    bench = aggregators.Bench(
        aggregators.messages(4, 10, 2, "cpu"), 2, 1, byzfl=False, byzpy=False, compiled=False
    )
    (row,) = aggregators.rows_of("cwtm", bench)
    assert "f=2 is not legal with 4 workers" in str(row[-1])


def test_a_rule_of_a_peer_that_fails_is_told_by_the_name_of_its_error() -> None:
    bench = aggregators.Bench(
        aggregators.messages(3, 10, 1, "cpu"), 1, 1, byzfl=False, byzpy=False, compiled=False
    )

    def broken(matrix: Any) -> Any:
        raise RuntimeError("too large")

    row = dict(
        zip(
            aggregators.HEADER,
            aggregators._row("mean", 1, bench, lambda x: x.mean(0), broken, None, max),
            strict=True,
        )
    )
    assert row["ByzFL, ms"] is None
    assert row["ByzFL differs"] == "RuntimeError"


@pytest.mark.parametrize("command", ["iteration", "aggregators"])
def test_what_needs_byzfl_says_what_to_type(
    command: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "byzfl" else find(name, *rest),
    )
    code, out, err = call(command)
    assert (code, out, err) == (2, "", f"benchmarks: {WITHOUT_BYZFL}\n")


def test_the_cases_of_iteration_resolve() -> None:
    from dynabro_cli.experiment.resolve import resolve

    cases = iteration.cases()
    assert list(cases) == [
        "cwtm",
        "nnm+cwtm",
        "gm",
        "nnm+gm",
        "cwmed",
        "nnm+cwmed",
        "paper",
        "small",
    ]
    for case in cases.values():
        run = resolve(case.spec)
        assert run.spec.byzantine == case.settings.byzantine
        assert bool(run.pre_aggregators) == case.settings.mixed


def test_our_side_takes_its_turns_in_processes() -> None:
    spec = RunSpec(
        task="digits",
        model="logistic",
        method="momentum:beta=0.9",
        attack="ipm",
        switching="static",
        workers=3,
        byzantine=1,
        batch_size=2,
        budget=ours.FOREVER,
        eval_every=ours.FOREVER,
    )
    arguments = {"spec": spec, "data_dir": None, "device": "cpu", "threads": 1, "compile": "off"}
    with workers({"ours": (ours.rounds, arguments)}, 1, count=2) as groups:
        turns = take_turns(groups, 2)["ours"]
        assert groups["ours"][0].close() > 10 * 2**20
    assert [len(blocks) for blocks in turns] == [2, 2]
    for block in turns[0]:
        assert block.iterations == 16
        assert block.gradients in (2 * 16, 3 * 16)  # IPM needs no gradients of Byzantine workers
        assert sum(block.phases.values()) == pytest.approx(block.seconds)
        assert all(seconds > 0 for seconds in block.phases.values())
    assert set(iteration.summary(turns).phases) == set(iteration.OUR_PHASES)
    assert len(iteration.summary(turns).rates) == len(turns)


def test_an_error_in_a_process_is_raised_here() -> None:
    from dynabro_cli.core.errors import SpecError

    arguments = {
        "spec": RunSpec(task="digits", workers=-1),
        "data_dir": None,
        "device": "cpu",
        "threads": 1,
    }
    with pytest.raises(SpecError, match="workers"), workers({"ours": (ours.rounds, arguments)}, 1):
        pass


@pytest.mark.slow
def test_start_times_commands_beside_their_imports(call: Any) -> None:
    code, out, err = call("start", "--repeats", "1", "--other", sys.executable)
    assert (code, err) == (0, "")
    table = rows(out)
    assert [row["environment"] for row in table] == ["here", "other"] * (len(table) // 2)
    names = [row["dynabro"] for row in table[::2]]
    assert names[0] == 'python -c "import typer, rich, sqlalchemy"'
    assert [name.split()[0] for name in names[1:]] == [
        *(
            "--help",
            "run",
            "list",
            "show",
            "show",
            "runs",
            "status",
            "query",
            "logs",
            "sweep",
            "export",
        )
    ]
    for row in table:
        assert 0 < number(row["CPU, min, s"]) <= number(row["median"]) <= number(row["max"])
        assert number(row["ratio of medians"]) > 0
    assert {row["ratio of medians"] for row in table[:2]} == {"1"}


def test_start_tells_which_command_failed(call: Any, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'not a Python' >&2\nexit 3\n")
    broken.chmod(0o755)
    code, out, err = call("start", "--repeats", "1", "--other", str(broken))
    assert (code, out) == (70, "")
    assert err == f"benchmarks: {broken} -c import typer, rich, sqlalchemy: not a Python\n"


@pytest.mark.slow  # other tests check the commands that it times
def test_bigdb_times_commands_on_a_database_that_is_sound(call: Any) -> None:
    code, out, _ = call("bigdb", "--runs", "2736", "--points", "2736", "--repeats", "1")
    assert code == 0  # as that of db check is
    found = {row["dynabro"]: row for row in rows(out)}
    assert found["sweep digits-worst-case --quiet"]["with the write lock taken"] == "as without"
    assert all(number(row["CPU, min, s"]) > 0 for row in found.values())


def test_a_kernel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_load", native._load)  # put back afterwards
    assert next(rounds(CELLS["digits-cwtm"], "gram")).iterations > 0
    source = next(Path(dynabro_cli.__file__).parent.rglob("gram.cpp"))
    with pytest.raises(native.NativeError, match="left out"):
        native.Kernel(source, {}).load()


def test_kernels_have_a_control(call: Any) -> None:
    code, out, _ = call("kernels", "--case", "digits-cwtm", "--kernel", "order", "--repeats", "1")
    assert code == 0
    (row,) = rows(out)
    assert list(row) == ["cell", "ms a round", "again", "without order"]
    assert number(row["again"]) > 0


def test_kernels_refuse_an_unknown_case(call: Any) -> None:
    code, _, err = call("kernels", "--case", "mnist")
    assert code == 2
    assert "no case 'mnist'" in err


def test_kernels_save_launches_and_bytes_and_later_rounds_send_one_row(call: Any) -> None:
    code, out, _ = call("launches", "--rule", "cwtm", "--method", "sgd")
    assert code == 0
    table = rows(out)
    assert [row["round"] for row in table[::2]] == [
        "mnist, fp32, cwtm",
        "cifar10, fp32, cwtm",
        "cifar10, bf16, cwtm",
    ]
    for row in table:
        parts = [number(row[phase]) for phase in ("batches", "gradients", "server", "rest")]
        assert sum(parts) == number(row["all"])
        assert min(parts) > 0
        assert number(row["sent by the host"]) == 1
    for off, on in zip(table[::2], table[1::2], strict=True):
        assert (off["kernels"], on["kernels"]) == ("off", "on")
        # a sorting network has hundreds of comparators
        assert number(on["server"]) < number(off["server"]) / 4
        assert 0 < number(on["server, GB"]) < number(off["server, GB"]) / 2
    for off, on in zip(table[2::2], table[3::2], strict=True):
        assert 0 < number(on["gradients, GB"]) < number(off["gradients, GB"]) / 2


def test_capability_makes_a_run_twice(call: Any) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    code, out, _ = call(
        "capability", "demo", "momentum-fails-gap", "--small", "--without", "default"
    )
    assert code == 0
    first, second = rows(out)
    assert first["sweep"] == "momentum-fails-gap"
    assert second["run"] == "digits, sgd, cwtm, sf, static"
    assert {"DEFAULT end", f"{here} end"} <= set(second)
    assert second["rounds"] == "60"
    assert second["DEFAULT end"].startswith("finished 0.")
    code, _, err = call("capability", "cifar10-quarter")
    assert code == 2
    assert "no sweep 'cifar10-quarter'" in err
