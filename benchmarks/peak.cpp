// Fused multiply-adds on registers alone, in vectors as wide as the processor has: what one core can compute at most.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int CHAINS = 12;  // independent sums, enough to hide the latency of one
typedef float Floats __attribute__((vector_size(4 * LANES)));

// Run the loop `rounds` times; returns the floating-point operations that it made.
extern "C" double operations(long rounds, float* out) {
  Floats sums[CHAINS], factor = Floats{} + out[0], term = Floats{} + out[1];
  for (int k = 0; k < CHAINS; k++) sums[k] = Floats{} + (out[2] + k);
  for (long round = 0; round < rounds; round++)
#pragma GCC unroll 12
    for (int k = 0; k < CHAINS; k++) sums[k] = sums[k] * factor + term;
  for (int k = 0; k < CHAINS; k++) out[3] += sums[k][0];
  return 2.0 * LANES * CHAINS * static_cast<double>(rounds);
}
