"""Names of components in other libraries, and what they mean here.

A name stands for the algorithm: it resolves to the component of this package, with this package's
defaults, and the note says how the other library's definition differs and what to type for it. A
name of an algorithm that has another name here, such as ByzFL's ``SignFlipping``, resolves to that
one. Names of registered components come first, and plugins can register any name.

Sources: ByzFL 0.0.11, Blades (fedlib), ByzPy 0.1.4.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

DISARMED = {"aggregators": "mean", "attacks": "none"}
"""Components that are never suggested for a misspelt name: no defence, and no attack."""


@dataclass(frozen=True)
class Alias:
    """Some names of one component.

    Attributes:
        names: The names, separated by commas; letter case, blanks, hyphens and underscores do not
            matter.
        text: The component's text here; empty if dynabro does not have it; ``note`` then says what
            is near.
        note: Differences from other libraries, and what to type for their definitions; empty if all
            agree.
        parameters: What to type in place of other libraries' parameters, by parameter.
    """

    names: str
    text: str
    note: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


MESSAGE = ". There it replaces the message: --attack-entry message"
_HONEST = "ByzFL shares the data among the honest workers only"
ALIASES: dict[str, tuple[Alias, ...]] = {
    "aggregators": (
        Alias("Average, ArithmeticMean", "mean"),
        Alias(
            "Median, CoordinateWiseMedian, CoordinateMedian, CwMedian",
            "cwmed",
            "with even m it is the midpoint of the two middle values. ByzPy takes the lower one",
        ),
        Alias(
            "TrMean, TrimmedMean, CoordinateWiseTrimmedMean, CwTrimmedMean",
            "cwtm",
            parameters={"num_byzantine": "cwtm:f="},
        ),
        Alias(
            "GeometricMedian, GeoMed, GeoMedian",
            "gm",
            "it is the minimiser. ByzFL makes 3 Weiszfeld steps from 0 with nu=0.1, which is rfa",
            {
                "T": "rfa:T=",
                "nu": "rfa:nu=",
                "tol": "gm:tolerance=",
                "max_iter": "gm:T=",
                "maxiter": "gm:T=",
                "eps": "gm:nu=",
            },
        ),
        Alias(
            "Krum",
            "krum",
            "it scores m-f-2 neighbours. ByzFL and ByzPy score m-f-1: krum:neighbours=m-f-1",
        ),
        Alias(
            "MultiKrum, mKrum",
            "multi-krum",
            "it scores m-f-2 neighbours and averages m-f messages. ByzFL and ByzPy score "
            "m-f-1: multi-krum:neighbours=m-f-1. "
            "Blades squares the distances twice, and averages 1 message: multi-krum:q=1",
            {"k": "multi-krum:q="},
        ),
        Alias(
            "CenteredClipping, CenterClipping, CentredClipping",
            "centered-clipping",
            "it keeps its centre from round to round, from 0 on. ByzPy forgets it and starts "
            "at the mean. tau is 100 in ByzFL, "
            "and 5 with L=5 in Blades",
            {
                "c_tau": "centered-clipping:tau=",
                "M": "centered-clipping:L=",
                "n_iter": "centered-clipping:L=",
            },
        ),
        Alias("MDA, MinimumDiameterAveraging, MinimumDiameterAverage", "mda"),
        Alias(
            "MoNNA", "monna", parameters={"idx": "monna:pivot=", "reference_index": "monna:pivot="}
        ),
        Alias("Meamed, MeanOfMedians, MeanAroundMedian", "meamed"),
        Alias(
            "CAF",
            "caf",
            "its eigenvectors are exact. ByzFL makes 1 power iteration from a random vector, "
            "and ByzPy 3",
            {"power_iters": "caf, whose eigenvectors are exact"},
        ),
        Alias(
            "SMEA",
            "smea",
            "its eigenvalues are exact. ByzFL makes 1 power iteration from a random vector",
        ),
        Alias("CGE, ComparativeGradientElimination", "cge"),
        Alias(
            "DnC, DivideAndConquer",
            "dnc",
            "it makes 1 iteration. Blades makes 5: dnc:iterations=5",
            {"num_iters": "dnc:iterations=", "filter_frac": "dnc:c=", "sub_dim": "dnc:b="},
        ),
        Alias(
            "SignGuard",
            "signguard",
            "it finds clusters by mean shift. Blades uses k-means with two clusters",
        ),
        Alias("FoundationFL", "foundation"),
        Alias(
            "ClippedClustering",
            "",
            "Blades' rule does not exist here. Try: signguard, which also clusters and clips",
        ),
    ),
    "pre_aggregators": (
        Alias("NNM, NearestNeighborMixing, NearestNeighbourMixing", "nnm"),
        Alias(
            "Bucketing",
            "bucketing",
            "s is 2. In ByzFL it is 1, which changes nothing",
            {"bucket_size": "bucketing:s="},
        ),
        Alias(
            "Clipping, StaticClipping",
            "clipping",
            "c has no default. In ByzFL and ByzPy it is 2: clipping:c=2",
            {"threshold": "clipping:c="},
        ),
        Alias("ARC, AdaptiveRobustClipping", "arc"),
    ),
    "attacks": (
        Alias("NoAttack", "none"),
        Alias(
            "SF, SignFlip, SignFlipAttack, SignFlipAdversary",
            "sf",
            parameters={"scale": "sf, whose factor is -1"},
        ),
        Alias(
            "SignFlipping",
            "ipm:epsilon=1",
            "ByzFL sends minus the honest mean. Each worker's own negative gradient is "
            f"sf{MESSAGE}",
        ),
        Alias(
            "IPM, InnerProductManipulation, IPMAttack, IPMAdversary",
            "ipm",
            f"epsilon is 0.1. It is 2 in ByzFL (ipm:epsilon=2) and 1 in Blades{MESSAGE}",
            {"tau": "ipm:epsilon=", "scale": "ipm:epsilon="},
        ),
        Alias(
            "FOE, FallOfEmpires, Empire, EmpireAttack",
            "foe",
            "it sends minus the honest mean, as ByzPy does. tau=3 of an earlier ByzFL is "
            f"foe:epsilon=2{MESSAGE}",
            {"tau": "foe:epsilon= with tau - 1", "scale": "foe:epsilon= with -scale"},
        ),
        Alias(
            "ALIE, ALittleIsEnough, LittleIsEnough, Little, LittleAttack, ALIEAttack, "
            "ALIEAdversary",
            "alie",
            "it subtracts z standard deviations, and z follows from m and f. ByzFL adds 1.5 "
            "(alie:z=-1.5). "
            f"Blades and ByzPy add, too, and ByzPy divides by m in z{MESSAGE}",
            {"tau": "alie:z= with -tau"},
        ),
        Alias(
            "OptimalInnerProductManipulation, OptimalIPM",
            "optimal-ipm",
            f"the same search{MESSAGE}",
        ),
        Alias(
            "OptimalALittleIsEnough, OptimalALIE",
            "optimal-alie",
            f"it subtracts standard deviations. ByzFL adds them{MESSAGE}",
        ),
        Alias(
            "Mimic, MimicAttack",
            "mimic",
            f"worker=0 counts all workers. ByzFL's epsilon counts the honest ones{MESSAGE}",
            {"epsilon": "mimic:worker="},
        ),
        Alias("Inf, InfAttack, Infinity", "inf", f"the same vector{MESSAGE}"),
        Alias(
            "Gaussian, GaussianAttack, GaussianNoise",
            "gaussian",
            "sigma is 200, and each worker draws its own noise. In ByzFL and ByzPy sigma is 1 "
            "(gaussian:sigma=1), and all send "
            f"the same vector{MESSAGE}",
            {
                "mu": "gaussian:around=zero, mean or own",
                "mean": "gaussian:around=zero, mean or own",
                "std": "gaussian:sigma=",
            },
        ),
        Alias(
            "NoiseAdversary",
            "",
            "Blades' noise has the mean 0.1. Try: gaussian:sigma=0.1, whose mean is 0",
        ),
        Alias("LabelFlip, LabelFlipAttack, LabelFlipAdversary", "label-flip"),
        Alias(
            "LabelFlipping",
            "label-flip",
            "each Byzantine worker sends its own gradient on wrong labels. In ByzFL all send "
            "the mean of the honest workers'",
        ),
        Alias(
            "MinMax, MinMaxAdversary",
            "min-max",
            f"gamma is exact. Blades searches it between 0 and 5{MESSAGE}",
        ),
        Alias(
            "AdaptiveAdversary",
            "fang-trimmed-mean:direction=mean",
            f"Blades takes the signs of the honest mean, and all send the same vector{MESSAGE}",
        ),
        Alias(
            "Fang, FangAttack",
            "",
            "there are two of Fang et al. Try: fang-trimmed-mean or fang-krum",
        ),
        Alias(
            "SignGuardAdversary, AttackClippedClusteringAdversary",
            "",
            "Blades' attack on one rule does not exist here. Try: optimal-alie, which searches "
            "against the rule in use",
        ),
    ),
    "methods": (
        Alias(
            "Momentum, WorkerMomentum, ClientMomentum, SGDM",
            "momentum",
            "its gradient has the factor 1 - beta. Without it, as in torch's SGD, it is "
            "momentum:form=heavy-ball",
            {"momentum": "momentum:beta="},
        ),
        Alias("HeavyBall, HeavyBallMomentum, PolyakMomentum", "momentum:form=heavy-ball"),
        Alias(
            "Safeguard, SafeguardSGD",
            "safeguard",
            "the thresholds are the paper's, twice the distance. The code of Karimireddy et "
            "al. has the single distance",
        ),
        Alias("DSGD, DistributedSGD", "sgd"),
        Alias(
            "FedAvg, LocalSGD",
            "",
            "it is local steps before each message. Try: local-steps:H=..., with --aggregator mean",
        ),
    ),
    "models": (
        Alias("fc_mnist", "mlp"),
        Alias(
            "cnn_mnist",
            "cnn-mnist",
            "it has 20 and 20 channels, as the paper's. ByzFL's has 20 and 50: cnn-mnist-50",
        ),
        Alias(
            "logreg_mnist, LogisticRegression",
            "logistic",
            "its loss takes the linear layer. ByzFL puts a sigmoid in between",
        ),
        Alias(
            "cnn_cifar",
            "cnn-cifar",
            "it is the paper's network of four convolutions. ByzFL's has three and three "
            "linear layers",
        ),
    ),
    "partitions": (
        Alias(
            "gamma_similarity_niid",
            "gamma",
            _HONEST,
            {"distribution_parameter": "gamma:similarity="},
        ),
        Alias(
            "dirichlet_niid", "dirichlet", _HONEST, {"distribution_parameter": "dirichlet:alpha="}
        ),
        Alias("extreme_niid, extreme", "sorted", _HONEST),
    ),
}
"""Names by the package of their components."""


def squashed(name: str) -> str:
    """Return a name without the differences between ``TrMean``, ``tr_mean`` and ``tr-mean``."""
    return re.sub(r"[\s_-]+", "", name).lower()


@functools.cache
def names_of(package: str) -> dict[str, Alias]:
    """Return the aliases of a package's components by name, as written in the table."""
    return {
        name.strip(): alias for alias in ALIASES.get(package, ()) for name in alias.names.split(",")
    }


def find(package: str, name: str) -> Alias | None:
    """Return the alias with a name in any spelling; None if the name is unknown."""
    return _by_spelling(package).get(squashed(name))


@functools.cache
def _by_spelling(package: str) -> dict[str, Alias]:
    return {squashed(spelling): alias for spelling, alias in names_of(package).items()}
