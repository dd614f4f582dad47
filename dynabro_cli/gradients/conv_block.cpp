// Convolution (stride 1) + ReLU + 2 x 2 max-pooling, forward and backward, for one shape that is fixed when this is compiled:
// C x H x W images, O kernels of KH x KW, zero padding of TOP rows and LEFT columns on either side.
//
// All tensors are channels last. The forward pass puts one image in each lane of a vector, and keeps the winner of each
// pooling window as a byte: its place 0 to 3, or 4 if its value is not positive. At most a quarter of the convolution's
// gradient is not zero, so the backward pass visits the winners only.
//
// Every result is computed by one thread in a fixed order, whoever that is.
#include "team.hpp"

namespace {  // nothing is shared with the same names of another shape's library

constexpr int up(int value, int unit) { return (value + unit - 1) / unit * unit; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

constexpr int HP = H + 2 * TOP, WP = W + 2 * LEFT;      // the padded image
constexpr int OH = HP - KH + 1, OW = WP - KW + 1;       // the convolution's output
constexpr int PH = OH / 2, PW = OW / 2, P = PH * PW;    // the pooled output
constexpr int TAPS = KH * KW * C;
constexpr int CHUNK = 32;  // images whose gradients are summed in one go

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

// Kernels are taken in tiles whose sums, four places of a window each, stay in registers.
constexpr int TILE = (REGISTERS - 6) / 4, TILES = (O + TILE - 1) / TILE, WIDE = (O + TILES - 1) / TILES;
constexpr int NARROW_FROM = O - TILES * (WIDE - 1);  // so many tiles have WIDE kernels, the others one less
constexpr long IMAGE = up(HP * WP * C, 1) * (long)LANES, ROW = (long)PW * O * LANES;
constexpr long FORWARD_SCRATCH = IMAGE + 2 * ROW;

// One window of LANES images for T kernels: the largest of the four places, with torch's rules for ties and NaN.
template <int T> static inline void window(const Floats* x, const float* w, const float* bias, Floats* y, Ints* at) {
  Floats sums[4][T];
  UNROLL for (int t = 0; t < T; t++) sums[0][t] = sums[1][t] = sums[2][t] = sums[3][t] = splat<Floats>(bias[t]);
  for (int i = 0; i < KH; i++) {
    const Floats* r = x + i * WP * C;
    for (int j = 0; j < KW * C; j++, w += T) {
      const Floats a = r[j], b = r[j + C], c = r[j + WP * C], d = r[j + WP * C + C];
      UNROLL for (int t = 0; t < T; t++) {
        const Floats k = splat<Floats>(w[t]);
        sums[0][t] += a * k;
        sums[1][t] += b * k;
        sums[2][t] += c * k;
        sums[3][t] += d * k;
      }
    }
  }
  UNROLL for (int t = 0; t < T; t++) {
    Floats best = sums[0][t];
    Ints place = {};
    UNROLL for (int q = 1; q < 4; q++) {
      const Floats value = sums[q][t];
      const Ints wins = (value > best) | (value != value);  // of NaNs the last, of equal ones the first
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

  // Put LANES images side by side; those beyond the last are copies of the last.
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

// A row of taps, KW x C numbers in a row of the image, is a row of vectors of SPAN numbers. Channels are padded to whole
// vectors, except in a first layer of few channels.
constexpr bool FEW = !INPUT && C < 8;
constexpr int FEW_SPAN = KW * C <= 4 || LANES == 4 ? 4 : KW * C <= 8 || LANES == 8 ? 8 : 16;
constexpr int SPAN = FEW ? FEW_SPAN : LANES == 16 && up(C, 16) > up(C, 8) ? (C <= 4 ? 4 : 8) : LANES == 8 && C <= 4 ? 4 : LANES;
constexpr int CP = FEW ? C : up(C, SPAN);
constexpr int ROW_VECTORS = (KW * CP + SPAN - 1) / SPAN, VECTORS = KH * ROW_VECTORS;
constexpr int FREE = REGISTERS - 4;
constexpr int GROUPS = (VECTORS + FREE - 1) / FREE, GROUP = (VECTORS + GROUPS - 1) / GROUPS;
constexpr int CHANNELS = CP / SPAN, SPREAD = FEW ? 1 : most(1, least(CHANNELS, FREE / (KW + 1)));
typedef Vectors<SPAN>::Aligned Span;
typedef Vectors<SPAN>::Anywhere SpanAnywhere;

constexpr long PADDED = up(HP * WP * CP + 16, 16), SUMS = up(O * VECTORS * SPAN, 16), LIST = up(P, 16);
constexpr long PLACES = up(4 * P, 16), WINNERS = up(4 * P * O, 16), KERNELS = up(O * VECTORS * SPAN, 16);
constexpr long BACKWARD_SCRATCH = PADDED + SUMS + 2 * LIST + (INPUT ? PADDED + PLACES + 2 * WINNERS : 0);

constexpr struct Corners {  // where the windows begin in the padded image, and the places in a window
  int first[P] = {}, place[5] = {0, CP, WP * CP, WP * CP + CP, 0};
  constexpr Corners() {
    for (int p = 0; p < P; p++) first[p] = (p / PW * 2 * WP + p % PW * 2) * CP;
  }
} CORNERS;

// Vector a of the taps at a corner of the image.
static inline Span tap(const float* corner, int a) {
  return *(const SpanAnywhere*)(corner + a / ROW_VECTORS * WP * CP + a % ROW_VECTORS * SPAN);
}

// Add to GROUP sums of one kernel the image around each winner, times its gradient; U winners at a time.
template <int FIRST, int COUNT, int U> static inline void gather(const float* x, float* sums, const int* from, const float* g, int n) {
  Span own[U][COUNT];
  UNROLL for (int u = 0; u < U; u++) UNROLL for (int a = 0; a < COUNT; a++) own[u][a] = u ? Span{} : ((Span*)sums)[FIRST + a];
  int e = 0;
  for (; e + U <= n; e += U)
    UNROLL for (int u = 0; u < U; u++) {
      const float* corner = x + from[e + u];
      const Span v = splat<Span>(g[e + u]);
      UNROLL for (int a = 0; a < COUNT; a++)
        own[u][a] += v * tap(corner, FIRST + a);
    }
  for (; e < n; e++) {
    const float* corner = x + from[e];
    const Span v = splat<Span>(g[e]);
    UNROLL for (int a = 0; a < COUNT; a++)
      own[0][a] += v * tap(corner, FIRST + a);
  }
  UNROLL for (int u = 1; u < U; u++) UNROLL for (int a = 0; a < COUNT; a++) own[0][a] += own[u][a];
  UNROLL for (int a = 0; a < COUNT; a++) ((Span*)sums)[FIRST + a] = own[0][a];
}

template <int FIRST> static inline void gather_all(const float* x, float* sums, const int* from, const float* g, int n) {
  constexpr int COUNT = least(GROUP, VECTORS - FIRST), U = most(1, least(4, FREE / COUNT));
  gather<FIRST, COUNT, U>(x, sums, from, g, n);
  if constexpr (FIRST + COUNT < VECTORS) gather_all<FIRST + COUNT>(x, sums, from, g, n);
}

struct Winners {  // of each place of each window: the kernels that won there, as offsets into the kernels, and their gradients
  int *count, *kernel;
  float* g;
};

// One row of the input's gradient, for T vectors of channels from the one at w2 and row: a run over the windows from left to
// right, with the sums of the KW + 1 columns that a window reaches in registers.
template <int T> static inline void spread_row(int y, const float* w2, const Winners& winners, float* row) {
  Span sums[KW + 1][T] = {};
  const int first = most(0, y - KH + 1), last = least(y, 2 * PH - 1);
  for (int px = 0; px < PW; px++) {
    for (int r = first; r <= last; r++) {
      const float* taps = w2 + (y - r) * ROW_VECTORS * SPAN;
      const int place = ((r / 2) * PW + px) * 4 + r % 2 * 2;
      UNROLL for (int right = 0; right < 2; right++) {
        const int* kernel = winners.kernel + (place + right) * O;
        const float* g = winners.g + (place + right) * O;
        for (int e = 0, n = winners.count[place + right]; e < n; e++) {
          const float* w = taps + kernel[e];
          const Span v = splat<Span>(g[e]);
          UNROLL for (int j = 0; j < KW; j++)
            UNROLL for (int t = 0; t < T; t++) sums[j + right][t] += v * ((const Span*)(w + j * CP))[t];
        }
      }
    }
    UNROLL for (int j = 0; j < 2; j++) UNROLL for (int t = 0; t < T; t++) ((Span*)(row + (2 * px + j) * CP))[t] = sums[j][t];
    UNROLL for (int j = 0; j < KW + 1; j++)
      UNROLL for (int t = 0; t < T; t++) sums[j][t] = j + 2 < KW + 1 ? sums[j + 2 < KW + 1 ? j + 2 : 0][t] : Span{};
  }
  UNROLL for (int j = 0; j < KW - 1; j++) UNROLL for (int t = 0; t < T; t++) ((Span*)(row + (2 * PW + j) * CP))[t] = sums[j][t];
}

template <int FROM> static inline void spread(int y, const float* w2, const Winners& winners, float* row) {
  constexpr int T = least(SPREAD, CHANNELS - FROM);
  spread_row<T>(y, w2 + FROM * SPAN, winners, row + FROM * SPAN);
  if constexpr (FROM + T < CHANNELS) spread<FROM + T>(y, w2, winners, row);
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
    if (INPUT) std::memset(own + PADDED + SUMS + 2 * LIST, 0, PADDED * sizeof(float));
  }

  void run(long item, long thread) const {
    float *image = scratch + thread * BACKWARD_SCRATCH, *own = image + PADDED, *g = own + SUMS;
    int* from = (int*)(g + LIST);
    float* gradient = g + 2 * LIST;
    int* counts = (int*)(gradient + PADDED);
    const Winners winners{counts, counts + PLACES, (float*)(counts + PLACES + WINNERS)};
    const long worker = item / chunks, start = item % chunks * CHUNK, end = start + CHUNK < batch ? start + CHUNK : batch;
    float* out = sums + item * (O * TAPS + O);
    std::memset(own, 0, SUMS * sizeof(float));
    float bias[O] = {};
    for (long s = worker * batch + start; s < worker * batch + end; s++) {
      for (int row = 0; row < H; row++)
        for (int column = 0; column < W; column++)
          std::memcpy(image + ((row + TOP) * WP + column + LEFT) * CP, x + ((s * H + row) * W + column) * C, sizeof(float) * C);
      weights(at + s * P * O, gy + s * P * O, image, own, bias, from, g);
      if constexpr (INPUT) input(s, winners, gradient);
    }
    std::memcpy(out + O * TAPS, bias, sizeof bias);
    for (int o = 0; o < O; o++)
      for (int i = 0; i < KH; i++)
        for (int j = 0; j < KW; j++)
          for (int c = 0; c < C; c++) out[((o * C + c) * KH + i) * KW + j] = own[(o * KH + i) * ROW_VECTORS * SPAN + j * CP + c];
  }

  static void weights(const uint8_t* at, const float* gy, const float* image, float* own, float (&bias)[O], int* from, float* g) {
    for (int p = 0; p < P; p++)
      for (int o = 0; o < O; o++) {
        int32_t bits;  // kept or cleared without a branch, which could not be foreseen
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
      gather_all<0>(image, own + o * VECTORS * SPAN, from, g, n);
    }
  }

  void input(long s, const Winners& winners, float* gradient) const {
    const uint8_t* won = at + s * P * O;
    const float* g = gy + s * P * O;
    for (int p = 0; p < P; p++) {
      int n[5] = {};
      for (int o = 0; o < O; o++) {
        const int place = won[p * O + o], to = (p * 4 + (place & 3)) * O + n[place & 3];
        winners.kernel[to] = o * VECTORS * SPAN;
        winners.g[to] = g[p * O + o];
        n[place & 3] += place < 4;
      }
      for (int q = 0; q < 4; q++) winners.count[p * 4 + q] = n[q];
    }
    for (int y = TOP; y < least(TOP + H, 2 * PH + KH - 1); y++) spread<0>(y, w2, winners, gradient + y * WP * CP);
    for (int row = 0; row < H; row++)
      for (int column = 0; column < W; column++)
        std::memcpy(gx + ((s * H + row) * W + column) * C, gradient + ((row + TOP) * WP + column + LEFT) * CP, sizeof(float) * C);
  }
};

struct Total {  // the sums of a worker's chunks, in their order, into the worker's row of the gradients
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

// ---- what is called from Python -------------------------------------------------------------------------------------------

// Floats of scratch memory that a call needs, whose workers have so many images each.
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
    for (int o = 0; o < O; o++)
      for (int c = 0; c < C; c++)
        for (int i = 0; i < KH; i++)
          for (int j = 0; j < KW; j++) w2[(o * KH + i) * ROW_VECTORS * SPAN + j * CP + c] = w[((o * C + c) * KH + i) * KW + j];
  }
  const Backward body{x, at, gy, sums, gx, scratch, w2, batch, chunks};
  share(team, threads, workers * chunks, body);
  const Total total{sums, dw, db, chunks, stride};
  share(team, threads, workers, total);
}
