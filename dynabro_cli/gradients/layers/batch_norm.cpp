// Batch normalisation of G mini-batches [G, P, C], forward and backward. Each mini-batch uses its own statistics over its P values
// per channel, after an optional ReLU.
//
// A mini-batch is cut into chunks that stay in the cache. First come their sums, in single precision; then the totals of all
// chunks in double precision, in their order, whichever thread computes them; then the results. Rules for NaN are torch's.
#include <cmath>

#include "team.hpp"

namespace {

typedef Vectors<LANES>::Anywhere Anywhere;
constexpr long CHUNK = 8192;  // about this many numbers

struct Sizes {
  long groups, places, channels, relu;
  long rows() const { return CHUNK < channels ? 1 : CHUNK / channels; }
  long chunks() const { return (places + rows() - 1) / rows(); }
  long last(long chunk) const { return (chunk + 1) * rows() < places ? (chunk + 1) * rows() : places; }
  long sums() const { return groups * chunks() * 2 * channels; }
};

template <bool WHOLE> static inline Floats get(const float* from, long count) {
  if (WHOLE) return *(const Anywhere*)from;
  Floats value = {};
  std::memcpy(&value, from, sizeof(float) * count);
  return value;
}

template <bool WHOLE> static inline void put(float* to, Floats value, long count) {
  if (WHOLE)
    *(Anywhere*)to = value;
  else
    std::memcpy(to, &value, sizeof(float) * count);
}

static inline Floats opened(Floats x, bool relu) { return relu ? x <= 0 ? Floats{} : x : x; }  // a NaN stays

// Call f<vectors, whole>(channel, count) for tiles of all channels; the last vector may have only a part of its channels.
template <class F> static inline void tiles(long channels, const F& f) {
  long c = 0;
  for (; c + 4 * LANES <= channels; c += 4 * LANES) f.template tile<4, true>(c, LANES);
  for (; c + LANES <= channels; c += LANES) f.template tile<1, true>(c, LANES);
  if (c < channels) f.template tile<1, false>(c, channels - c);
}

// The sums of a chunk: the mean of x, and the squares of the deviations.
struct Moments {
  const float* x;
  float* sums;
  long rows, channels;
  bool relu;

  template <int V, bool WHOLE> void tile(long c, long count) const {
    Floats mean[V] = {}, squares[V] = {};
    const float* from = x + c;
    for (long p = 0; p < rows; p++, from += channels)
      UNROLL for (int v = 0; v < V; v++) mean[v] += opened(get<WHOLE>(from + v * LANES, count), relu);
    UNROLL for (int v = 0; v < V; v++) mean[v] /= (float)rows;
    from = x + c;
    for (long p = 0; p < rows; p++, from += channels)
      UNROLL for (int v = 0; v < V; v++) {
        const Floats rest = opened(get<WHOLE>(from + v * LANES, count), relu) - mean[v];
        squares[v] += rest * rest;
      }
    UNROLL for (int v = 0; v < V; v++) {
      put<WHOLE>(sums + c + v * LANES, mean[v], count);
      put<WHOLE>(sums + channels + c + v * LANES, squares[v], count);
    }
  }
};

struct Normal {  // (x - mean) scale + bias
  const float *x, *mean, *scale, *bias;
  float* y;
  long rows, channels;
  bool relu;

  template <int V, bool WHOLE> void tile(long c, long count) const {
    Floats m[V], a[V], b[V];
    UNROLL for (int v = 0; v < V; v++) {
      m[v] = get<WHOLE>(mean + c + v * LANES, count), a[v] = get<WHOLE>(scale + c + v * LANES, count);
      b[v] = get<WHOLE>(bias + c + v * LANES, count);
    }
    for (long p = 0; p < rows; p++)
      UNROLL for (int v = 0; v < V; v++) {
        const long at = p * channels + c + v * LANES;
        put<WHOLE>(y + at, (opened(get<WHOLE>(x + at, count), relu) - m[v]) * a[v] + b[v], count);
      }
  }
};

struct Forward {
  const float *x, *weight, *bias;  // weight and bias are [C]
  float *y, *mean, *variance, *inverse, *scale, *sums;  // [G, P, C]; four times [G, C]; two rows per chunk
  Sizes z;
  float eps;

  const float* input(long g, long k) const { return x + (g * z.places + k * z.rows()) * z.channels; }
  float* own(long g, long k) const { return sums + (g * z.chunks() + k) * 2 * z.channels; }

  void sum(long g, long k) const {
    tiles(z.channels, Moments{input(g, k), own(g, k), z.last(k) - k * z.rows(), z.channels, z.relu != 0});
  }

  void total(long g) const {
    for (long c = 0; c < z.channels; c++) {
      double average = 0, squares = 0;
      for (long k = 0; k < z.chunks(); k++) {  // Chan, Golub & LeVeque (1979)
        const double before = k * z.rows(), rows = z.last(k) - before, part = own(g, k)[c], rest = part - average;
        average += rest * (rows / (before + rows));
        squares += own(g, k)[z.channels + c] + rest * rest * (before * rows / (before + rows));
      }
      const long at = g * z.channels + c;
      mean[at] = average;
      variance[at] = squares / z.places;
      inverse[at] = 1 / std::sqrt(squares / z.places + eps);
      scale[at] = inverse[at] * weight[c];
    }
  }

  void write(long g, long k) const {
    const long at = g * z.channels;
    float* to = y + (g * z.places + k * z.rows()) * z.channels;
    const long rows = z.last(k) - k * z.rows();
    tiles(z.channels, Normal{input(g, k), mean + at, scale + at, bias, to, rows, z.channels, z.relu != 0});
  }
};

// The sums of a chunk: of the output's gradient, and of this gradient times (x - mean).
struct Products {
  const float *gy, *x, *mean;
  float* sums;
  long rows, channels;
  bool relu;

  template <int V, bool WHOLE> void tile(long c, long count) const {
    Floats m[V], given[V] = {}, products[V] = {};
    UNROLL for (int v = 0; v < V; v++) m[v] = get<WHOLE>(mean + c + v * LANES, count);
    for (long p = 0; p < rows; p++)
      UNROLL for (int v = 0; v < V; v++) {
        const long at = p * channels + c + v * LANES;
        const Floats g = get<WHOLE>(gy + at, count);
        given[v] += g;
        products[v] += g * (opened(get<WHOLE>(x + at, count), relu) - m[v]);
      }
    UNROLL for (int v = 0; v < V; v++) {
      put<WHOLE>(sums + c + v * LANES, given[v], count);
      put<WHOLE>(sums + channels + c + v * LANES, products[v], count);
    }
  }
};

struct Input {  // the input's gradient, scale gy - shift - slope (x - mean), and 0 where ReLU stops it
  const float *gy, *x, *mean, *scale, *shift, *slope;
  float* gx;
  long rows, channels;
  bool relu;

  template <int V, bool WHOLE> void tile(long c, long count) const {
    Floats m[V], a[V], b[V], s[V];
    UNROLL for (int v = 0; v < V; v++) {
      m[v] = get<WHOLE>(mean + c + v * LANES, count), a[v] = get<WHOLE>(scale + c + v * LANES, count);
      b[v] = get<WHOLE>(shift + c + v * LANES, count), s[v] = get<WHOLE>(slope + c + v * LANES, count);
    }
    for (long p = 0; p < rows; p++)
      UNROLL for (int v = 0; v < V; v++) {
        const long at = p * channels + c + v * LANES;
        const Floats value = get<WHOLE>(x + at, count);
        const Floats g = get<WHOLE>(gy + at, count) * a[v] - b[v] - (opened(value, relu) - m[v]) * s[v];
        put<WHOLE>(gx + at, relu ? value <= 0 ? Floats{} : g : g, count);
      }
  }
};

struct Backward {
  const float *gy, *x, *mean, *inverse, *weight;  // [G, P, C] twice, [G, C] twice, [C]
  float *gx, *weights, *biases, *scale, *shift, *slope, *sums;  // [G, P, C], or null; five times [G, C]; two rows per chunk
  Sizes z;

  long place(long g, long k) const { return (g * z.places + k * z.rows()) * z.channels; }
  float* own(long g, long k) const { return sums + (g * z.chunks() + k) * 2 * z.channels; }

  void sum(long g, long k) const {
    const long rows = z.last(k) - k * z.rows(), at = place(g, k);
    tiles(z.channels, Products{gy + at, x + at, mean + g * z.channels, own(g, k), rows, z.channels, z.relu != 0});
  }

  void total(long g) const {
    for (long c = 0; c < z.channels; c++) {
      double given = 0, products = 0;
      for (long k = 0; k < z.chunks(); k++) given += own(g, k)[c], products += own(g, k)[z.channels + c];
      const long at = g * z.channels + c;
      products *= inverse[at];
      weights[at] = products;
      biases[at] = given;
      const double factor = (double)inverse[at] * weight[c];
      scale[at] = factor;
      shift[at] = factor * given / z.places;
      slope[at] = factor * products * inverse[at] / z.places;
    }
  }

  void write(long g, long k) const {
    if (!gx) return;
    const long rows = z.last(k) - k * z.rows(), at = place(g, k), c = g * z.channels;
    tiles(z.channels, Input{gy + at, x + at, mean + c, scale + c, shift + c, slope + c, gx + at, rows, z.channels, z.relu != 0});
  }
};

// An item is a mini-batch if there are enough mini-batches for all threads; otherwise it is a chunk.
template <class Pass> struct Groups {
  const Pass& pass;
  void begin(long) const {}
  void run(long g, long) const {
    for (long k = 0; k < pass.z.chunks(); k++) pass.sum(g, k);
    pass.total(g);
    for (long k = 0; k < pass.z.chunks(); k++) pass.write(g, k);
  }
};

template <class Pass> struct Sums {
  const Pass& pass;
  void begin(long) const {}
  void run(long item, long) const { pass.sum(item / pass.z.chunks(), item % pass.z.chunks()); }
};

template <class Pass> struct Results {
  const Pass& pass;
  void begin(long) const {}
  void run(long item, long) const { pass.write(item / pass.z.chunks(), item % pass.z.chunks()); }
};

template <class Pass> static void all(Team team, long threads, const Pass& pass) {
  if (threads < 2 || pass.z.groups >= 4 * threads) {
    const Groups<Pass> groups{pass};
    return share(team, threads, pass.z.groups, groups);
  }
  const Sums<Pass> sums{pass};
  share(team, threads, pass.z.groups * pass.z.chunks(), sums);
  for (long g = 0; g < pass.z.groups; g++) pass.total(g);
  const Results<Pass> results{pass};
  share(team, threads, pass.z.groups * pass.z.chunks(), results);
}

Sizes sizes_at(const long* numbers) {
  Sizes z;
  std::memcpy(&z, numbers, sizeof z);
  return z;
}

}  // namespace

// Floats of scratch memory that either function needs; sizes as in ``Sizes``.
extern "C" long scratch(const long* sizes) {
  const Sizes z = sizes_at(sizes);
  return z.sums() + 3 * z.groups * z.channels;
}

extern "C" void forward(Team team, long threads, const long* sizes, float* scratch, const float* x, const float* weight, const float* bias,
                        float* y, float* mean, float* variance, float* inverse, float eps) {
  const Sizes z = sizes_at(sizes);
  all(team, threads, Forward{x, weight, bias, y, mean, variance, inverse, scratch + z.sums(), scratch, z, eps});
}

// The gradients of the input, unless ``gx`` is null, and of every mini-batch's weight and bias.
extern "C" void backward(Team team, long threads, const long* sizes, float* scratch, const float* gy, const float* x, const float* mean,
                         const float* inverse, const float* weight, float* gx, float* weights, float* biases) {
  const Sizes z = sizes_at(sizes);
  float *scale = scratch + z.sums(), *shift = scale + z.groups * z.channels, *slope = shift + z.groups * z.channels;
  all(team, threads, Backward{gy, x, mean, inverse, weight, gx, weights, biases, scale, shift, slope, scratch, z});
}
