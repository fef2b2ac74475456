/* Vectors of REAL, and the elementwise functions of the cells.
 *
 * Included once for each REAL (see typed.h). A vector has LANES elements; how many bytes that is
 * the build says (VECTOR_BYTES). Written with GCC's vector extension, so one source serves every
 * instruction set. No fast-math: a NaN stays a NaN, infinities give the limits.
 */

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef INTEGER NAME(ivec) __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

static inline NAME(vec) NAME(load)(const REAL *p) { return *(const NAME(loose) *)p; }

static inline void NAME(store)(REAL *p, NAME(vec) v) { *(NAME(loose) *)p = v; }

static inline NAME(vec) NAME(splat)(REAL x) { return x - (NAME(vec)){0}; }

/* The first `count` elements only; the others read as 0 and are not written. */
static inline NAME(vec) NAME(load_part)(const REAL *p, int64_t count)
{
    if (count >= LANES) return NAME(load)(p);
    NAME(vec) v = {0};
    memcpy(&v, p, (size_t)count * sizeof(REAL));
    return v;
}

static inline void NAME(store_part)(REAL *p, NAME(vec) v, int64_t count)
{
    if (count >= LANES) { NAME(store)(p, v); return; }
    memcpy(p, &v, (size_t)count * sizeof(REAL));
}

/* The lanes of two vectors dealt out in turn, from their lower or their upper halves. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE
#endif
#endif
#ifdef HAS_SHUFFLE
static inline NAME(vec) NAME(riffle)(NAME(vec) a, NAME(vec) b, int upper)
{
#if LANES_ARE(2)
    return upper ? __builtin_shufflevector(a, b, 1, 3) : __builtin_shufflevector(a, b, 0, 2);
#elif LANES_ARE(4)
    return upper ? __builtin_shufflevector(a, b, 2, 6, 3, 7)
                 : __builtin_shufflevector(a, b, 0, 4, 1, 5);
#elif LANES_ARE(8)
    return upper ? __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
                 : __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return upper ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                           30, 15, 31)
                 : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                           23);
#endif
}
#endif

/* yes where the mask (all bits set or none) is true, else no */
static inline NAME(vec) NAME(select)(NAME(ivec) mask, NAME(vec) yes, NAME(vec) no)
{
    return (NAME(vec))((mask & (NAME(ivec))yes) | (~mask & (NAME(ivec))no));
}

static inline NAME(vec) NAME(magnitude)(NAME(vec) x)
{
    NAME(ivec) sign = (NAME(ivec))NAME(splat)((REAL)-0.0);
    return (NAME(vec))((NAME(ivec))x & ~sign);
}

static inline NAME(vec) NAME(with_sign_of)(NAME(vec) x, NAME(vec) sign_of)
{
    NAME(ivec) sign = (NAME(ivec))NAME(splat)((REAL)-0.0);
    return (NAME(vec))((NAME(ivec))x | ((NAME(ivec))sign_of & sign));
}

/* exp(-z) of 0 <= z <= LARGEST_EXP, as power * (1 + p).
 *
 * -z = k ln2 + r with |r| <= ln2/2; power is 2^k, and p = exp(r) - 1 a polynomial in r, so that
 * exp(-z) - 1 = power * p + (power - 1) keeps its relative accuracy near 0.
 */
static inline NAME(vec) NAME(exponential)(NAME(vec) z, NAME(vec) *power)
{
    NAME(vec) shifted = ROUND_MAGIC - z * (REAL)1.44269504088896340736; /* its low bits hold k */
    NAME(vec) k = shifted - ROUND_MAGIC;
    NAME(vec) r = -k * LN2_HIGH - z - k * LN2_LOW;
    NAME(ivec) one = (NAME(ivec))NAME(splat)((REAL)1.0);
    *power = (NAME(vec))(((NAME(ivec))shifted << MANTISSA_BITS) + one);
    /* Two chains, of even and odd powers, that the processor runs side by side. */
    NAME(vec) square = r * r, chain[2];
    chain[EXP_DEGREE & 1] = NAME(splat)(EXP_SERIES[EXP_DEGREE]);
    chain[(EXP_DEGREE + 1) & 1] = NAME(splat)(EXP_SERIES[EXP_DEGREE - 1]);
#pragma GCC unroll 16
    for (int n = EXP_DEGREE - 2; n > 1; n--)
        chain[n & 1] = chain[n & 1] * square + EXP_SERIES[n];
    return (chain[1] * square + 1) * r + chain[0] * square;
}

/* 1 / (1 + exp(-x)), from exp(-|x|) so that small values keep their relative accuracy. */
static inline NAME(vec) NAME(sigmoid)(NAME(vec) x)
{
    NAME(vec) z = NAME(magnitude)(x), power;
    NAME(ivec) tiny = z > LARGEST_EXP;
    NAME(vec) p = NAME(exponential)(NAME(select)(tiny, NAME(splat)(LARGEST_EXP), z), &power);
    NAME(vec) e = (NAME(vec))(~tiny & (NAME(ivec))(power * p + power));
    return NAME(select)(x >= 0, NAME(splat)(1), e) / (1 + e);
}

/* m / (2 - m) with m = 1 - exp(-2 |x|) */
static inline NAME(vec) NAME(tanh)(NAME(vec) x)
{
    NAME(vec) z = 2 * NAME(magnitude)(x), power;
    /* From 40 on, m is 1. */
    NAME(vec) p = NAME(exponential)(NAME(select)(z > 40, NAME(splat)(40), z), &power);
    NAME(vec) m = (1 - power) - power * p;
    return NAME(with_sign_of)(m / (2 - m), x);
}

static inline NAME(vec) NAME(relu)(NAME(vec) x) { return (NAME(vec))(~(x <= 0) & (NAME(ivec))x); }

/* x cut to low..high; a NaN stays, or becomes low */
static inline NAME(vec) NAME(clip)(NAME(vec) x, REAL low, REAL high, int nan_to_low)
{
    NAME(ivec) nan = x != x;
    NAME(vec) cut = NAME(select)(x < low, NAME(splat)(low), x);
    cut = NAME(select)(cut > high, NAME(splat)(high), cut);
    return nan_to_low ? NAME(select)(nan, NAME(splat)(low), cut) : cut;
}

/* dy where low <= x <= high, else 0: the gradient of clip */
static inline NAME(vec) NAME(clip_backward)(NAME(vec) x, NAME(vec) dy, REAL low, REAL high)
{
    return (NAME(vec))((x >= low) & (x <= high) & (NAME(ivec))dy);
}
