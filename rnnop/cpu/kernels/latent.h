/* The latent of an RSSM: from the output of a head to what the state is drawn from, and the draw. */

/* log(1 + u) of 0 <= u <= 1: 2 artanh s with s = u / (2 + u) <= 1/3, by its series. */
static inline NAME(vec) NAME(log_one_plus)(NAME(vec) u)
{
    enum { TERMS = sizeof(REAL) == 4 ? 8 : 17 };
    NAME(vec) s = u / (u + 2), square = s * s, sum = NAME(splat)((REAL)1 / (2 * TERMS + 1));
#pragma GCC unroll 17
    for (int k = TERMS - 1; k >= 0; k--) sum = sum * square + (REAL)1 / (2 * k + 1);
    return 2 * s * sum;
}

static inline NAME(vec) NAME(softplus)(NAME(vec) x)
{
    NAME(vec) below, e;
    NAME(exp_below)(-NAME(magnitude)(x), &below, &e);
    return NAME(relu)(x) + NAME(log_one_plus)(e);
}

/* The std before its bound or offset. */
static inline NAME(vec) NAME(free_std)(const Rssm *r, NAME(vec) x)
{
    if (r->std_rule == SIGMOID_PLUS) return 2 * NAME(sigmoid)(x / 2);
    return NAME(softplus)(x + (REAL)r->std_shift) + (REAL)r->std_offset;
}

static inline NAME(vec) NAME(std_of)(const Rssm *r, NAME(vec) x)
{
    NAME(vec) std = NAME(free_std)(r, x), low = NAME(splat)((REAL)r->min_std);
    return r->std_rule == AT_LEAST ? NAME(select)(std < low, low, std) : std + low;
}

static inline NAME(vec) NAME(std_slope)(const Rssm *r, NAME(vec) x)
{
    if (r->std_rule == SIGMOID_PLUS) {
        NAME(vec) s = NAME(sigmoid)(x / 2);
        return s * (1 - s);
    }
    NAME(vec) slope = NAME(sigmoid)(x + (REAL)r->std_shift);
    if (r->std_rule == PLUS) return slope;
    NAME(ivec) bound = NAME(free_std)(r, x) < (REAL)r->min_std;
    return (NAME(vec))(~bound & (NAME(ivec))slope);
}

/* softmax of one group of logits. */
static void NAME(softmax)(const REAL *logits, int64_t classes, REAL *q)
{
    REAL most = logits[0];
    for (int64_t k = 1; k < classes; k++)
        if (!(logits[k] <= most)) most = logits[k]; /* a NaN stays */
    for (int64_t k = 0; k < classes; k += LANES) {
        NAME(vec) below, e;
        NAME(exp_below)(NAME(load_part)(logits + k, classes - k) - most, &below, &e);
        NAME(store_part)(q + k, e, classes - k);
    }
    REAL sum = 0;
    for (int64_t k = 0; k < classes; k++) sum += q[k];
    for (int64_t k = 0; k < classes; k++) q[k] /= sum;
}

/* One-hot: the class is the number of partial sums of p that lie below the uniform. */
static void NAME(draw_class)(const Rssm *r, const REAL *logits, REAL uniform, REAL *q, REAL *state)
{
    int64_t K = r->classes, index = 0;
    NAME(softmax)(logits, K, q);
    REAL sum = 0, mix = (REAL)r->unimix;
    for (int64_t k = 0; k < K; k++) {
        q[k] = (1 - mix) * q[k] + mix / (REAL)K;
        sum += q[k];
        index += uniform > sum;
    }
    if (index > K - 1) index = K - 1;
    for (int64_t k = 0; k < K; k++) state[k] = (REAL)(k == index) + (q[k] - q[k]); /* keeps a NaN */
}

/* The parameters of row `row` from a head's output, and its state if `state` is not null. `spare`
 * holds `classes` elements. */
static void NAME(draw)(const Rssm *r, const Drawn *to, const REAL *out, int64_t row, int writes,
                       REAL *state, REAL *spare)
{
    int64_t S = r->state;
    if (r->classes) {
        int64_t K = r->classes, groups = S / K;
        if (writes) memcpy((REAL *)to->mean + row * S, out, (size_t)S * sizeof(REAL));
        for (int64_t g = 0; state && g < groups; g++)
            NAME(draw_class)(r, out + g * K, ((const REAL *)r->noise)[row * groups + g], spare,
                             state + g * K);
        return;
    }
    for (int64_t v = 0; v < S; v += LANES) {
        int64_t count = S - v, at = row * S + v;
        NAME(vec) mean = NAME(load_part)(out + v, count);
        NAME(vec) raw = NAME(load_part)(out + S + v, count), std = NAME(std_of)(r, raw);
        if (writes) {
            NAME(store_part)((REAL *)to->mean + at, mean, count);
            NAME(store_part)((REAL *)to->std + at, std, count);
            if (to->raw) NAME(store_part)((REAL *)to->raw + at, raw, count);
        }
        if (!state) continue;
        NAME(vec) noise = NAME(load_part)((const REAL *)r->noise + at, count);
        NAME(store_part)(state + v, mean + std * noise, count);
    }
}

/* The gradient `dout` of a head's output, from those of the parameters and of the state, if any. */
static void NAME(draw_back)(const Rssm *r, const Drawn *of, int64_t row, const REAL *dstate,
                            REAL *dout, REAL *spare)
{
    int64_t S = r->state;
    const REAL *dmean = of->dmean ? (const REAL *)of->dmean + row * S : 0;
    const REAL *dstd = of->dstd ? (const REAL *)of->dstd + row * S : 0;
    if (r->classes) {
        int64_t K = r->classes;
        const REAL *logits = (const REAL *)of->mean + row * S;
        for (int64_t g = 0; g < S; g += K) {
            REAL sum = 0, share = (REAL)(1 - r->unimix);
            if (dstate) {
                NAME(softmax)(logits + g, K, spare);
                for (int64_t k = 0; k < K; k++) sum += spare[k] * (share * dstate[g + k]);
            }
            for (int64_t k = 0; k < K; k++)
                dout[g + k] = (dstate ? spare[k] * (share * dstate[g + k] - sum) : 0) +
                              (dmean ? dmean[g + k] : 0);
        }
        return;
    }
    for (int64_t v = 0; v < S; v += LANES) {
        int64_t count = S - v, at = row * S + v;
        NAME(vec) mean = {0}, std = {0};
        if (dstate) {
            mean = NAME(load_part)(dstate + v, count);
            std = mean * NAME(load_part)((const REAL *)r->noise + at, count);
        }
        if (dmean) mean += NAME(load_part)(dmean + v, count);
        if (dstd) std += NAME(load_part)(dstd + v, count);
        std *= NAME(std_slope)(r, NAME(load_part)((const REAL *)of->raw + at, count));
        NAME(store_part)(dout + v, mean, count);
        NAME(store_part)(dout + S + v, std, count);
    }
}
