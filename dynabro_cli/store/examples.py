"""The queries of docs/database.md, which ``dynabro browse`` offers, too."""

from __future__ import annotations

EXAMPLES = {
    "The paper's Figure 1: final accuracy by method and switching rate": """
SELECT method, switching, mean, std, n FROM final_accuracy WHERE attack = 'sf' ORDER BY method, switching
""",
    "Accuracy curves over the total number of samples": """
SELECT method, seed, samples, test_accuracy FROM evaluations JOIN runs ON runs.id = run_id
WHERE test_accuracy IS NOT NULL ORDER BY run_id, samples
""",
    "Histogram of the Byzantine fraction over rounds": """
SELECT run_id, 1.0 * h.byzantine / workers AS fraction, h.rounds
FROM byzantine_histogram AS h JOIN runs ON runs.id = run_id ORDER BY run_id, fraction
""",
    "Distance of the aggregate from the honest mean right after a switch, and otherwise": """
SELECT method, switched, AVG(aggregation_error) AS error, COUNT(*) AS n
FROM rounds JOIN runs ON runs.id = run_id GROUP BY method, switched
""",
    "Cost and number of the rounds of each MLMC level": """
SELECT level, COUNT(*) AS n, SUM(cost) AS computations, AVG(gradient_norm) AS norm
FROM rounds WHERE level IS NOT NULL GROUP BY level
""",
}
"""SQL by title."""
