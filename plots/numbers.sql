-- Queries for the templates. A 'setup' block makes views, and a 'query' block has a name that a template uses. A 'compare'
-- block compares paired runs (name | A | B, and a condition); its cells go into the table pairs.

-- setup: views
CREATE VIEW sf AS SELECT *, k(switching) AS k FROM csv_mnist_sf_cwtm;
CREATE VIEW alie AS SELECT *, k(switching) AS k FROM csv_mnist_alie_gm;
CREATE VIEW digits_sf AS SELECT *, k(switching) AS k FROM csv_digits_periodic;
CREATE VIEW digits_alie AS SELECT *, k(switching) AS k FROM csv_digits_alie_gm;
CREATE TABLE sf_runs AS SELECT r.*, k(r.switching) AS k FROM counted AS r JOIN csv_mnist_sf_cwtm_runs AS c ON c.run_key = r.run_key;
CREATE TABLE alie_runs AS SELECT r.*, k(r.switching) AS k FROM counted AS r JOIN csv_mnist_alie_gm_runs AS c ON c.run_key = r.run_key;
CREATE TABLE switched AS  -- runs in the settings of Figure 1 or 6 on MNIST and digits, whatever the reading
  SELECT *, k(switching) AS k, iif(attack = 'alie', 6, 1) AS figure FROM counted
  WHERE (task = 'mnist' OR task = 'digits' AND model = 'mlp') AND budget = 5000 AND validation = 0 AND clock = 'round' AND workers = 17
    AND byzantine = 8 AND status IN ('finished', 'diverged')
    AND (attack IN ('sf', 'sf:negates=gradient') AND aggregator = 'cwtm' OR attack = 'alie' AND aggregator IN ('gm', 'rfa'))
    AND (k(switching) IN (5, 10, 20, 100) OR switching = 'static');
CREATE VIEW mnist AS SELECT * FROM switched WHERE task = 'mnist';
CREATE VIEW usual AS SELECT * FROM switched WHERE model IN ('cnn-mnist', 'mlp') AND aggregator <> 'rfa';
CREATE VIEW remembered AS SELECT * FROM switched WHERE attack_entry = 'state' AND learning_rate = 0.01 AND attack IN ('sf:negates=gradient', 'alie');
CREATE VIEW memoryless AS SELECT * FROM switched
  WHERE attack_entry = 'gradient' AND (method = 'sgd' AND learning_rate = 0.01 OR method = 'dynabro' AND learning_rate = iif(attack = 'sf', 0.05, 0.01));
CREATE TABLE reading_runs AS  -- the runs of Figures 1 and 6 under each reading of the paper
  WITH momentum AS (
    SELECT 'message' AS reading, * FROM remembered WHERE aggregator <> 'rfa' AND method IN ('momentum', 'momentum:beta=0.99')
    UNION ALL SELECT 'gradient', * FROM usual
      WHERE attack_entry = 'gradient' AND learning_rate = 0.01 AND method IN ('momentum', 'momentum:beta=0.99')
    UNION ALL SELECT 'honest memory', * FROM switched
      WHERE attack_entry = 'message' AND learning_rate = 0.01 AND model IN ('cnn-mnist', 'mlp') AND attack IN ('sf', 'alie') AND aggregator <> 'gm'
        AND method IN ('momentum:start=gradient', 'momentum:beta=0.99,start=gradient')
    UNION ALL SELECT 'softmax', * FROM switched
      WHERE model = 'cnn-mnist:softmax=true' AND attack_entry = 'gradient' AND learning_rate = 0.01 AND method IN ('momentum', 'momentum:beta=0.99')
    UNION ALL SELECT 'large steps', * FROM usual
      WHERE attack_entry = 'gradient' AND (method = 'momentum:form=heavy-ball' AND learning_rate = 0.1
                                           OR method = 'momentum:beta=0.99,form=heavy-ball' AND learning_rate = 0.01)),
  no_memory AS (
    SELECT column1 AS reading, memoryless.* FROM memoryless JOIN (VALUES ('message'), ('gradient'), ('honest memory'), ('large steps'))
      WHERE model IN ('cnn-mnist', 'mlp') AND (attack = 'alie' AND column1 = 'honest memory') = (aggregator = 'rfa')
    UNION ALL SELECT 'softmax', * FROM memoryless WHERE model = 'cnn-mnist:softmax=true')
  SELECT task || iif(figure = 1, iif(task = 'mnist', '-sf-cwtm', '-periodic'), '-alie-gm') AS figure, reading, method, switching, k, seed, final_accuracy, status
  FROM (SELECT reading, task, figure, iif(method LIKE '%0.99%', 'momentum:beta=0.99', 'momentum') AS method, switching, k, seed, final_accuracy, status FROM momentum
        UNION ALL SELECT reading, task, figure, method, switching, k, seed, final_accuracy, status FROM no_memory);
CREATE TABLE reading_means AS SELECT figure, reading, method, switching, k, avg(final_accuracy) AS mean, count(*) AS n, sum(status = 'diverged') AS diverged FROM reading_runs
  GROUP BY figure, reading, method, switching;
CREATE VIEW fig1 AS SELECT * FROM reading_means WHERE figure = 'mnist-sf-cwtm';
CREATE VIEW fig6 AS SELECT * FROM reading_means WHERE figure = 'mnist-alie-gm';
CREATE TABLE constants AS  -- accuracy of the best constant predictor: the most frequent class of the test set
  SELECT 'mnist' AS task, 1135 / 10000.0 AS accuracy UNION ALL SELECT 'digits', 37 / 360.0;
CREATE TABLE reading_trends AS  -- do momentum's accuracies grow with K? once as they are, and once with all below a constant predictor's tied
  SELECT figure, reading, method, avg(final_accuracy) FILTER (WHERE k = 5) AS first, avg(final_accuracy) FILTER (WHERE switching = 'static') AS last,
         trend(k, final_accuracy) AS p, trend(k, max(final_accuracy, accuracy)) AS tied
  FROM reading_runs JOIN constants ON task = substr(figure, 1, instr(figure, '-') - 1) WHERE method LIKE 'momentum%' GROUP BY figure, reading, method;
CREATE TABLE reading_pairs AS  -- DynaBRO (a) against momentum 0.9 (b) at equal seeds, with Holm's p over K
  WITH pairs AS (SELECT figure, reading, k, count(*) AS n, avg(ours.final_accuracy) AS a, avg(theirs.final_accuracy) AS b,
                        paired_p(theirs.final_accuracy - ours.final_accuracy) AS p
                 FROM reading_runs AS ours JOIN reading_runs AS theirs USING (figure, reading, k, seed)
                 WHERE ours.method = 'dynabro' AND theirs.method = 'momentum' GROUP BY figure, reading, k),
       ranked AS (SELECT *, p * (count(p) OVER (PARTITION BY figure, reading) + 1 - rank() OVER (PARTITION BY figure, reading ORDER BY p)) AS steps
                  FROM pairs WHERE p IS NOT NULL)
  SELECT figure, reading, k, n, a, b, p, min(1, max(steps) OVER (PARTITION BY figure, reading ORDER BY p)) AS holm FROM ranked
  UNION ALL SELECT *, NULL FROM pairs WHERE p IS NULL;
CREATE TABLE bernoulli_runs AS  -- the runs of Figures 2 and 8 on digits under each reading
  SELECT column1 AS reading, method, replace(switching, ',draws=all', '') AS switching, seed, final_accuracy, id
  FROM counted JOIN (VALUES ('message'), ('gradient'), ('all draw'))
  WHERE task = 'digits' AND model = 'mlp' AND attack = 'ipm' AND aggregator = 'cwmed' AND workers = 25 AND budget = 8000 AND switching LIKE 'bernoulli:%'
    AND learning_rate = iif(method = 'dynabro', 0.05, 0.01) AND method IN ('sgd', 'momentum', 'dynabro') AND status IN ('finished', 'diverged')
    AND (column1 = 'all draw') = (switching LIKE '%draws=all') AND (method <> 'momentum' OR attack_entry = iif(column1 = 'gradient', 'gradient', 'state'));
CREATE TABLE bernoulli AS SELECT reading, method, switching, avg(final_accuracy) AS mean, count(*) AS n FROM bernoulli_runs GROUP BY reading, method, switching;
CREATE TABLE bernoulli_pairs AS  -- DynaBRO (a) against another method (b) at equal seeds, with Holm's p over six cells; (0.01, 10) reaches no bound, so its two cells are one: holm counts it twice, holm_once does not
  WITH pairs AS (SELECT reading, theirs.method AS rival, switching, count(*) AS n, avg(ours.final_accuracy) AS a, avg(theirs.final_accuracy) AS b,
                        paired_p(ours.final_accuracy - theirs.final_accuracy) AS p, half_width(ours.final_accuracy - theirs.final_accuracy) AS half
                 FROM bernoulli_runs AS ours JOIN bernoulli_runs AS theirs USING (reading, switching, seed)
                 WHERE ours.method = 'dynabro' AND theirs.method <> 'dynabro' AND switching NOT LIKE '%p=0.01,D=10,delta_max=0.48' GROUP BY reading, rival, switching),
       ranked AS (SELECT *, p * (count(p) OVER (PARTITION BY reading, rival) + 1 - rank() OVER (PARTITION BY reading, rival ORDER BY p)) AS steps FROM pairs WHERE p IS NOT NULL),
       twice AS (SELECT *, p * (count(p) OVER (PARTITION BY reading, rival) + 1 - rank() OVER (PARTITION BY reading, rival ORDER BY p)) AS steps
                 FROM (SELECT * FROM pairs UNION ALL SELECT * FROM pairs WHERE switching LIKE '%p=0.01,D=10,%') WHERE p IS NOT NULL)
  SELECT reading, rival, switching, n, a, b, p, half, min(1, max(steps) OVER (PARTITION BY reading, rival ORDER BY p)) AS holm_once,
         (SELECT min(1, max(steps)) FROM twice WHERE twice.reading = ranked.reading AND twice.rival = ranked.rival AND twice.p <= ranked.p) AS holm
  FROM ranked;
CREATE TABLE bernoulli_majority AS
  SELECT reading, switching, sum(rounds) FILTER (WHERE fraction > 0.5) / (1.0 * sum(rounds)) AS share, sum(byzantine * rounds) / (1.0 * sum(rounds)) AS average,
         max(byzantine) AS most
  FROM (SELECT b.reading, b.switching, h.byzantine, h.rounds, h.byzantine / 25.0 AS fraction
        FROM bernoulli_runs AS b JOIN results.byzantine_histogram AS h ON h.run_id = b.id WHERE b.method = 'sgd') GROUP BY reading, switching;
CREATE TABLE judged AS  -- the readings under which the claims of each figure are judged
  SELECT * FROM (SELECT figure, reading FROM reading_means WHERE method LIKE 'momentum%' GROUP BY figure, reading HAVING count(*) = 10
                 UNION ALL SELECT 'digits-bernoulli', reading FROM bernoulli WHERE method = 'momentum' GROUP BY reading HAVING count(*) = 6)
  ORDER BY figure, reading <> 'message', reading <> 'gradient', reading DESC;
CREATE TABLE quarter AS SELECT method, switching, avg(final_accuracy) AS mean, count(*) AS n
  FROM counted WHERE sweep = 'cifar10-quarter' AND status = 'finished' GROUP BY method, switching;
CREATE TABLE quarter_bounds AS SELECT one.method, one.switching, one.mean AS a, two.mean AS b, min(one.n, two.n) AS n
  FROM quarter AS one JOIN quarter AS two
  ON one.method = two.method AND two.switching = replace(one.switching, 'delta_max=0.72', 'delta_max=0.48')
  WHERE one.switching LIKE '%delta_max=0.72';
CREATE TABLE gaps AS
  SELECT iif(switching = 'static', 'static', 'dynamic') AS kind, aggregator, method, mean,
         CAST(substr(attack, instr(attack, 'lambda=') + 7) AS REAL) AS lambda
  FROM csv_momentum_fails_gap WHERE budget = (SELECT max(budget) FROM csv_momentum_fails_gap);
CREATE TABLE ends AS
  SELECT iif(switching = 'static', 'static', 'dynamic') AS kind, aggregator, method, sqrt(x1 * x1 + x2 * x2) AS distance,
         CAST(substr(attack, instr(attack, 'lambda=') + 7) AS REAL) AS lambda
  FROM csv_momentum_fails_paths WHERE budget = (SELECT max(budget) FROM csv_momentum_fails_paths);
CREATE VIEW training AS SELECT setting, MNIST AS mnist, "CIFAR-10" AS cifar FROM csv_training_details;
CREATE TABLE worst AS  -- every cell of digits-worst-case; worst is 1 for the attack with the lowest mean
  SELECT *, name <> 'none' AND row_number() OVER (PARTITION BY name = 'none', method, switching, aggregator ORDER BY mean, id) = 1 AS worst
  FROM (SELECT method, switching, aggregator, substr(attack, 1, instr(attack || ':', ':') - 1) AS name, avg(final_accuracy) AS mean, count(*) AS n, sum(status = 'diverged') AS diverged, min(id) AS id
        FROM counted WHERE run_key IN (SELECT run_key FROM csv_digits_worst_case_runs) GROUP BY method, switching, aggregator, attack)
  ORDER BY id;
CREATE TABLE tried_rates AS  -- accuracy on held-out samples at K = 5, and the rate that is best under the worst K
  WITH ends AS (SELECT r.task, r.method, r.learning_rate AS rate, r.switching,
                       (SELECT validation_accuracy FROM results.evaluations AS e WHERE e.run_id = r.id ORDER BY budget DESC LIMIT 1) AS accuracy
                FROM counted AS r WHERE r.sweep IN ('digits-rates', 'mnist-rates')),
       worst AS (SELECT task, method, rate, rank() OVER (PARTITION BY task, method ORDER BY min(accuracy) DESC, rate) AS place FROM ends GROUP BY task, method, rate)
  SELECT ends.task, method, ends.rate, ends.accuracy, worst.rate AS chosen,
         CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS label
  FROM ends JOIN worst USING (task, method) WHERE place = 1 AND switching = 'periodic:K=5';
CREATE VIEW best AS SELECT *, k(switching) AS k FROM (SELECT 'digits' AS task, * FROM csv_digits_best UNION ALL SELECT 'mnist', * FROM csv_mnist_best);
CREATE TABLE computations AS  -- DynaBRO by both clocks; SGD and momentum, for which the clocks are the same
  SELECT iif(method LIKE 'dynabro%', clock, 'either') AS counted, method, k(switching) AS k, avg(final_accuracy) AS mean, count(*) AS n, sum(status = 'diverged') AS diverged,
         avg(switches) AS switches, avg(100.0 * dynamic_rounds / rounds) AS dynamic, avg(1.0 * budget_spent / rounds) AS cost
  FROM counted WHERE status IN ('finished', 'diverged')
    AND (sweep = 'mnist-sf-cwtm-computations' OR run_key IN (SELECT run_key FROM csv_mnist_sf_cwtm_runs) AND method NOT LIKE 'momentum%' OR run_key IN (SELECT run_key FROM usual WHERE attack = 'sf' AND attack_entry = 'gradient' AND method = 'momentum' AND learning_rate = 0.01))
    AND seed IN (SELECT seed FROM counted WHERE sweep = 'mnist-sf-cwtm-computations')
  GROUP BY counted, method, switching;
CREATE TABLE corrections AS
  SELECT method, count(accepted) AS judged, sum(NOT accepted) AS rejected FROM results.rounds JOIN counted AS r ON r.id = run_id
  WHERE r.sweep = 'mnist-sf-cwtm-computations' GROUP BY method;

-- compare: cifar_quarter | dynabro learning_rate=0.05 | momentum learning_rate=0.01
sweep = 'cifar10-quarter'

-- compare: cifar_quarter_sgd | dynabro learning_rate=0.05 | sgd learning_rate=0.01
sweep = 'cifar10-quarter'

-- compare: digits_best | dynabro learning_rate=0.1 | sgd learning_rate=1
task = 'digits' AND model = 'mlp' AND attack = 'sf' AND aggregator = 'cwtm' AND workers = 17 AND budget = 5000 AND validation = 0

-- compare: digits_alie | dynabro | momentum attack_entry=state
sweep = 'digits-alie-gm'

-- query: answer
SELECT max(low) AS low, max(high) AS high, max(alie_low) AS alie_low, max(alie_high) AS alie_high,
       (SELECT mean FROM fig1 WHERE reading = 'gradient' AND method = 'momentum' AND k = 5) AS m09,
       (SELECT mean FROM fig1 WHERE reading = 'gradient' AND method = 'momentum:beta=0.99' AND k = 100) AS m099,
       (SELECT mean FROM fig1 WHERE reading = 'message' AND method = 'momentum' AND k = 5) AS sent_5,
       (SELECT mean FROM fig1 WHERE reading = 'message' AND method = 'momentum' AND k = 20) AS sent_20,
       (SELECT mean FROM fig1 WHERE reading = 'message' AND method = 'momentum:beta=0.99' AND k = 100) AS sent_099
FROM (SELECT min(mean) AS low, max(mean) AS high, NULL AS alie_low, NULL AS alie_high FROM fig1 WHERE reading = 'gradient' AND method = 'dynabro'
      UNION ALL SELECT NULL, NULL, min(mean), max(mean) FROM fig6 WHERE reading = 'gradient' AND method = 'dynabro');

-- query: level
WITH cells AS (SELECT method, switching, seed, final_accuracy FROM mnist
               WHERE model = 'cnn-mnist' AND attack = 'sf' AND attack_entry = 'gradient' AND (method = 'sgd' AND learning_rate = 0.3 OR method = 'dynabro' AND learning_rate = 0.05)),
     pairs AS (SELECT seed, a.final_accuracy - b.final_accuracy AS difference FROM cells AS a JOIN cells AS b USING (switching, seed) WHERE a.method = 'sgd' AND b.method = 'dynabro')
SELECT printf('%+.3f', avg(difference)) AS difference, (SELECT printf('%.2f', paired_p(mean)) FROM (SELECT avg(difference) AS mean FROM pairs GROUP BY seed)) AS p,
       sum(difference > 0) AS ahead, count(*) AS cells, count(DISTINCT seed) AS seeds FROM pairs;

-- query: message_runs
SELECT sum(n) AS n, iif(max(n) = 1, 'one seed', iif(min(n) < max(n), min(n) || ' to ', '') || max(n) || ' seeds') AS seeds
FROM reading_means WHERE reading = 'message' AND method LIKE 'momentum%' AND figure LIKE 'mnist%';

-- query: runs
SELECT count(*) AS n FROM counted;

-- query: overview_grids
SELECT sweep AS "grid", count(*) AS "runs here", planned(sweep) AS "of",
       printf('%.1f h', sum(wall_seconds) / 3600) AS "time of all runs", printf('%.0f s', avg(wall_seconds)) AS "mean of a run"
FROM counted WHERE sweep IS NOT NULL AND status IN ('finished', 'diverged') GROUP BY sweep ORDER BY sweep;

-- query: overview_missing
WITH grids (place, page, sweep, setting, alike) AS (VALUES
       (1, 'figures/history-dependence.md', 'history-dependence', 'seeds=0..2', 'history-dependence'),
       (2, 'figures/within-rounds.md', 'mnist-sf-cwtm-computations', 'seeds=0..4', 'mnist-sf-cwtm-computations'),
       (4, 'readings.md', 'mnist-readings', '', 'mnist-readings'), (5, 'readings.md', 'mnist-honest-memory', '', 'mnist-readings'),
       (6, 'readings.md', 'digits-readings', '', 'digits-periodic'),
       (7, 'figures/dynamic-rounds.md', 'digits-dynamic-rounds', '', 'digits-dynamic-rounds'),
       (8, 'figures/dynamic-rounds.md', 'mnist-dynamic-rounds', '', 'mnist-sf-cwtm-computations'),
       (9, 'figures/cifar10.md', 'cifar10-quarter-b64', '', 'cifar10-quarter-b64'),
       (10, 'figures/cifar10.md', 'cifar10-ipm-cwmed', '', ''),
       (11, 'figures/mnist-alie-gm.md', 'mnist-alie-gm', 'method=momentum:beta=0.9 learning_rate=0.001 learning_rate=0.003 '
            || 'switching=periodic:K=5 attack_entry=state attack_entry=gradient', 'mnist-alie-gm'),
       (12, 'figures/heterogeneous.md', 'leaderboard-free', 'data=dirichlet:alpha=0.3 attack=none budget=2000', '')),
     -- a folder of images has another name in each place, so these runs are counted, not looked up
     lacking AS (SELECT *, iif(sweep = 'cifar10-quarter-b64', planned(sweep) - (SELECT count(*) FROM counted WHERE counted.sweep = grids.sweep),
                               missing(sweep, setting)) AS n,
                        (SELECT avg(wall_seconds) FROM counted WHERE counted.sweep = alike) AS seconds FROM grids)
SELECT printf('[%s](%s)', replace(replace(page, 'figures/', ''), '.md', ''), page) AS "page", n AS "missing runs",
       iif(seconds IS NULL, 'not measured', printf('%.1f h', n * seconds / 3600)) AS "about",
       printf('`dynabro sweep %s%s`', sweep, iif(setting = '', '', ' --set ' || replace(setting, ' ', ' --set '))) AS "command"
FROM lacking WHERE n > 0 ORDER BY place;

-- query: gpu_runs
SELECT sum(n) AS n, group_concat('`' || sweep || '`', ' and ') AS sweeps, max(gpu) AS gpu
FROM (SELECT sweep, count(*) AS n, max(substr(device, instr(device, ' ') + 1)) AS gpu FROM counted
      WHERE device LIKE 'cuda%' AND status IN ('finished', 'diverged') GROUP BY sweep);

-- query: sf_seeds
SELECT iif(min(n) = max(n), max(n), min(n) || ' to ' || max(n)) AS n FROM sf;

-- query: sf_diverged
SELECT 'A red cross means that at least one run diverged; each counts as 0.1. ' || coalesce(group_concat(text, ' '), 'No run did.') AS text
FROM (SELECT printf('With %s: ', iif(method LIKE '%0.99%', 'momentum 0.99', iif(method = 'momentum', 'momentum 0.9', method)))
             || group_concat(printf('%d of %d at %s', diverged, n, iif(switching = 'static', 'static', 'K = ' || CAST(k AS INTEGER))), ', ') || '.' AS text
      FROM (SELECT method, k, switching, sum(status = 'diverged') AS diverged, count(*) AS n FROM sf_runs GROUP BY method, switching ORDER BY method, k)
      WHERE diverged > 0 GROUP BY method);

-- query: alie_diverged
SELECT 'A red cross means that at least one run diverged; each counts as 0.1. ' || coalesce(group_concat(text, ' '), 'No run did.') AS text
FROM (SELECT printf('With %s: ', iif(method LIKE '%0.99%', 'momentum 0.99', iif(method = 'momentum', 'momentum 0.9', method)))
             || group_concat(printf('%d of %d at %s', diverged, n, iif(switching = 'static', 'static', 'K = ' || CAST(k AS INTEGER))), ', ') || '.' AS text
      FROM (SELECT method, k, switching, sum(status = 'diverged') AS diverged, count(*) AS n FROM alie_runs GROUP BY method, switching ORDER BY method, k)
      WHERE diverged > 0 GROUP BY method);

-- query: settings_sf
SELECT printf('%d workers, %d of them Byzantine, a budget of %,d, batches of %d', max(workers), max(byzantine), max(budget), max(batch_size)) AS text FROM sf_runs;

-- query: settings_alie
SELECT printf('%d workers, %d of them Byzantine, a budget of %,d, batches of %d', max(workers), max(byzantine), max(budget), max(batch_size)) AS text FROM alie_runs;

-- query: sf_dynabro
SELECT count(*) AS runs, min(final_accuracy) AS lowest, max(final_accuracy) AS highest,
       (SELECT final_accuracy FROM sf_runs WHERE method = 'dynabro' ORDER BY 1 LIMIT 1 OFFSET 1) AS second,
       sum(final_accuracy >= 0.9) AS good
FROM sf_runs WHERE method = 'dynabro';

-- query: sf_lost
SELECT CAST(k AS INTEGER) AS k, seed, final_accuracy FROM sf_runs WHERE method = 'dynabro' ORDER BY final_accuracy LIMIT 1;

-- query: sf_means
SELECT CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' ELSE replace(replace(method, 'momentum:', 'momentum, '), 'form=', '') END AS method,
       max(shown(mean, diverged, n)) FILTER (WHERE k = 5) AS "K = 5", max(shown(mean, diverged, n)) FILTER (WHERE k = 10) AS "10",
       max(shown(mean, diverged, n)) FILTER (WHERE k = 20) AS "20", max(shown(mean, diverged, n)) FILTER (WHERE k = 100) AS "100",
       max(shown(mean, diverged, n)) FILTER (WHERE k > 1e9) AS "static"
FROM sf GROUP BY sf.method;

-- query: filters
SELECT CASE method WHEN 'dynabro' THEN 'none' WHEN 'dynabro:clip=4' THEN 'none, clip=4' ELSE substr(method, 16) END AS filter,
       printf('%.3f (%.3f)', avg(final_accuracy) FILTER (WHERE attack = 'sf'), min(final_accuracy) FILTER (WHERE attack = 'sf')) AS "sign flips",
       printf('%.3f (%.3f)', avg(final_accuracy) FILTER (WHERE attack = 'shift:lambda=1'), min(final_accuracy) FILTER (WHERE attack = 'shift:lambda=1')) AS "shift",
       max(n) AS seeds, max(rejected) AS "corrections rejected"
FROM (SELECT r.method, r.attack, r.final_accuracy,
             count(*) OVER (PARTITION BY r.method, r.attack) AS n,
             (SELECT printf('%d of %d', sum(o.accepted = 0), count(o.accepted)) FROM results.rounds AS o JOIN counted AS q ON q.id = o.run_id
              WHERE q.sweep = 'digits-filter' AND q.method = r.method AND q.attack = 'shift:lambda=1') AS rejected
      FROM counted AS r WHERE r.sweep = 'digits-filter' AND r.status = 'finished')
GROUP BY method ORDER BY method <> 'dynabro', method;

-- query: sf_dips
SELECT max(fall) AS fall FROM (SELECT lag(mean) OVER (PARTITION BY switching ORDER BY budget) - mean AS fall
FROM csv_mnist_sf_cwtm_curves WHERE method = 'dynabro' AND budget <= 4000);

-- query: reading_means
SELECT CASE figure WHEN 'mnist-sf-cwtm' THEN '1: SF, CWTM' WHEN 'mnist-alie-gm' THEN '6: ALIE, GM' WHEN 'digits-periodic' THEN '1 on digits' ELSE '6 on digits' END AS figure, reading,
       CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS method,
       iif(min(n) < max(n), min(n) || ' to ' || max(n), max(n)) AS seeds,
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 5), '-') AS "K = 5", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 10), '-') AS "10",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 20), '-') AS "20", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 100), '-') AS "100",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE switching = 'static'), '-') AS "static"
FROM reading_means WHERE method LIKE 'momentum%' OR reading IN ('message', 'softmax') OR reading = 'honest memory' AND method = 'dynabro' AND figure LIKE '%alie%'
GROUP BY reading_means.figure, reading, reading_means.method
ORDER BY reading_means.figure NOT LIKE 'mnist%', reading_means.figure DESC, reading <> 'message', reading <> 'gradient', reading DESC, reading_means.method;

-- query: message_variants
SELECT iif(figure = 1, 'SF, CWTM', 'ALIE, ' || iif(aggregator = 'rfa', 'RFA', 'GM')) AS "attack, rule",
       CASE method WHEN 'dynabro' THEN 'DynaBRO' ELSE 'momentum ' || iif(method LIKE '%0.99%', '0.99', '0.9') || iif(method LIKE '%heavy%', ', heavy ball', '') END AS method,
       count(DISTINCT seed) AS seeds,
       coalesce(cell(final_accuracy, status = 'diverged') FILTER (WHERE k = 5), '-') AS "K = 5", coalesce(cell(final_accuracy, status = 'diverged') FILTER (WHERE k = 100), '-') AS "100",
       coalesce(cell(final_accuracy, status = 'diverged') FILTER (WHERE switching = 'static'), '-') AS "static"
FROM (SELECT * FROM remembered WHERE task = 'mnist' AND (aggregator = 'rfa' OR method LIKE '%heavy%') UNION ALL SELECT * FROM memoryless WHERE task = 'mnist' AND aggregator = 'rfa' AND method = 'dynabro')
GROUP BY figure, aggregator, method ORDER BY figure, aggregator, method;

-- query: variants
SELECT printf('%.3f', min(mean) FILTER (WHERE figure = 1 AND method LIKE '%heavy%')) AS heavy_sf,
       printf('%.3f', max(mean) FILTER (WHERE figure = 6 AND method LIKE '%heavy%')) AS heavy_alie,
       printf('%.3f', max(mean) FILTER (WHERE aggregator = 'rfa' AND method = 'momentum' AND k = 5)) AS rfa_5,
       (SELECT printf('%.3f', mean) FROM fig6 WHERE reading = 'message' AND method = 'momentum' AND k = 5) AS gm_5
FROM (SELECT figure, aggregator, method, switching, k, avg(final_accuracy) AS mean FROM remembered
      WHERE task = 'mnist' AND (aggregator = 'rfa' OR method LIKE '%heavy%') GROUP BY figure, aggregator, method, switching);

-- query: alie_means
SELECT CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' ELSE replace(method, 'momentum:', 'momentum, ') END AS method,
       max(shown(mean, diverged, n)) FILTER (WHERE k = 5) AS "K = 5", max(shown(mean, diverged, n)) FILTER (WHERE k = 10) AS "10",
       max(shown(mean, diverged, n)) FILTER (WHERE k = 20) AS "20", max(shown(mean, diverged, n)) FILTER (WHERE k = 100) AS "100",
       max(shown(mean, diverged, n)) FILTER (WHERE k > 1e9) AS "static"
FROM alie GROUP BY alie.method;

-- query: alie_seeds
SELECT iif(min(n) = max(n), max(n), min(n) || ' to ' || max(n)) AS n FROM alie;

-- query: alie_peaks
SELECT min(peak) AS lowest, max(peak) AS highest, sum(peak < 0.8) AS below, count(*) AS n
FROM (SELECT max(mean) AS peak FROM csv_mnist_alie_gm_curves WHERE method NOT LIKE 'dynabro%' AND budget <= 2500 GROUP BY method, switching);

-- query: quarter
SELECT count(*) AS runs, planned('cifar10-quarter') AS planned, iif(count(DISTINCT seed) = 1, 'one seed', count(DISTINCT seed) || ' seeds') AS seeds,
       max(workers) AS workers, max(batch_size) AS batch, printf('%,d', max(budget)) AS budget,
       (SELECT count(DISTINCT e.budget) FROM results.evaluations AS e JOIN counted AS q ON q.id = e.run_id WHERE q.sweep = 'cifar10-quarter' AND q.method = 'sgd') AS evaluations,
       printf('%.0f', max(wall_seconds) / 60) AS minutes
FROM counted WHERE sweep = 'cifar10-quarter' AND status IN ('finished', 'diverged');

-- query: quarter_means
SELECT substr(switching, instr(switching, ':') + 1, instr(switching, ',delta_max') - instr(switching, ':') - 1) AS switching,
       iif(switching LIKE '%0.72', 18, 12) AS "at most",
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'sgd')), '-') AS SGD,
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'momentum')), '-') AS "momentum 0.9",
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'dynabro')), '-') AS DynaBRO
FROM counted AS r WHERE r.sweep = 'cifar10-quarter' AND r.status IN ('finished', 'diverged')
GROUP BY r.switching ORDER BY "at most" DESC, r.switching;

-- query: quarter_b64
SELECT count(*) AS runs, planned('cifar10-quarter-b64') AS planned, max(batch_size) AS batch
FROM counted WHERE sweep = 'cifar10-quarter-b64' AND status IN ('finished', 'diverged');

-- query: quarter_b64_means
SELECT substr(switching, instr(switching, ':') + 1, instr(switching, ',delta_max') - instr(switching, ':') - 1) AS switching,
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'sgd')), '-') AS SGD,
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'momentum')), '-') AS "momentum 0.9",
       coalesce(printf('%.3f', avg(final_accuracy) FILTER (WHERE method = 'dynabro')), '-') AS DynaBRO
FROM counted WHERE sweep = 'cifar10-quarter-b64' AND status IN ('finished', 'diverged') GROUP BY switching ORDER BY switching;

-- query: quarter_orders
WITH falls AS (SELECT lag(mean) OVER (PARTITION BY switching ORDER BY budget) - mean AS fall FROM csv_cifar10_quarter
               WHERE method = 'dynabro' AND mean IS NOT NULL AND budget <= 6000)
SELECT count(*) FILTER (WHERE name = 'cifar_quarter_sgd') AS settings,
       count(*) FILTER (WHERE name = 'cifar_quarter_sgd' AND a > b) AS sgd, count(*) FILTER (WHERE name = 'cifar_quarter' AND a > b) AS momentum,
       (SELECT max(fall) FROM falls) AS fall
FROM pairs WHERE name LIKE 'cifar_quarter%' AND switching LIKE '%delta_max=0.72';

-- query: quarter_orders_below_half
SELECT count(*) FILTER (WHERE name = 'cifar_quarter_sgd') AS settings,
       count(*) FILTER (WHERE name = 'cifar_quarter_sgd' AND a > b) AS sgd, count(*) FILTER (WHERE name = 'cifar_quarter' AND a > b) AS momentum,
       (SELECT count(*) FROM pairs AS one JOIN pairs AS two
        ON one.name = two.name AND two.switching = replace(one.switching, 'delta_max=0.72', 'delta_max=0.48')
        WHERE one.name LIKE 'cifar_quarter%' AND one.switching LIKE '%delta_max=0.72' AND (one.a > one.b) = (two.a > two.b)) AS same,
       count(*) AS orders
FROM pairs WHERE name LIKE 'cifar_quarter%' AND switching LIKE '%delta_max=0.48';

-- query: quarter_bounds
SELECT max(abs(a - b)) FILTER (WHERE switching LIKE '%p=0.01,D=10,%') AS same, max(abs(a - b)) FILTER (WHERE switching NOT LIKE '%p=0.01,D=10,%') AS others,
       (SELECT CAST(max(byzantine) AS INTEGER) FROM csv_cifar10_quarter WHERE switching LIKE '%p=0.01,D=10,%') AS byzantine
FROM quarter_bounds;

-- query: gap_means
SELECT iif(kind = 'static', 'static', 'dynamic') || ', ' || aggregator || ', ' || replace(replace(method, 'momentum:beta=', ''), 'momentum', '0.9') AS "attack, rule, beta",
       printf('%.2g', max(mean) FILTER (WHERE lambda = 0)) AS "lambda = 0", printf('%.3g', max(mean) FILTER (WHERE lambda = 0.5)) AS "0.5",
       printf('%.3g', max(mean) FILTER (WHERE lambda = 1)) AS "1", printf('%.3g', max(mean) FILTER (WHERE lambda = 2)) AS "2",
       printf('%.3g', max(mean) FILTER (WHERE lambda = 5)) AS "5"
FROM gaps GROUP BY kind, aggregator, method ORDER BY kind, aggregator, gaps.method;

-- query: printed
SELECT printf('%g', lambda) AS lambda, printf('%.3g', (SELECT mean FROM gaps WHERE kind = 'dynamic' AND aggregator = 'cwmed' AND method = 'momentum' AND gaps.lambda = p.lambda)) AS "gap, the lemma's sizes",
       printf('%.3g', avg(final_gap)) AS "gap, as printed",
       printf('%.1f', (SELECT mean FROM gaps WHERE kind = 'dynamic' AND aggregator = 'cwmed' AND method = 'momentum' AND gaps.lambda = p.lambda) / avg(final_gap)) AS "ratio", count(*) AS seeds
FROM (SELECT final_gap, CAST(substr(attack, instr(attack, 'lambda=') + 7) AS REAL) AS lambda FROM counted WHERE attack LIKE 'momentum-tailored:%schedule=printed') AS p
GROUP BY lambda ORDER BY p.lambda;

-- query: history
SELECT max(mean_cost) FILTER (WHERE method = 'dynabro') AS cost, max(largest_cost) FILTER (WHERE method = 'dynabro') AS largest,
       max(window_rounds) FILTER (WHERE method = 'momentum') AS m09, max(window_rounds) FILTER (WHERE method = 'momentum:beta=0.99') AS m099,
       max(window_rounds) FILTER (WHERE method = 'safeguard') AS double, max(window_rounds) FILTER (WHERE method = 'safeguard:guards=single') AS single,
       max(window_rounds) FILTER (WHERE method = 'byzantine-sgd') AS byzantine,
       max(window_rounds) FILTER (WHERE method = 'nsgdm') AS nsgdm, max(window_rounds) FILTER (WHERE method = 'demoa') AS demoa, max(iif(window_ended IN (1, 'True'), '', 'at least ') || printf('%,d', window_rounds)) FILTER (WHERE method = 'mu2-sgd') AS mu2
FROM csv_history_dependence;

-- query: history_ends
WITH ends AS (SELECT method, min(final_accuracy) AS low, max(final_accuracy) AS high, printf('%.3f to %.3f', min(final_accuracy), max(final_accuracy)) AS text, count(*) AS seeds
              FROM counted WHERE sweep = 'history-dependence' AND status IN ('finished', 'diverged') GROUP BY method)
SELECT max(text) FILTER (WHERE method = 'dynabro') AS dynabro, max(text) FILTER (WHERE method = 'sgd') AS sgd, max(text) FILTER (WHERE method = 'safeguard') AS safeguard,
       max(text) FILTER (WHERE method = 'dynabro:filter=option2') AS option2, max(high) FILTER (WHERE method = 'dynabro:filter=option2') AS most, min(low) FILTER (WHERE method = 'dynabro') AS least,
       min(seeds) AS seeds
FROM ends;

-- query: history_rates
SELECT max(learning_rate) FILTER (WHERE method LIKE 'dynabro%') AS dynabro, max(learning_rate) FILTER (WHERE method NOT LIKE 'dynabro%') AS others
FROM counted WHERE run_key IN (SELECT run_key FROM csv_history_dependence_runs);

-- query: history_methods
WITH cells AS (SELECT method, attack, attack_entry, participation, switching, avg(final_accuracy) AS mean FROM counted
               WHERE sweep = 'history-methods' GROUP BY method, aggregator, attack, attack_entry, participation, switching)
SELECT (SELECT count(*) FROM counted WHERE sweep = 'history-methods') AS runs, planned('history-methods') AS planned,
       (SELECT iif(count(DISTINCT seed) = 1, 'one seed', count(DISTINCT seed) || ' seeds') FROM counted WHERE sweep = 'history-methods') AS seeds,
       max(mean) FILTER (WHERE attack LIKE 'sf:%' AND method <> 'dynabro' AND switching = 'periodic:K=5') AS memory,
       min(mean) FILTER (WHERE attack LIKE 'sf:%' AND method = 'dynabro') AS dynabro,
       min(mean) FILTER (WHERE attack = 'sf' AND method = 'mu2-sgd' AND switching = 'periodic:K=5') AS mu2,
       min(mean) FILTER (WHERE attack = 'sf' AND method <> 'mu2-sgd' AND method <> 'dynabro' AND switching = 'periodic:K=5') AS flips,
       min(mean) FILTER (WHERE attack = 'alie') AS alie,
       min(mean) FILTER (WHERE attack = 'alie' AND method = 'dynabro') AS alie_dynabro
FROM cells;

-- query: history_means
WITH named AS (SELECT *, CASE WHEN method = 'dynabro' THEN 'DynaBRO' WHEN method = 'momentum' THEN 'momentum 0.9' ELSE method END
                         || iif(aggregator LIKE 'ctma%', ' behind ctma', '') || iif(participation < 1, ', half of the workers', '') AS name
               FROM counted WHERE sweep = 'history-methods'),
     flipped AS (SELECT name, k(switching) AS k, iif(avg(final_accuracy) >= 0.9, 1, 0) AS learns FROM named WHERE attack LIKE 'sf:%' GROUP BY name, switching),
     back AS (SELECT name, min(k) FILTER (WHERE learns AND k > coalesce((SELECT max(k) FROM flipped AS low WHERE low.name = flipped.name AND NOT low.learns), 0)) AS k FROM flipped GROUP BY name)
SELECT name AS method,
       printf('%.3f / %.3f', avg(final_accuracy) FILTER (WHERE attack = 'sf' AND switching = 'periodic:K=5'), avg(final_accuracy) FILTER (WHERE attack = 'sf' AND switching = 'static')) AS "SF, gradient",
       printf('%.3f / %.3f', avg(final_accuracy) FILTER (WHERE attack LIKE 'sf:%' AND switching = 'periodic:K=5'), avg(final_accuracy) FILTER (WHERE attack LIKE 'sf:%' AND switching = 'static')) AS "SF, message",
       (SELECT CASE WHEN k IS NULL THEN 'never' WHEN k > 1000 THEN 'static' ELSE printf('K = %d', k) END FROM back WHERE back.name = named.name) AS "learns from",
       printf('%.3f / %.3f', avg(final_accuracy) FILTER (WHERE attack = 'alie' AND attack_entry = 'gradient' AND switching = 'periodic:K=5'), avg(final_accuracy) FILTER (WHERE attack = 'alie' AND attack_entry = 'gradient' AND switching = 'static')) AS "ALIE, gradient",
       printf('%.3f / %.3f', avg(final_accuracy) FILTER (WHERE attack = 'alie' AND attack_entry = 'state' AND switching = 'periodic:K=5'), avg(final_accuracy) FILTER (WHERE attack = 'alie' AND attack_entry = 'state' AND switching = 'static')) AS "ALIE, message"
FROM named GROUP BY name ORDER BY min(participation) DESC, min(method), max(length(aggregator));

-- query: text_setting
SELECT max(workers) AS workers, max(byzantine) AS byzantine, printf('%,d', max(budget)) AS budget,
       iif(count(DISTINCT seed) = 1, 'there is one seed', 'there are ' || count(DISTINCT seed) || ' seeds') AS seeds,
       iif(min(learning_rate) = max(learning_rate), printf('%g', max(learning_rate)), 'several') AS rate
FROM counted WHERE sweep = 'text-switching';

-- query: text_ends
SELECT count(*) FILTER (WHERE method <> 'dynabro' AND switching <> 'static' AND status = 'diverged') AS diverged,
       count(*) FILTER (WHERE method <> 'dynabro' AND switching <> 'static') AS momentum,
       count(*) FILTER (WHERE method = 'dynabro' AND switching <> 'static' AND status = 'diverged') AS dynabro_diverged,
       count(*) FILTER (WHERE method = 'dynabro' AND switching <> 'static') AS dynabro_runs,
       max(final_loss) FILTER (WHERE method <> 'dynabro' AND switching = 'static') / ln_(2) AS static,
       min(final_loss) FILTER (WHERE method = 'dynabro' AND switching = 'static') / ln_(2) AS dynabro,
       printf('%,d', round(avg(rounds) FILTER (WHERE method = 'dynabro' AND switching = 'static'))) AS rounds
FROM counted WHERE sweep = 'text-switching';

-- query: text_means
WITH cells AS (SELECT method, pre_aggregators, aggregator, switching,
                      iif(sum(status = 'diverged'), printf('%d of %d diverged', sum(status = 'diverged'), count(*)), printf('%.2f (%.3f)', avg(final_loss) / ln_(2), avg(final_accuracy))) AS cell
               FROM counted WHERE sweep = 'text-switching' GROUP BY method, pre_aggregators, aggregator, switching)
SELECT iif(method = 'dynabro', 'DynaBRO', 'momentum 0.9') AS method, iif(pre_aggregators = 'none', '', pre_aggregators || '+') || aggregator AS rule,
       max(cell) FILTER (WHERE switching = 'periodic:K=5') AS "K = 5", max(cell) FILTER (WHERE switching = 'static') AS "static"
FROM cells GROUP BY cells.method, pre_aggregators ORDER BY cells.method, pre_aggregators DESC;

-- query: history_filters
SELECT sum(accepted = 1) FILTER (WHERE method = 'dynabro:filter=option1') AS accepted, count(accepted) FILTER (WHERE method = 'dynabro:filter=option1') AS judged,
       max(noise_bound) FILTER (WHERE method = 'dynabro:filter=option2') AS v
FROM results.rounds JOIN counted AS r ON r.id = run_id WHERE r.run_key IN (SELECT run_key FROM csv_history_dependence_runs);

-- query: by_rate
SELECT task, label AS method, printf('%.3f', max(accuracy) FILTER (WHERE rate = 0.003)) AS "0.003", printf('%.3f', max(accuracy) FILTER (WHERE rate = 0.01)) AS "0.01", printf('%.3f', max(accuracy) FILTER (WHERE rate = 0.03)) AS "0.03",
       printf('%.3f', max(accuracy) FILTER (WHERE rate = 0.1)) AS "0.1", printf('%.3f', max(accuracy) FILTER (WHERE rate = 0.3)) AS "0.3",
       printf('%.3f', max(accuracy) FILTER (WHERE rate = 1)) AS "1", printf('%.3f', max(accuracy) FILTER (WHERE rate = 3)) AS "3", max(chosen) AS "chosen"
FROM tried_rates GROUP BY task, label ORDER BY task DESC, max(accuracy) DESC, label;

-- query: tried
SELECT printf('%.3f', max(accuracy) FILTER (WHERE task = 'mnist')) AS mnist, printf('%.3f', max(accuracy) FILTER (WHERE task = 'digits')) AS digits
FROM tried_rates WHERE method LIKE 'momentum%';

-- query: best_means
SELECT task, CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS method,
       iif(min(n) < max(n), min(n) || ' to ' || max(n), max(n)) AS seeds,
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 5), '-') AS "K = 5", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 10), '-') AS "10",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 20), '-') AS "20", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 100), '-') AS "100",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k > 1e9), '-') AS "static"
FROM best GROUP BY task, best.method ORDER BY task DESC, max(mean) FILTER (WHERE k = 5) DESC;

-- query: best
SELECT printf('%.3f', min(mean) FILTER (WHERE task = 'mnist' AND method = 'dynabro')) AS low, printf('%.3f', max(mean) FILTER (WHERE task = 'mnist' AND method = 'dynabro')) AS high,
       printf('%.3f', min(mean) FILTER (WHERE task = 'mnist' AND method = 'sgd')) AS sgd_low, printf('%.3f', max(mean) FILTER (WHERE task = 'mnist' AND method = 'sgd')) AS sgd_high,
       printf('%.3f', min(mean) FILTER (WHERE task = 'mnist' AND method = 'momentum' AND k >= 20)) AS slow, printf('%.3f', max(mean) FILTER (WHERE task = 'mnist' AND method = 'momentum' AND k <= 10)) AS fast,
       printf('%.3f', min(mean) FILTER (WHERE task = 'digits' AND method = 'momentum' AND k >= 20)) AS digits_slow, printf('%.3f', max(mean) FILTER (WHERE task = 'digits' AND method = 'momentum' AND k <= 10)) AS digits_fast
FROM best;

-- query: best_lost
SELECT count(*) AS runs, count(*) FILTER (WHERE final_accuracy <= 0.3) AS lost, max(learning_rate) AS rate, printf('%.3f', max(final_accuracy) FILTER (WHERE final_accuracy <= 0.3)) AS highest,
       count(DISTINCT seed) AS seeds, count(DISTINCT iif(final_accuracy <= 0.3, seed, NULL)) AS seeds_lost
FROM counted WHERE sweep = 'mnist-best' AND method = 'dynabro';

-- query: gradient_best
SELECT printf('%.3f', final_accuracy) AS mean, learning_rate AS rate FROM counted
WHERE sweep = 'mnist-best' AND attack_entry = 'gradient' AND method = 'momentum' AND switching = 'periodic:K=5';

-- query: best_pairs
SELECT count(*) FILTER (WHERE better = 'A') AS ahead, count(*) FILTER (WHERE better = 'B') AS behind, count(*) AS cells, printf('%.3f', max(abs(difference))) AS largest
FROM pairs WHERE name = 'digits_best';

-- query: digits_sf
SELECT min(mean) FILTER (WHERE method = 'dynabro') AS low, max(mean) FILTER (WHERE method = 'dynabro') AS high,
       max(mean) FILTER (WHERE method = 'momentum' AND k > 1e9) AS m09_static, max(mean) FILTER (WHERE method = 'momentum' AND k = 5) AS m09_5,
       max(mean) FILTER (WHERE method = 'momentum:beta=0.99' AND k > 1e9) AS m099_static, max(mean) FILTER (WHERE method = 'momentum:beta=0.99' AND k = 5) AS m099_5,
       max(mean) FILTER (WHERE method = 'sgd' AND k = 5) AS sgd, min(mean) AS lowest,
       max(n) AS n
FROM digits_sf;

-- query: digits_alie
SELECT min(mean) FILTER (WHERE method = 'dynabro') AS low, max(mean) FILTER (WHERE method = 'dynabro') AS high,
       min(mean) FILTER (WHERE method = 'momentum') AS m09_low, max(mean) FILTER (WHERE method = 'momentum') AS m09_high,
       min(mean) FILTER (WHERE method = 'momentum:beta=0.99') AS m099_low, max(mean) FILTER (WHERE method = 'momentum:beta=0.99') AS m099_high,
       max(mean) FILTER (WHERE method = 'sgd' AND k = 5) AS sgd, max(n) AS n,
       (SELECT sum(better = 'B') FROM pairs WHERE name = 'digits_alie') AS behind, (SELECT count(*) FROM pairs WHERE name = 'digits_alie') AS cells
FROM digits_alie;

-- query: bernoulli_pairs
SELECT CASE reading WHEN 'message' THEN 'Figure 1' ELSE reading END AS "reading", replace(replace(switching, 'bernoulli:', ''), ',delta_max=', ', at most ') AS "p, D", n AS seeds,
       printf('%.4f', a) AS DynaBRO, printf('%.4f', b) AS "momentum 0.9", printf('%+.4f [%+.4f, %+.4f]', a - b, a - b - half, a - b + half) AS "difference",
       printf('%.3f', p) AS "p", printf('%.3f', holm) AS "Holm, 6 cells", printf('%.3f', holm_once) AS "5 cells"
FROM bernoulli_pairs WHERE rival = 'momentum' ORDER BY bernoulli_pairs.reading <> 'message', bernoulli_pairs.reading, switching;

-- query: bernoulli_shares
SELECT max(average) FILTER (WHERE switching LIKE '%p=0.01,D=10,%') AS first, 100 * max(share) FILTER (WHERE switching LIKE '%D=50%') AS second,
       100 * max(share) FILTER (WHERE switching LIKE '%p=0.05%') AS third FROM bernoulli_majority WHERE reading = 'gradient';

-- query: dmax
SELECT one.reading, sum(round(one.mean, 3) <> round(two.mean, 3)) AS differ, count(*) AS cells, max(abs(one.mean - two.mean)) AS most
FROM bernoulli AS one JOIN bernoulli AS two
  ON one.reading = two.reading AND one.method = two.method AND two.switching = replace(one.switching, 'delta_max=0.72', 'delta_max=0.48')
WHERE one.switching LIKE '%delta_max=0.72' AND one.reading = (SELECT reading FROM judged WHERE figure = 'digits-bernoulli' LIMIT 1);

-- setup: rates
CREATE VIEW rate_lines AS  -- one row for each line of the figure; the control of a line is its exponent without noise and Byzantine workers
  SELECT part, setting, CASE part WHEN 'rounds' THEN 'T' WHEN 'optimum' THEN 'T, from the optimum' WHEN 'delta' THEN 'delta' ELSE 'dynamic rounds' END || ': ' || setting AS line,
         printf('%.2f [%.2f, %.2f]', slope, low, high) AS exponent,
         CASE WHEN control_slope IS NOT NULL THEN printf('%.2f [%.2f, %.2f]', control_slope, control_low, control_high)
              WHEN count(control) = count(*) AND max(abs(control)) = 0 THEN '0 by construction' ELSE 'not run' END AS control,
         printf('%.2f', of_bound) AS of_bound, iif(predicted IS NULL, 'none', printf('%g', predicted)) AS predicted,
         count(*) AS points, min(n) AS seeds, left_out, unclear, max(mean / bound) AS share, verdict,
         CASE WHEN verdict = 'consistent, and the control is not' THEN 'agrees'
              WHEN verdict = 'flatter than theory' AND part IN ('rounds', 'optimum') THEN 'no' ELSE 'undecided' END AS judged
  FROM csv_rate WHERE slope IS NOT NULL GROUP BY part, setting;
CREATE VIEW rate_in_t AS  -- both starts together: 'no' counts before 'agrees', and 'agrees' before 'undecided'
  SELECT setting, CASE WHEN max(judged = 'no') THEN 'no' WHEN max(judged = 'agrees') THEN 'agrees' ELSE 'undecided' END AS judged,
         group_concat(printf('%s: %s, control %s, bound %s: %s', iif(part = 'rounds', 'from x_1 = (3, -3)', 'from the optimum') || iif(seeds = 1, ' (one seed)', ''), exponent, control, of_bound, verdict), '; ') AS found
  FROM rate_lines WHERE part IN ('rounds', 'optimum') GROUP BY setting;

-- query: rates
SELECT line AS "line", exponent, control AS "null control", of_bound AS "the theorem's bound over these points", predicted AS "the paper's text",
       iif(seeds > 1, printf('%d of %d', points - unclear, points), '-') AS "points clearly above 0", seeds, verdict
FROM rate_lines ORDER BY part = 'delta', part = 'switches', part = 'optimum', line;

-- query: rate_points
SELECT sum(left_out) FILTER (WHERE setting = 'cwmed') AS below, max(unclear) FILTER (WHERE setting = 'nnm+cwmed') AS noise,
       max(points) FILTER (WHERE setting = 'nnm+cwmed') AS points, max(exponent) FILTER (WHERE setting = 'nnm+cwmed') AS nnm FROM rate_lines WHERE part = 'delta';

-- query: rate_share
SELECT max(share) FILTER (WHERE setting IN ('static', 'option 1')) AS first, max(share) FILTER (WHERE setting = 'option 2, adaptive') AS second
FROM rate_lines WHERE part IN ('rounds', 'optimum');

-- query: kappa_factors
SELECT min(proved / empirical) AS low, max(proved / empirical) AS high, max(empirical / proved) AS worst FROM csv_kappa WHERE proved IS NOT NULL;

-- query: kappa_found
SELECT rule, m AS "m", f AS "f", printf('%.2f', empirical) AS found, printf('%.2f', proved) AS proved, printf('%.1f', proved / empirical) AS factor
FROM (SELECT *, workers AS m, byzantine AS f FROM csv_kappa) WHERE proved IS NOT NULL ORDER BY m, rule;

-- query: kappa_nnm
SELECT min(empirical) AS low, max(empirical) AS high, count(*) AS n, (SELECT group_concat(rule, ', ') FROM csv_kappa WHERE rule LIKE 'nnm+%' AND unbounded) AS unbounded
FROM csv_kappa WHERE rule LIKE 'nnm+%' AND NOT unbounded;

-- query: kappa_unbounded
SELECT group_concat(rule, ', ') AS rules FROM (SELECT DISTINCT rule FROM csv_kappa WHERE unbounded AND rule NOT LIKE 'nnm%' ORDER BY rule);

-- query: worst_seeds
SELECT max(n) AS n, (SELECT count(*) FROM counted WHERE sweep = 'digits-worst-case' AND status = 'diverged') AS diverged,
       (SELECT max(learning_rate) FROM counted WHERE sweep = 'digits-worst-case') AS rate FROM worst;

-- query: worst_cases
SELECT aggregator AS rule, max(text) FILTER (WHERE method = 'momentum' AND switching = 'static') AS "momentum, fixed",
       max(text) FILTER (WHERE method = 'momentum' AND switching <> 'static') AS "momentum, K = 5",
       max(text) FILTER (WHERE method = 'dynabro' AND switching = 'static') AS "DynaBRO, fixed",
       max(text) FILTER (WHERE method = 'dynabro' AND switching <> 'static') AS "DynaBRO, K = 5"
FROM (SELECT *, printf('%s: %s', name, shown(mean, diverged, n)) AS text FROM worst WHERE worst) GROUP BY aggregator ORDER BY min(rowid);

-- query: worst_summary
WITH finite AS (SELECT method, switching, aggregator, min(mean) AS mean FROM worst WHERE name NOT IN ('inf', 'nan', 'none') GROUP BY method, switching, aggregator)
SELECT max(mean) FILTER (WHERE method = 'momentum' AND switching <> 'static') AS momentum_best,
       (SELECT max(mean) FROM finite WHERE method = 'momentum' AND switching <> 'static') AS momentum_finite,
       (SELECT max(mean) FROM worst WHERE method = 'momentum' AND switching <> 'static' AND name = 'momentum-tailored') AS tailored,
       count(*) FILTER (WHERE method = 'momentum' AND switching <> 'static' AND name IN ('inf', 'nan')) AS not_finite,
       sum(mean >= 0.7) FILTER (WHERE method = 'momentum' AND switching = 'static') AS momentum_static,
       sum(mean >= 0.7) FILTER (WHERE method = 'dynabro' AND switching <> 'static') AS dynabro_switching,
       sum(mean >= 0.7) FILTER (WHERE method = 'momentum' AND switching <> 'static') AS momentum_switching,
       count(DISTINCT aggregator) AS rules
FROM worst WHERE worst;

-- query: computations_size
SELECT count(*) AS runs, planned('mnist-sf-cwtm-computations') AS planned, iif(count(DISTINCT seed) = 1, 'one seed', count(DISTINCT seed) || ' seeds') AS seeds
FROM counted WHERE sweep = 'mnist-sf-cwtm-computations' AND status IN ('finished', 'diverged');

-- query: computations
SELECT CASE counted WHEN 'computation' THEN 'computations' WHEN 'round' THEN 'rounds' ELSE 'either' END AS "K counts",
       CASE WHEN method = 'dynabro' THEN 'DynaBRO' WHEN method LIKE 'dynabro:filter=%' THEN 'DynaBRO, ' || replace(substr(method, 16), 'option1', 'option 1')
            WHEN method = 'sgd' THEN 'SGD' ELSE replace(method, ':', ', ') END AS method,
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 1), '-') AS "K = 1", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 5), '-') AS "5",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 10), '-') AS "10", coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 20), '-') AS "20",
       coalesce(max(shown(mean, diverged, n)) FILTER (WHERE k = 100), '-') AS "100", printf('%.0f', max(switches) FILTER (WHERE k = 5)) AS "switches at K = 5"
FROM computations GROUP BY counted, computations.method ORDER BY counted = 'either', counted, computations.method;

-- query: computations_ends
SELECT printf('%.1f', max(cost) FILTER (WHERE counted = 'round')) AS cost, printf('%.0f', max(dynamic) FILTER (WHERE counted = 'computation' AND k = 5)) AS share_5,
       printf('%.0f', max(dynamic) FILTER (WHERE counted = 'computation' AND k = 100)) AS share_100,
       printf('%.3f', max(mean) FILTER (WHERE counted = 'computation' AND k <= 20 AND method NOT LIKE '%adaptive')) AS below,
       printf('%.3f', max(mean) FILTER (WHERE counted = 'computation' AND k = 100 AND method = 'dynabro')) AS plain_100,
       printf('%.3f', max(mean) FILTER (WHERE counted = 'computation' AND k = 100 AND method LIKE '%option1')) AS option1_100,
       printf('%.3f', max(mean) FILTER (WHERE counted = 'computation' AND k <= 20 AND method LIKE '%adaptive')) AS adaptive_below,
       printf('%.3f', max(mean) FILTER (WHERE counted = 'computation' AND k = 100 AND method LIKE '%adaptive')) AS adaptive_100,
       printf('%.3f', min(mean) FILTER (WHERE counted = 'round' AND k = 1)) AS each_round, printf('%.0f', max(switches) FILTER (WHERE counted = 'round' AND k = 1)) AS switches_1,
       printf('%.3f', min(mean) FILTER (WHERE counted = 'either' AND method = 'sgd')) AS sgd, printf('%.3f', min(mean) FILTER (WHERE counted = 'either' AND method = 'momentum')) AS momentum,
       (SELECT rejected || ' of ' || judged FROM corrections WHERE method = 'dynabro:filter=option1') AS option1
FROM computations;

-- setup: dynamic rounds
CREATE TABLE dynamic_cells AS  -- the cells of the figure on digits; static is in both schedules
  SELECT attack_name AS attack, CASE method WHEN 'sgd' THEN 'SGD' WHEN 'momentum' THEN 'momentum 0.9' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'dynabro:clip=4' THEN 'DynaBRO, clip=4'
                                            ELSE 'DynaBRO, ' || replace(substr(method, 16), 'option1', 'option 1') END AS method,
         substr(switching, 1, instr(switching || ':', ':') - 1) AS schedule, k(switching) AS k, printf('%.3f (%.3f)', mean, worst) || iif(diverged, printf(', %d of %d diverged', diverged, n), '') AS text, mean, worst, n, borne, dynamic_rounds
  FROM csv_digits_dynamic_rounds;
CREATE TABLE borne AS  -- the numbers of dynamic rounds between which DynaBRO stops bearing a schedule: most is borne, and next is not (NULL: all are)
  SELECT attack, method, schedule, coalesce(max(dynamic_rounds) FILTER (WHERE borne), 0) AS most, min(dynamic_rounds) FILTER (WHERE NOT borne) AS next, count(*) AS cells
  FROM dynamic_cells WHERE schedule <> 'static' AND method LIKE 'DynaBRO%' GROUP BY attack, method, schedule;
CREATE TABLE borne_words AS
  SELECT *, iif(cells < 4, '-', iif(most, printf('%.0f', most), '0') || iif(next IS NULL, ' or more', printf(' to under %.0f', next))) AS words FROM borne;
CREATE TABLE thresholds AS  -- each run of the filter beside the run of the same seed at the paper's threshold, V = 1.6
  SELECT r.seed, k(r.switching) AS k, r.switching = 'static' AS static, substr(r.attack, 1, instr(r.attack || ':', ':') - 1) AS attack,
         json_extract(r.spec, '$.method.noise_bound') AS v, r.final_accuracy AS accuracy, o.final_accuracy AS base, r.status = 'diverged' AS diverged
  FROM counted AS r LEFT JOIN counted AS o ON o.sweep = r.sweep AND json_extract(o.spec, '$.method.noise_bound') = 1.6
    AND o.switching = r.switching AND o.attack = r.attack AND o.seed = r.seed
  WHERE r.sweep = 'digits-dynamic-thresholds' AND r.status IN ('finished', 'diverged');
CREATE TABLE threshold_cells AS
  SELECT v, attack, static, k, avg(accuracy) AS mean, count(*) AS n, sum(diverged) AS diverged, avg(accuracy - base) AS gain,
         paired_p(accuracy - base) FILTER (WHERE base IS NOT NULL) * (SELECT count(*) FROM (SELECT DISTINCT v, attack, k FROM thresholds WHERE NOT static AND v < 1.6)) AS p
  FROM thresholds GROUP BY v, attack, static, k;
CREATE TABLE threshold_rejected AS  -- corrections of runs without an attack: all of them are honest
  SELECT json_extract(r.spec, '$.method.noise_bound') AS v, 1.0 * sum(o.accepted = 0) / count(o.accepted) AS share
  FROM counted AS r JOIN results.rounds AS o ON o.run_id = r.id WHERE r.sweep = 'digits-dynamic-thresholds' AND r.attack = 'none' GROUP BY v;
CREATE TABLE threshold_verdicts AS
  SELECT v, coalesce(max(NOT static AND gain >= 0.05 AND p <= 0.05), 0) AS moves, coalesce(max(static AND gain <= -0.02), 0) AS costs FROM threshold_cells WHERE v < 1.6 GROUP BY v;

-- query: dynamic_mid
SELECT attack, method, max(text) FILTER (WHERE schedule = 'static') AS "none", coalesce(max(text) FILTER (WHERE k = 68), '-') AS "sqrt(T)/4 = 4", coalesce(max(text) FILTER (WHERE k = 17), '-') AS "sqrt(T) = 17",
       coalesce(max(text) FILTER (WHERE k = 4), '-') AS "4 sqrt(T) = 71", coalesce(max(text) FILTER (WHERE k = 1), '-') AS "T = 285",
       coalesce((SELECT words FROM borne_words AS b WHERE b.attack = dynamic_cells.attack AND b.method = dynamic_cells.method AND b.schedule = 'mid-round'), '-') AS "withstood"
FROM dynamic_cells WHERE schedule IN ('static', 'mid-round') GROUP BY attack, method ORDER BY attack DESC, method LIKE 'DynaBRO%', method;

-- query: dynamic_by_computation
SELECT attack, method, max(text) FILTER (WHERE schedule = 'static') AS "static", coalesce(max(text) FILTER (WHERE k = 476), '-') AS "K = 476", coalesce(max(text) FILTER (WHERE k = 119), '-') AS "119",
       coalesce(max(text) FILTER (WHERE k = 28), '-') AS "28", coalesce(max(text) FILTER (WHERE k = 7), '-') AS "7",
       coalesce((SELECT words FROM borne_words AS b WHERE b.attack = dynamic_cells.attack AND b.method = dynamic_cells.method AND b.schedule = 'periodic'), '-') AS "withstood"
FROM dynamic_cells WHERE schedule IN ('static', 'periodic') GROUP BY attack, method ORDER BY attack DESC, method LIKE 'DynaBRO%', method;

-- query: dynamic_counts
SELECT iif(min(n) = max(n), printf('%d seed%s', max(n), iif(max(n) = 1, '', 's')), printf('%d to %d seeds', min(n), max(n))) AS seeds,
       printf('%.0f, %.0f, %.0f and %.0f', max(dynamic_rounds) FILTER (WHERE schedule = 'periodic' AND k = 476), max(dynamic_rounds) FILTER (WHERE schedule = 'periodic' AND k = 119),
              max(dynamic_rounds) FILTER (WHERE schedule = 'periodic' AND k = 28), max(dynamic_rounds) FILTER (WHERE schedule = 'periodic' AND k = 7)) AS periodic,
       printf('%.0f', 16 * 8 * ln_(16 * 17 * 17 * 285) * (2 * 6 * 8 * 9 + 1 / 17.0) * ln_(285) / ln_(2) * 17 / 285) AS third
FROM dynamic_cells;

-- query: dynamic_sgd
SELECT max(final_accuracy) FILTER (WHERE learning_rate = 1) AS fast, max(final_accuracy) FILTER (WHERE learning_rate = 0.1) AS slow
FROM counted WHERE sweep = 'digits-dynamic-rounds' AND method = 'sgd' AND attack = 'optimal-ipm' AND switching = 'static' AND seed = 0;

-- query: dynamic_noise
SELECT max(noise_bound) AS high FROM counted WHERE sweep LIKE 'digits-dynamic-%';

-- query: dynamic_borne
SELECT method, max(borne) FILTER (WHERE schedule = 'mid-round') AS "changes in the middle of rounds", max(borne) FILTER (WHERE schedule = 'periodic') AS "changes after every K computations"
FROM (SELECT method, schedule, iif(sum(cells) < 8, 'not known yet', words) AS borne, min(most) FROM borne_words GROUP BY method, schedule) GROUP BY method ORDER BY method;

-- query: dynamic_filter
SELECT (SELECT printf('%.3f and %.3f', max(mean) FILTER (WHERE attack = 'SF'), max(mean) FILTER (WHERE attack <> 'SF')) FROM dynamic_cells WHERE method = 'DynaBRO, option 1' AND schedule = 'mid-round' AND k = 4) AS option1,
       (SELECT group_concat(printf('%,d', round(switches)), ', ') FROM (SELECT avg(switches) AS switches FROM counted WHERE sweep = 'digits-dynamic-rounds' AND method = 'sgd' AND learning_rate = 0.1 AND switching LIKE 'mid-round%' GROUP BY k(switching) ORDER BY 1)) AS switches,
       max(b) FILTER (WHERE attack = 'SF' AND schedule = 'mid-round') AS sf, max(b) FILTER (WHERE attack <> 'SF' AND schedule = 'mid-round') AS strong,
       max(b) FILTER (WHERE attack = 'SF' AND schedule = 'periodic') AS sf_periodic, max(b) FILTER (WHERE attack <> 'SF' AND schedule = 'periodic') AS strong_periodic,
       (SELECT min(n) || iif(min(n) = 1, ' seed', ' seeds') FROM dynamic_cells WHERE attack = 'SF') AS sf_seeds, (SELECT min(n) || iif(min(n) = 1, ' seed', ' seeds') FROM dynamic_cells WHERE attack <> 'SF') AS strong_seeds
FROM (SELECT attack, schedule, iif(sum(cells) < 8, 'not known yet', printf('%s with this filter and %s without it', max(words) FILTER (WHERE method <> 'DynaBRO'), max(words) FILTER (WHERE method = 'DynaBRO'))) AS b
      FROM borne_words WHERE method IN ('DynaBRO', 'DynaBRO, option 1') GROUP BY attack, schedule);

-- query: thresholds
SELECT printf('%.4g', v) AS "V", printf('1/%.0f', 1.6 / v) AS "threshold, of the paper's", iif(share IS NULL, '-', printf('%.1f%%', 100 * share)) AS "honest corrections rejected",
       max(shown(mean, diverged, n)) FILTER (WHERE attack = 'none') AS "no attack", max(shown(mean, diverged, n)) FILTER (WHERE attack = 'sf' AND static) AS "sf: none",
       max(shown(mean, diverged, n)) FILTER (WHERE attack = 'sf' AND k = 17) AS "17", max(shown(mean, diverged, n)) FILTER (WHERE attack = 'sf' AND k = 4) AS "71", max(shown(mean, diverged, n)) FILTER (WHERE attack = 'sf' AND k = 1) AS "285",
       max(shown(mean, diverged, n)) FILTER (WHERE attack = 'optimal-ipm' AND static) AS "optimal-ipm: none", max(shown(mean, diverged, n)) FILTER (WHERE attack = 'optimal-ipm' AND k = 17) AS "17 ",
       max(shown(mean, diverged, n)) FILTER (WHERE attack = 'optimal-ipm' AND k = 4) AS "71 ", max(shown(mean, diverged, n)) FILTER (WHERE attack = 'optimal-ipm' AND k = 1) AS "285 ",
       CASE WHEN v = 1.6 THEN 'the paper''s' WHEN moves AND costs THEN 'moves the curve, has a cost' WHEN moves THEN 'moves the curve' WHEN costs THEN 'has a cost' WHEN min(n) < 5 THEN 'undecided' ELSE 'no' END AS "verdict"
FROM threshold_cells LEFT JOIN threshold_rejected USING (v) LEFT JOIN threshold_verdicts USING (v) GROUP BY v ORDER BY v DESC;

-- query: threshold_answer
SELECT CASE WHEN NOT (SELECT count(*) FROM threshold_cells) THEN 'The sweep of thresholds has no runs yet.'
            WHEN (SELECT min(n) FROM threshold_cells) < 5 THEN printf('%d of 5 seeds do not decide this. At some number of dynamic rounds, %d of %d smaller thresholds have a mean at least 0.05 above the paper''s. %s.',
                 (SELECT min(n) FROM threshold_cells), (SELECT count(DISTINCT v) FROM threshold_cells WHERE NOT static AND v < 1.6 AND gain >= 0.05), (SELECT count(*) FROM threshold_verdicts),
                 iif(sum(moves), printf('%d of them pass the test', sum(moves)), 'None passes the test, which corrects for all of them'))
            WHEN sum(moves) = 0 THEN printf('No: none of %d smaller thresholds moves the curve.', count(*))
            ELSE printf('%d of %d smaller thresholds move the curve: V = %s. %s', sum(moves), count(*), group_concat(printf('%.4g', v), ', ') FILTER (WHERE moves),
                        iif(sum(moves AND NOT costs), printf('Of these, %s have no cost.', group_concat(printf('%.4g', v), ', ') FILTER (WHERE moves AND NOT costs)), 'All of these have a cost.')) END AS text
FROM (SELECT * FROM threshold_verdicts ORDER BY v DESC);

-- query: dynamic_mnist
SELECT iif(count(*), '![mnist-dynamic-rounds](../mnist-dynamic-rounds.png)', 'The same sweep on MNIST, `mnist-dynamic-rounds`, has no runs yet.') AS picture FROM counted WHERE sweep = 'mnist-dynamic-rounds';

-- setup: the phase diagram, by the rule in its sweep
CREATE TABLE phase_names AS SELECT column1 AS method, column2 AS name FROM (VALUES ('sgd', 'SGD'), ('momentum', 'momentum 0.9'), ('dynabro', 'DynaBRO'), ('dynabro:filter=option1', 'DynaBRO, option 1'), ('dynabro:filter=adaptive', 'DynaBRO, adaptive'));
CREATE TABLE phase_runs AS
  SELECT r.method, r.attack, c.changes, r.seed, r.final_accuracy AS accuracy, r.status = 'diverged' AS diverged
  FROM counted AS r JOIN csv_digits_phase_diagram AS c USING (method, attack, switching) WHERE r.run_key IN (SELECT run_key FROM csv_digits_phase_diagram_runs);
CREATE TABLE phase_pairs AS  -- a version of DynaBRO (a) against SGD or momentum (b) at equal seeds, with Holm's p over all numbers, attacks and pairs
  WITH pairs AS (SELECT ours.method, theirs.method AS rival, attack, changes, count(*) AS n, avg(ours.accuracy) AS a, avg(theirs.accuracy) AS b, coalesce(paired_p(ours.accuracy - theirs.accuracy), 1) AS p
                 FROM phase_runs AS ours JOIN phase_runs AS theirs USING (attack, changes, seed) WHERE ours.method LIKE 'dynabro%' AND theirs.method NOT LIKE 'dynabro%' GROUP BY ours.method, rival, attack, changes)
  SELECT *, min(1, max(steps) OVER (ORDER BY p)) AS holm FROM (SELECT *, p * (count(*) OVER () + 1 - rank() OVER (ORDER BY p)) AS steps FROM pairs);
CREATE TABLE phase_verdicts AS  -- a version of DynaBRO under an attack: it pays if it is above SGD and momentum, and costs if it is below them
  SELECT name, attack, changes, a, max(b) FILTER (WHERE rival = 'sgd') AS sgd, max(b) FILTER (WHERE rival = 'momentum') AS momentum, max(holm) AS holm, min(a > b) AS above, min(a > b AND holm <= 0.05) AS pays, min(a < b AND holm <= 0.05) AS costs
  FROM phase_pairs JOIN phase_names USING (method) GROUP BY name, attack, changes HAVING count(*) = 2;
CREATE TABLE phase_borne AS  -- the largest number of dynamic rounds that is borne, and the next one
  WITH cells AS (SELECT r.method, attack, r.changes, avg(o.accuracy) >= 0.5 AND avg(o.accuracy - r.accuracy) <= 0.05 AND max(o.accuracy - r.accuracy) <= 0.1 AND NOT max(r.diverged) AS borne
                 FROM phase_runs AS r JOIN phase_runs AS o USING (method, attack, seed) WHERE o.changes = 0 AND r.changes > 0 AND method LIKE 'dynabro%' GROUP BY r.method, attack, r.changes),
       so_far AS (SELECT *, min(borne) OVER (PARTITION BY method, attack ORDER BY changes) AS all_borne FROM cells)
  SELECT name, method, attack, printf('%d', coalesce(max(changes) FILTER (WHERE all_borne), 0)) || coalesce(printf(', not %d', min(changes) FILTER (WHERE NOT all_borne)), ' or more') AS words FROM so_far JOIN phase_names USING (method) GROUP BY name, attack;
CREATE TABLE phase_pilot AS  -- the attack of the pilot with the lowest mean
  SELECT name, method, attack, mean FROM (SELECT method, attack, avg(final_accuracy) AS mean, rank() OVER (PARTITION BY method ORDER BY avg(final_accuracy)) AS place FROM counted WHERE sweep = 'digits-phase-diagram-pilot' GROUP BY method, attack)
  JOIN phase_names USING (method) WHERE place = 1;

-- query: phase
SELECT (SELECT count(*) FROM phase_pairs) AS tests, count(*) FILTER (WHERE pays) AS pays, count(*) AS cells, count(*) FILTER (WHERE costs) AS costs,
       (SELECT count(*) || ' runs, ' || count(DISTINCT seed) || ' seeds' FROM phase_runs) AS runs,
       iif(sum(pays), 'yes, under ' || (SELECT group_concat(DISTINCT '`' || attack || '`') FROM phase_verdicts WHERE pays) || ' at ' || (SELECT group_concat(changes, ', ') FROM (SELECT DISTINCT changes FROM phase_verdicts WHERE pays ORDER BY 1)) || ' changes', 'not decided') AS answer,
       iif(sum(pays AND attack IN ('sf', 'alie')), 'some', 'no') AS others,
       (SELECT group_concat(name || ' (' || at || ')', '; ') FROM (SELECT name, group_concat(changes, ', ') AS at FROM (SELECT * FROM phase_verdicts WHERE pays ORDER BY changes) GROUP BY name)) AS versions,
       (SELECT group_concat('`' || attack || '` ' || part, ', ') FROM (SELECT attack, count(*) AS part FROM phase_verdicts WHERE costs GROUP BY attack ORDER BY attack DESC)) AS by_attack
FROM phase_verdicts;

-- query: phase_above
SELECT attack, changes, printf('%.3f', sgd) AS "SGD", printf('%.3f', momentum) AS "momentum 0.9",
       coalesce(group_concat(printf('%s %.3f (p = %.2g)', name, a, holm), '; ') FILTER (WHERE pays), '-') AS "MLMC pays",
       coalesce(group_concat(printf('%s %.3f (p = %.2g)', name, a, holm), '; ') FILTER (WHERE NOT pays), '-') AS "above both, not decided"
FROM (SELECT * FROM phase_verdicts WHERE above ORDER BY name) GROUP BY attack, changes ORDER BY attack DESC, changes;

-- query: phase_bears
SELECT name AS method, max(words) FILTER (WHERE b.attack = 'sf') AS "sf", max(words) FILTER (WHERE b.attack = 'alie') AS "alie", max(words) FILTER (WHERE b.attack = 'optimal-ipm') AS "optimal-ipm", coalesce(max(words) FILTER (WHERE b.attack = 'optimal-alie'), '-') AS "optimal-alie",
       (SELECT printf('%s: %s', p.attack, (SELECT words FROM phase_borne AS w WHERE w.method = p.method AND w.attack = p.attack)) FROM phase_pilot AS p WHERE p.method = b.method) AS "strongest in the pilot"
FROM phase_borne AS b GROUP BY name ORDER BY method, name;

-- query: phase_ends
SELECT max(accuracy) FILTER (WHERE attack = 'sf' AND method LIKE '%adaptive') AS adaptive, max(accuracy) FILTER (WHERE attack = 'optimal-alie') AS option1,
       (SELECT group_concat('`' || attack || '` on ' || name, ' and ') FROM phase_pilot WHERE method NOT LIKE 'dynabro%') AS rivals,
       (SELECT words FROM borne_words WHERE attack = 'OPTIMAL-IPM' AND method = 'DynaBRO' AND schedule = 'mid-round') AS gradient_plain, (SELECT words FROM borne_words WHERE attack = 'OPTIMAL-IPM' AND method = 'DynaBRO, option 1' AND schedule = 'mid-round') AS gradient_option1,
       (SELECT words FROM phase_borne WHERE attack = 'optimal-ipm' AND method = 'dynabro') AS plain, (SELECT words FROM phase_borne WHERE attack = 'optimal-ipm' AND method LIKE '%option1') AS filtered
FROM (SELECT method, attack, avg(accuracy) AS accuracy FROM phase_runs WHERE changes = 142 GROUP BY method, attack);

-- setup: rivals
CREATE TABLE hardware_cells AS
  SELECT aggregator_rule AS rule, method, attack, attack_entry = 'message' AS message, count(*) AS n, avg(accuracy) AS mean, min(accuracy) AS lowest, sum(diverged) AS diverged
  FROM (SELECT iif(pre_aggregators = 'none', '', pre_aggregators || '+') || aggregator AS aggregator_rule, method, attack, attack_entry, final_accuracy AS accuracy, status = 'diverged' AS diverged
        FROM counted WHERE sweep = 'hardware' AND status IN ('finished', 'diverged')) GROUP BY 1, 2, 3, 4;
CREATE TABLE hardware AS  -- a row bears faults if its mean is at most 0.02 below its own without faults
  SELECT rule, method, rule LIKE '%cwtm' AS declared, free.mean AS free, bits.mean AS bits, bits.lowest AS bits_lowest, shown(bits.lowest, bits.diverged, bits.n) AS bits_lost, exponent.mean AS exponent, shown(exponent.lowest, exponent.diverged, exponent.n) AS exponent_lost,
         bits.mean >= free.mean - 0.02 AND exponent.mean >= free.mean - 0.02 AS bears, bits.n AS n, message
  FROM (SELECT rule, method, mean FROM hardware_cells WHERE attack = 'none') AS free
  JOIN (SELECT * FROM hardware_cells WHERE attack = 'bit-flip') AS bits USING (rule, method)
  JOIN (SELECT * FROM hardware_cells WHERE attack = 'bit-flip:bits=exponent') AS exponent USING (rule, method, message);
CREATE TABLE suites AS  -- trials of the 19 attacks of the suite, in the order of the files
  SELECT 'evade' AS switching, substr(search, instr(search, ': ') + 2) AS defence, number AS attack, iif(value IS NULL, 0, value) AS value FROM results.trials WHERE search LIKE 'worst-evade: %' AND status = 'finished'
  UNION ALL SELECT iif(number < 19, 'static', 'periodic'), substr(search, instr(search, ': ') + 2), number % 19, value FROM results.trials WHERE search LIKE 'worst-between: %' AND number < 38 AND status = 'finished';
CREATE TABLE defences AS  -- the defences of the leaderboard's searches, as its table writes them
  SELECT defence, substr(defence, instr(defence, 'aggregator=') + 11, instr(defence, ', learning_rate') - instr(defence, 'aggregator=') - 11) AS rule,
         CASE WHEN defence LIKE 'method=sgd,%' THEN 'SGD' WHEN defence LIKE 'method=dynabro,%' THEN 'DynaBRO' WHEN defence LIKE '%option1%' THEN 'DynaBRO, option1'
              WHEN defence LIKE '%adaptive%' THEN 'DynaBRO, adaptive' WHEN defence LIKE '%beta=0.99%' THEN 'momentum β=0.99' ELSE 'momentum β=0.9' END AS method
  FROM (SELECT DISTINCT substr(search, instr(search, ': ') + 2) AS defence FROM results.trials WHERE search LIKE 'worst-evade: %' OR search LIKE 'worst-dirichlet: %');
CREATE TABLE suite_repeated AS  -- the trial of a suite with the lowest value, with its mean over the seeds of the report
  SELECT substr(search, 1, instr(search, ':') - 1) AS name, substr(search, instr(search, ': ') + 2) AS defence, mean, min(value) AS chosen
  FROM results.trials JOIN counted AS first ON first.run_key = json_extract(run_keys, '$[0]')
  JOIN (SELECT sweep, method, pre_aggregators, aggregator, attack, attack_entry, switching, avg(final_accuracy) AS mean FROM counted
        WHERE sweep IN ('worst-between', 'worst-dirichlet', 'worst-evade') AND seed >= 5 GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING count(*) = 10)
    USING (sweep, method, pre_aggregators, aggregator, attack, attack_entry, switching)
  WHERE (number < 38 OR search NOT LIKE 'worst-between%') AND trials.status = 'finished' GROUP BY 1, 2;
CREATE TABLE dirichlet_runs AS
  SELECT data <> 'iid' AS differs, method, k(switching) AS k, seed, final_accuracy AS accuracy, status = 'diverged' AS diverged
  FROM counted WHERE sweep = 'digits-dirichlet' AND status IN ('finished', 'diverged');
CREATE TABLE dirichlet_pairs AS  -- DynaBRO against each other method at equal seeds, with Holm's p over the nine tests of one data distribution
  WITH pairs AS (SELECT differs, theirs.method AS rival, k, count(*) AS n, avg(ours.accuracy - theirs.accuracy) AS gain, paired_p(ours.accuracy - theirs.accuracy) AS p
                 FROM dirichlet_runs AS ours JOIN dirichlet_runs AS theirs USING (differs, k, seed) WHERE ours.method = 'dynabro' AND theirs.method <> 'dynabro' GROUP BY 1, 2, 3),
       ranked AS (SELECT *, p * (count(p) OVER (PARTITION BY differs) + 1 - rank() OVER (PARTITION BY differs ORDER BY p)) AS steps FROM pairs)
  SELECT differs, rival, k, n, gain, min(1, max(steps) OVER (PARTITION BY differs ORDER BY p)) AS holm FROM ranked;

-- query: hardware_rows
SELECT rule, CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' ELSE 'momentum 0.9' || iif(message, ', message', '') END AS method, printf('%.3f', free) AS "no faults", printf('%.3f, %s', bits, bits_lost) AS "any bit",
       printf('%.3f, %s', exponent, exponent_lost) AS "bits of the exponent", iif(bears, 'yes', 'no') AS bears
FROM hardware ORDER BY declared, rule, method DESC, message;

-- query: hardware_words
SELECT sum(bears) FILTER (WHERE method = 'sgd' AND rule <> 'mean') AS sgd, sum(bears) FILTER (WHERE method = 'momentum' AND NOT message AND rule <> 'mean') AS momentum, sum(bears) FILTER (WHERE method = 'dynabro' AND rule <> 'mean') AS dynabro,
       count(DISTINCT rule) - 1 AS rules, sum(bears) FILTER (WHERE message AND rule <> 'mean') AS message, sum(bears) FILTER (WHERE rule = 'mean') AS mean, count(*) FILTER (WHERE rule = 'mean') AS means, max(n) AS seeds,
       (SELECT min(a.free - b.free) FROM hardware AS a JOIN hardware AS b USING (rule) WHERE a.method = 'sgd' AND b.method = 'dynabro') AS least, (SELECT max(a.free - b.free) FROM hardware AS a JOIN hardware AS b USING (rule) WHERE a.method = 'sgd' AND b.method = 'dynabro') AS most,
       (SELECT group_concat('`' || rule || '`', ', ') FROM (SELECT DISTINCT rule FROM hardware WHERE method = 'momentum' AND NOT message AND NOT bears AND rule <> 'mean')) AS broken,
       (SELECT group_concat('`' || rule || '`', ', ') FROM (SELECT rule FROM hardware WHERE NOT declared AND NOT message GROUP BY rule HAVING min(bears) = 1)) AS all_methods
FROM hardware;

-- query: evade_rows
WITH lowest AS (SELECT defence, switching, min(value) AS value, avg(value) AS mean FROM suites GROUP BY 1, 2)
SELECT replace(replace(method, 'option1', 'option 1'), 'β=', '') || ', ' || rule AS defence, printf('%.3f', static.value) AS "fixed: lowest", printf('%.3f', periodic.value) AS "K = 5: lowest",
       printf('%.3f', evade.value) AS "evade: lowest", printf('%.3f', static.mean) AS "fixed: mean", printf('%.3f', periodic.mean) AS "K = 5: mean", printf('%.3f', evade.mean) AS "evade: mean",
       (SELECT count(*) FROM suites AS e JOIN suites AS s USING (defence, attack) WHERE e.switching = 'evade' AND s.switching = 'static' AND e.value < s.value AND defence = defences.defence) AS "attacks that evade makes stronger"
FROM defences JOIN (SELECT * FROM lowest WHERE switching = 'static') AS static USING (defence) JOIN (SELECT * FROM lowest WHERE switching = 'periodic') AS periodic USING (defence)
JOIN (SELECT * FROM lowest WHERE switching = 'evade') AS evade USING (defence) ORDER BY evade.value DESC;

-- query: evade_words
WITH lowest AS (SELECT defence, min(value) FILTER (WHERE switching = 'static') AS static, min(value) FILTER (WHERE switching = 'periodic') AS periodic, min(value) FILTER (WHERE switching = 'evade') AS evade FROM suites GROUP BY 1),
     pairs AS (SELECT e.value < s.value AS below, abs(e.value - s.value) < 1e-9 AS same FROM suites AS e JOIN suites AS s USING (defence, attack) WHERE e.switching = 'evade' AND s.switching = 'static')
SELECT count(*) AS rows, sum(evade < static) AS below_static, sum(evade < periodic) AS below_periodic, sum(evade < min(static, periodic)) AS below_both, max(min(static, periodic) - evade) AS most,
       (SELECT sum(below) FROM pairs) AS stronger, (SELECT count(*) FROM pairs) AS pairs,
       (SELECT count(*) FROM csv_leaderboard WHERE between_attack LIKE '%, evade') AS counts,
       iif(count(*) < 14, printf('Of the 14 rows of the search, %d have ended; `dynabro search worst-evade` makes the others.', count(*)), '') AS missing
FROM lowest WHERE evade IS NOT NULL AND static IS NOT NULL;

-- query: dirichlet_means
SELECT iif(differs, 'differ', 'iid') AS data, CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS method,
       cell(accuracy, diverged) FILTER (WHERE k = 5) AS "K = 5", cell(accuracy, diverged) FILTER (WHERE k = 20) AS "K = 20", cell(accuracy, diverged) FILTER (WHERE k > 1000) AS static
FROM dirichlet_runs GROUP BY differs, method ORDER BY differs DESC, method = 'dynabro', method;

-- query: dirichlet_pairs
SELECT iif(differs, 'differ', 'iid') AS data, CASE rival WHEN 'sgd' THEN 'SGD' WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS "DynaBRO against", max(printf('%+.3f (%.3g)', gain, holm)) FILTER (WHERE k = 5) AS "K = 5",
       max(printf('%+.3f (%.3g)', gain, holm)) FILTER (WHERE k = 20) AS "K = 20", max(printf('%+.3f (%.3g)', gain, holm)) FILTER (WHERE k > 1000) AS static
FROM dirichlet_pairs GROUP BY differs, rival ORDER BY differs DESC, rival;

-- query: dirichlet_verdict
SELECT max(text) FILTER (WHERE differs) AS differs, max(text) FILTER (WHERE NOT differs) AS iid, max(range) FILTER (WHERE differs) AS range, max(range) FILTER (WHERE NOT differs) AS iid_range,
       (SELECT max(n) FROM dirichlet_pairs) AS seeds, max(least) FILTER (WHERE differs) AS least,
       (SELECT max(mean) FROM (SELECT avg(accuracy) AS mean FROM dirichlet_runs WHERE differs GROUP BY method, k)) AS best,
       (SELECT min(mean) FROM (SELECT avg(accuracy) AS mean FROM dirichlet_runs WHERE NOT differs AND k > 1000 GROUP BY method)) AS iid_static
FROM (SELECT differs, CASE WHEN min(gain > 0 AND holm <= 0.05) THEN 'holds' WHEN max(gain < 0 AND holm <= 0.05) THEN 'does not hold' ELSE 'is undecided' END AS text FROM dirichlet_pairs WHERE k = 5 AND rival LIKE 'momentum%' GROUP BY differs)
JOIN (SELECT differs, max(mean) - min(mean) AS range, min(mean) AS least FROM (SELECT differs, avg(accuracy) AS mean FROM dirichlet_runs WHERE method = 'dynabro' GROUP BY differs, k) GROUP BY differs) USING (differs);

-- query: dirichlet_board
SELECT replace(replace(board.method, 'option1', 'option 1'), 'β=', '') || ', ' || board.rule AS defence, iif(iid.mean IS NULL, '-', printf('%.3f', iid.mean)) AS "iid", printf('%s %s', shown(board."between", board.between_diverged, board.seeds), board.between_group) AS "dirichlet",
       printf('%.3f', board.between_lowest) AS lowest, iif(no_attack IS NULL, '-', printf('%.3f', no_attack)) AS "no attack", '`' || board.between_attack || '`' AS adversary
FROM csv_leaderboard_dirichlet AS board JOIN defences USING (method, rule) LEFT JOIN (SELECT * FROM suite_repeated WHERE name = 'worst-between') AS iid USING (defence) ORDER BY board."between" DESC;

-- query: dirichlet_board_words
SELECT count(*) AS rows, sum(between_tied) AS tied, (SELECT group_concat(printf('%s behind `%s` (%.3f, lowest run %.3f)', replace(replace(method, 'option1', 'option 1'), 'β=', ''), rule, "between", between_lowest), ', ') FROM (SELECT * FROM csv_leaderboard_dirichlet WHERE between_tied ORDER BY "between" DESC)) AS names,
       iif(count(*) < 14, printf('Of the 14 rows of the search, %d have ended; `dynabro search worst-dirichlet` makes the others.', count(*)), '') AS missing
FROM csv_leaderboard_dirichlet;

-- query: board
SELECT count("between") AS rows, sum(between_tied) AS tied, count(*) FILTER (WHERE method LIKE 'DynaBRO%' AND within IS NOT NULL) AS within_rows, max(seeds) AS seeds,
       min(lost) AS least_lost, max(no_attack_long) AS long_most, min(no_attack_long) AS long_least
FROM csv_leaderboard;

-- query: board_candidates
SELECT min(between_candidates) AS least, max(between_candidates) AS most FROM csv_leaderboard;

-- query: board_unfinished
SELECT iif(count("between") < planned, printf('**%d of the %d searches between rounds have ended.** The others, %s, take more than an hour each: `dynabro search worst-between` makes them.', count("between"), planned,
           (SELECT group_concat(name || ' behind `' || rule || '`', ' and ') FROM (SELECT * FROM (SELECT DISTINCT
              CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' WHEN 'dynabro:filter=option1' THEN 'DynaBRO, option 1' WHEN 'dynabro:filter=adaptive' THEN 'DynaBRO, adaptive'
                          WHEN 'momentum' THEN 'momentum 0.9' ELSE 'momentum 0.99' END AS name, iif(pre_aggregators = 'none', '', pre_aggregators || '+') || aggregator AS rule
              FROM counted WHERE sweep = 'leaderboard-free' AND data = 'iid' AND task = 'digits')
            EXCEPT SELECT replace(replace(method, 'option1', 'option 1'), 'β=', ''), rule FROM csv_leaderboard WHERE "between" IS NOT NULL))),
           printf('All %d searches between rounds have ended, and those within rounds, too.', planned)) AS text
FROM csv_leaderboard, (SELECT count(DISTINCT method || pre_aggregators || aggregator) AS planned FROM counted WHERE sweep = 'leaderboard-free' AND data = 'iid' AND task = 'digits');

-- query: board_between_words
WITH rows AS (SELECT printf('%s behind `%s` (%.3f, lowest run %.3f)', replace(replace(method, 'option1', 'option 1'), 'β=', ''), rule, "between", between_lowest) AS name, method, between_lowest AS lowest, "between", between_tied FROM csv_leaderboard WHERE "between" IS NOT NULL)
SELECT printf('They have %.3f to %.3f, with lowest runs of %.3f to %.3f. Among them are %s.', min("between") FILTER (WHERE between_tied), max("between") FILTER (WHERE between_tied),
              min(lowest) FILTER (WHERE between_tied), max(lowest) FILTER (WHERE between_tied),
              (SELECT group_concat(name, ' and ') FROM (SELECT name, max("between") FROM rows WHERE between_tied AND (method = 'SGD' OR method LIKE 'DynaBRO%') GROUP BY method LIKE 'DynaBRO%'))) AS tied,
       coalesce((SELECT printf('The other %s.', iif(count(*) = 1, 'one is ' || max(name), printf('%d have at most %.3f', count(*), max("between")))) FROM rows WHERE NOT between_tied HAVING count(*)), '') AS separated
FROM rows;

-- query: board_runs
SELECT sum(NOT between_tied) AS separated, min("between") FILTER (WHERE between_tied) AS least, max("between") FILTER (WHERE between_tied) AS most,
       printf('%.3f to %.3f', min(between_lowest) FILTER (WHERE between_tied AND method LIKE 'DynaBRO%'), max(between_lowest) FILTER (WHERE between_tied AND method LIKE 'DynaBRO%')) AS dynabro,
       printf('%.3f to %.3f', min(between_lowest) FILTER (WHERE between_tied AND method = 'SGD'), max(between_lowest) FILTER (WHERE between_tied AND method = 'SGD')) AS sgd
FROM csv_leaderboard WHERE "between" IS NOT NULL;

-- query: board_filters
SELECT group_concat(text, ', and ') AS text FROM (
    SELECT printf('%.3f to %.3f behind `%s` (lowest run %.3f)', min("between"), max("between"), rule, min(between_lowest)) AS text
    FROM csv_leaderboard WHERE method LIKE 'DynaBRO%' AND "between" IS NOT NULL GROUP BY rule HAVING count(*) > 1);

-- query: board_momentum
SELECT coalesce((SELECT iif(count(*) = 1, printf('The only row of momentum so far has %.3f (lowest run %.3f).', max("between"), min(between_lowest)), printf('The %d rows of momentum have at most %.3f (lowest run %.3f).', count(*), max("between"), min(between_lowest))) FROM csv_leaderboard WHERE method LIKE 'momentum%' AND "between" IS NOT NULL HAVING count(*)), '') AS text;

-- query: board_within_words
SELECT min(within_lowest) FILTER (WHERE method LIKE 'DynaBRO%') AS lowest, max(within_lowest) FILTER (WHERE method = 'SGD' AND rule = 'nnm+cwtm') AS sgd_lowest, min(within_lowest) FILTER (WHERE within_tied) AS tied_lowest,
       max(within) FILTER (WHERE method LIKE 'DynaBRO%') AS most, max(within) FILTER (WHERE method = 'SGD' AND rule = 'nnm+cwtm') AS sgd,
       sum(within_tied) FILTER (WHERE method NOT LIKE 'DynaBRO%') AS others_tied, sum(within_tied) AS tied,
       min(within) FILTER (WHERE within_tied) AS least, max(within) FILTER (WHERE within_tied) AS best
FROM csv_leaderboard WHERE within IS NOT NULL;

-- query: board_rows
SELECT replace(replace(method, 'option1', 'option 1'), 'β=', '') || ', ' || rule AS defence, printf('%g', learning_rate) AS rate, iif("between" IS NULL, '-', printf('%.3f', lost)) AS lost,
       iif("between" IS NULL, '-', printf('%s %s', shown("between", between_diverged, seeds), between_group)) AS "between", iif("between" IS NULL, '-', printf('%.3f', between_lowest)) AS lowest,
       iif(within IS NULL, '-', printf('%s %s', shown(within, within_diverged, seeds), within_group)) AS within, iif(within IS NULL, '-', printf('%.3f', within_lowest)) AS "lowest (within)"
FROM csv_leaderboard ORDER BY "between" IS NULL, "between" DESC, within DESC;

-- query: board_attacks
SELECT replace(replace(method, 'option1', 'option 1'), 'β=', '') || ', ' || rule AS defence, coalesce('`' || between_attack || '`', '-') AS "between rounds",
       iif(method LIKE 'DynaBRO%', coalesce('`' || replace(within_attack, ', clock=computation', '') || '`', '-'), 'the same') AS "within rounds"
FROM csv_leaderboard ORDER BY "between" IS NULL, "between" DESC, within DESC;

-- query: board_gain
WITH repeated AS (
    SELECT sweep, method, pre_aggregators, aggregator, attack, attack_entry, switching, avg(final_accuracy) AS mean FROM counted
    WHERE sweep IN ('worst-between', 'worst-within') AND seed >= 5 GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING count(*) = 10),
chosen AS (
    SELECT search, number < 38 AS suite, mean,
           (SELECT avg(final_accuracy) FROM json_each(run_keys) JOIN counted ON counted.run_key = json_each.value) AS value FROM results.trials JOIN counted AS first ON first.run_key = json_extract(run_keys, '$[0]')
    JOIN repeated USING (sweep, method, pre_aggregators, aggregator, attack, attack_entry, switching) WHERE trials.status = 'finished'),
searches AS (SELECT search, min(mean) FILTER (WHERE suite) AS given, min(mean) FILTER (WHERE NOT suite) AS proposed FROM chosen GROUP BY search)
SELECT count(*) AS searches, sum(proposed < given) AS better, sum(proposed < given - 0.02) AS clearly,
       (SELECT avg(mean - value) FROM chosen) AS rise, (SELECT max(abs(mean - value)) FROM chosen) AS most
FROM searches;

-- query: board_mnist_rows
SELECT replace(replace(mnist.method, 'option1', 'option 1'), 'β=', '') AS method, rule, printf('%.3f', mnist.no_attack) AS "no attack",
       printf('%s %s', shown(mnist."between", mnist.between_diverged, mnist.seeds), mnist.between_group) AS "between rounds", printf('%.3f', mnist.between_lowest) AS "lowest run"
FROM csv_leaderboard_mnist AS mnist ORDER BY mnist."between" DESC;

-- query: board_mnist_signs
SELECT avg(final_accuracy) AS mean,
       (SELECT min(mean) FROM (
           SELECT avg(final_accuracy) AS mean FROM counted
           WHERE sweep LIKE 'mnist-worst-%' AND method = 'sgd' AND aggregator = 'signguard' AND seed BETWEEN 2 AND 6
           GROUP BY attack, attack_entry, switching HAVING count(*) = 5)) AS before
FROM counted WHERE task = 'mnist' AND method = 'sgd' AND aggregator = 'signguard' AND attack = 'rearranged' AND budget = 1000;

-- query: board_mnist
WITH whole AS (SELECT sweep, method, pre_aggregators, aggregator FROM counted WHERE sweep LIKE 'mnist-worst-%' AND seed >= 2
               GROUP BY sweep, method, pre_aggregators, aggregator, attack, attack_entry, switching HAVING count(*) = 5),
     repeated AS (SELECT count(*) AS trials FROM whole GROUP BY sweep, method, pre_aggregators, aggregator)
SELECT max(mnist.seeds) AS seeds,
       (SELECT iif(min(trials) = max(trials), printf('The best %d trials of each search', max(trials)),
                   printf('The best %d trials of %d searches and the best one of the other %d', max(trials), sum(trials > 1), sum(trials = 1)))
        FROM repeated) AS repeated,
       (SELECT max(trials) FROM (SELECT count(*) AS trials FROM results.trials WHERE search LIKE 'mnist-worst-static: %' GROUP BY search)) AS static_trials,
       (SELECT max(trials) FROM (SELECT count(*) AS trials FROM results.trials WHERE search LIKE 'mnist-worst-switching: %' GROUP BY search)) AS switching_trials
FROM csv_leaderboard_mnist AS mnist;

-- query: many_workers
SELECT iif(count(*), '![many-workers](../many-workers.png)', 'The sweep `many-workers` has no runs yet, so this page claims nothing about its results.') AS picture,
       printf('Of %d planned runs, %d were made. Mean final accuracies of SGD / momentum 0.9 / DynaBRO; a diverged run counts as 0.1:', planned('many-workers'), count(*)) AS runs
FROM counted WHERE sweep = 'many-workers' AND status IN ('finished', 'diverged');

-- setup: many_workers_rows
CREATE VIEW many_workers_runs AS
  SELECT iif(attack = 'alie', 'ALIE', 'sign flips') AS attack, participation, iif(pre_aggregators = 'none', '', pre_aggregators || '+') || aggregator AS rule, workers, seed, status = 'diverged' AS diverged,
         CASE method WHEN 'sgd' THEN 'SGD' WHEN 'dynabro' THEN 'DynaBRO' ELSE 'momentum 0.9' END AS method, final_accuracy AS accuracy
  FROM counted WHERE sweep = 'many-workers' AND status IN ('finished', 'diverged');
CREATE TABLE many_workers_rows AS
  SELECT attack, participation, rule, method, avg(accuracy) FILTER (WHERE workers = 500) - avg(accuracy) FILTER (WHERE workers = 50) AS change, cell(accuracy, diverged) FILTER (WHERE workers = 50) AS m50,
         cell(accuracy, diverged) FILTER (WHERE workers = 200) AS m200, cell(accuracy, diverged) FILTER (WHERE workers = 500) AS m500
  FROM many_workers_runs GROUP BY 1, 2, 3, 4;
CREATE TABLE many_workers_pairs AS  -- DynaBRO against each other method behind a rule at equal seeds, with Holm's p over the six tests of an attack, a participation and a number of workers
  WITH pairs AS (SELECT attack, participation, workers, rule, theirs.method AS rival, count(*) AS n, avg(ours.accuracy - theirs.accuracy) AS gain, paired_p(ours.accuracy - theirs.accuracy) AS p
                 FROM many_workers_runs AS ours JOIN many_workers_runs AS theirs USING (attack, participation, workers, rule, seed) WHERE ours.method = 'DynaBRO' AND theirs.method <> 'DynaBRO' GROUP BY 1, 2, 3, 4, 5),
       ranked AS (SELECT *, p * (7 - rank() OVER (PARTITION BY attack, participation, workers ORDER BY p)) AS steps FROM pairs WHERE p IS NOT NULL)
  SELECT *, min(1, max(steps) OVER (PARTITION BY attack, participation, workers ORDER BY p)) AS holm FROM ranked UNION ALL SELECT *, NULL, NULL FROM pairs WHERE p IS NULL;

-- query: many_workers_means
SELECT attack, participation, rule, printf('%s / %s / %s', coalesce(max(m50) FILTER (WHERE method = 'SGD'), '-'), coalesce(max(m50) FILTER (WHERE method = 'momentum 0.9'), '-'), coalesce(max(m50) FILTER (WHERE method = 'DynaBRO'), '-')) AS "m = 50",
       printf('%s / %s / %s', coalesce(max(m200) FILTER (WHERE method = 'SGD'), '-'), coalesce(max(m200) FILTER (WHERE method = 'momentum 0.9'), '-'), coalesce(max(m200) FILTER (WHERE method = 'DynaBRO'), '-')) AS "m = 200",
       printf('%s / %s / %s', coalesce(max(m500) FILTER (WHERE method = 'SGD'), '-'), coalesce(max(m500) FILTER (WHERE method = 'momentum 0.9'), '-'), coalesce(max(m500) FILTER (WHERE method = 'DynaBRO'), '-')) AS "m = 500",
       coalesce(group_concat(method, ', ') FILTER (WHERE abs(change) > 0.05), iif(count(change), 'no method', '-')) AS "means with 50 and 500 differ by over 0.05"
FROM many_workers_rows GROUP BY 1, 2, 3;

-- query: many_workers_tests
WITH texts AS (SELECT *, printf('%+.3f, %s', gain, iif(holm <= 0.05, iif(gain > 0, 'ahead', 'behind'), 'undecided')) || iif(holm IS NULL, '', printf(', p %.3f', holm)) || iif(n < 3, printf(', %d of 3 seeds', n), '') AS text FROM many_workers_pairs)
SELECT attack, participation, rule, rival AS "DynaBRO against", max(text) FILTER (WHERE workers = 50) AS "m = 50", max(text) FILTER (WHERE workers = 200) AS "m = 200", max(text) FILTER (WHERE workers = 500) AS "m = 500"
FROM texts GROUP BY 1, 2, 3, 4;

-- query: many_workers_counts
SELECT printf('Of %d tests of DynaBRO against another method, it is ahead in %d and behind in %d, and the others are undecided. The table has its mean difference and p with Holm''s correction. In %d of %d cases the means with 50 and with 500 workers differ by more than 0.05, which is no test.', count(*), coalesce(sum(holm <= 0.05 AND gain > 0), 0), coalesce(sum(holm <= 0.05 AND gain < 0), 0),
              (SELECT count(*) FROM many_workers_rows WHERE abs(change) > 0.05), (SELECT count(change) FROM many_workers_rows)) AS text
FROM many_workers_pairs;

-- query: many_workers_state
SELECT iif(count(*), printf('%d runs', count(*)), 'not run') AS text FROM counted WHERE sweep = 'many-workers' AND status IN ('finished', 'diverged');
