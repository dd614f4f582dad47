"""The adversary that a run met: what it does, not how its text is written.

A field has no effect on a run if its method and attack say so: for workers without a memory, all
entries of an attack are the same. ``adversary_of`` is the normal form of these fields; ``aligned``
shows runs beside others that met the same adversary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dynabro_cli.components.attacks import _api as attacks
from dynabro_cli.components.attacks._api import BEFORE_MEMORY, COMPUTATION, AttackSetting
from dynabro_cli.components.methods import _api as methods
from dynabro_cli.components.methods._api import (
    GatheringMethod,
    MethodSetting,
    forgets,
    is_single_tick,
)
from dynabro_cli.core.errors import DynabroError
from dynabro_cli.core.registration import Component, format_value
from dynabro_cli.experiment.key import keyed
from dynabro_cli.experiment.spec import fields

Fields = Mapping[str, Any]

ENTRY, CLOCK, USUAL_CLOCK = "attack_entry", "clock", "round"
BASE, READING = "base", "reading"
"""Names of an attack without where it acts and what it changes there, and of these two in words."""
MET = ("attack", ENTRY, CLOCK, BASE, READING)
"""The names of the values that ``aligned`` gives a run."""
DEFENDER = (
    "method aggregator pre_aggregators learning_rate lr_rule lr_drop weight_decay batch_size "
    "seed eval_every"
).split()
"""Fields that a defender chooses, the seed, and the evaluations: runs that differ in them can meet
the same adversary.
"""


class Adversary(NamedTuple):
    """The attack of a run; fields without effect have their usual values.

    Attributes:
        attack: The attack's text.
        entry: Where the attack acts.
        clock: The unit of the switching strategy.
        base: The attack's text without the parameters that have an effect only with a memory.
        idle: The attack's parameters that have no effect on the run, with their defaults.
        entries: The values of ``attack_entry`` that have the effect of the run's; likewise
            ``clocks``.
    """

    attack: str
    entry: str
    clock: str
    base: str
    idle: tuple[tuple[str, Any], ...]
    entries: tuple[str, ...]
    clocks: tuple[str, ...]

    @property
    def any_entry(self) -> bool:
        """True if other values of ``attack_entry`` have the same effect."""
        return len(self.entries) > 1

    @property
    def any_clock(self) -> bool:
        """True if ``clock`` has no effect."""
        return len(self.clocks) > 1

    @property
    def reading(self) -> str:
        """The attack's entry, and the parameters that change what it does there, in words."""
        changed = self.attack.removeprefix(self.base).lstrip(":,")
        return entry_words(self.entry) + (f", {changed}" if changed else "")


def entry_words(entry: str) -> str:
    """Return a value of ``attack_entry`` in words."""
    return f"attack enters at {'each' if entry == COMPUTATION else 'the'} {entry}"


def adversary_of(run: Fields) -> Adversary:
    """Return the adversary that a run met, from what its method and its attack say of themselves.

    Args:
        run: Columns of the table ``runs``: ``method``, ``attack``, ``attack_entry``, ``clock``,
            ``workers`` and ``budget``.

    Returns:
        The adversary as stored if a component is not known here, such as one of a plugin that is
        not loaded.
    """
    text, entry, clock = str(run["attack"]), str(run[ENTRY]), str(run[CLOCK])
    try:
        method = methods.REGISTRY.parse(str(run["method"])).build(
            MethodSetting(int(run["workers"]), int(run["budget"]))
        )
        component = attacks.REGISTRY.parse(text)
        attack = component.build(AttackSetting(int(run["workers"]), method.beta))
    except DynabroError:
        return Adversary(text, entry, clock, text, (), (entry,), (clock,))
    once = is_single_tick(method)
    at_once = once or (isinstance(method, GatheringMethod) and not method.asks)
    alike = (forgets(method) or not attack.acts) and (clock == USUAL_CLOCK or at_once)

    def effect(place: str) -> str:
        """Return a text that is equal for entries with the same effect."""
        if place == COMPUTATION and not at_once:
            return place
        return "any" if alike else BEFORE_MEMORY[0] if place in BEFORE_MEMORY else place

    entries = tuple(other for other in attack.entries if effect(other) == effect(entry)) or (entry,)
    clocks = fields()[CLOCK].limits["choices"] if once and not method.wants_noise else (clock,)
    names = {info.field: info.default for info in component.entry.infos if info.limits["of_memory"]}
    base = _with(component, names)
    idle = alike or entry in BEFORE_MEMORY
    return Adversary(
        attack=base if idle else text,
        entry=entries[0],
        clock=clocks[0],
        base=base,
        idle=tuple(
            (info.key, info.default)
            for info in component.entry.infos
            if idle and info.limits["of_memory"]
        ),
        entries=entries,
        clocks=clocks,
    )


def _with(component: Component[Any], values: Mapping[str, Any]) -> str:
    """Return the text of a component with other values of parameters."""
    return dataclasses.replace(
        component, parameters=dataclasses.replace(component.parameters, **values)
    ).text


def adversaries(runs: Iterable[Fields]) -> Iterator[Adversary]:
    """Yield the adversary of each run; runs with the same texts are looked up once."""
    by_key: dict[tuple[Any, ...], Adversary] = {}
    for run in runs:
        key = tuple(run[name] for name in ("method", "attack", ENTRY, CLOCK, "workers", "budget"))
        if key not in by_key:
            by_key[key] = adversary_of(run)
        yield by_key[key]


def effective(spec: Fields, met: Adversary) -> dict[str, Any]:
    """Return the normal form of a run's spec: specs with equal normal forms give equal numbers.

    Args:
        spec: The spec as stored, with a mapping for each component.
        met: The run's adversary.
    """
    attack = {**spec["attack"], **dict(met.idle)}
    return keyed({**spec, "attack": attack, ENTRY: met.entry, CLOCK: met.clock})


def aligned(
    runs: Sequence[Fields], stored: Collection[str] = (), also: Sequence[str] = ()
) -> list[tuple[int, Fields]]:
    """Place each run beside the runs that met the same adversary.

    A run on which a field has no effect gets the field's value in the runs that it can be compared
    with: runs on the same problem with the same attack. If these met several adversaries, the run
    is beside each of them. Of runs that only differ in fields without effect, the first counts.

    Args:
        runs: Their fields by name.
        stored: Fields that keep their stored value: ``attack_entry``, ``clock``.
        also: Names of further values in which runs differ.

    Returns:
        For each place in the picture or table: the index of the run, and its values of ``MET``. The
        reading is empty unless some runs with the same attack met different adversaries.
    """
    met = list(adversaries(runs))
    problem = [
        name for name in fields() if name not in (*DEFENDER, "attack", ENTRY, "switching", CLOCK)
    ]
    scopes = [
        (adversary.base, *(str(run[name]) for name in problem))
        for run, adversary in zip(runs, met, strict=True)
    ]
    entries = _entries_met(met, scopes)
    clocks: dict[Any, dict[str, None]] = {}
    for adversary, scope in zip(met, scopes, strict=True):
        if not adversary.any_clock:
            clocks.setdefault(scope, {})[adversary.clock] = None
    several = ENTRY not in stored and any(len(met_at) > 1 for met_at in entries.values())
    rest = [
        name for name in (*fields(), *also) if name not in ("attack", ENTRY, CLOCK, "eval_every")
    ]
    chosen: dict[tuple[Any, ...], tuple[bool, int, dict[str, Any]]] = {}
    for place, (run, adversary, scope) in enumerate(zip(runs, met, scopes, strict=True)):
        usual = {
            (
                adversary.attack,
                run[ENTRY] if ENTRY in stored else adversary.entry,
            ): adversary.reading
        }
        readings = usual
        if adversary.any_entry and ENTRY not in stored:
            met_at = entries[scope].items()
            readings = {at: words for at, words in met_at if at[1] in adversary.entries}
        ticks = (
            clocks.get(scope, (adversary.clock,))
            if adversary.any_clock and CLOCK not in stored
            else (run[CLOCK],)
        )
        for (attack, entry), reading in readings.items():
            for clock in ticks:
                key = (*(str(run[name]) for name in rest), attack, entry, clock)
                same = (run["attack"], run[ENTRY], run[CLOCK]) == (attack, entry, clock)
                shown = dict(
                    zip(
                        MET,
                        (attack, entry, clock, adversary.base, reading if several else ""),
                        strict=True,
                    )
                )
                if key not in chosen or (same and not chosen[key][0]):
                    chosen[key] = same, place, shown
    return [(place, shown) for _, place, shown in sorted(chosen.values(), key=lambda pair: pair[1])]


def _entries_met(
    met: Sequence[Adversary], scopes: Sequence[Any]
) -> dict[Any, dict[tuple[str, str], str]]:
    """Return the attacks with their entries, and their readings, for each scope.

    A run on which several entries have the same effect adds its usual entry only if no other run
    met one of them.
    """
    places: dict[Any, dict[tuple[str, str], int]] = {}
    for place in sorted(range(len(met)), key=lambda place: len(met[place].entries)):
        adversary, at = met[place], places.setdefault(scopes[place], {})
        if not adversary.any_entry or not any(entry in adversary.entries for _, entry in at):
            at.setdefault((adversary.attack, adversary.entry), place)
    return {
        scope: {
            key: met[place].reading for key, place in sorted(at.items(), key=lambda item: item[1])
        }
        for scope, at in places.items()
    }


def what_differs(specs: Sequence[Fields]) -> tuple[str, Any, Any] | None:
    """Return the first field in which normal forms differ besides the seed, as ``method`` or
    ``method.beta``, with two values.

    None if they are equal.
    """
    first = specs[0]
    for spec in specs[1:]:
        for name in (
            name
            for name in {**first, **spec}
            if name != "seed" and first.get(name) != spec.get(name)
        ):
            a, b = first.get(name), spec.get(name)
            if isinstance(a, dict) and isinstance(b, dict) and a.get("name") == b.get("name"):
                key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
                return f"{name}.{key}", a.get(key), b.get(key)
            return name, _text(a), _text(b)
    return None


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_text, value)) or "none"
    return str(value["name"]) if isinstance(value, dict) else format_value(value)
