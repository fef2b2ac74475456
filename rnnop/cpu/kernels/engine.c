/* The CPU engine, compiled once for each instruction set (setup.py gives VECTOR_BYTES and flags).
 *
 * Nothing here knows Python. Shapes are checked before a call; a status comes back.
 */
#include "engine.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

/* Where there is a dot product of bfloat16, or one is spelled out for tests, floats may be rounded for
 * their products. */
#if defined(__AVX512BF16__)
#include <immintrin.h>
#define HAS_BF16
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define HAS_BF16
#elif defined(SPELLED_BF16)
#define HAS_BF16
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif

/* Rows of the largest register tile: 32 vector registers on AVX-512 and NEON, 16 elsewhere. */
#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define MAX_ROWS 6
#else
#define MAX_ROWS 4
#endif

enum {
    K_BLOCK = 128, /* rows of a panel that stay in the first cache */
    /* Rows of an input product, which read a panel once: as many as leave their slots in the second
     * cache, but not too few to be worth it, and no more than help. */
    CHUNK_BYTES = 1 << 18,
    LEAST_ROWS = 24,
    MOST_ROWS = 48,
    FAR_BYTES = 4 << 20,
};

#define MIN_SHARED_WORK 6e4   /* 2 N H (I + P) of a step that is worth a barrier */
#define MIN_THREADED_PACKING 65536 /* elements of weights, likewise */
#define MIN_SHARED_PRODUCT 4e4 /* multiply-adds that are worth a barrier */
#define MIN_THREADED_WORK 2e5 /* multiply-adds of a call that are worth waking a thread */

static void *rnnop_aligned(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    return rounded < bytes ? 0 : aligned_alloc(64, rounded ? rounded : 64);
}

#define REAL float
#define LANES_ARE(count) (VECTOR_BYTES == 4 * (count))
#define INTEGER int32_t
#define NAME(name) name##_f32
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23 */
#define MANTISSA_BITS 23
#define LARGEST_EXP 87.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440054690583e-4f
#define EXP_DEGREE 6
#define EXP_SERIES rnnop_exp_f32
/* The polynomial of its degree with the least relative error, 3e-9. */
static const float EXP_SERIES[] = {1.0f,           1.0f,           4.999999404e-1f, 1.666651964e-1f,
                                   4.166839272e-2f, 8.368755691e-3f, 1.381451730e-3f};
#include "typed.h"
#ifdef HAS_BF16
#define BF16_PAIRS
#undef NAME
#define NAME(name) name##_bf16
#include "typed.h"
#undef BF16_PAIRS
#endif
#undef REAL
#undef LANES_ARE
#undef INTEGER
#undef NAME
#undef ROUND_MAGIC
#undef MANTISSA_BITS
#undef LARGEST_EXP
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_DEGREE
#undef EXP_SERIES

#define REAL double
#define LANES_ARE(count) (VECTOR_BYTES == 8 * (count))
#define INTEGER int64_t
#define NAME(name) name##_f64
#define ROUND_MAGIC 6755399441055744.0 /* 1.5 * 2^52 */
#define MANTISSA_BITS 52
#define LARGEST_EXP 708.0
#define LN2_HIGH 0.693147180369123816490
#define LN2_LOW 1.90821492927058770002e-10
#define EXP_DEGREE 13
#define EXP_SERIES rnnop_exp_f64
/* Taylor's, whose remainder is below half a unit in the last place. */
static const double EXP_SERIES[] = {1.0,
                                1.0,
                                1.0 / 2,
                                1.0 / 6,
                                1.0 / 24,
                                1.0 / 120,
                                1.0 / 720,
                                1.0 / 5040,
                                1.0 / 40320,
                                1.0 / 362880,
                                1.0 / 3628800,
                                1.0 / 39916800,
                                1.0 / 479001600,
                                1.0 / 6227020800};
#include "typed.h"

/* Bytes of each structure, in the order of engine.h: Python compares. */
void rnnop_layout(int64_t *bytes)
{
    bytes[0] = sizeof(Problem);
    bytes[1] = sizeof(Given);
    bytes[2] = sizeof(Weights);
    bytes[3] = sizeof(Forward);
    bytes[4] = sizeof(Backward);
    bytes[5] = sizeof(Outer);
    bytes[6] = sizeof(Times);
    bytes[7] = sizeof(Layer);
    bytes[8] = sizeof(Drawn);
    bytes[9] = sizeof(Rssm);
    bytes[10] = sizeof(Network);
}

/* What this machine can run beyond the baseline: on x86-64 1 for AVX2 with FMA, 2 for AVX-512, 3 for
 * its dot product of bfloat16 too; on 64-bit ARM 1 for that of NEON. */
int rnnop_cpu_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        unsigned a = 0, b, c, d; /* older compilers do not know the name "avx512bf16" */
        return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) ? 3 : 2;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP2) >> 14 & 1; /* HWCAP2_BF16 */
#endif
    return 0;
}
