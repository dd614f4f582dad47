// Order statistics of each column of an [m, d] matrix: the mean of the middle values, and of the values nearest to it.
//
// The comparators of the caller's sorting network are applied to vectors of columns. All sums, differences and quotients are
// rounded as torch rounds the same steps in `_order.py`, so that the results are equal bit for bit (except for the sign of a zero).
#include <cmath>

#include "team.hpp"

namespace {

constexpr long BLOCK = 4096;  // columns that a thread processes at a time
constexpr int WIDE = 4;       // vectors of columns that go through the network together

template <class T> struct Columns {
  static constexpr long N = 4 * LANES / sizeof(T), ALL = WIDE * N;
  typedef T Vector __attribute__((vector_size(4 * LANES), may_alias));
  typedef T Anywhere __attribute__((vector_size(4 * LANES), aligned(sizeof(T)), may_alias));
  typedef T Half __attribute__((vector_size(2 * LANES), aligned(sizeof(T)), may_alias));
  typedef double Doubles __attribute__((vector_size(2 * LANES / sizeof(T) * sizeof(double))));
};

template <class T> struct Middle {
  typedef Columns<T> C;
  typedef typename C::Vector Vector;
  typedef typename C::Anywhere Anywhere;
  typedef typename C::Half Half;
  typedef typename C::Doubles Doubles;

  const T* x;  // [m, d], `stride` numbers from row to row
  long m, d, stride;
  T* out;               // [d]
  const int* network;   // [comparators, 2]
  long comparators, trim, left_out;  // left_out < 0: the mean of the middle values is the result
  Vector *rows, *nearest;  // [threads, m, WIDE] each

  void begin(long) const {}

  void run(long item, long thread) const {
    const long end = (item + 1) * BLOCK < d ? (item + 1) * BLOCK : d;
    Vector *own = rows + thread * m * WIDE, *chosen = nearest + thread * m * WIDE;
    for (long start = item * BLOCK; start < end; start += C::ALL) {
      const long columns = end - start < C::ALL ? end - start : C::ALL;
      load(own, start, columns);
      decltype(own[0] != own[0]) nan[WIDE] = {};  // columns with a NaN; their results are NaN, as in torch's minimum and maximum
      for (long i = 0; i < m; i++)
        UNROLL for (int w = 0; w < WIDE; w++) nan[w] |= own[i * WIDE + w] != own[i * WIDE + w];
      sort(own);
      Vector centre[WIDE];
      UNROLL for (int w = 0; w < WIDE; w++) centre[w] = mean(own + trim * WIDE + w, m - 2 * trim);
      if (left_out >= 0) {
        UNROLL for (int w = 0; w < WIDE; w++) {
          choose(own + w, chosen + w, centre[w]);
          centre[w] = mean(chosen + w, m - left_out);
        }
      }
      T results[C::ALL];
      UNROLL for (int w = 0; w < WIDE; w++) *(Anywhere*)(results + w * C::N) = nan[w] ? centre[w] * NAN : centre[w];
      std::memcpy(out + start, results, sizeof(T) * columns);
    }
  }

  void load(Vector* own, long start, long columns) const {
    for (long i = 0; i < m; i++) {
      const T* row = x + i * stride + start;
      if (columns == C::ALL) {
        UNROLL for (int w = 0; w < WIDE; w++) own[i * WIDE + w] = *(const Anywhere*)(row + w * C::N);
      } else {  // the last columns, filled up with zeros
        T padded[C::ALL] = {};
        std::memcpy(padded, row, sizeof(T) * columns);
        UNROLL for (int w = 0; w < WIDE; w++) own[i * WIDE + w] = *(const Anywhere*)(padded + w * C::N);
      }
    }
  }

  void sort(Vector* own) const {
    for (long c = 0; c < comparators; c++) {
      Vector *upper = own + network[2 * c] * WIDE, *lower = own + network[2 * c + 1] * WIDE;
      UNROLL for (int w = 0; w < WIDE; w++) {
        const Vector a = upper[w], b = lower[w];
        upper[w] = a < b ? a : b;
        lower[w] = a > b ? a : b;
      }
    }
  }

  // The same as `vectors.means.mean_of_rows`.
  static Vector mean(const Vector* own, long count) {
    if (count == 1) return own[0];
    if constexpr (sizeof(T) == sizeof(double)) {
      if (count == 2) return own[0] / 2 + own[WIDE] / 2;
      double shrink = 0.5;
      for (long bits = count; bits; bits /= 2) shrink /= 2;
      const long middle = count / 2;
      const Vector base = own[middle * WIDE];
      Vector pull = {};
      for (long i = 0; i < count; i++)
        if (i != middle) pull += base * -shrink + own[i * WIDE] * shrink;
      return 2 * (base / 2 + pull / (2 * shrink * count));
    } else {
      const Half* halves = (const Half*)own;  // the compilers would convert a whole vector number by number
      Doubles low = __builtin_convertvector(halves[0], Doubles), high = __builtin_convertvector(halves[1], Doubles);
      for (long i = 1; i < count; i++) {
        low += __builtin_convertvector(halves[2 * i * WIDE], Doubles);
        high += __builtin_convertvector(halves[2 * i * WIDE + 1], Doubles);
      }
      const Half results[2] = {__builtin_convertvector(low / (double)count, Half), __builtin_convertvector(high / (double)count, Half)};
      return *(const Anywhere*)results;
    }
  }

  // Put the values nearest to the centre into `chosen`, in the order of `_order.nearest_mean`.
  void choose(const Vector* own, Vector* chosen, Vector centre) const {
    const long kept = m - left_out;
    for (long place = 0; place < kept; place++) chosen[place * WIDE] = own[(left_out + place) * WIDE];
    for (long j = left_out - 1; j >= 0; j--) {
      const Vector low = own[j * WIDE], high = own[(j + kept) * WIDE];
      Vector* place = chosen + ((j - left_out) % kept + kept) % kept * WIDE;
      *place = centre - low <= high - centre ? low : *place;
    }
  }
};

}  // namespace

// Bytes of scratch memory that a call needs.
extern "C" long scratch(long threads, long m) { return (2 * threads * m * WIDE + 1) * 4 * LANES; }

template <class T>
static void run(Team team, long threads, char* scratch, const T* x, long m, long d, long stride, T* out, const int* network,
                long comparators, long trim, long left_out) {
  typedef typename Columns<T>::Vector Vector;
  Vector* rows = (Vector*)(((uintptr_t)scratch + 4 * LANES - 1) / (4 * LANES) * (4 * LANES));
  const Middle<T> body{x, m, d, stride, out, network, comparators, trim, left_out, rows, rows + threads * m * WIDE};
  share(team, threads, (d + BLOCK - 1) / BLOCK, body);
}

extern "C" void of_float(Team team, long threads, char* scratch, const float* x, long m, long d, long stride, float* out,
                         const int* network, long comparators, long trim, long left_out) {
  run(team, threads, scratch, x, m, d, stride, out, network, comparators, trim, left_out);
}

extern "C" void of_double(Team team, long threads, char* scratch, const double* x, long m, long d, long stride, double* out,
                          const int* network, long comparators, long trim, long left_out) {
  run(team, threads, scratch, x, m, d, stride, out, network, comparators, trim, left_out);
}
