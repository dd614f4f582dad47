"""Test loss of a small GPT whose ranks' gradients have flipped bits, as from faulty hardware.

Type: torchrun --nproc-per-node 4 docs/distributed_example.py METHODS RATES FAULTS SEEDS [BUDGET]

These commands made distributed.csv, on Python 3.11; the help pages depend on its version::

    example="torchrun --nproc-per-node 4 docs/distributed_example.py"
    $example mean,clipping,cwtm,dynabro 0.1,0.3,1,3 0 10
    $example mean,clipping,dynabro 1 0,0.001,0.01,0.1 0,1,2
    $example cwtm 0.3 0,0.001,0.01,0.1 0,1,2
    $example mean,dynabro 0.3 0,0.001,0.01,0.1 0,1,2
"""

import itertools
import sys
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from dynabro_cli import make_attack
from dynabro_cli.distributed import DynaBRO, RobustState, aggregate_gradients

CONTEXT, WIDTH, BATCH = 32, 32, 8
TEXT = "".join(topics[name] for name in sorted(topics))  # help pages that come with Python
LETTERS = {letter: number for number, letter in enumerate(sorted(set(TEXT)))}
TRAIN, TEST = torch.tensor([LETTERS[letter] for letter in TEXT]).split([len(TEXT) - 32769, 32769])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        kind = {"activation": "gelu", "batch_first": True, "norm_first": True}
        block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0, **kind)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, len(LETTERS))

    def loss(self, text, starts):
        windows = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        x, mask = self.letters(windows[:, :-1]) + self.places.weight, torch.ones(CONTEXT, CONTEXT)
        x = self.blocks(x, mask.triu(1).bool(), is_causal=True)
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), windows[:, 1:].flatten())


def train(method, rate, faults, seed, budget):
    torch.manual_seed(seed)
    model, faulty, spent = GPT(), False, 0
    mine = 1000 * seed + dist.get_rank()
    draws, flip = torch.Generator().manual_seed(mine), make_attack("bit-flip", workers=1, seed=mine)
    for each in model.parameters():  # called in each backward pass, before gradients are added up
        each.register_hook(lambda g: flip(g.reshape(1, -1), [True]).view_as(g) if faulty else g)

    def loss():
        nonlocal faulty
        faulty = bool(torch.rand((), generator=draws) < faults)
        return model.loss(TRAIN, torch.randint(len(TRAIN) - CONTEXT, (BATCH,), generator=draws))

    sgd = torch.optim.SGD(model.parameters(), rate)
    state = RobustState("cwtm", byzantine=1)
    options = {"jmax": 3, "filter": "adaptive", "seed": seed}
    dynabro = DynaBRO(model, "cwtm", byzantine=1, budget=budget, **options)
    while spent < budget:
        if method == "dynabro":
            spent += dynabro.step(loss).mini_batches
        else:
            sgd.zero_grad()
            loss().backward()
            spent += 1
        if method == "cwtm":
            aggregate_gradients(model, state)
        elif method in ("mean", "clipping"):
            gradients = [each.grad for each in model.parameters()]
            dist.all_reduce(mean := parameters_to_vector(gradients) / dist.get_world_size())
            vector_to_parameters(mean, gradients)
        if method == "clipping":
            clip_grad_norm_(model.parameters(), 1.0)
        sgd.step()
    with torch.no_grad():
        return float(model.loss(TEST, torch.arange(0, len(TEST) - CONTEXT, CONTEXT)))


torch.set_num_threads(1)
dist.init_process_group("gloo")
methods, rates, faults, seeds, *budget = [argument.split(",") for argument in sys.argv[1:]]
for case in itertools.product(methods, map(float, rates), map(float, faults), map(int, seeds)):
    result = train(*case, int(budget[0][0]) if budget else 400)
    if dist.get_rank() == 0:
        print(*case, result, sep=",", flush=True)
dist.destroy_process_group()
