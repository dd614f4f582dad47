// Weight gradients of a convolution (stride 1, one group) that has no pooling behind it, for each worker the sum over its
// samples and over all places of the outputs' gradients [O] times the inputs around them [KH, KW, C]. All tensors are channels last.
//
// A few rows of an image at a time are put into panels that stay in the cache, and multiplied by tiles that stay in registers.
// Every number is added up by one thread in a fixed order, whoever that is.
#include "team.hpp"

namespace {

constexpr long ROWS = 6, VECTORS = 2, COLUMNS = VECTORS * LANES, TILE = ROWS * COLUMNS;
constexpr long PLACES = 64, CHUNK = 16;  // places in a panel, if a row has no more; images whose gradients are summed in one go

struct Sizes {
  long C, H, W, O, KH, KW, top, left;
  long padded() const { return W + 2 * left; }
  long high() const { return H + 2 * top - KH + 1; }
  long wide() const { return padded() - KW + 1; }
  long rows() const { return wide() < PLACES ? PLACES / wide() : 1; }  // in a panel
  long kernels() const { return (O + ROWS - 1) / ROWS; }
  long channels() const { return (C + COLUMNS - 1) / COLUMNS; }
  long inputs() const { return channels() * COLUMNS * (rows() + KH - 1) * padded(); }
  long outputs() const { return (kernels() * ROWS * rows() * wide() + LANES - 1) / LANES * LANES; }
  long sums() const { return KH * KW * channels() * kernels() * TILE; }
};

struct Gradients {
  const float *x, *gy;
  float *sums, *scratch;
  Sizes z;
  long batch, chunks;

  void begin(long) const {}

  void run(long item, long thread) const {
    const long worker = item / chunks, start = item % chunks * CHUNK, end = start + CHUNK < batch ? start + CHUNK : batch;
    float *own = sums + item * z.sums(), *inputs = scratch + thread * (z.inputs() + z.outputs()), *outputs = inputs + z.inputs();
    std::memset(own, 0, sizeof(float) * z.sums());
    for (long s = worker * batch + start; s < worker * batch + end; s++)
      for (long row = 0; row < z.high(); row += z.rows()) {
        const long rows = row + z.rows() < z.high() ? z.rows() : z.high() - row;
        put_inputs(s, row, rows, inputs);
        put_outputs(s, row, rows, outputs);
        float* sum = own;
        for (long c = 0; c < z.channels(); c++)
          for (long i = 0; i < z.KH; i++)
            for (long j = 0; j < z.KW; j++) {
              const float* from = inputs + (c * (z.rows() + z.KH - 1) * z.padded() + i * z.padded() + j) * COLUMNS;
              for (long o = 0; o < z.kernels(); o++, sum += TILE) tile(from, outputs + o * rows * z.wide() * ROWS, sum, rows);
            }
      }
  }

  // Rows of a padded image, for each tile of channels one after the other.
  void put_inputs(long s, long row, long rows, float* inputs) const {
    for (long c = 0; c < z.C; c += COLUMNS) {
      const long count = c + COLUMNS <= z.C ? COLUMNS : z.C - c;
      float* to = inputs + c * (z.rows() + z.KH - 1) * z.padded();
      std::memset(to, 0, sizeof(float) * COLUMNS * (rows + z.KH - 1) * z.padded());
      for (long i = 0; i < rows + z.KH - 1; i++) {
        const long y = row + i - z.top;
        if (y < 0 || y >= z.H) continue;
        const float* from = x + (s * z.H + y) * z.W * z.C + c;
        float* place = to + (i * z.padded() + z.left) * COLUMNS;
        for (long column = 0; column < z.W; column++, from += z.C, place += COLUMNS)
          if (count == COLUMNS)
            std::memcpy(place, from, sizeof(float) * COLUMNS);
          else
            std::memcpy(place, from, sizeof(float) * count);
      }
    }
  }

  // The gradients of the outputs, for each tile of kernels one after the other.
  void put_outputs(long s, long row, long rows, float* outputs) const {
    const float* from = gy + (s * z.high() + row) * z.wide() * z.O;
    for (long o = 0; o < z.O; o += ROWS) {
      const long count = o + ROWS <= z.O ? ROWS : z.O - o;
      for (long place = 0; place < rows * z.wide(); place++, outputs += ROWS)
        for (long k = 0; k < ROWS; k++) outputs[k] = k < count ? from[place * z.O + o + k] : 0;
    }
  }

  void tile(const float* inputs, const float* g, float* sum, long rows) const {
    Floats own[ROWS][VECTORS];
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++) own[i][j] = ((Floats*)sum)[i * VECTORS + j];
    for (long row = 0; row < rows; row++, inputs += z.padded() * COLUMNS) {
      const float* place = inputs;
      for (long column = 0; column < z.wide(); column++, place += COLUMNS, g += ROWS) {
        Floats v[VECTORS];
        UNROLL for (int j = 0; j < VECTORS; j++) v[j] = kept(place + j * LANES);
        UNROLL for (int i = 0; i < ROWS; i++) {
          const Floats factor = g[i] - Floats{};
          UNROLL for (int j = 0; j < VECTORS; j++) own[i][j] += factor * v[j];
        }
      }
    }
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++) ((Floats*)sum)[i * VECTORS + j] = own[i][j];
  }
};

struct Total {  // the sums of a worker's chunks, in their order, into the worker's row of the gradients
  const float* sums;
  float* out;
  Sizes z;
  long chunks, stride;

  void begin(long) const {}

  void run(long worker, long) const {
    for (long o = 0; o < z.O; o++)
      for (long c = 0; c < z.C; c++)
        for (long a = 0; a < z.KH * z.KW; a++) {
          const long tile = (c / COLUMNS * z.KH * z.KW + a) * z.kernels() + o / ROWS;
          const float* from = sums + worker * chunks * z.sums() + tile * TILE + o % ROWS * COLUMNS + c % COLUMNS;
          float sum = from[0];
          for (long k = 1; k < chunks; k++) sum += from[k * z.sums()];
          out[worker * stride + (o * z.C + c) * z.KH * z.KW + a] = sum;
        }
  }
};

long chunks_of(long batch) { return (batch + CHUNK - 1) / CHUNK; }

}  // namespace

// True if most of the channels of a tile are there.
extern "C" int serves(long channels) { return 5 * channels >= 4 * ((channels + COLUMNS - 1) / COLUMNS * COLUMNS); }

// Floats of scratch memory that a call needs; sizes as in ``Sizes``.
extern "C" long scratch(const long* sizes, long threads, long workers, long batch) {
  Sizes z;
  std::memcpy(&z, sizes, sizeof z);
  return threads * (z.inputs() + z.outputs()) + workers * chunks_of(batch) * z.sums();
}

// Write the gradients of all workers, ``stride`` numbers apart.
extern "C" void gradients(Team team, long threads, const long* sizes, float* scratch, const float* x, const float* gy, float* out,
                          long workers, long batch, long stride) {
  Sizes z;
  std::memcpy(&z, sizes, sizeof z);
  const long chunks = chunks_of(batch);
  float* sums = scratch + threads * (z.inputs() + z.outputs());
  const Gradients body{x, gy, sums, scratch, z, batch, chunks};
  share(team, threads, workers * chunks, body);
  const Total total{sums, out, z, chunks, stride};
  share(team, threads, workers, total);
}
