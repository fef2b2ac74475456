/* Layers of an RSSM over a few rows: y = activation(norm(W x + b)), and the gradient.
 *
 * Their panels are as few as there can be, of 4 vectors or fewer, so that 25 vectors are cut into
 * 4 4 4 4 3 3 3. Threads either have rows to themselves, or share the columns of all rows and meet
 * where one reads what others wrote.
 */

/* What one thread does, and its working memory. */
typedef struct {
    const Rssm *r;
    Thread thread;
    int alone;                  /* it has its rows to itself */
    int writes;                 /* it writes what all threads compute alike */
    int64_t first, n;           /* its rows */
    const REAL **rows, **more;  /* (n,), or of as many steps as go together */
    const REAL **block_rows;    /* (n,) */
    REAL *own;                  /* layers whose columns are not shared */
    REAL *input, *slots, *spare; /* [state, action]; gates of two blocks of units; one group */
    REAL *dstate;
    REAL *shared;               /* layers; it and what follows belong to all threads unless alone */
    REAL *candidate, *update, *reset; /* (n, H) of the reset-before form */
    REAL *blocks;               /* sums of layers in blocks, see rssm_block.h */
    REAL *sums;                 /* what embeddings add, of as many steps as go together */
    REAL *dbelief, *dreset;     /* (n, H) */
} NAME(Part);

static inline int64_t NAME(vectors)(int64_t columns) { return (columns + LANES - 1) / LANES; }

static inline int64_t NAME(wide)(int64_t columns) { return NAME(vectors)(columns) * LANES; }

/* How many panels there are, and where panel q begins, in vectors. */
static inline int64_t NAME(cuts)(int64_t columns) { return (NAME(vectors)(columns) + 3) / 4; }

static inline int64_t NAME(cut)(int64_t columns, int64_t q)
{
    int64_t vectors = NAME(vectors)(columns), panels = NAME(cuts)(columns);
    int64_t more = vectors % panels;
    return q * (vectors / panels) + (q < more ? q : more);
}

/* Threads take panels in turn. */
static void NAME(pack_cut)(Thread thread, const REAL *matrix, int64_t row_stride,
                           int64_t column_stride, int64_t columns, int64_t depth, REAL *packed)
{
    const REAL *matrices[] = {matrix, matrix, matrix, matrix};
    for (int64_t q = thread.index; q < NAME(cuts)(columns); q += thread.threads) {
        int64_t at = NAME(cut)(columns, q), width = NAME(cut)(columns, q + 1) - at, first[4];
        for (int64_t v = 0; v < 4; v++) first[v] = (at + v) * LANES;
        NAME(pack_panel)(matrices, (int)width, row_stride, column_stride, first, columns, depth,
                         packed + at * LANES * depth);
    }
}

/* C (n, columns), `stride` apart, += A B, over the panels q..q_end of B. */
static void NAME(multiply)(const NAME(Part) *part, const REAL *const *rows, int64_t depth,
                           const REAL *packed, int64_t columns, int64_t q, int64_t q_end, REAL *c,
                           int64_t stride)
{
    int far = part->r->far && part->n > 1;
    for (int64_t count; q < q_end; q += count) {
        int64_t at = NAME(cut)(columns, q), width = NAME(cut)(columns, q + 1) - at;
        for (count = 1; q + count < q_end; count++)
            if (NAME(cut)(columns, q + count + 1) - NAME(cut)(columns, q + count) != width) break;
        NAME(panels)(count, part->n, (int)width, rows, depth, packed + at * LANES * depth,
                     c + at * LANES, stride, width * LANES, far);
    }
}

/* The panels of this thread: all when alone. */
static inline void NAME(share)(const NAME(Part) *part, int64_t columns, int64_t *q, int64_t *q_end)
{
    int64_t panels = NAME(cuts)(columns), i = part->thread.index, threads = part->thread.threads;
    *q = part->alone ? 0 : panels * i / threads;
    *q_end = part->alone ? panels : panels * (i + 1) / threads;
}

static inline void NAME(meet)(const NAME(Part) *part)
{
    if (!part->alone) rnnop_barrier(part->thread);
}

/* Where threads share the columns, a product so small that each does all of it for itself saves a
 * meeting. */
static inline int NAME(private)(const NAME(Part) *part, int64_t columns, int64_t depth)
{
    return !part->alone && (double)(part->n * columns * depth) < MIN_SHARED_PRODUCT;
}

/* exp(x) - 1 and exp(x) of x <= 0. */
static inline void NAME(exp_below)(NAME(vec) x, NAME(vec) *minus_one, NAME(vec) *exp_x)
{
    NAME(ivec) tiny = -x > LARGEST_EXP;
    NAME(vec) power;
    NAME(vec) p = NAME(exponential)(NAME(select)(tiny, NAME(splat)(LARGEST_EXP), -x), &power);
    *minus_one = NAME(select)(tiny, NAME(splat)(-1), power * p + (power - 1));
    *exp_x = (NAME(vec))(~tiny & (NAME(ivec))(power * p + power));
}

/* An activation, and its slope at x, where it is y. */
static inline NAME(vec) NAME(activate)(int64_t activation, NAME(vec) x)
{
    if (activation == RELU) return NAME(relu)(x);
    if (activation == SILU) return x * NAME(sigmoid)(x);
    if (activation == ELU) {
        NAME(ivec) above = x > 0;
        NAME(vec) below, e;
        NAME(exp_below)(NAME(select)(above, NAME(splat)(0), x), &below, &e);
        return NAME(select)(above, x, below);
    }
    return x;
}

static inline NAME(vec) NAME(slope)(int64_t activation, NAME(vec) x, NAME(vec) y)
{
    NAME(vec) one = NAME(splat)(1);
    if (activation == RELU) return (NAME(vec))((y != 0) & (NAME(ivec))one);
    if (activation == SILU) {
        NAME(vec) s = NAME(sigmoid)(x);
        return s * (1 + x * (1 - s));
    }
    return activation == ELU ? NAME(select)(y <= 0, y + 1, one) : one;
}

/* Mean and 1 / deviation of a row, as its norm sees them. */
typedef struct {
    REAL mean, inverse;
} NAME(Moments);

static REAL NAME(sum_of)(NAME(vec) v)
{
    REAL sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
}

static NAME(Moments) NAME(moments)(int64_t norm, const REAL *x, int64_t count, double eps)
{
    NAME(Moments) m = {0, 1};
    if (norm == NO_NORM) return m;
    int64_t whole = count / LANES * LANES;
    if (norm == LAYER_NORM) {
        NAME(vec) sum = {0};
        for (int64_t v = 0; v < whole; v += LANES) sum += NAME(load)(x + v);
        REAL total = NAME(sum_of)(sum);
        for (int64_t i = whole; i < count; i++) total += x[i];
        m.mean = total / (REAL)count;
    }
    NAME(vec) squares = {0};
    for (int64_t v = 0; v < whole; v += LANES) {
        NAME(vec) d = NAME(load)(x + v) - m.mean;
        squares += d * d;
    }
    REAL total = NAME(sum_of)(squares);
    for (int64_t i = whole; i < count; i++) total += (x[i] - m.mean) * (x[i] - m.mean);
    m.inverse = (REAL)(1 / sqrt((double)(total / (REAL)count) + eps));
    return m;
}

/* The normed elements v.. of a row that they belong to. */
static inline NAME(vec) NAME(normed)(const Layer *l, NAME(vec) unit, int64_t v)
{
    int64_t count = l->out - v;
    if (l->norm == NO_NORM) return unit;
    NAME(vec) x = unit * NAME(load_part)((const REAL *)l->scale + v, count);
    return l->shift ? x + NAME(load_part)((const REAL *)l->shift + v, count) : x;
}

/* Where the working memory of a layer begins: its y or dy, then the sums that a norm waits for. */
static inline REAL *NAME(place)(const NAME(Part) *part, const Layer *l, int mine)
{
    return (mine ? part->own : part->shared) + part->n * l->place;
}

/* What is added to the product of a layer: that of other rows, or sums known beforehand. */
typedef struct {
    const REAL *const *rows;
    int64_t depth;
    const REAL *packed;
    const REAL *sums; /* of row j at j * stride, instead of the bias */
    int64_t stride;
} NAME(Besides);

/* From the sums c of rows whose number among all is `at`.. to columns begin..end of y, kept if the
 * backward will want them. */
static void NAME(finish)(const NAME(Part) *part, const Layer *l, const REAL *c, REAL *y, int64_t at,
                         int64_t begin, int64_t end, int writes)
{
    int64_t stride = NAME(wide)(l->out);
    for (int64_t j = 0; j < part->n; j++) {
        NAME(Moments) m = NAME(moments)(l->norm, c + j * stride, l->out, part->r->norm_eps);
        int64_t row = (at + j) * l->out;
        for (int64_t v = begin; v < end; v += LANES) {
            NAME(vec) x = NAME(load_part)(c + j * stride + v, l->out - v);
            if (l->pre && writes) NAME(store_part)((REAL *)l->pre + row + v, x, l->out - v);
            x = NAME(activate)(l->activation, NAME(normed)(l, (x - m.mean) * m.inverse, v));
            NAME(store)(y + j * stride + v, x);
            if (l->y && writes) NAME(store_part)((REAL *)l->y + row + v, x, l->out - v);
        }
    }
}

/* y of rows whose number among all is `at`... Threads that share its columns have met at the end. */
static REAL *NAME(layer)(const NAME(Part) *part, const Layer *l, const REAL *const *rows,
                         int64_t at, const NAME(Besides) *besides)
{
    int64_t stride = NAME(wide)(l->out), q = 0, q_end = NAME(cuts)(l->out);
    int mine = NAME(private)(part, l->out, l->in), writes = !mine || part->writes;
    if (!mine) NAME(share)(part, l->out, &q, &q_end);
    int64_t begin = NAME(cut)(l->out, q) * LANES, end = NAME(cut)(l->out, q_end) * LANES;
    REAL *y = NAME(place)(part, l, mine), *c = l->norm == NO_NORM ? y : y + part->n * stride;
    for (int64_t j = 0; j < part->n; j++) {
        const REAL *from = besides && besides->sums ? besides->sums + j * besides->stride : l->bias;
        if (end > begin)
            memcpy(c + j * stride + begin, from + begin, (size_t)(end - begin) * sizeof(REAL));
    }
    NAME(multiply)(part, rows, l->in, l->forward, l->out, q, q_end, c, stride);
    if (besides && besides->rows)
        NAME(multiply)(part, besides->rows, besides->depth, besides->packed, l->out, q, q_end, c,
                       stride);
    if (l->norm != NO_NORM && !mine) NAME(meet)(part);
    NAME(finish)(part, l, c, y, at, begin, end, writes);
    if (!mine) NAME(meet)(part);
    return y;
}

/* From dy, in the working memory of the layer, to the gradient d of its product, in rows `to`.. of
 * what is made of a stretch. Without a norm, each thread needs its own columns of dy only. */
static void NAME(layer_back)(const NAME(Part) *part, const Layer *l, int64_t at, int64_t to)
{
    int64_t stride = NAME(wide)(l->out), q, q_end;
    NAME(share)(part, l->out, &q, &q_end);
    int64_t begin = NAME(cut)(l->out, q) * LANES, end = NAME(cut)(l->out, q_end) * LANES;
    const REAL *dy = NAME(place)(part, l, 0);
    if (l->norm != NO_NORM) NAME(meet)(part);
    for (int64_t j = 0; j < part->n; j++) {
        const REAL *y = (const REAL *)l->y + (at + j) * l->out;
        const REAL *pre = l->pre ? (const REAL *)l->pre + (at + j) * l->out : 0;
        int64_t row = (to + j) * l->out;
        NAME(Moments) m = {0, 1};
        REAL of_unit = 0, of_one = 0; /* means of du * unit and of du */
#define UNIT(v, count)                                                                           \
    NAME(vec) unit = pre ? (NAME(load_part)(pre + (v), count) - m.mean) * m.inverse              \
                         : NAME(splat)(0);                                                       \
    NAME(vec) d = NAME(load_part)(dy + j * stride + (v), count);                                        \
    if (l->activation != IDENTITY)                                                               \
        d = d * NAME(slope)(l->activation, NAME(normed)(l, unit, v), NAME(load_part)(y + (v), count));
        if (l->norm != NO_NORM) {
            m = NAME(moments)(l->norm, pre, l->out, part->r->norm_eps);
            NAME(vec) unit_sum = {0}, one_sum = {0};
            for (int64_t v = 0; v < l->out; v += LANES) {
                int64_t count = l->out - v;
                UNIT(v, count)
                NAME(vec) du = d * NAME(load_part)((const REAL *)l->scale + v, count);
                unit_sum += du * unit;
                one_sum += du;
            }
            of_unit = NAME(sum_of)(unit_sum) / (REAL)l->out;
            if (l->norm == LAYER_NORM) of_one = NAME(sum_of)(one_sum) / (REAL)l->out;
        }
        for (int64_t v = begin; v < end; v += LANES) {
            int64_t count = l->out - v;
            UNIT(v, count)
            if (l->norm != NO_NORM) {
                NAME(store_part)((REAL *)l->d_shift + row + v, d, count);
                NAME(store_part)((REAL *)l->d_scale + row + v, d * unit, count);
                d = d * NAME(load_part)((const REAL *)l->scale + v, count);
                d = (d - of_one - unit * of_unit) * m.inverse;
            }
            NAME(store_part)((REAL *)l->d + row + v, d, count);
        }
#undef UNIT
    }
}

/* The belief that row `row` of all began with. */
static inline const REAL *NAME(belief_before)(const Rssm *r, int64_t row)
{
    if (r->before) return (const REAL *)r->before + row * r->belief;
    if (row < r->batch) return (const REAL *)r->belief0 + row * r->belief;
    return (const REAL *)r->beliefs + (row - r->batch) * r->belief;
}

/* Rows `row`.. of an array with `size` elements in each. */
static inline void NAME(point)(const REAL **rows, int64_t n, const void *array, int64_t row,
                               int64_t size)
{
    for (int64_t j = 0; j < n; j++) rows[j] = (const REAL *)array + (row + j) * size;
}
