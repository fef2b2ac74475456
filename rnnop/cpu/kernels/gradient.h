/* The large products of the backward, over many steps at once.
 *
 *     outer: C (left, right) += D' X       gradients of weights: D gradients of gates, X inputs
 *     times: Y (rows, columns)  = D B      gradient of the input: B packed weights (pack.h)
 *
 * They run on the engine's own threads: a second pool beside it would take its cores away just when
 * the next stretch of the recurrence needs them. Every sum goes through the rows in their order, so
 * the results do not depend on the number of threads.
 */

enum { NAME(OUTER_ROWS) = MAX_ROWS > 4 ? 6 : 3 }; /* rows of C in a tile of 4 vectors */

typedef struct {
    const Outer *o;
    atomic_int *status;
} NAME(OuterRun);

static inline const REAL *NAME(row_of)(const void *array, int64_t stride, const int64_t *index,
                                       int64_t row)
{
    return (const REAL *)array + (index ? index[row] : row) * stride;
}

static void NAME(outer_tile)(const REAL *d, const REAL *x, int64_t depth, REAL *c, int64_t c_stride,
                             int64_t rows, int64_t columns)
{
    enum { ROWS = NAME(OUTER_ROWS) };
    NAME(vec) sum[ROWS][4];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sum[r][v] = NAME(splat)(0);
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++) {
        NAME(vec) factor[ROWS];
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) factor[r] = NAME(splat)(d[k * ROWS + r]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            NAME(vec) w = *(const NAME(vec) *)(x + (k * 4 + v) * LANES);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; r++) sum[r][v] += factor[r] * w;
        }
    }
    /* Only what is inside C is written; the tile itself is whole. */
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            int64_t left = columns - v * LANES;
            if (r >= rows || left <= 0) continue;
            REAL *at = c + r * c_stride + v * LANES;
            NAME(store_part)(at, NAME(load_part)(at, left) + sum[r][v], left);
        }
}

/* A share of the rows of C. Blocks of D and X are copied side by side first: their rows lie far
 * apart, often by a power of two, which a cache likes least. */
static void NAME(outer_body)(void *argument, Thread thread)
{
    enum { ROWS = NAME(OUTER_ROWS) };
    const NAME(OuterRun) *run = argument;
    const Outer *o = run->o;
    int64_t tiles = (o->left + ROWS - 1) / ROWS;
    int64_t tile = tiles * thread.index / thread.threads;
    int64_t tile_end = tiles * (thread.index + 1) / thread.threads;
    if (tile == tile_end) return;
    REAL *d = rnnop_aligned((size_t)((tile_end - tile) * K_BLOCK * ROWS) * sizeof(REAL));
    REAL *x = rnnop_aligned((size_t)(K_BLOCK * 4 * LANES) * sizeof(REAL));
    if (!d || !x) {
        atomic_store(run->status, NO_MEMORY);
        free(d);
        free(x);
        return;
    }
    for (int64_t begin = 0; begin < o->rows; begin += K_BLOCK) {
        int64_t depth = o->rows - begin < K_BLOCK ? o->rows - begin : K_BLOCK;
        for (int64_t k = 0; k < depth; k++) {
            const REAL *row = (const REAL *)o->d + (begin + k) * o->d_stride;
            for (int64_t i = tile; i < tile_end; i++)
                for (int r = 0; r < ROWS; r++)
                    d[((i - tile) * K_BLOCK + k) * ROWS + r] =
                        i * ROWS + r < o->left ? row[i * ROWS + r] : 0;
        }
        for (int64_t column = 0; column < o->right; column += 4 * LANES) {
            int64_t count = o->right - column < 4 * LANES ? o->right - column : 4 * LANES;
            for (int64_t k = 0; k < depth; k++) {
                const REAL *row = NAME(row_of)(o->x, o->x_stride, o->x_rows, begin + k);
                memcpy(x + k * 4 * LANES, row + column, (size_t)count * sizeof(REAL));
                for (int64_t c = count; c < 4 * LANES; c++) x[k * 4 * LANES + c] = 0;
            }
            for (int64_t i = tile; i < tile_end; i++)
                NAME(outer_tile)(d + (i - tile) * K_BLOCK * ROWS, x, depth,
                                 (REAL *)o->sum + i * ROWS * o->sum_stride + column, o->sum_stride,
                                 o->left - i * ROWS, count);
        }
    }
    free(d);
    free(x);
}

int NAME(rnnop_outer)(const Outer *o)
{
    atomic_int status = OK;
    NAME(OuterRun) run = {o, &status};
    double work = (double)o->rows * (double)o->left * (double)o->right;
    rnnop_run_parts(NAME(outer_body), &run, work < MIN_THREADED_WORK ? 1 : (int)o->threads);
    return atomic_load(&status);
}

typedef struct {
    const Times *t;
    atomic_int *status;
} NAME(TimesRun);

/* A share of the rows of Y. */
static void NAME(times_body)(void *argument, Thread thread)
{
    const NAME(TimesRun) *run = argument;
    const Times *t = run->t;
    int64_t first = t->rows * thread.index / thread.threads;
    int64_t next = t->rows * (thread.index + 1) / thread.threads;
    REAL *sums = rnnop_aligned((size_t)(MOST_ROWS * 4 * LANES) * sizeof(REAL));
    if (!sums) {
        atomic_store(run->status, NO_MEMORY);
        return;
    }
    const REAL *rows[MOST_ROWS];
    int far = NAME(far)(t->columns, t->depth);
    for (int64_t begin = first; begin < next; begin += MOST_ROWS) {
        int64_t count = next - begin < MOST_ROWS ? next - begin : MOST_ROWS;
        for (int64_t j = 0; j < count; j++)
            rows[j] = (const REAL *)t->d + (begin + j) * t->d_stride;
        for (int64_t column = 0; column < t->columns; column += 4 * LANES) {
            int64_t left = t->columns - column;
            memset(sums, 0, (size_t)(count * 4 * LANES) * sizeof(REAL));
            NAME(panel)(count, 4, rows, t->depth, (const REAL *)t->packed + column * t->depth, sums,
                        4 * LANES, far);
            for (int64_t j = 0; j < count; j++) {
                int64_t row = t->y_rows ? t->y_rows[begin + j] : begin + j;
                REAL *y = (REAL *)t->y + row * t->columns + column;
                for (int64_t v = 0; v < 4 && left > v * LANES; v++) {
                    NAME(vec) sum = NAME(load)(sums + (j * 4 + v) * LANES);
                    if (t->add) sum += NAME(load_part)(y + v * LANES, left - v * LANES);
                    NAME(store_part)(y + v * LANES, sum, left - v * LANES);
                }
            }
        }
    }
    free(sums);
}

int NAME(rnnop_times)(const Times *t)
{
    atomic_int status = OK;
    NAME(TimesRun) run = {t, &status};
    double work = (double)t->rows * (double)t->depth * (double)t->columns;
    rnnop_run_parts(NAME(times_body), &run, work < MIN_THREADED_WORK ? 1 : (int)t->threads);
    return atomic_load(&status);
}

/* The input weights for `times`: (columns = input, depth = left), in panels. The input part of a
 * GRU comes in the order n, r, z, and so must its rows. */
void NAME(rnnop_pack_times)(const void *w, int64_t input, int64_t left, int64_t rotate, void *packed)
{
    for (int64_t first = 0; first < input; first += 4 * LANES)
        for (int64_t k = 0; k < left; k++) {
            const REAL *row = (const REAL *)w + (k < rotate ? left - rotate + k : k - rotate) * input;
            REAL *to = (REAL *)packed + first * left + k * 4 * LANES;
            int64_t count = input - first < 4 * LANES ? input - first : 4 * LANES;
            memcpy(to, row + first, (size_t)count * sizeof(REAL));
            memset(to + count, 0, (size_t)(4 * LANES - count) * sizeof(REAL));
        }
}
