"""Sign flip: at each entry, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_attack
from dynabro_cli.components.methods._api import MethodSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Evaluated, RoundsDone
from dynabro_cli.core.streams import Streams
from dynabro_cli.simulation.round.parts import Parts, Question
from dynabro_cli.simulation.round.server import make_server
from tests.tables import each_row


def test_golden_each_worker_negates_its_own_gradient() -> None:
    # not minus the honest mean, (-3, -4) for both: that is ipm:epsilon=1
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5]])
    messages = make_attack("sf", workers=3)(own, torch.tensor([True, False, True]))
    assert messages.tolist() == [[-1.0, 2.0], [3.0, 4.0], [5.0, -0.5]]


@each_row(
    ("text", "entry", "sent"),
    [
        # the second worker's momentum is 2, its gradient 4: it sends and remembers 2/2 - 4/2
        ("sf", "gradient", [[-4, 2, 1], [2, -1, 1.5], [1, -0.5, 0.75]]),
        # sends and remembers -(2/2 + 4/2)
        ("sf", "state", [[-4, 2, 1], [2, -3, 1.5], [1, -1.5, 0.75]]),
        # sends the same, and remembers the honest 2/2 + 4/2
        ("sf", "message", [[-4, 2, 1], [6, -3, 1.5], [3, 1.5, 0.75]]),
        # sends and remembers -4; the first worker begins its second round with -8
        ("sf:negates=gradient", "state", [[-8, 2, 1], [0, -4, 1.5], [0, -2, 0.75]]),
        # sends -4, and remembers the honest 3
        ("sf:negates=gradient", "message", [[-8, 2, 1], [6, -4, 1.5], [3, 1.5, 0.75]]),
        # at the gradient there is nothing else to negate
        ("sf:negates=gradient", "gradient", [[-4, 2, 1], [2, -1, 1.5], [1, -0.5, 0.75]]),
    ],
)
def test_golden_what_momentum_sends_and_remembers(
    text: str, entry: str, sent: list[list[float]]
) -> None:
    """beta = 1/2, gradients 8, 4, 2 in two rounds, 0 in the third; Byzantine are the first worker,
    the second, nobody.
    """
    method = REGISTRIES["methods"].parse("momentum:beta=0.5").build(MethodSetting(3, 3))
    attack = make_attack(text, workers=3)._attack
    rule = REGISTRIES["aggregators"].parse("mean").build(AggregatorSetting(3, 0))
    spec = RunSpec(workers=3, byzantine=1, attack_entry=entry)
    server = make_server(Parts(spec, None, method, rule, attack, None, Streams(0)))  # type: ignore[arg-type]
    state: dict[str, Tensor] = {}
    found = []
    for gradients, byzantine in (([8.0, 4, 2], 0), ([8.0, 4, 2], 1), ([0.0, 0, 0], None)):
        mask = torch.tensor([worker == byzantine for worker in range(3)])
        own = torch.tensor(gradients)[:, None]
        made = server.messages(Question(own, None, None, mask, mask, False, False), {}, state, {})
        state = made.method
        found.append(made.messages.flatten().tolist())
        assert own.flatten().tolist() == gradients, "gradients are not the attack's to change"
    assert found == sent


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["sgd", "dynabro", "dynabro:filter=option1,noise_bound=2"])
def test_the_entry_does_not_matter_to_a_method_without_memory(method: str) -> None:
    """Bit for bit, as a stored run of one is then a run of the other."""
    ends = []
    for attack, entry in (("sf", "gradient"), ("sf", "state"), ("sf:negates=gradient", "state")):
        fields = {
            "task": "digits",
            "model": "mlp",
            "method": method,
            "aggregator": "cwtm",
            "switching": "periodic:K=2",
        }
        sizes = {
            "workers": 5,
            "byzantine": 2,
            "budget": 60,
            "eval_every": 20,
            "learning_rate": 0.05,
        }
        events = simulate(
            RunSpec.from_mapping(fields | sizes | {"attack": attack, "attack_entry": entry})
        )
        ends.append([event for event in events if isinstance(event, Evaluated | RoundsDone)])
    assert ends[0] == ends[1] == ends[2]
    assert len(ends[0]) > 4


def test_within_a_round_the_last_identity_decides_what_is_sent() -> None:
    """A message is replaced as a whole, or not at all, with clock=computation and
    attack_entry=state.
    """
    fields = {
        "task": "quadratic",
        "method": "dynabro:jmax=2",
        "aggregator": "mean",
        "attack": "sf:negates=gradient",
    }
    sizes = {
        "workers": 3,
        "byzantine": 1,
        "budget": 40,
        "attack_entry": "state",
        "clock": "computation",
        "eval_every": 20,
    }
    events = list(simulate(RunSpec.from_mapping(fields | sizes | {"switching": "periodic:K=1"})))
    assert sum(len(event.rounds) for event in events if isinstance(event, RoundsDone)) > 10


def test_a_part_of_a_mixed_attack_negates_the_vector() -> None:
    with pytest.raises(SpecError, match=r"part 1.*negates=gradient.*Try: sf"):
        make_attack("mixed:parts=sf:negates=gradient/ipm", workers=3)
