"""The view ``final_accuracy`` as 1.0.0 and 1.1.0 made it."""

from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.views import RULE, student_sql

_CELL = ", ".join(name for name in fields() if name != "seed")
OF_1_1 = f"""
        CREATE VIEW final_accuracy AS
        SELECT {_CELL}, n, mean, std, mean_gap, diverged, mean - half AS ci_low, mean + half AS ci_high, {RULE}
        FROM (SELECT cells.*, {student_sql("(scored - 1)")} * std / SQRT(scored) AS half
              FROM (SELECT {_CELL},
                           COUNT(*) AS n, COUNT(final_accuracy) AS scored, AVG(final_accuracy) AS mean,
                           CASE WHEN COUNT(final_accuracy) > 1
                                THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean))
                                          / (COUNT(final_accuracy) - 1)) END AS std,
                           AVG(final_gap) AS mean_gap,
                           SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged
                    FROM (SELECT runs.*,
                                 AVG(final_accuracy) OVER (PARTITION BY {_CELL}) AS cell_mean
                          FROM runs WHERE status IN ('finished', 'diverged')) AS results
                    GROUP BY {_CELL}) AS cells) AS intervals
    """  # noqa: E501
OF_1_0 = OF_1_1.replace(f", {RULE}", "")
