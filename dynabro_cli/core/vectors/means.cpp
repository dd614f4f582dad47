// Weighted mean of m vectors of d numbers in one pass over memory.
//
// Each column is added up in double precision, row by row; products are rounded before they are added. MKL does the same for a row of
// weights times a matrix in double precision, but needs a copy of the matrix. The result does not depend on the number of threads.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "team.hpp"

namespace {

constexpr long BLOCK = 1024, ROWS = 8;  // columns whose sums stay in cache, and rows that are added to them together

struct Mean {
  const float* x;
  long m, d, stride;
  const double* weights;
  double total;
  float* out;

  void begin(long) const {}

  void run(long item, long) const {
    const long start = item * BLOCK, n = start + BLOCK < d ? BLOCK : d - start;
    double sums[BLOCK] = {};
    long i = 0;
    for (; i + ROWS <= m; i += ROWS) add<ROWS>(i, start, n, sums);
    for (; i < m; i++) add<1>(i, start, n, sums);
    for (long k = 0; k < n; k++) out[start + k] = (float)(sums[k] / total);
  }

  template <long COUNT> void add(long i, long start, long n, double* sums) const {
    const float* row = x + i * stride + start;
    for (long k = 0; k < n; k++) {
      double sum = sums[k];
      UNROLL for (long r = 0; r < COUNT; r++) sum += weights[i + r] * (double)row[r * stride + k];
      sums[k] = sum;
    }
  }
};

}  // namespace

// Write sum_i weights[i] x[i] / total [d].
extern "C" void mean(Team team, long threads, const float* x, long m, long d, long stride, const double* weights, double total, float* out) {
  const Mean body{x, m, d, stride, weights, total, out};
  share(team, threads, (d + BLOCK - 1) / BLOCK, body);
}
