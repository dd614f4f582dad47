// Weiszfeld's steps on the Gram matrix [m, m] of the points around the start; ``weiszfeld`` in gm.py, line by line.
#include <cmath>

// Write the weights [m]; scratch is [4, m], and smallest is the least distance that counts.
extern "C" void weiszfeld(const double* gram, long m, double smallest, double tolerance, long most_steps, double* scratch, double* weights) {
  double *distances = scratch, *inner = scratch + m, *moved = scratch + 2 * m, *product = scratch + 3 * m;
  for (long i = 0; i < m; i++) {
    distances[i] = std::sqrt(std::fmax(gram[i * m + i], 0.0));
    inner[i] = weights[i] = 0;
  }
  for (long step = 0; step < most_steps; step++) {
    double total = 0, nearest = INFINITY, square = 0, own = 0;
    for (long i = 0; i < m; i++) {
      const double smoothed = distances[i] > smallest ? distances[i] : smallest;
      nearest = smoothed < nearest ? smoothed : nearest;
      moved[i] = 1 / smoothed;
      total += moved[i];
      product[i] = 0;
    }
    for (long i = 0; i < m; i++) moved[i] /= total;
    for (long k = 0; k < m; k++)  // the matrix is symmetric
      for (long i = 0; i < m; i++) product[i] += gram[k * m + i] * moved[k];
    for (long i = 0; i < m; i++) {
      square += (moved[i] - weights[i]) * (product[i] - inner[i]);  // |z - z_before|^2
      own += moved[i] * product[i];
      weights[i] = moved[i];
      inner[i] = product[i];
    }
    if (!(std::sqrt(square > 0 ? square : 0) > tolerance * nearest)) return;
    for (long i = 0; i < m; i++) {
      const double left = std::fmax(gram[i * m + i], 0.0) - 2 * inner[i] + own;
      distances[i] = std::sqrt(left > 0 ? left : 0);
    }
  }
}
