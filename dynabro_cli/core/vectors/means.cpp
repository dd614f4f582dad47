// Means of m vectors of d numbers, weighted or in groups, in one pass over memory.
//
// Each column is added up in double precision, row by row; products are rounded before they are added. MKL does the same for a row of
// weights times a matrix in double precision, but needs a copy of the matrix. The result does not depend on the number of threads.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "team.hpp"
#include <vector>

namespace {

constexpr long BLOCK = 2048, ROWS = 8;  // columns whose sums stay in cache, and rows that are added to them together

struct Mean {
  const float* x;
  long m, d, stride;
  const double* weights;
  double total;
  float* out;
  double start = 0;

  void begin(long) const {}

  void run(long item, long) const {
    const long from = item * BLOCK, n = from + BLOCK < d ? BLOCK : d - from;
    double sums[BLOCK];
    for (long k = 0; k < n; k++) sums[k] = start;
    long i = 0;
    for (; i + ROWS <= m; i += ROWS) add<ROWS>(i, from, n, sums);
    for (; i < m; i++) add<1>(i, from, n, sums);
  }

  // Add COUNT rows to the sums; after the last rows, write the means.
  template <long COUNT> void add(long i, long from, long n, double* sums) const {
    const float* row = x + i * stride + from;
    if (i + COUNT < m)
      for (long k = 0; k < n; k++) sums[k] = added<COUNT>(i, row + k, sums[k]);
    else
      for (long k = 0; k < n; k++) out[from + k] = (float)(added<COUNT>(i, row + k, sums[k]) / total);
  }

  template <long COUNT> double added(long i, const float* column, double sum) const {
    UNROLL for (long r = 0; r < COUNT; r++) sum += weights[i + r] * (double)column[r * stride];
    return sum;
  }
};

struct Groups {
  const float* x;
  long m, d, stride, s;
  const double* ones;
  float* out;

  void begin(long) const {}

  void run(long item, long thread) const {
    const long blocks = (d + BLOCK - 1) / BLOCK, group = item / blocks, first = group * s, n = first + s < m ? s : m - first;
    // -0 is the sum of no numbers: the sum of zeros with this sign keeps it
    Mean{x + first * stride, n, d, stride, ones, (double)n, out + group * d, -0.0}.run(item % blocks, thread);
  }
};

}  // namespace

// Write sum_i weights[i] x[i] / total [d].
extern "C" void mean(Team team, long threads, const float* x, long m, long d, long stride, const double* weights, double total, float* out) {
  const Mean body{x, m, d, stride, weights, total, out};
  share(team, threads, (d + BLOCK - 1) / BLOCK, body);
}

// Write the means of s vectors each, the last of the rest [ceil(m/s), d].
extern "C" void means_of_groups(Team team, long threads, const float* x, long m, long d, long stride, long s, float* out) {
  const std::vector<double> ones(s, 1);
  const Groups body{x, m, d, stride, s, ones.data(), out};
  share(team, threads, (m + s - 1) / s * ((d + BLOCK - 1) / BLOCK), body);
}
