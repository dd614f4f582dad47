// Inner products of all pairs of m vectors of d numbers, and equal vectors, in one pass over memory.
//
// Products are added up in single precision over BLOCK columns; these sums are added up in double precision. The columns are cut
// into chunks whose size depends only on d. One thread computes a chunk, and the chunks are added up in their order. So the
// result does not depend on the number of threads, and equal vectors have equal products.
#include "team.hpp"

namespace {

constexpr long BLOCK = 512, CHUNKS = 64;
constexpr int DOWN = 3, ACROSS = 4;  // pairs whose sums stay in registers
typedef Vectors<LANES>::Anywhere Anywhere;

inline long pairs(long m) { return m * (m + 1) / 2; }
inline long place(long i, long j) { return j * (j + 1) / 2 + i; }  // for i <= j
inline long chunk_of(long d) {
  const long size = (d + CHUNKS - 1) / CHUNKS;
  return (size + BLOCK - 1) / BLOCK * BLOCK;
}

struct Products {
  const float* x;
  long m, d, stride, chunk;
  double* sums;  // [chunks, pairs]
  int* labels;   // [chunks, m]: the first vector that is equal in the chunk
  float* scratch;  // [threads, m, BLOCK]
  int* before;     // [threads, m]

  void begin(long) const {}

  void run(long item, long thread) const {
    double* own = sums + item * pairs(m);
    int *label = labels + item * m, *old = before + thread * m;
    for (long p = 0; p < pairs(m); p++) own[p] = 0;
    for (long j = 0; j < m; j++) label[j] = 0;
    const long end = (item + 1) * chunk < d ? (item + 1) * chunk : d;
    for (long start = item * chunk; start < end; start += BLOCK) {
      const float* rows = x + start;
      long step = stride;
      if (end - start < BLOCK) {  // the last block, filled up with zeros
        float* padded = scratch + thread * m * BLOCK;
        std::memset(padded, 0, sizeof(float) * m * BLOCK);
        for (long i = 0; i < m; i++) std::memcpy(padded + i * BLOCK, rows + i * stride, sizeof(float) * (end - start));
        rows = padded, step = BLOCK;
      }
      for (long i = 0; i < m; i += DOWN)
        for (long j = i; j < m; j += ACROSS) tile(rows, step, i, j, own);
      refine(rows, step, label, old);
    }
  }

  void tile(const float* rows, long step, long i, long j, double* own) const {
    const float *left[DOWN], *right[ACROSS];
    for (long a = 0; a < DOWN; a++) left[a] = rows + (i + a < m ? i + a : m - 1) * step;
    for (long b = 0; b < ACROSS; b++) right[b] = rows + (j + b < m ? j + b : m - 1) * step;
    Floats sums[DOWN][ACROSS] = {};
    for (long k = 0; k < BLOCK; k += LANES) {
      Floats l[DOWN];
      UNROLL for (int a = 0; a < DOWN; a++) l[a] = *(const Anywhere*)(left[a] + k);
      UNROLL for (int b = 0; b < ACROSS; b++) {
        const Floats r = *(const Anywhere*)(right[b] + k);
        UNROLL for (int a = 0; a < DOWN; a++) sums[a][b] += l[a] * r;
      }
    }
    UNROLL for (long a = 0; a < DOWN; a++)
      UNROLL for (long b = 0; b < ACROSS; b++)
        if (i + a <= j + b && j + b < m) own[place(i + a, j + b)] += total(sums[a][b]);
  }

  static double total(Floats values) {
    float each[LANES];
    std::memcpy(each, &values, sizeof each);
    for (int half = LANES / 2; half; half /= 2)
      for (int l = 0; l < half; l++) each[l] += each[l + half];
    return each[0];
  }

  // Vectors that were equal so far but differ in this block are separated; a NaN equals nothing.
  void refine(const float* rows, long step, int* label, int* old) const {
    for (long j = 0; j < m; j++) old[j] = label[j];
    for (long j = 0; j < m; j++) {
      long i = old[j];
      while (i < j && !(old[i] == old[j] && equal(rows + i * step, rows + j * step))) i++;
      label[j] = (int)i;
    }
  }

  static bool equal(const float* a, const float* b) {
    for (long k = 0; k < BLOCK; k += LANES) {
      const Ints differ = *(const Anywhere*)(a + k) != *(const Anywhere*)(b + k);
      int32_t each[LANES], any = 0;
      std::memcpy(each, &differ, sizeof each);
      for (int l = 0; l < LANES; l++) any |= each[l];
      if (any) return false;
    }
    return true;
  }
};

}  // namespace

// Bytes of scratch memory that a call needs.
extern "C" long scratch(long threads, long m, long d) {
  const long chunks = (d + chunk_of(d) - 1) / chunk_of(d);
  return chunks * pairs(m) * (long)sizeof(double) + (chunks + threads) * m * (long)sizeof(int) + threads * m * BLOCK * (long)sizeof(float);
}

// Write the products [m, m], and for each vector the first vector that equals it [m].
extern "C" void products(Team team, long threads, char* scratch, const float* x, long m, long d, long stride, double* out, int* first) {
  const long chunk = chunk_of(d), chunks = (d + chunk - 1) / chunk;
  double* sums = (double*)scratch;
  float* padded = (float*)(sums + chunks * pairs(m));
  int* labels = (int*)(padded + threads * m * BLOCK);
  const Products body{x, m, d, stride, chunk, sums, labels, padded, labels + chunks * m};
  share(team, threads, chunks, body);
  for (long j = 0; j < m; j++) {
    for (long i = 0; i <= j; i++) {
      double sum = 0;
      for (long c = 0; c < chunks; c++) sum += sums[c * pairs(m) + place(i, j)];
      out[i * m + j] = out[j * m + i] = sum;
    }
    long i = 0;
    for (; i < j; i++) {
      bool same = true;
      for (long c = 0; c < chunks && same; c++) same = labels[c * m + i] == labels[c * m + j];
      if (same) break;
    }
    first[j] = (int)i;
  }
}
