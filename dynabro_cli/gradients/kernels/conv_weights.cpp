// Weight gradients of a convolution (stride 1, one group) without pooling after it: for each worker, the sum over its samples and
// over all places of the outputs' gradients [O] times the inputs around them [KH, KW, C]. All tensors are channels last.
//
// The outputs' gradients of a few rows of an image at a time are put into panels that stay in the cache. Tiles that stay in
// registers multiply them with the inputs, which are read in place. Meanwhile the next rows are fetched from memory. One thread
// adds up every number in a fixed order, whichever thread it is.
#include "team.hpp"

namespace {

constexpr long ROWS = REGISTERS < 32 ? 6 : 8, PAIR = 2 * LANES;  // of a tile; its columns are two vectors of channels, or one
constexpr long PLACES = 128, CHUNK = 16;  // places in a panel, if a row has no more; images whose gradients are summed together
constexpr long LINE = 16;                 // numbers in a line of memory

typedef Vectors<LANES>::Anywhere Anywhere;

struct Sizes {
  long C, H, W, O, KH, KW, top, left;  // C is a multiple of LANES
  long high() const { return H + 2 * top - KH + 1; }
  long wide() const { return W + 2 * left - KW + 1; }
  long rows() const { return wide() < PLACES ? PLACES / wide() : 1; }  // in a panel
  long kernels() const { return (O + ROWS - 1) / ROWS; }
  long outputs() const { return (kernels() * ROWS * rows() * wide() + LINE - 1) / LINE * LINE; }
  long sums() const { return KH * KW * C * kernels() * ROWS; }
};

struct Gradients {
  const float *x, *gy;
  float *sums, *scratch;
  Sizes z;
  long batch, chunks;

  void begin(long) const {}

  void run(long item, long thread) const {
    const long worker = item / chunks, start = item % chunks * CHUNK, end = start + CHUNK < batch ? start + CHUNK : batch;
    float *own = sums + item * z.sums(), *outputs = scratch + thread * z.outputs();
    std::memset(own, 0, sizeof(float) * z.sums());
    for (long s = worker * batch + start; s < worker * batch + end; s++)
      for (long row = 0; row < z.high(); row += z.rows()) {
        const long rows = row + z.rows() < z.high() ? z.rows() : z.high() - row;
        put_outputs(s, row, rows, outputs);
        Next next_x{x + (s * z.H + row + rows + z.KH - 1 - z.top) * z.W * z.C, rows * z.W * z.C, steps()};
        Next next_gy{gy + (s * z.high() + row + rows) * z.wide() * z.O, rows * z.wide() * z.O, steps()};
        float* sum = own;
        for (long c = 0; c < z.C; c += c + PAIR <= z.C ? PAIR : LANES)
          for (long i = 0; i < z.KH; i++)
            for (long j = 0; j < z.KW; j++) {
              next_x.fetch();
              next_gy.fetch();
              if (c + PAIR <= z.C)
                sum = multiply<2>(s, row, rows, c, i, j, outputs, sum);
              else
                sum = multiply<1>(s, row, rows, c, i, j, outputs, sum);
            }
      }
  }

  long steps() const { return (z.C + PAIR - 1) / PAIR * z.KH * z.KW; }

  struct Next {  // numbers that are fetched ahead, a share at each step
    const float* from;
    long count, steps;
    void fetch() {
      for (long k = 0; k < count; k += LINE * steps, from += LINE) __builtin_prefetch(from, 0, 2);
    }
  };

  // The gradients of the outputs, one tile of kernels after another.
  void put_outputs(long s, long row, long rows, float* outputs) const {
    const float* from = gy + (s * z.high() + row) * z.wide() * z.O;
    for (long o = 0; o < z.O; o += ROWS) {
      const long count = o + ROWS <= z.O ? ROWS : z.O - o;
      for (long place = 0; place < rows * z.wide(); place++, outputs += ROWS)
        if (count == ROWS)
          std::memcpy(outputs, from + place * z.O + o, sizeof(float) * ROWS);
        else
          for (long k = 0; k < ROWS; k++) outputs[k] = k < count ? from[place * z.O + o + k] : 0;
    }
  }

  // Add the products of V vectors of channels from c with all kernels, for one place (i, j) of the kernels; return the next sums.
  template <int V> float* multiply(long s, long row, long rows, long c, long i, long j, const float* outputs, float* sum) const {
    const long y = row + i - z.top, x0 = j - z.left;  // of the first place, which may be in the padding
    const long up = y < 0 ? -y : 0, down = y + rows > z.H ? z.H - y : rows;
    const long before = x0 < 0 ? -x0 : 0, after = x0 + z.wide() > z.W ? z.W - x0 : z.wide();
    constexpr long TILE = ROWS * V * LANES;
    if (down <= up || after <= before) return sum + z.kernels() * TILE;
    const float* inputs = x + ((s * z.H + y + up) * z.W + x0 + before) * z.C + c;
    for (long o = 0; o < z.kernels(); o++, sum += TILE)
      tile<V>(inputs, outputs + ((o * rows + up) * z.wide() + before) * ROWS, sum, down - up, after - before);
    return sum;
  }

  template <int V> void tile(const float* inputs, const float* outputs, float* sum, long rows, long columns) const {
    Floats own[ROWS][V];
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < V; j++) own[i][j] = ((Anywhere*)sum)[i * V + j];
    for (long row = 0; row < rows; row++, inputs += z.W * z.C, outputs += z.wide() * ROWS) {
      const float *place = inputs, *g = outputs;
      for (long column = 0; column < columns; column++, place += z.C, g += ROWS) {
        Floats v[V];
        UNROLL for (int j = 0; j < V; j++) v[j] = kept(place + j * LANES);
        UNROLL for (int i = 0; i < ROWS; i++) {
          const Floats factor = g[i] - Floats{};
          UNROLL for (int j = 0; j < V; j++) own[i][j] += factor * v[j];
        }
      }
    }
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < V; j++) ((Anywhere*)sum)[i * V + j] = own[i][j];
  }
};

struct Total {  // adds a worker's chunks, in their order, into the worker's row of the gradients
  const float* sums;
  float* out;
  Sizes z;
  long channels, chunks, stride;  // channels that are not padding of a vector

  void begin(long) const {}

  void run(long worker, long) const {
    for (long o = 0; o < z.O; o++)
      for (long c = 0; c < channels; c++)
        for (long a = 0; a < z.KH * z.KW; a++) {
          const long first = c / PAIR * PAIR, columns = first + PAIR <= z.C ? PAIR : LANES;  // of the tile with this channel
          const long before = (first * z.KH * z.KW + a * columns) * z.kernels() * ROWS;
          const float* from = sums + worker * chunks * z.sums() + before + o * columns + c - first;
          float sum = from[0];
          for (long k = 1; k < chunks; k++) sum += from[k * z.sums()];
          out[worker * stride + (o * channels + c) * z.KH * z.KW + a] = sum;
        }
  }
};

long chunks_of(long batch) { return (batch + CHUNK - 1) / CHUNK; }

}  // namespace

// Return the number of channels to which the inputs are padded; 0 if the inputs have too few channels.
extern "C" long filled(long channels) {
  const long full = (channels + LANES - 1) / LANES * LANES;
  return 5 * channels >= 4 * full ? full : 0;
}

// Floats of scratch memory that a call needs; sizes as in ``Sizes``.
extern "C" long scratch(const long* sizes, long threads, long workers, long batch) {
  Sizes z;
  std::memcpy(&z, sizes, sizeof z);
  return threads * z.outputs() + workers * chunks_of(batch) * z.sums();
}

// Write the gradients of all workers for the first ``channels`` channels, ``stride`` numbers apart.
extern "C" void gradients(Team team, long threads, const long* sizes, float* scratch, const float* x, const float* gy, float* out,
                          long channels, long workers, long batch, long stride) {
  Sizes z;
  std::memcpy(&z, sizes, sizeof z);
  const long chunks = chunks_of(batch);
  float* sums = scratch + threads * z.outputs();
  const Gradients body{x, gy, sums, scratch, z, batch, chunks};
  share(team, threads, workers * chunks, body);
  const Total total{sums, out, z, channels, chunks, stride};
  share(team, threads, workers, total);
}
