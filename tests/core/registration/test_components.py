"""Components written ``name:key=value``: parsing, canonical text, discovery."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import DynabroError, SpecError
from dynabro_cli.core.registration import Component, NoParameters, Registry, format_value, parameter
from tests.tables import each_row


@dataclass(frozen=True)
class Parameters:
    rate: float = parameter(help="needed", above=0, maximum=10)
    lambda_: float = parameter(1.0, help="a Python keyword", minimum=-2, below=2)
    K: int = parameter(3, help="whole", minimum=1)
    f: int | None = parameter(None, help="auto", minimum=0)
    mode: str = parameter("fast", help="a choice", choices=("fast", "slow"))
    nested: bool = parameter(False, help="a switch")
    start: tuple[float, ...] | None = parameter(None, help="numbers")
    late: int = parameter(0, help="added when there were runs already", later=True)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """A registry over an empty package, with ``full`` (every kind of parameter) and ``bare``
    (none).
    """
    package = tmp_path / "toy_rules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[Any] = Registry("toy", "toy_rules")

    @registry.register("full", Parameters, reference="here")
    def full(parameters: Parameters, setting: str) -> tuple[str, Parameters]:
        """First line.

        More lines.
        """
        return setting, parameters

    @registry.register("bare", reference="there")
    def bare(parameters: NoParameters, setting: str) -> str:
        """Nothing to set."""
        return setting

    registry._discovered = False  # the tests add modules to the package
    yield registry
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_rules"]:
        del sys.modules[name]


def problems(registry: Registry[Any], text: str) -> list[str]:
    with pytest.raises(SpecError) as error:
        registry.parse(text)
    return error.value.problems


def test_parse_and_build(toys: Registry[Any]) -> None:
    component = toys.parse(" full:rate=0.5, lambda=-1 ,K=7,f=2,mode=slow,nested=TRUE,start=1:-2.5 ")
    expected = Parameters(0.5, -1.0, 7, 2, "slow", True, (1.0, -2.5))
    assert component.name == "full"
    assert component.build("setting") == ("setting", expected)
    assert toys.parse("bare").build("setting") == "setting"
    assert toys.parse("bare:") == toys.parse("bare")


def test_canonical_text_leaves_defaults_out_and_keeps_declared_order(toys: Registry[Any]) -> None:
    assert toys.parse("full:K=3,nested=false,rate=1.0,f=auto,mode=fast").text == "full:rate=1"
    assert (
        toys.parse("full:start=1.0:2e-7,f=0,lambda=0.5,rate=10").text
        == "full:rate=10,lambda=0.5,f=0,start=1:2e-07"
    )
    assert toys.parse("bare").text == "bare"


def test_numbers_written_in_two_ways_are_one(toys: Registry[Any]) -> None:
    written = [
        toys.parse(f"full:rate={rate},K={K}")
        for rate, K in (("1", "5"), ("1.0", "5.0"), ("1e0", "0.5e1"))
    ]
    assert written[0] == written[1] == written[2]
    assert {repr(component.mapping) for component in written} == {repr(written[0].mapping)}
    assert isinstance(written[1].parameters.rate, float)
    assert isinstance(written[1].parameters.K, int)


def test_mapping_has_every_parameter_by_its_key(toys: Registry[Any]) -> None:
    assert toys.parse("full:rate=2").mapping == {
        "name": "full",
        "rate": 2.0,
        "lambda": 1.0,
        "K": 3,
        "f": None,
        "mode": "fast",
        "nested": False,
        "start": None,
    }


def test_a_later_parameter_is_in_the_mapping_if_it_is_not_at_its_default(
    toys: Registry[Any],
) -> None:
    assert toys.parse("full:rate=2,late=0").mapping == toys.parse("full:rate=2").mapping
    assert toys.parse("full:rate=2,late=1").mapping == toys.parse("full:rate=2").mapping | {
        "late": 1
    }


numbers = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.thorough
@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    block=st.builds(
        Parameters,
        rate=st.floats(0, 10, exclude_min=True),
        lambda_=st.floats(-2, 2, exclude_max=True),
        K=st.integers(1, 2**53),
        f=st.none() | st.integers(0, 100),
        mode=st.sampled_from(["fast", "slow"]),
        nested=st.booleans(),
        start=st.none() | st.lists(numbers, min_size=1, max_size=4).map(tuple),
    )
)
def test_canonical_text_reads_back_as_itself(block: Parameters) -> None:
    registry: Registry[Any] = Registry("toy", "dynabro_cli.components.attacks")
    registry.register("own", Parameters, reference="here")(lambda parameters, setting: parameters)
    component: Component[Any] = Component(registry.entry("own"), block)
    again = registry.parse(component.text)
    assert again.parameters == block
    assert again.text == component.text


@each_row(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (8.0, "8"),
        (1e-6, "1e-06"),
        (1e16, "1e+16"),
        (True, "true"),
        (False, "false"),
        ((3.0, -3.0), "3:-3"),
        (None, "auto"),
        ("word", "word"),
    ],
)
def test_format_value(value: Any, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("rate=0", "rate must be a number > 0 and <= 10"),
        ("rate=10.1", "rate must be a number > 0 and <= 10"),
        ("rate=nan", "rate must be a number > 0 and <= 10"),
        ("rate=auto", "rate must be a number > 0 and <= 10"),
        ("rate=1,lambda=2", "lambda must be a number >= -2 and < 2"),
        ("rate=1,lambda=-2.5", "lambda must be a number >= -2 and < 2"),
        ("rate=1,K=0", "K must be a whole number >= 1"),
        ("rate=1,K=2.5", "K must be a whole number >= 1"),
        ("rate=1,K=1e999", "K must be a whole number >= 1"),
        ("rate=1,f=-1", "f must be a whole number >= 0 or auto"),
        ("rate=1,mode=quick", "mode must be fast or slow"),
        ("rate=1,nested=yes", "nested must be true or false"),
        ("rate=1,start=1:x", "start must be numbers a:b:... or auto"),
        ("rate=1,start=1:nan", "start must be numbers a:b:... or auto"),
    ],
)
def test_values_out_of_range_are_refused_with_what_is_legal(
    toys: Registry[Any], text: str, legal: str
) -> None:
    key, _, value = text.rpartition(",")[2].partition("=")
    assert problems(toys, f"full:{text}") == [f"toy 'full': {key}={value} is not legal; {legal}"]


def test_limits_themselves_are_legal_where_not_strict(toys: Registry[Any]) -> None:
    assert toys.parse("full:rate=10,lambda=-2,K=1,f=0").text == "full:rate=10,lambda=-2,K=1,f=0"


def test_unknown_names_and_keys_are_refused_with_a_hint(toys: Registry[Any]) -> None:
    assert problems(toys, "ful") == ["unknown toy 'ful' (did you mean 'full'?); legal: bare, full"]
    assert problems(toys, "zzz") == [
        (
            "unknown toy 'zzz'; legal: bare, full; load your own with --plugin FILE, in Python "
            "with load_plugin(FILE)"
        )
    ]
    (problem,) = problems(toys, "full:rate=1,lamda=2")
    assert problem == (
        "toy 'full' has no parameter 'lamda' (did you mean 'lambda'?); legal: rate, lambda, K, "
        "f, mode, nested, start, late"
    )
    assert problems(toys, "bare:x=1") == ["toy 'bare' has no parameter 'x'; legal: it has none"]
    assert "has no parameter 'lambda_'" in problems(toys, "full:rate=1,lambda_=1")[0]


def test_missing_parameter_says_what_to_type(toys: Registry[Any]) -> None:
    assert problems(toys, "full") == [
        "toy 'full' needs rate=. Try: 'full:rate=VALUE' (a number > 0 and <= 10)"
    ]


def test_all_problems_at_once(toys: Registry[Any]) -> None:
    found = problems(toys, "full:K=1,K=2,oops,mdoe=slow,nested=2")
    assert len(found) == 5
    expected = [
        "K is given twice",
        "'oops' is not of the form",
        "did you mean 'mode'?",
        "nested=2 is",
        "needs rate=",
    ]
    assert all(sum(words in problem for problem in found) == 1 for words in expected), found


def test_spec_error_has_one_line_a_problem() -> None:
    error = SpecError(["first", "second"])
    assert str(error) == "first\nsecond"
    assert error.exit_code == 2
    assert isinstance(error, DynabroError)
    assert SpecError("alone").problems == ["alone"]


def test_a_name_is_registered_once(toys: Registry[Any]) -> None:
    with pytest.raises(ValueError, match="toy 'bare' is registered twice"):
        toys.register("bare", reference="again")(lambda parameters, setting: None)


MODULE = """
from toy_rules import REGISTRY

@REGISTRY.register({name!r}, reference="here")
def factory(parameters, setting):
    return {name!r}
"""


def module(tmp_path: Path, name: str, text: str = MODULE) -> None:
    (tmp_path / "toy_rules" / f"{name}.py").write_text(text.format(name=name))


def test_one_file_is_all_it_takes(
    toys: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import toy_rules  # the package of the fixture

    monkeypatch.setattr(toy_rules, "REGISTRY", toys, raising=False)
    module(tmp_path, "added")
    module(tmp_path, "_private")
    assert list(toys.entries()) == ["added", "bare", "full"]
    assert toys.parse("added").build(None) == "added"


def test_a_component_in_the_module_of_its_name_is_found_without_the_others(
    toys: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import toy_rules

    monkeypatch.setattr(toy_rules, "REGISTRY", toys, raising=False)
    module(tmp_path, "far_away", MODULE.replace("{name!r}", "'far-away'"))
    module(tmp_path, "many", MODULE.replace("{name!r}", "'another'"))
    module(tmp_path, "_private")
    assert toys.parse("far-away").entry.name == "far-away"
    assert "toy_rules.many" not in sys.modules
    assert toys.parse("another").entry.name == "another"
    assert list(toys.entries()) == ["another", "bare", "far-away", "full"]
    assert problems(toys, "_private")[0].startswith("unknown toy '_private'")
    assert problems(toys, "far.away")[0].startswith("unknown toy 'far.away'")


def test_an_import_error_in_a_component_is_not_hidden(toys: Registry[Any], tmp_path: Path) -> None:
    module(tmp_path, "broken", "import there_is_no_such_module\n")
    for _ in range(2):  # nor may a second look take the half-filled registry for a whole one
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
            toys.entries()


def test_entry_describes_itself(toys: Registry[Any]) -> None:
    entry = toys.entry("full")
    assert (entry.kind, entry.summary, entry.reference) == ("toy", "First line.", "here")
    assert entry.doc == "First line.\n\nMore lines."
    assert [info.key for info in entry.infos if info.required] == ["rate"]


@each_row("kind", REGISTRIES)
def test_every_component_is_described(kind: str) -> None:
    entries = REGISTRIES[kind].entries()
    assert entries
    for name, entry in entries.items():
        assert entry.name == name
        assert entry.summary.endswith("."), name
        assert entry.reference, name
        assert all(info.limits["help"] for info in entry.infos), name
