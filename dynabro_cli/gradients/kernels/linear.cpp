// Weight gradients of a linear layer: for each worker, the product of its outputs' gradients [n, O]^T with its inputs [n, I].
//
// A worker has few samples, so most work is writing the result, which goes straight into the workers' matrix. One thread adds
// up every number over the samples, in their order.
#include "team.hpp"

namespace {

// A tile stays in registers; a share of rows is an item.
constexpr long ROWS = 6, VECTORS = 2, COLUMNS = VECTORS * LANES, SHARE = 10 * ROWS;
typedef Vectors<LANES>::Anywhere Anywhere;

struct Products {
  const float *gy, *x;
  float* out;
  long n, rows, columns, stride, shares;

  void begin(long) const {}

  void run(long item, long) const {
    const long worker = item / shares, from = item % shares * SHARE, to = from + SHARE < rows ? from + SHARE : rows;
    const float *g = gy + worker * n * rows, *own = x + worker * n * columns;
    float* result = out + worker * stride;
    for (long row = from; row < to; row += ROWS)  // the last tiles may overlap the tiles before
      for (long column = 0; column < columns; column += COLUMNS)
        tile(g, own, result, row + ROWS <= rows ? row : rows - ROWS, column + COLUMNS <= columns ? column : columns - COLUMNS);
  }

  void tile(const float* g, const float* own, float* result, long row, long column) const {
    Floats sums[ROWS][VECTORS] = {};
    for (long k = 0; k < n; k++) {
      Floats v[VECTORS];
      UNROLL for (int j = 0; j < VECTORS; j++) v[j] = kept(own + k * columns + column + j * LANES);
      UNROLL for (int i = 0; i < ROWS; i++) {
        const Floats factor = g[k * rows + row + i] - Floats{};
        UNROLL for (int j = 0; j < VECTORS; j++) sums[i][j] += factor * v[j];
      }
    }
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int j = 0; j < VECTORS; j++) *(Anywhere*)(result + (row + i) * columns + column + j * LANES) = sums[i][j];
  }
};

}  // namespace

// Return true if a layer of this size has a whole tile.
extern "C" long serves(long rows, long columns) { return rows >= ROWS && columns >= COLUMNS; }

// Write the products of all workers, ``stride`` numbers apart.
extern "C" void products(Team team, long threads, const float* gy, const float* x, float* out, long workers, long n, long rows, long columns,
                         long stride) {
  const long shares = (rows + SHARE - 1) / SHARE;
  const Products body{gy, x, out, n, rows, columns, stride, shares};
  share(team, threads, workers * shares, body);
}
