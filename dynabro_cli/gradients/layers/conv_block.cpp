// Convolution (stride 1) + ReLU + 2 x 2 max-pooling, forward and backward, for one shape that is fixed at compile time:
// C x H x W images, O kernels of KH x KW, zero padding of TOP rows and LEFT columns on either side.
//
// All tensors are channels last. The forward pass puts one image in each lane of a vector, and keeps the winner of each
// pooling window as a byte: its place 0 to 3, or 4 if its value is not positive. At most a quarter of the convolution's
// gradient is not zero, so the backward pass visits only the winners.
//
// One thread computes every result in a fixed order, whichever thread it is.
#include "team.hpp"

namespace {  // nothing is shared with the same names of another shape's library

constexpr int up(int value, int unit) { return (value + unit - 1) / unit * unit; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

constexpr int HP = H + 2 * TOP, WP = W + 2 * LEFT;      // the padded image
constexpr int OH = HP - KH + 1, OW = WP - KW + 1;       // the convolution's output
constexpr int PH = OH / 2, PW = OW / 2, P = PH * PW;    // the pooled output
constexpr int TAPS = KH * KW * C;
constexpr int CHUNK = 32;  // images whose gradients are summed together

// ---- a transposition of LANES x LANES numbers ---------------------------------------------------------------------------

template <int HALF, size_t... I> static inline Floats zip(Floats a, Floats b, std::index_sequence<I...>) {
  return (Floats)SHUFFLE((Ints)a, (Ints)b, (int)(I / 2 + HALF * (LANES / 2) + I % 2 * LANES)...);
}

static inline void transpose(Floats (&rows)[LANES]) {
  typedef std::make_index_sequence<LANES> Indices;
  UNROLL for (int step = 1; step < LANES; step *= 2) {
    Floats zipped[LANES];
    UNROLL for (int i = 0; i < LANES / 2; i++) {
      zipped[2 * i] = zip<0>(rows[i], rows[i + LANES / 2], Indices{});
      zipped[2 * i + 1] = zip<1>(rows[i], rows[i + LANES / 2], Indices{});
    }
    UNROLL for (int i = 0; i < LANES; i++) rows[i] = zipped[i];
  }
}

template <class V> static inline V splat(float value) { return value - V{}; }

static inline Floats part(const float* from, int count) {
  Floats value = {};
  std::memcpy(&value, from, sizeof(float) * count);
  return value;
}

// ---- forward ------------------------------------------------------------------------------------------------------------

// Kernels are grouped in tiles whose sums, for the four places of a window, stay in registers.
constexpr int TILE = (REGISTERS - 1) / 5, TILES = (O + TILE - 1) / TILE, WIDE = (O + TILES - 1) / TILES;
constexpr int NARROW_FROM = O - TILES * (WIDE - 1);  // this number of tiles have WIDE kernels, the others one fewer
constexpr long IMAGE = up(HP * WP * C, 1) * (long)LANES, ROW = (long)PW * O * LANES;
constexpr long FORWARD_SCRATCH = IMAGE + 2 * ROW;

// One window of LANES images for T kernels: the largest of the four places, with torch's rules for ties and NaN.
template <int T> static inline void window(const Floats* x, const float* w, const float* bias, Floats* y, Ints* at) {
  Floats sums[4][T];
  UNROLL for (int t = 0; t < T; t++) sums[0][t] = sums[1][t] = sums[2][t] = sums[3][t] = splat<Floats>(bias[t]);
  for (int i = 0; i < KH; i++) {
    const Floats* r = x + i * WP * C;
    for (int j = 0; j < KW * C; j++, w += T) {
      Floats k[T];
      UNROLL for (int t = 0; t < T; t++) k[t] = splat<Floats>(w[t]);
      UNROLL for (int q = 0; q < 4; q++) {
        const Floats value = kept((const float*)(r + j + (q / 2 * WP + q % 2) * C));
        UNROLL for (int t = 0; t < T; t++) sums[q][t] += value * k[t];
      }
    }
  }
  UNROLL for (int t = 0; t < T; t++) {
    Floats best = sums[0][t];
    Ints place = {};
    UNROLL for (int q = 1; q < 4; q++) {
      const Floats value = sums[q][t];
      const Ints wins = (value > best) | (value != value);  // of NaNs the last wins, of equal values the first
      best = wins ? value : best;
      place = wins ? Ints{} + q : place;
    }
    const Ints dead = best <= 0;  // false for NaN
    y[t] = dead ? Floats{} : best;
    at[t] = dead ? Ints{} + 4 : place;
  }
}

struct Forward {
  const float *x, *bias;
  float* y;
  uint8_t* at;
  long n;
  float *scratch, *w;

  void begin(long thread) const {
    if (TOP || LEFT) std::memset(scratch + thread * FORWARD_SCRATCH, 0, IMAGE * sizeof(float));
  }

  void run(long block, long thread) const {
    float* own = scratch + thread * FORWARD_SCRATCH;
    Floats* image = (Floats*)own;
    load(block * LANES, image);
    for (int py = 0; py < PH; py++) {
      Floats* values = (Floats*)(own + IMAGE);
      Ints* places = (Ints*)(own + IMAGE + ROW);
      for (int px = 0; px < PW; px++) {
        const Floats* corner = image + (2 * py * WP + 2 * px) * C;
        const float* kernel = w;
        int o = 0;
        for (int tile = 0; tile < TILES; tile++) {
          if (tile < NARROW_FROM) {
            window<WIDE>(corner, kernel, bias + o, values + px * O + o, places + px * O + o);
            o += WIDE, kernel += WIDE * TAPS;
          } else if constexpr (WIDE > 1) {
            window<WIDE - 1>(corner, kernel, bias + o, values + px * O + o, places + px * O + o);
            o += WIDE - 1, kernel += (WIDE - 1) * TAPS;
          }
        }
      }
      store(block * LANES, py, values, places);
    }
  }

  // Put LANES images side by side; images beyond the last are copies of the last.
  void load(long first, Floats* image) const {
    constexpr int LENGTH = W * C;
    for (int row = 0; row < H; row++) {
      Floats* out = image + ((row + TOP) * WP + LEFT) * C;
      for (int f = 0; f < LENGTH; f += LANES) {
        const int count = least(LANES, LENGTH - f);
        Floats block[LANES];
        for (int l = 0; l < LANES; l++) {
          const float* from = x + (least(first + l, n - 1) * H + row) * LENGTH + f;
          block[l] = count == LANES ? *(const Vectors<LANES>::Anywhere*)from : part(from, count);
        }
        transpose(block);
        for (int l = 0; l < count; l++) out[f + l] = block[l];
      }
    }
  }

  void store(long first, int py, const Floats* values, const Ints* places) const {
    constexpr int LENGTH = PW * O, BYTES = 4 * LANES;
    const int images = least(LANES, n - first);
    for (int f = 0; f < LENGTH; f += LANES) {
      const int count = least(LANES, LENGTH - f);
      Floats block[LANES];
      UNROLL for (int l = 0; l < LANES; l++) block[l] = l < count ? values[f + l] : Floats{};
      transpose(block);
      for (int l = 0; l < images; l++) put(y + ((first + l) * PH + py) * LENGTH + f, block[l], sizeof(float) * count);
    }
    if (!at) return;
    for (int f = 0; f < LENGTH; f += BYTES) {  // four places in a number
      Floats block[LANES];
      for (int l = 0; l < LANES; l++) {
        Ints four = {};
        for (int b = 0; b < 4 && f + 4 * l + b < LENGTH; b++) four |= places[f + 4 * l + b] << (LITTLE ? 8 * b : 24 - 8 * b);
        block[l] = (Floats)four;
      }
      transpose(block);
      for (int l = 0; l < images; l++) put(at + ((first + l) * PH + py) * LENGTH + f, block[l], least(BYTES, LENGTH - f));
    }
  }

  static void put(void* to, Floats value, int bytes) {
    if (bytes == sizeof value)
      std::memcpy(to, &value, sizeof value);  // one store to any address; places are bytes, and aligned to nothing
    else
      std::memcpy(to, &value, bytes);
  }
};

// ---- backward -----------------------------------------------------------------------------------------------------------

// A row of taps, KW x C adjacent numbers in a row of the image, is a row of vectors of SPAN numbers; the last vector may be longer
// than the REST of the row. A group has as many vectors as there are registers.
constexpr int REACH = KW * C, SPAN = REACH <= 4 || LANES == 4 ? 4 : REACH <= 8 || LANES == 8 ? 8 : 16;
constexpr int ROW_VECTORS = (REACH + SPAN - 1) / SPAN, VECTORS = KH * ROW_VECTORS, REST = REACH - (ROW_VECTORS - 1) * SPAN;
constexpr int FREE = REGISTERS - 3;
constexpr int GROUPS = (VECTORS + FREE - 1) / FREE, GROUP = (VECTORS + GROUPS - 1) / GROUPS;
typedef Vectors<SPAN>::Aligned Span;
typedef Vectors<SPAN>::Anywhere SpanAnywhere;

constexpr int PLACES = 4 * P;  // of an image's windows
static_assert(O < 1 << 16);    // winners at a place are counted in 16 bits
constexpr long PADDED = up(HP * WP * C + SPAN, 16), SUMS = up(O * VECTORS * SPAN, 16), LIST = up(P, 16), KERNELS = SUMS;
constexpr long WINNERS = up(PLACES, 16) + 2 * up(PLACES * O, 16);
constexpr long BACKWARD_SCRATCH = PADDED + SUMS + 2 * LIST + (INPUT ? PADDED + WINNERS : 0);

constexpr struct Corners {  // where the windows begin in the padded image, and the places in a window
  int first[P] = {}, place[5] = {0, C, WP * C, WP * C + C, 0};
  constexpr Corners() {
    for (int p = 0; p < P; p++) first[p] = (p / PW * 2 * WP + p % PW * 2) * C;
  }
} CORNERS;

// Vector a of the taps, as a distance from the corner.
constexpr int tap(int a) { return a / ROW_VECTORS * WP * C + a % ROW_VECTORS * SPAN; }

static inline Span at(const float* place) { return *(const SpanAnywhere*)place; }

// Add to COUNT sums the vectors at the distances TO::at(a) from each place, times its factor; U places at a time.
template <class TO, int COUNT>
static inline void add_up(const float* x, Span (&sums)[COUNT], const int* from, const float* g, int n) {
  constexpr int U = most(1, least(4, FREE / COUNT));
  Span own[U][COUNT];
  UNROLL for (int u = 0; u < U; u++) UNROLL for (int a = 0; a < COUNT; a++) own[u][a] = u ? Span{} : sums[a];
  int e = 0;
  for (; e + U <= n; e += U)
    UNROLL for (int u = 0; u < U; u++) {
      const float* place = x + from[e + u] * TO::UNIT;
      const Span v = splat<Span>(g[e + u]);
      UNROLL for (int a = 0; a < COUNT; a++) own[u][a] += v * at(place + TO::at(a));
    }
  for (; e < n; e++) {
    const float* place = x + from[e] * TO::UNIT;
    const Span v = splat<Span>(g[e]);
    UNROLL for (int a = 0; a < COUNT; a++) own[0][a] += v * at(place + TO::at(a));
  }
  UNROLL for (int u = 1; u < U; u++) UNROLL for (int a = 0; a < COUNT; a++) own[0][a] += own[u][a];
  UNROLL for (int a = 0; a < COUNT; a++) sums[a] = own[0][a];
}

template <int FIRST> struct Taps {  // of an image, around a corner
  static constexpr int UNIT = 1, COUNT = least(GROUP, VECTORS - FIRST);
  static constexpr int at(int a) { return tap(FIRST + a); }
};

template <int FIRST> struct Weights {  // of a kernel, in a group of vectors of all kernels
  static constexpr int COUNT = least(GROUP, VECTORS - FIRST), UNIT = COUNT * SPAN;
  static constexpr int at(int a) { return a * SPAN; }
};

// Add to the sums of one kernel the image around each winner, times its gradient.
template <int FIRST> static inline void gather(const float* x, float* sums, const int* from, const float* g, int n) {
  constexpr int COUNT = Taps<FIRST>::COUNT;
  Span own[COUNT];
  UNROLL for (int a = 0; a < COUNT; a++) own[a] = ((Span*)sums)[FIRST + a];
  add_up<Taps<FIRST>, COUNT>(x, own, from, g, n);
  UNROLL for (int a = 0; a < COUNT; a++) ((Span*)sums)[FIRST + a] = own[a];
  if constexpr (FIRST + COUNT < VECTORS) gather<FIRST + COUNT>(x, sums, from, g, n);
}

struct Winners {  // of each place of each window: the kernels that won there, and their gradients
  int *count, *kernel;
  float* g;
};

// Add to the input's gradient around each place the weights of the kernels that won there, times their gradients. The places go
// down the columns, so that a sum is never updated just after it was written.
template <int FIRST> static inline void spread(const float* w2, const Winners& winners, float* gradient) {
  constexpr int COUNT = Weights<FIRST>::COUNT;
  for (int x = 0; x < 2 * PW; x++)
    for (int y = 0; y < 2 * PH; y++) {
      const int place = (y / 2 * PW + x / 2) * 4 + y % 2 * 2 + x % 2, n = winners.count[place];
      Span own[COUNT] = {};
      add_up<Weights<FIRST>, COUNT>(w2 + O * FIRST * SPAN, own, winners.kernel + place * O, winners.g + place * O, n);
      float* corner = gradient + (y * WP + x) * C;
      UNROLL for (int a = 0; a < COUNT; a++) {
        float* to = corner + tap(FIRST + a);
        const int count = sizeof(float) * ((FIRST + a + 1) % ROW_VECTORS ? SPAN : REST);
        Span sum = {};
        std::memcpy(&sum, to, count);
        sum += own[a];
        std::memcpy(to, &sum, count);
      }
    }
  if constexpr (FIRST + COUNT < VECTORS) spread<FIRST + COUNT>(w2, winners, gradient);
}

struct Backward {
  const float* x;
  const uint8_t* at;
  const float* gy;
  float *sums, *gx, *scratch;  // sums [chunks of all workers, O x C x KH x KW + O]
  const float* w2;
  long batch, chunks;

  void begin(long thread) const {
    float* own = scratch + thread * BACKWARD_SCRATCH;
    std::memset(own, 0, PADDED * sizeof(float));
  }

  void run(long item, long thread) const {
    float *image = scratch + thread * BACKWARD_SCRATCH, *own = image + PADDED, *g = own + SUMS;
    int* from = (int*)(g + LIST);
    float* gradient = g + 2 * LIST;
    int* counts = (int*)(gradient + PADDED);
    int* kernels = counts + up(PLACES, 16);
    const Winners winners{counts, kernels, (float*)(kernels + up(PLACES * O, 16))};
    const long worker = item / chunks, start = item % chunks * CHUNK, end = start + CHUNK < batch ? start + CHUNK : batch;
    float* out = sums + item * (O * TAPS + O);
    std::memset(own, 0, SUMS * sizeof(float));
    float bias[O] = {};
    for (long s = worker * batch + start; s < worker * batch + end; s++) {
      for (int row = 0; row < H; row++)
        std::memcpy(image + ((row + TOP) * WP + LEFT) * C, x + (s * H + row) * W * C, sizeof(float) * W * C);
      weights(at + s * P * O, gy + s * P * O, image, own, bias, from, g);
      if constexpr (INPUT) input(s, winners, gradient);
    }
    std::memcpy(out + O * TAPS, bias, sizeof bias);
    for (int o = 0; o < O; o++)
      for (int i = 0; i < KH; i++)
        for (int j = 0; j < KW; j++)
          for (int c = 0; c < C; c++) out[((o * C + c) * KH + i) * KW + j] = own[(o * KH + i) * ROW_VECTORS * SPAN + j * C + c];
  }

  static void weights(const uint8_t* at, const float* gy, const float* image, float* own, float (&bias)[O], int* from, float* g) {
    for (int p = 0; p < P; p++)
      for (int o = 0; o < O; o++) {
        int32_t bits;  // kept or cleared without a branch, which could not be predicted
        std::memcpy(&bits, gy + p * O + o, sizeof bits);
        bits &= -(at[p * O + o] < 4);
        float value;
        std::memcpy(&value, &bits, sizeof bits);
        bias[o] += value;
      }
    for (int o = 0; o < O; o++) {
      int n = 0;
      for (int p = 0; p < P; p++) {
        const int place = at[p * O + o];
        from[n] = CORNERS.first[p] + CORNERS.place[place];
        g[n] = gy[p * O + o];
        n += place < 4;
      }
      gather<0>(image, own + o * VECTORS * SPAN, from, g, n);
    }
  }

  void input(long s, const Winners& winners, float* gradient) const {
    const uint8_t* won = at + s * P * O;
    const float* g = gy + s * P * O;
    for (int p = 0; p < P; p++) {
      uint64_t n = 0;  // the numbers of winners at the four places, 16 bits each
      for (int o = 0; o < O; o++) {
        const int place = won[p * O + o], shift = (place & 3) * 16;
        const int to = (p * 4 + (place & 3)) * O + (int)(n >> shift & 0xffff);
        winners.kernel[to] = o;
        winners.g[to] = g[p * O + o];
        n += (uint64_t)(place < 4) << shift;
      }
      for (int q = 0; q < 4; q++) winners.count[p * 4 + q] = n >> 16 * q & 0xffff;
    }
    float* result = gx + s * H * W * C;
    float* whole = TOP || LEFT ? gradient : result;
    std::memset(whole, 0, sizeof(float) * HP * WP * C);
    spread<0>(w2, winners, whole);
    if (TOP || LEFT)
      for (int row = 0; row < H; row++)
        std::memcpy(result + row * W * C, gradient + ((row + TOP) * WP + LEFT) * C, sizeof(float) * W * C);
  }
};

struct Total {  // adds a worker's chunks, in their order, into the worker's row of the gradients
  const float* sums;
  float *dw, *db;
  long chunks, stride;

  void begin(long) const {}

  void run(long worker, long) const {
    constexpr long SIZE = O * TAPS + O;
    for (int part = 0; part < 2; part++) {
      float* out = part ? db + worker * stride : dw + worker * stride;
      if (!(part ? db : dw)) continue;
      for (long k = 0; k < chunks; k++) {
        const float* from = sums + (worker * chunks + k) * SIZE + (part ? O * TAPS : 0);
        for (long a = 0; a < (part ? O : O * TAPS); a++) out[a] = k ? out[a] + from[a] : from[a];
      }
    }
  }
};

}  // namespace

// ---- functions for Python -----------------------------------------------------------------------------------------------

// Return the floats of scratch memory that a call needs, for this number of images per worker.
extern "C" long scratch(long threads, long workers, long batch) {
  const long chunks = (batch + CHUNK - 1) / CHUNK;
  const long forward = threads * FORWARD_SCRATCH + up(O * TAPS, 16);
  const long backward = threads * BACKWARD_SCRATCH + KERNELS + workers * chunks * (O * TAPS + O);
  return forward > backward ? forward : backward;
}

extern "C" void forward(Team team, long threads, float* scratch, const float* x, const float* w, const float* bias, float* y,
                        uint8_t* at, long n) {
  float *sorted = scratch + threads * FORWARD_SCRATCH, *to = sorted;
  for (int tile = 0, o = 0; tile < TILES; tile++) {
    const int size = tile < NARROW_FROM ? WIDE : WIDE - 1;
    for (int i = 0; i < KH; i++)
      for (int j = 0; j < KW; j++)
        for (int c = 0; c < C; c++)
          for (int t = 0; t < size; t++) *to++ = w[(((o + t) * C + c) * KH + i) * KW + j];
    o += size;
  }
  float none[O] = {};
  const Forward body{x, bias ? bias : none, y, at, n, scratch, sorted};
  share(team, threads, (n + LANES - 1) / LANES, body);
}

extern "C" void backward(Team team, long threads, float* scratch, const float* x, const float* w, const uint8_t* at, const float* gy,
                         float* dw, float* db, long stride, float* gx, long workers, long batch) {
  const long chunks = (batch + CHUNK - 1) / CHUNK;
  float *w2 = scratch + threads * BACKWARD_SCRATCH, *sums = w2 + KERNELS;
  if (INPUT) {
    std::memset(w2, 0, KERNELS * sizeof(float));
    for (int first = 0; first < VECTORS; first += GROUP)
      for (int o = 0; o < O; o++)
        for (int a = first, count = least(GROUP, VECTORS - first); a < first + count; a++)
          for (int k = 0; k < SPAN; k++) {
            const int i = a / ROW_VECTORS, tap = a % ROW_VECTORS * SPAN + k;
            if (tap < REACH) w2[(O * first + o * count + a - first) * SPAN + k] = w[((o * C + tap % C) * KH + i) * KW + tap / C];
          }
  }
  const Backward body{x, at, gy, sums, gx, scratch, w2, batch, chunks};
  share(team, threads, workers * chunks, body);
  const Total total{sums, dw, db, chunks, stride};
  share(team, threads, workers, total);
}
