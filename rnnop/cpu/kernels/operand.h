/* What a product multiplies, and how one term is added to a sum.
 *
 * An operand is a number; or with BF16_PAIRS, where REAL is float, two numbers that follow each other
 * along k, rounded to bfloat16, the first in the lower half of the 32 bits of a REAL. Panels and
 * tiles (product.h) look the same, with half as many steps:
 *
 *     numbers:  sum += x[k] w[k]
 *     pairs:    sum += x[2 k + 1] w[2 k + 1];  sum += x[2 k] w[2 k]     in float
 */
#ifndef BF16_PAIRS

/* How many operands `depth` numbers are. */
static inline int64_t NAME(steps)(int64_t depth) { return depth; }

/* The operand at p in every lane. */
static inline NAME(vec) NAME(spread)(const REAL *p) { return NAME(splat)(*p); }

static inline NAME(vec) NAME(add_term)(NAME(vec) sum, NAME(vec) x, NAME(vec) w)
{
    return sum + x * w;
}

/* How much memory of its own a row needs to become operands, and that is done: numbers are. */
static inline int64_t NAME(operand_room)(int64_t depth) { return 0 * depth; }

static inline void NAME(make_operands)(const REAL **rows, int64_t n, int64_t depth, REAL *room)
{
    (void)rows, (void)n, (void)depth, (void)room;
}

#else

typedef uint32_t NAME(bits) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t NAME(halves) __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t NAME(loose_halves)
    __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

static inline int64_t NAME(steps)(int64_t depth) { return (depth + 1) / 2; }

static inline NAME(vec) NAME(spread)(const REAL *p)
{
    uint32_t pair; /* not as a float: two halves together may be a signalling NaN */
    memcpy(&pair, p, sizeof pair);
    return (NAME(vec))(pair + (NAME(bits)){0});
}

/* Rounded to the nearest bfloat16, ties to even, in the upper half of each lane. A NaN stays one. */
static inline NAME(bits) NAME(rounded)(NAME(vec) x)
{
    NAME(bits) bits = (NAME(bits))x, nan = (NAME(bits))(x != x);
    NAME(bits) nearest = bits + 0x7fff + (bits >> 16 & 1);
    return (nan & (bits | 0x400000)) | (~nan & nearest);
}

#if defined(__AVX512BF16__) && VECTOR_BYTES == 64
static inline NAME(vec) NAME(add_term)(NAME(vec) sum, NAME(vec) x, NAME(vec) w)
{
    return (NAME(vec))_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && VECTOR_BYTES == 16
static inline NAME(vec) NAME(add_term)(NAME(vec) sum, NAME(vec) x, NAME(vec) w)
{
    return (NAME(vec))vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)w);
}
#else
/* What is too small for a normal number is 0. */
static inline NAME(vec) NAME(flushed)(NAME(vec) x)
{
    NAME(ivec) small = NAME(magnitude)(x) < FLT_MIN;
    return NAME(select)(small, NAME(with_sign_of)(NAME(splat)(0), x), x);
}

/* VDPBF16PS in other words. The order and the zeros are Intel's: Intel 64 and IA-32 Architectures
 * Software Developer's Manual, volume 2. */
static inline NAME(vec) NAME(add_term)(NAME(vec) sum, NAME(vec) x, NAME(vec) w)
{
    NAME(bits) a = (NAME(bits))x, b = (NAME(bits))w;
    NAME(vec) x1 = NAME(flushed)((NAME(vec))(a & 0xffff0000)), x0 = NAME(flushed)((NAME(vec))(a << 16));
    NAME(vec) w1 = NAME(flushed)((NAME(vec))(b & 0xffff0000)), w0 = NAME(flushed)((NAME(vec))(b << 16));
    sum = NAME(flushed)(NAME(flushed)(sum) + x1 * w1); /* a product of two bfloat16 is exact */
    return NAME(flushed)(sum + x0 * w0);
}
#endif

/* In elements: whole vectors, since all of the last one is written. */
static inline int64_t NAME(operand_room)(int64_t depth)
{
    return (NAME(steps)(depth) + LANES - 1) / LANES * LANES;
}

/* Round n rows into `room`, and point at them there. */
static void NAME(make_operands)(const REAL **rows, int64_t n, int64_t depth, REAL *room)
{
    for (int64_t j = 0; j < n; j++, room += NAME(operand_room)(depth)) {
        uint16_t *to = (uint16_t *)room;
        for (int64_t v = 0; v < depth; v += LANES) {
            NAME(bits) bits = NAME(rounded)(NAME(load_part)(rows[j] + v, depth - v));
            *(NAME(loose_halves) *)(to + v) = __builtin_convertvector(bits >> 16, NAME(halves));
        }
        rows[j] = room;
    }
}

/* Two rows of LANES columns after each other become one of pairs: of `count` rows, into rows
 * `stride` apart. */
static void NAME(join_rows)(const NAME(vec) *rows, int64_t count, REAL *to, int64_t stride)
{
    for (int64_t k = 0; k < count; k += 2, to += stride) {
        NAME(bits) first = NAME(rounded)(rows[k]) >> 16, second = {0};
        if (k + 1 < count) second = NAME(rounded)(rows[k + 1]) & 0xffff0000;
        *(NAME(vec) *)to = (NAME(vec))(first | second);
    }
}

#endif
