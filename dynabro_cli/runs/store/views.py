"""The views of the database: a public interface, as the tables are."""

from __future__ import annotations

from dynabro_cli.experiment.spec import fields

STUDENT = (
    12.706204736174694,
    4.302652729749462,
    3.1824463052837078,
    2.7764451051977934,
    2.5705818356363146,
    2.4469118511449786,
    2.364624251592784,
    2.306004135204166,
    2.262157162798205,
    2.228138851986274,
    2.200985160091639,
    2.1788128296672284,
    2.1603686564627913,
    2.144786687917804,
    2.131449545559776,
    2.1199052992212546,
    2.1098155778333156,
    2.1009220402410382,
    2.0930240544083087,
    2.085963447265864,
    2.0796138447276795,
    2.0738730679040254,
    2.0686576104190486,
    2.0638985616280245,
    2.0595385527532972,
    2.0555294386428735,
    2.0518305164802846,
    2.0484071417952454,
    2.045229642132703,
)
"""The 0.975 quantiles of Student's t with 1 to 29 degrees of freedom: SQL has no function for
them.
"""
NORMAL = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


def student_sql(freedom: str) -> str:
    """Return an SQL expression for the 0.975 quantile of Student's t; NULL without degrees of
    freedom.

    With more than 29 degrees of freedom it is the expansion in 1/freedom at the normal quantile z,
    to the third order (Abramowitz and Stegun, 26.7.5), whose error is below 1e-6.

    Args:
        freedom: SQL expression for the degrees of freedom, an integer.
    """
    z = NORMAL
    orders = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    listed = " ".join(f"WHEN {place} THEN {value}" for place, value in enumerate(STUDENT, 1))
    first, second, third = orders
    beyond = f"{z} + ({first} + ({second} + {third} / {freedom}) / {freedom}) / {freedom}"
    return (
        f"CASE {freedom} {listed} ELSE CASE WHEN {freedom} > {len(STUDENT)} THEN {beyond} END END"
    )


RULE = (
    "CASE pre_aggregators WHEN 'none' THEN '' ELSE pre_aggregators || '+' END || aggregator AS rule"
)
"""The column ``rule`` in views, exports and frames, as SQL: the aggregator with its chain, such as
``nnm+cwtm``.
"""
_CELL = ", ".join(name for name in fields() if name != "seed")
"""The fields of a cell, as SQL."""
CLASSES = {
    10: ("cifar10", "digits", "fashion-mnist", "mnist", "svhn"),
    100: ("cifar100",),
    200: ("tiny-imagenet",),
}
"""Tasks by their number of classes, as far as SQL can know it."""
_GUESSES = " ".join(
    f"WHEN substr(task || ':', 1, {len(task) + 1}) = '{task}:' THEN {1 / count}"
    for count, tasks in CLASSES.items()
    for task in tasks
)
COUNTED = f"CASE WHEN status = 'finished' THEN final_accuracy {_GUESSES} END"
"""The accuracy of a run that means count, as SQL: 1/classes for a run that diverged, as of
``analysis.diverged``; NULL if its task has no fixed number of classes.
"""
_LOST = "SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END)"
VIEWS = {
    "byzantine_histogram": """
        CREATE VIEW byzantine_histogram AS
        SELECT rounds.run_id, rounds.byzantine, COUNT(*) AS rounds
        FROM runs JOIN rounds ON rounds.run_id = runs.id WHERE runs.rounds_every = 1
        GROUP BY rounds.run_id, rounds.byzantine
        UNION ALL
        SELECT byzantine_counts.run_id, byzantine_counts.byzantine, byzantine_counts.rounds
        FROM runs JOIN byzantine_counts ON byzantine_counts.run_id = runs.id WHERE runs.rounds_every <> 1
    """,  # noqa: E501
    # without functions of JSON, which differ between SQLite and PostgreSQL
    "byzantine_workers": """
        CREATE VIEW byzantine_workers AS
        WITH RECURSIVE numbers(worker) AS (
            SELECT 0 UNION ALL SELECT worker + 1 FROM numbers WHERE worker + 1 < (SELECT MAX(workers) FROM runs))
        SELECT listed.run_id, listed.tick, numbers.worker
        FROM (SELECT run_id, tick, workers, REPLACE(REPLACE(identities.byzantine, '[', ','), ']', ',') AS numbers_from_1
              FROM identities JOIN runs ON runs.id = run_id) AS listed JOIN numbers ON numbers.worker < listed.workers
        WHERE REPLACE(numbers_from_1, ',' || (numbers.worker + 1) || ',', '') <> numbers_from_1
    """,  # noqa: E501
    "final_accuracy": f"""
        CREATE VIEW final_accuracy AS
        SELECT {_CELL}, n, mean, std, mean_gap, diverged, mean - half AS ci_low, mean + half AS ci_high, {RULE}
        FROM (SELECT cells.*, {student_sql("(n - 1)")} * std / SQRT(n) AS half
              FROM (SELECT {_CELL},
                           COUNT(*) AS n, CASE WHEN COUNT(counted) = COUNT(*) THEN AVG(counted) END AS mean,
                           CASE WHEN COUNT(counted) = COUNT(*) AND COUNT(*) > 1
                                THEN SQRT(SUM((counted - cell_mean) * (counted - cell_mean)) / (COUNT(*) - 1)) END AS std,
                           CASE WHEN {_LOST} = 0 THEN AVG(final_gap) END AS mean_gap, {_LOST} AS diverged
                    FROM (SELECT numbers.*, AVG(counted) OVER (PARTITION BY {_CELL}) AS cell_mean
                          FROM (SELECT runs.*, {COUNTED} AS counted
                                FROM runs WHERE status IN ('finished', 'diverged')) AS numbers) AS results
                    GROUP BY {_CELL}) AS cells) AS intervals
    """,  # noqa: E501
}
VIEW_COLUMNS = {
    "byzantine_histogram": ("run_id", "byzantine", "rounds"),
    "byzantine_workers": ("run_id", "tick", "worker"),
    "final_accuracy": (
        *_CELL.split(", "),
        *"n mean std mean_gap diverged ci_low ci_high rule".split(),
    ),
}
"""Columns of the views in their order."""
OLDER = {"final_accuracy": ("2280533b4bd10deb", "120b1704b3926932")}
"""Digests of the definitions of 1.0.0 and 1.1.0: not foreign, and replaced by the next command that
writes.
"""
ADDED = ("rule", "byzantine_workers")
"""Columns of views that 1.0.0 does not have, and a view that 1.1.0 does not have."""
