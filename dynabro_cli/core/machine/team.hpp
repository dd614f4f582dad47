// Common parts of the kernels: vectors of this processor, and a team of torch's own threads.
//
// Any C++17 compiler with GNU vector extensions works. OpenMP is not used here: the caller passes the function of torch's
// own OpenMP runtime that starts a team.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 32;
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define UNROLL _Pragma("GCC unroll 64")
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

namespace {  // nothing is shared with the same names of another library

template <int N> struct Vectors {
  typedef float Aligned __attribute__((vector_size(4 * N), may_alias));
  typedef float Anywhere __attribute__((vector_size(4 * N), aligned(4), may_alias));
};
typedef Vectors<LANES>::Aligned Floats;
typedef int32_t Ints __attribute__((vector_size(4 * LANES), may_alias));

// The vector at a place, read into a register once. If several products need a vector, the compilers would read it again for each
// product, and a core can make only two reads per cycle.
static inline Floats kept(const float* place) { return *(const volatile Vectors<LANES>::Anywhere*)place; }

constexpr bool LITTLE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

// ---- threads ------------------------------------------------------------------------------------------------------------

typedef void (*Team)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel

template <class Body> struct Work {
  Body& body;
  long items, threads;
  std::atomic<long> next{0}, entered{0};
  static void enter(void* pointer) {
    Work& work = *static_cast<Work*>(pointer);
    const long thread = work.entered++;
    if (thread >= work.threads) return;
    work.body.begin(thread);
    for (long item; (item = work.next++) < work.items;) work.body.run(item, thread);
  }
};

template <class Body> static void share(Team team, long threads, long items, Body& body) {
  Work<Body> work{body, items, team ? (threads < items ? threads : items) : 1};
  if (work.threads > 1)
    team(&Work<Body>::enter, &work, static_cast<unsigned>(work.threads), 0);
  else
    Work<Body>::enter(&work);
}

}  // namespace
