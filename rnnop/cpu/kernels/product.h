/* Products of rows with packed weights: C += A B, the only hot loop of the engine.
 *
 * B is packed in panels of up to 4 vectors of columns:
 *
 *     panel 0: k = 0  | v0 v1 v2 v3 |      one row of a panel is `width` vectors of LANES columns,
 *              k = 1  | v0 v1 v2 v3 |      rows follow each other, so a panel is read front to back
 *              ...
 *     panel 1: ...
 *
 * What k counts, and `depth`, are operands (operand.h). A is given as a pointer for each row, so rows
 * may lie anywhere. A tile of ROWS x width vectors of C stays in registers while k runs over a block
 * of K_BLOCK rows, which stay in the first cache for all tiles. Every element of C is one chain of
 * multiply-adds in the order of k, whatever the tile: results do not depend on how many rows there
 * are, nor on the number of threads.
 */

static inline __attribute__((always_inline)) void NAME(tile)(
    const int rows, const int width, const REAL *const *a, int64_t begin, int64_t count,
    const REAL *b, REAL *c, int64_t c_stride)
{
    NAME(vec) sum[MAX_ROWS][4];
    const REAL *p[MAX_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        p[r] = a[r] + begin;
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) sum[r][v] = NAME(load)(c + r * c_stride + v * LANES);
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < count; k++) {
        /* Sums, and the shorter of a row of B and a column of A, are what registers hold. */
        if (rows < width) {
            NAME(vec) x[MAX_ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) x[r] = NAME(spread)(p[r] + k);
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) {
                NAME(vec) w = *(const NAME(vec) *)(b + (k * width + v) * LANES);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) sum[r][v] = NAME(add_term)(sum[r][v], x[r], w);
            }
        } else {
            NAME(vec) w[4];
#pragma GCC unroll 4
            for (int v = 0; v < width; v++)
                w[v] = *(const NAME(vec) *)(b + (k * width + v) * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                NAME(vec) x = NAME(spread)(p[r] + k);
#pragma GCC unroll 4
                for (int v = 0; v < width; v++)
                    sum[r][v] = NAME(add_term)(sum[r][v], x, w[v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) NAME(store)(c + r * c_stride + v * LANES, sum[r][v]);
}

#define TILE(ROWS, WIDTH)                                                                        \
    case (ROWS) * 8 + (WIDTH):                                                                   \
        NAME(tile)(ROWS, WIDTH, a, begin, count, b, c, c_stride);                                \
        return;

static void NAME(any_tile)(int rows, int width, const REAL *const *a, int64_t begin, int64_t count,
                           const REAL *b, REAL *c, int64_t c_stride)
{
    switch (rows * 8 + width) {
        TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4)
        TILE(2, 1) TILE(2, 2) TILE(2, 3) TILE(2, 4)
        TILE(3, 1) TILE(3, 2) TILE(3, 3) TILE(3, 4)
        TILE(4, 1) TILE(4, 2) TILE(4, 3)
#if MAX_ROWS >= 6
        TILE(4, 4)
        TILE(5, 1) TILE(5, 2) TILE(5, 3) TILE(5, 4)
        TILE(6, 1) TILE(6, 2) TILE(6, 3) TILE(6, 4)
#endif
    }
}

/* The most rows of a tile that leave registers for the weights. */
static inline int NAME(most_rows)(int width) { return MAX_ROWS > 4 ? 6 : width == 4 ? 3 : 4; }

/* Whether packed weights are so large that they must be fetched ahead of their use by hand. */
static inline int NAME(far)(int64_t columns, int64_t depth)
{
    return columns * depth * (int64_t)sizeof(REAL) > FAR_BYTES;
}

/* One panel: C (rows, width vectors, c_stride apart) += A (rows, depth) B. */
static void NAME(panel)(int64_t rows, int width, const REAL *const *a, int64_t depth,
                        const REAL *b, REAL *c, int64_t c_stride, int far)
{
    int64_t tiles = (rows + NAME(most_rows)(width) - 1) / NAME(most_rows)(width);
    for (int64_t begin = 0; begin < depth; begin += K_BLOCK) {
        int64_t count = depth - begin < K_BLOCK ? depth - begin : K_BLOCK;
        /* Each tile fetches a part of the block that comes next, here or in the panel that follows. */
        const char *ahead = (const char *)(b + (begin + count) * width * LANES);
        int64_t lines = far ? count * width * VECTOR_BYTES / 64 : 0;
        for (int64_t i = 0; i < tiles; i++) {
            int64_t first = rows * i / tiles, next = rows * (i + 1) / tiles;
            for (int64_t line = lines * i / tiles; line < lines * (i + 1) / tiles; line++)
                __builtin_prefetch(ahead + line * 64, 0, 2);
            NAME(any_tile)((int)(next - first), width, a + first, begin, count,
                           b + begin * width * LANES, c + first * c_stride, c_stride);
        }
    }
}

/* One row and two panels, for a batch of one: a single panel has too few chains of multiply-adds to
 * keep the processor busy. */
static inline __attribute__((always_inline)) void NAME(pair)(
    const int width, const REAL *a, int64_t depth, const REAL *b, const REAL *b2, REAL *c, REAL *c2)
{
    NAME(vec) sum[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < width; v++) {
        sum[0][v] = NAME(load)(c + v * LANES);
        sum[1][v] = NAME(load)(c2 + v * LANES);
    }
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; k++) {
        NAME(vec) x = NAME(spread)(a + k);
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) {
            NAME(vec) w = *(const NAME(vec) *)(b + (k * width + v) * LANES);
            NAME(vec) w2 = *(const NAME(vec) *)(b2 + (k * width + v) * LANES);
            sum[0][v] = NAME(add_term)(sum[0][v], x, w);
            sum[1][v] = NAME(add_term)(sum[1][v], x, w2);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < width; v++) {
        NAME(store)(c + v * LANES, sum[0][v]);
        NAME(store)(c2 + v * LANES, sum[1][v]);
    }
}

/* `count` panels that follow each other in B, with their C c_panel apart. */
static void NAME(panels)(int64_t count, int64_t rows, int width, const REAL *const *a,
                         int64_t depth, const REAL *b, REAL *c, int64_t c_stride, int64_t c_panel,
                         int far)
{
    int64_t q = 0, size = depth * width * LANES;
    for (; rows == 1 && width >= 3 && q + 1 < count; q += 2) {
        const REAL *first = b + q * size;
        if (width == 3)
            NAME(pair)(3, a[0], depth, first, first + size, c + q * c_panel, c + (q + 1) * c_panel);
        else
            NAME(pair)(4, a[0], depth, first, first + size, c + q * c_panel, c + (q + 1) * c_panel);
    }
    for (; q < count; q++)
        NAME(panel)(rows, width, a, depth, b + q * size, c + q * c_panel, c_stride, far);
}
