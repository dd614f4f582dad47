"""The 95% interval of the mean in the view ``final_accuracy``, whose std counts the runs with an accuracy only."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW final_accuracy AS
SELECT task, model, method, aggregator, pre_aggregators, attack, attack_entry, switching, clock,
    workers, byzantine, budget, batch_size, learning_rate, lr_rule, lr_drop, weight_decay, eval_every,
    n, mean, std, mean_gap, diverged, precision, participation, data, validation, mean - half AS
    ci_low, mean + half AS ci_high
FROM (SELECT cells.*, CASE (scored - 1) WHEN 1 THEN 12.706204736174694 WHEN 2 THEN 4.302652729749462
    WHEN 3 THEN 3.1824463052837078 WHEN 4 THEN 2.7764451051977934 WHEN 5 THEN 2.5705818356363146 WHEN
    6 THEN 2.4469118511449786 WHEN 7 THEN 2.364624251592784 WHEN 8 THEN 2.306004135204166 WHEN 9 THEN
    2.262157162798205 WHEN 10 THEN 2.228138851986274 WHEN 11 THEN 2.200985160091639 WHEN 12 THEN
    2.1788128296672284 WHEN 13 THEN 2.1603686564627913 WHEN 14 THEN 2.144786687917804 WHEN 15 THEN
    2.131449545559776 WHEN 16 THEN 2.1199052992212546 WHEN 17 THEN 2.1098155778333156 WHEN 18 THEN
    2.1009220402410382 WHEN 19 THEN 2.0930240544083087 WHEN 20 THEN 2.085963447265864 WHEN 21 THEN
    2.0796138447276795 WHEN 22 THEN 2.0738730679040254 WHEN 23 THEN 2.0686576104190486 WHEN 24 THEN
    2.0638985616280245 WHEN 25 THEN 2.0595385527532972 WHEN 26 THEN 2.0555294386428735 WHEN 27 THEN
    2.0518305164802846 WHEN 28 THEN 2.0484071417952454 WHEN 29 THEN 2.045229642132703 ELSE CASE WHEN
    (scored - 1) > 29 THEN 1.959963984540054 + (2.372271230298562 + (2.8224986157396112 +
    2.555849679507722 / (scored - 1)) / (scored - 1)) / (scored - 1) END END * std / SQRT(scored) AS
    half
      FROM (SELECT task, model, method, aggregator, pre_aggregators, attack, attack_entry,
          switching, clock, workers, byzantine, budget, batch_size, learning_rate, lr_rule,
          lr_drop, weight_decay, eval_every, precision, participation, data, validation,
                   COUNT(*) AS n, COUNT(final_accuracy) AS scored, AVG(final_accuracy) AS mean,
                   CASE WHEN COUNT(final_accuracy) > 1
                        THEN SQRT(SUM((final_accuracy - cell_mean) * (final_accuracy - cell_mean))
                                  / (COUNT(final_accuracy) - 1)) END AS std,
                   AVG(final_gap) AS mean_gap,
                   SUM(CASE WHEN status = 'diverged' THEN 1 ELSE 0 END) AS diverged
            FROM (SELECT runs.*,
                         AVG(final_accuracy) OVER (PARTITION BY task, model,
                             method, aggregator, pre_aggregators, attack,
                             attack_entry, switching, clock, workers,
                             byzantine, budget, batch_size, learning_rate,
                             lr_rule, lr_drop, weight_decay, eval_every,
                             precision, participation, data, validation) AS
                             cell_mean
                  FROM runs WHERE status IN ('finished', 'diverged')) AS results
            GROUP BY task, model, method, aggregator, pre_aggregators, attack,
                attack_entry, switching, clock, workers, byzantine, budget, batch_size,
                learning_rate, lr_rule, lr_drop, weight_decay, eval_every, precision,
                participation, data, validation) AS cells) AS intervals
"""


def upgrade() -> None:
    op.execute("DROP VIEW final_accuracy")
    op.execute(VIEW)
