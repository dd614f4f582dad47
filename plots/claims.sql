-- The paper's claims, each with a query that returns its verdict ('agrees', 'under one reading', 'undecided', 'no' or
-- 'not run') and what was found. A heading has: name | figure of plots/ | place in the paper | the sentence.
--
-- Words are read the same way everywhere: "stable" and "consistent" are a range of means of at most 0.02; "declines" and
-- "improves" are means in order at every step of K; "performs
-- well" is a mean of at least 0.9, "reasonably" of at least 0.8; "fails" is a mean under 0.5; "a random guess" is a mean under
-- 0.2; "outperforms" is a mean difference whose sign the paired t-test confirms (Holm's p at most 0.05 over the cells), and
-- undecided otherwise. These limits were chosen when most of the results were known.

-- claim: fig1-stable | mnist-sf-cwtm | Section 6, MNIST | the performance of our approach remains stable across different values of K
SELECT CASE WHEN max(mean) - min(mean) <= 0.02 THEN 'agrees' ELSE 'no' END,
       printf('means %.3f to %.3f; one run of %d ends at %.3f, all others at %.3f or more', min(mean), max(mean),
              (SELECT count(*) FROM sf_runs WHERE method = 'dynabro'),
              (SELECT min(final_accuracy) FROM sf_runs WHERE method = 'dynabro'),
              (SELECT final_accuracy FROM sf_runs WHERE method = 'dynabro' ORDER BY 1 LIMIT 1 OFFSET 1))
FROM sf WHERE method = 'dynabro';

-- claim: fig1-declines | mnist-sf-cwtm | Section 6, MNIST | for worker-momentum, performance declines as K decreases
SELECT CASE WHEN max(fall) <= 0 THEN 'agrees' ELSE 'no' END,
       printf('from static to K = 5: beta 0.9 %.3f to %.3f, 0.99 %.3f to %.3f',
              (SELECT mean FROM sf WHERE method = 'momentum' AND k > 1e9), (SELECT mean FROM sf WHERE method = 'momentum' AND k = 5),
              (SELECT mean FROM sf WHERE method = 'momentum:beta=0.99' AND k > 1e9),
              (SELECT mean FROM sf WHERE method = 'momentum:beta=0.99' AND k = 5))
FROM (SELECT lag(mean) OVER (PARTITION BY method ORDER BY k) - mean AS fall FROM sf
      WHERE method IN ('momentum', 'momentum:beta=0.99'));

-- claim: fig1-larger-beta | mnist-sf-cwtm | Section 6, MNIST | with higher momentum values experiencing more significant effects
SELECT CASE WHEN larger > smaller THEN 'agrees' ELSE 'no' END,
       printf('lost between static and K = 5: %.3f (0.9), %.3f (0.99)', smaller, larger)
FROM (SELECT max(mean) FILTER (WHERE method = 'momentum:beta=0.99' AND k > 1e9)
             - max(mean) FILTER (WHERE method = 'momentum:beta=0.99' AND k = 5) AS larger,
             max(mean) FILTER (WHERE method = 'momentum' AND k > 1e9)
             - max(mean) FILTER (WHERE method = 'momentum' AND k = 5) AS smaller FROM sf);

-- claim: fig1-099-at-100 | mnist-sf-cwtm | Section 6, MNIST | momentum with beta = 0.99 fails when K = 100
SELECT CASE WHEN ema < 0.5 THEN 'agrees' WHEN heavy < 0.5 THEN 'under one reading' ELSE 'no' END,
       printf('%.3f (moving average), %.3f (heavy ball)', ema, heavy)
FROM (SELECT max(mean) FILTER (WHERE method = 'momentum:beta=0.99') AS ema,
             max(mean) FILTER (WHERE method = 'momentum:beta=0.99,form=heavy-ball') AS heavy FROM sf WHERE k = 100);

-- claim: fig1-09-at-20 | mnist-sf-cwtm | Section 6, MNIST | with beta = 0.9 it performs well even when K = 20
SELECT CASE WHEN mean >= 0.9 THEN 'agrees' ELSE 'no' END, printf('%.3f', mean) FROM sf WHERE method = 'momentum' AND k = 20;

-- claim: fig5-well | mnist-sf-cwtm-curves | Appendix, MNIST | our method performs well across all values of K
SELECT CASE WHEN min(mean) >= 0.9 THEN 'agrees' ELSE 'no' END, printf('lowest mean %.3f', min(mean)) FROM sf WHERE method = 'dynabro';

-- claim: fig5-random-guess | mnist-sf-cwtm-curves | Appendix, MNIST | when K is smaller than 1/(1 - beta), momentum SGD fails to learn something meaningful and performs similarly to a random guess
SELECT CASE WHEN max(mean) FILTER (WHERE method NOT LIKE '%heavy%') < 0.2 THEN 'agrees'
            WHEN max(mean) FILTER (WHERE method LIKE '%heavy%') < 0.2 THEN 'under one reading' ELSE 'no' END,
       printf('moving average: %.3f or more; heavy ball: %.3f at most for 0.99 at K = 5 to 20, %.3f for 0.9 at K = 5',
              min(mean) FILTER (WHERE method NOT LIKE '%heavy%'),
              max(mean) FILTER (WHERE method = 'momentum:beta=0.99,form=heavy-ball'),
              max(mean) FILTER (WHERE method = 'momentum:form=heavy-ball'))
FROM sf WHERE (method LIKE 'momentum:beta=0.99%' AND k < 100) OR (method IN ('momentum', 'momentum:form=heavy-ball') AND k < 10);

-- claim: fig5-09-at-100 | mnist-sf-cwtm-curves | Appendix, MNIST | when K = 100 momentum with parameter beta = 0.9 slightly outperforms our method
SELECT CASE WHEN better = 'B' THEN 'agrees' WHEN better = 'A' THEN 'no' ELSE 'undecided' END,
       printf('%.4f against %.4f; paired t-test p = %.2f with %d seeds', b, a, p_t, n)
FROM pairs WHERE name = 'mnist_sf' AND switching = 'periodic:K=100';

-- claim: fig6-reasonable | mnist-alie-gm | Appendix, MNIST | momentum with parameter 0.9 performs reasonably when K = 5
SELECT CASE WHEN mean >= 0.8 THEN 'agrees' ELSE 'no' END, printf('%.3f', mean) FROM alie WHERE method = 'momentum' AND k = 5;

-- claim: fig6-consistent | mnist-alie-gm | Appendix, MNIST | our method has consistent accuracy across different values of K
SELECT CASE WHEN max(mean) - min(mean) <= 0.02 THEN 'agrees' ELSE 'no' END, printf('%.3f to %.3f', min(mean), max(mean))
FROM alie WHERE method = 'dynabro';

-- claim: fig6-improves | mnist-alie-gm-curves | Appendix, MNIST | momentum improves as K increases
SELECT CASE WHEN max(fall) <= 0 THEN 'agrees' ELSE 'no' END,
       printf('means fall in %d of %d steps of K; from K = 5 to static, 0.9 goes from %.3f to %.3f, 0.99 from %.3f to %.3f',
              sum(fall > 0), count(fall),
              (SELECT mean FROM alie WHERE method = 'momentum' AND k = 5), (SELECT mean FROM alie WHERE method = 'momentum' AND k > 1e9),
              (SELECT mean FROM alie WHERE method = 'momentum:beta=0.99' AND k = 5),
              (SELECT mean FROM alie WHERE method = 'momentum:beta=0.99' AND k > 1e9))
FROM (SELECT lag(mean) OVER (PARTITION BY method ORDER BY k) - mean AS fall FROM alie WHERE method LIKE 'momentum%');

-- claim: fig2-cifar | cifar10-ipm-cwmed | Section 6, CIFAR-10 | momentum with beta = 0.9 slightly outperforms our method [at p = 0.01, D = 10]; in the other configurations our method significantly outperforms both SGD and momentum
SELECT 'not run', printf('budget %d of 8,000', max(budget)) FROM runs WHERE sweep = 'cifar10-ipm-cwmed';

-- claim: fig8-cifar | cifar10-ipm-cwmed-dmax048 | Appendix, CIFAR-10 | similar results to those in the main text are observed when there are fewer than half Byzantine workers in all iterations
SELECT 'not run', printf('budget %d of 8,000', max(budget)) FROM runs WHERE sweep = 'cifar10-ipm-cwmed-dmax048';

-- claim: fig2-digits-first | digits-bernoulli | Section 6, CIFAR-10 (here: digits) | momentum with beta = 0.9 slightly outperforms our method [at p = 0.01, D = 10]
SELECT CASE WHEN better = 'B' THEN 'agrees' WHEN better = 'A' THEN 'no' ELSE 'undecided' END,
       printf('%.3f against %.3f; p = %.2f, Holm %.2f', b, a, p_t, holm_t)
FROM pairs WHERE name = 'digits_bernoulli' AND switching LIKE '%p=0.01,D=10,delta_max=0.72';

-- claim: fig2-digits-others | digits-bernoulli | Section 6, CIFAR-10 (here: digits) | in the other configurations our method significantly outperforms both SGD and momentum
SELECT CASE WHEN sum(better = 'A') = count(*) THEN 'agrees' WHEN sum(better = 'B') > 0 THEN 'no' WHEN sum(better = 'A') > 0 THEN 'no' ELSE 'undecided' END,
       printf('ahead of momentum in %d of %d cells, of SGD in %d of %d (Holm''s p at most 0.05)',
              sum(better = 'A' AND name = 'digits_bernoulli'), sum(name = 'digits_bernoulli'),
              sum(better = 'A' AND name = 'digits_bernoulli_sgd'), sum(name = 'digits_bernoulli_sgd'))
FROM pairs WHERE name LIKE 'digits_bernoulli%' AND switching LIKE '%delta_max=0.72' AND switching NOT LIKE '%p=0.01,D=10,%';

-- claim: fig2-digits-majority | digits-bernoulli | Section 6, CIFAR-10 (here: digits) | a non-negligible number of iterations with delta > 0.5
SELECT CASE WHEN min(share) > 0.01 THEN 'agrees' ELSE 'no' END, printf('%.1f%% and %.1f%% of the rounds', 100 * min(share), 100 * max(share))
FROM bernoulli_majority WHERE switching NOT LIKE '%p=0.01,D=10,%';

-- claim: fig8-digits | digits-bernoulli-dmax048 | Appendix, CIFAR-10 (here: digits) | similar results to those in the main text are observed
SELECT CASE WHEN max(abs(one.mean - two.mean)) <= 0.02 THEN 'agrees' ELSE 'no' END,
       printf('the means of the two bounds differ by %.4f at most', max(abs(one.mean - two.mean)))
FROM bernoulli AS one JOIN bernoulli AS two
  ON one.method = two.method AND two.switching = replace(one.switching, 'delta_max=0.72', 'delta_max=0.48')
WHERE one.switching LIKE '%delta_max=0.72';

-- claim: fig3-plateau | momentum-fails-gap | Appendix E | the error plateaus at a sub-optimal level for all values of the momentum parameter
SELECT CASE WHEN min(d.mean / z.mean) > 5 THEN 'agrees' ELSE 'no' END,
       printf('under the dynamic attack at least %.0f times the gap without an attack', min(d.mean / z.mean))
FROM gaps AS d JOIN gaps AS z ON z.method = d.method AND z.aggregator = d.aggregator AND z.kind = d.kind AND z.lambda = 0
WHERE d.kind = 'dynamic' AND d.lambda > 0;

-- claim: fig3-proportion | momentum-fails-gap | Appendix E | an increase in the final error magnitude in direct proportion to the strength of the attack
SELECT CASE WHEN min(slope) > 0.8 AND max(slope) < 1.2 THEN 'agrees' WHEN min(slope) > 0 THEN 'under one reading' ELSE 'no' END,
       printf('f(x) - f* grows with lambda to the power %.2f to %.2f between 0.5 and 5; the distance from the optimum, its root, is in proportion',
              min(slope), max(slope))
FROM (SELECT ln_(h.mean / l.mean) / ln_(10.0) AS slope FROM gaps AS h JOIN gaps AS l
      ON h.method = l.method AND h.aggregator = l.aggregator AND h.kind = l.kind AND h.lambda = 5 AND l.lambda = 0.5
      WHERE h.kind = 'dynamic');

-- claim: fig3-static | momentum-fails-gap | Appendix E | under a static attack such a correlation between the attack strength and final error is not apparent
SELECT CASE WHEN max(ratio) <= 2 THEN 'agrees' WHEN max(ratio) FILTER (WHERE aggregator = 'cwmed') <= 2 THEN 'under one reading' ELSE 'no' END,
       printf('largest over smallest gap, lambda 0.5 to 5: CWMed %.2f, plain averaging %.0f',
              max(ratio) FILTER (WHERE aggregator = 'cwmed'), max(ratio) FILTER (WHERE aggregator = 'mean'))
FROM (SELECT aggregator, max(mean) / min(mean) AS ratio FROM gaps WHERE kind = 'static' AND lambda > 0 GROUP BY aggregator, method);

-- claim: fig3-switches | momentum-fails-gap | Appendix E | these values correspond to 999, 90, 45 rounds with Byzantine identity changes
SELECT CASE WHEN group_concat(switches, ', ') = '999, 90, 45' THEN 'agrees' ELSE 'no' END, group_concat(switches, ', ')
FROM (SELECT DISTINCT switches FROM runs WHERE sweep = 'momentum-fails-gap' AND switching = 'rotating' ORDER BY 1 DESC);

-- claim: lemma | momentum-fails-paths | Appendix E, the lemma | given the above attack, theta is in [(5/6)^4, 1] for all workers from the second epoch on
SELECT 'under one reading', 'with schedule=lemma (tests/attacks/test_momentum_tailored.py); the printed v_t let theta fall below';

-- claim: tab1-mlmc | history-dependence | Table 1 | MLMC (ours): window O(log T) in expectation, stochastic
SELECT CASE WHEN window_rounds = 1 AND window_type = 'stochastic' AND mean_cost <= 7.01 THEN 'agrees' ELSE 'no' END,
       printf('1 round of %.2f computations on average, %s', mean_cost, window_type) FROM csv_history_dependence WHERE method = 'dynabro';

-- claim: tab1-momentum | history-dependence | Table 1 | Worker-momentum: window proportional to 1/(1 - beta), deterministic
SELECT CASE WHEN h.window_rounds BETWEEN 5 * l.window_rounds AND 20 * l.window_rounds AND h.window_type = 'deterministic' THEN 'agrees' ELSE 'no' END,
       printf('%d rounds (0.9), %d (0.99), %s', l.window_rounds, h.window_rounds, h.window_type)
FROM csv_history_dependence AS l, csv_history_dependence AS h WHERE l.method = 'momentum' AND h.method = 'momentum:beta=0.99';

-- claim: tab1-safeguard | history-dependence | Table 1 | SafeguardSGD: window O(T^(5/8)), deterministic
SELECT CASE WHEN window_rounds <= 2 * exp(0.625 * ln_(rounds)) AND window_type = 'deterministic' THEN 'agrees' ELSE 'no' END,
       printf('%d rounds; T^(5/8) = %.0f', window_rounds, exp(0.625 * ln_(rounds))) FROM csv_history_dependence WHERE method = 'safeguard';

-- claim: tab1-byzantine-sgd | history-dependence | Table 1 | ByzantineSGD: window T, deterministic
SELECT CASE WHEN NOT window_ended THEN 'agrees' ELSE 'no' END, printf('no end within %d rounds', window_rounds)
FROM csv_history_dependence WHERE method = 'byzantine-sgd';

-- claim: tab2-settings | training-details | Table 2 | 5000 and 8000 iterations, a drop by 10 after 4000 and 6000, weight decay 10^-4, batches of 32 and 64, 17 and 25 workers
SELECT CASE WHEN count(*) = 5 THEN 'agrees' ELSE 'no' END, printf('%d of 5 rows are equal', count(*)) FROM training
WHERE (setting LIKE 'iterations%' AND mnist = '5,000' AND cifar = '8,000') OR (setting LIKE 'learning rate drops%' AND mnist LIKE '%4,000%' AND cifar LIKE '%6,000%')
   OR (setting = 'weight decay' AND mnist = '0.0001' AND cifar = '0.0001') OR (setting LIKE 'base batch%' AND mnist = '32' AND cifar = '64')
   OR (setting LIKE 'workers%' AND mnist = '17' AND cifar = '25');

-- claim: tab2-softmax | training-details | Table 2 | both networks end in SoftMax
SELECT CASE WHEN sum(model LIKE '%softmax=true%') > 0 THEN 'under one reading' ELSE 'no' END,
       printf('%d runs with a softmax layer are stored; the others end in logits, and the loss has the softmax', sum(model LIKE '%softmax=true%'))
FROM runs WHERE task = 'mnist';

-- claim: alie-z | mnist-alie-gm | Appendix, attacks | with m = 17 and delta m = 8, we have z = 1.22
SELECT CASE WHEN abs(z - 1.22) < 0.005 THEN 'agrees' ELSE 'no' END, printf('%.3f', z)
FROM (SELECT normal_quantile((17 - 8 - (9 - 8)) / (17.0 - 8)) AS z);

-- claim: rate-static | rate | Theorem on Algorithm 1 | the mean squared gradient falls like 1/sqrt(T), up to logarithms
SELECT iif(verdict = 'agrees', 'agrees', 'no'), printf('exponent %.2f [%.2f, %.2f], the bound''s own %.2f', slope, low, high, of_bound)
FROM csv_rate WHERE part = 'rounds' AND setting = 'static' LIMIT 1;

-- claim: rate-option1 | rate | Theorem on Algorithm 2, Option 1 | the same with identities that change
SELECT iif(verdict = 'agrees', 'agrees', 'no'), printf('exponent %.2f [%.2f, %.2f], the bound''s own %.2f', slope, low, high, of_bound)
FROM csv_rate WHERE part = 'rounds' AND setting = 'option 1' LIMIT 1;

-- claim: rate-option2 | rate | Theorem on Algorithm 2, Option 2 | the same with AdaGrad-Norm and MFM
SELECT iif(verdict = 'agrees', 'agrees', 'no'), printf('exponent %.2f [%.2f, %.2f], the bound''s own %.2f', slope, low, high, of_bound)
FROM csv_rate WHERE part = 'rounds' AND setting = 'option 2, adaptive' LIMIT 1;

-- claim: rate-mfm | rate | Section 5, Option 2 | the error grows linearly in delta with MFM
SELECT iif(verdict = 'agrees', 'agrees', 'no'), printf('exponent of the excess %.2f [%.2f, %.2f], the bound''s own %.2f: %s', slope, low, high, of_bound, verdict)
FROM csv_rate WHERE part = 'delta' AND setting = 'mfm' LIMIT 1;

-- claim: rate-nnm | rate | Sections 3 and 4 | the error grows like sqrt(delta) with a kappa in O(delta)
SELECT iif(verdict = 'agrees', 'agrees', 'no'), printf('CWMed behind NNM: exponent of the excess %.2f [%.2f, %.2f], the bound''s own %.2f', slope, low, high, of_bound)
FROM csv_rate WHERE part = 'delta' AND setting = 'nnm+cwmed' LIMIT 1;

-- claim: rate-switches | rate | Section 4 | the error grows linearly in the share of dynamic rounds
SELECT iif(count(DISTINCT verdict) = 1 AND min(verdict) = 'agrees', 'agrees', 'no'), printf('exponents %.2f and %.2f', min(slope), max(slope))
FROM csv_rate WHERE part = 'switches';

-- claim: kappa | kappa | Definition 3.2, after Allouah et al. | CWTM, CWMed, GM and Krum are (delta, kappa)-robust with the kappa of the table
SELECT iif(max(empirical / proved) <= 1, 'agrees', 'no'), printf('largest ratio found over the proved kappa: %.2f', max(empirical / proved))
FROM csv_kappa WHERE proved IS NOT NULL;

-- claim: time-mnist | training-details | Appendix, hardware | the runtime of each configuration is about 5 minutes for MNIST and 45 for CIFAR-10 [on one RTX 4090]
SELECT 'not run', printf('median of a MNIST run on one core of a shared CPU: %.0f min', median / 60)
FROM (SELECT wall_seconds AS median FROM sf_runs ORDER BY 1 LIMIT 1 OFFSET (SELECT count(*) / 2 FROM sf_runs));

-- claim: worst-momentum | digits-worst-case | Section 1 and Appendix E (here: digits) | any robust aggregation rule has no ability to infer an unbiased momentum path [under the dynamic attack]
SELECT iif(max(mean) < 0.5, 'agrees', 'no'), printf('best worst case of momentum behind %d rules with K = 5: %.3f', count(*), max(mean))
FROM worst WHERE (worst = 1 OR worst = 'True') AND method = 'momentum' AND switching <> 'static';

-- claim: worst-dynabro | digits-worst-case | Section 4 (here: digits) | our method can withstand identity switches with any (delta, kappa)-robust aggregator
SELECT CASE WHEN min(mean) FILTER (WHERE aggregator IN ('cwmed', 'cwtm', 'gm', 'krum', 'smea')) >= 0.7 THEN 'agrees'
            WHEN max(mean) >= 0.7 THEN 'under one reading' ELSE 'no' END,
       printf('worst case with K = 5 behind rules with a proved kappa: %.3f to %.3f; the lowest is Krum', min(mean), max(mean))
FROM worst WHERE (worst = 1 OR worst = 'True') AND method = 'dynabro' AND switching <> 'static' AND aggregator IN ('cwmed', 'cwtm', 'gm', 'krum', 'smea');

-- claim: fig1-digits-stable | digits-periodic | Section 6, MNIST (here: digits) | the performance of our approach remains stable across different values of K
SELECT iif(max(mean) - min(mean) <= 0.02, 'agrees', 'no'), printf('%.3f to %.3f', min(mean), max(mean)) FROM digits_sf WHERE method = 'dynabro';

-- claim: fig1-digits-099 | digits-periodic | Section 6, MNIST (here: digits) | momentum with beta = 0.99 fails when K = 100
SELECT iif(min(mean) < 0.5, 'agrees', 'no'), printf('%.3f (moving average), %.3f (heavy ball)', max(mean) FILTER (WHERE method NOT LIKE '%heavy%'), max(mean) FILTER (WHERE method LIKE '%heavy%'))
FROM digits_sf WHERE method LIKE 'momentum:beta=0.99%' AND k = 100;

-- claim: fig6-digits-reasonable | digits-alie-gm | Appendix, MNIST (here: digits) | momentum with parameter 0.9 performs reasonably when K = 5
SELECT iif(mean >= 0.8, 'agrees', 'no'), printf('%.3f', mean) FROM digits_alie WHERE method = 'momentum' AND k = 5;

-- claim: fig6-digits-consistent | digits-alie-gm | Appendix, MNIST (here: digits) | our method has consistent accuracy across different values of K
SELECT iif(max(mean) - min(mean) <= 0.02, 'agrees', 'no'), printf('%.3f to %.3f', min(mean), max(mean)) FROM digits_alie WHERE method = 'dynabro';

-- claim: fig6-digits-improves | digits-alie-gm | Appendix, MNIST (here: digits) | momentum improves as K increases
SELECT CASE WHEN max(fall) <= 0 THEN 'agrees' ELSE 'no' END,
       printf('means fall in %d of %d steps of K, by %.4f at most', sum(fall > 0), count(fall), max(fall))
FROM (SELECT lag(mean) OVER (PARTITION BY method ORDER BY k) - mean AS fall FROM digits_alie WHERE method LIKE 'momentum%');
