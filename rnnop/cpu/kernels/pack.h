/* Weights into panels (the picture is in product.h).
 *
 * A unit block is the hidden units whose gates share a panel: LANES units with their gates side by
 * side, or 4 * LANES units of a plain RNN, which has one gate.
 */

/* How many hidden units a panel holds. */
static inline int64_t NAME(block)(int64_t cell) { return cell <= RNN_RELU ? 4 * LANES : LANES; }

static inline int64_t NAME(blocks)(int64_t cell, int64_t hidden)
{
    return (hidden + NAME(block)(cell) - 1) / NAME(block)(cell);
}

/* How many gates the recurrent product has. */
static inline int64_t NAME(recurrent_gates)(int64_t cell)
{
    return cell == LSTM ? 4 : cell == GRU ? 3 : cell == GRU_RESET_BEFORE ? 2 : 1;
}

/* LANES rows of LANES columns, transposed: one riffle of halves for each bit of an index. */
static inline void NAME(pack_square)(const REAL *from, int64_t row_stride, REAL *to,
                                     int64_t stride)
{
#ifdef HAS_SHUFFLE
    NAME(vec) v[VECTOR_BYTES / sizeof(REAL)], w[VECTOR_BYTES / sizeof(REAL)];
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; lane++) v[lane] = NAME(load)(from + lane * row_stride);
#pragma GCC unroll 4
    for (int stage = 1; stage < LANES; stage *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) w[i] = v[i];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            v[2 * i] = NAME(riffle)(w[i], w[i + LANES / 2], 0);
            v[2 * i + 1] = NAME(riffle)(w[i], w[i + LANES / 2], 1);
        }
    }
#pragma GCC unroll 16
    for (int k = 0; k < LANES; k++) *(NAME(vec) *)(to + k * stride) = v[k];
#else
    for (int64_t k = 0; k < LANES; k++)
        for (int64_t lane = 0; lane < LANES; lane++) to[k * stride + lane] = from[lane * row_stride + k];
#endif
}

/* to[i * stride + lane] = from at (lane, column i) for `count` columns; rows from `real` on read as 0. */
static inline void NAME(pack_corner)(const REAL *from, int64_t row_stride, int64_t column_stride,
                                     int64_t real, int64_t count, REAL *to, int64_t stride)
{
    if (real >= LANES && column_stride == 1 && count == LANES)
        NAME(pack_square)(from, row_stride, to, stride);
    else if (real >= LANES && row_stride == 1)
        for (int64_t i = 0; i < count; i++)
            *(NAME(vec) *)(to + i * stride) = NAME(load)(from + i * column_stride);
    else
        for (int64_t i = 0; i < count; i++)
            for (int64_t lane = 0; lane < LANES; lane++)
                to[i * stride + lane] =
                    lane < real ? from[lane * row_stride + i * column_stride] : 0;
}

/* One panel: vector v of its columns is rows `first`.. of matrices[v], of which those from `limit` on
 * read as 0; packed[(k * width + v) * LANES + lane] is operand k of matrices[v] at row first + lane.
 *
 * A cache line of a row is read at once: the rows lie far apart, often so that they drive each other
 * out of the first cache. So many streams are too many for the processor to fetch ahead by itself. */
static void NAME(pack_panel)(const REAL *const *matrices, int width, int64_t row_stride,
                             int64_t column_stride, const int64_t *first, int64_t limit,
                             int64_t depth, REAL *packed)
{
    int64_t stride = width * LANES, line = 64 / (int64_t)sizeof(REAL);
    for (int64_t k = 0; k < depth; k += line) {
        int64_t count = depth - k < line ? depth - k : line;
        for (int v = 0; v < width; v++) {
            const REAL *corner = matrices[v] + first[v] * row_stride + k * column_stride;
            int64_t real = limit - first[v];
            if (real >= LANES && column_stride == 1)
                for (int lane = 0; lane < LANES; lane++)
                    __builtin_prefetch(corner + lane * row_stride + 2 * line);
            for (int64_t i = 0; i < count; i += LANES) {
                int64_t few = count - i < LANES ? count - i : LANES;
                REAL *to = packed + NAME(steps)(k + i) * stride + v * LANES;
#ifdef BF16_PAIRS
                NAME(vec) square[VECTOR_BYTES / sizeof(REAL)];
                NAME(pack_corner)(corner + i * column_stride, row_stride, column_stride, real, few,
                                  (REAL *)square, LANES);
                NAME(join_rows)(square, few, to, stride);
#else
                NAME(pack_corner)(corner + i * column_stride, row_stride, column_stride, real, few,
                                  to, stride);
#endif
            }
        }
    }
}

/* Panels of (columns, depth) with no gates: column j of the product is row j of the matrix. Threads
 * take panels in turn. */
static void NAME(pack_plain)(Thread thread, const REAL *matrix, int64_t row_stride,
                             int64_t column_stride, int64_t columns, int64_t depth, REAL *packed)
{
    const REAL *matrices[] = {matrix, matrix, matrix, matrix};
    int64_t wide = 4 * LANES;
    for (int64_t at = thread.index * wide; at < columns; at += thread.threads * wide) {
        int64_t first[] = {at, at + LANES, at + 2 * LANES, at + 3 * LANES};
        NAME(pack_panel)(matrices, 4, row_stride, column_stride, first, columns, depth,
                         packed + at * NAME(steps)(depth));
    }
}

/* Panels of gates: vector v of a unit block is gate order[v] of its units. */
static void NAME(pack_gates)(Thread thread, const REAL *matrix, const int *order, int width,
                             int64_t hidden, int64_t depth, REAL *packed)
{
    const REAL *matrices[4];
    for (int v = 0; v < width; v++) matrices[v] = matrix + order[v] * hidden * depth;
    for (int64_t at = thread.index * LANES; at < hidden; at += thread.threads * LANES) {
        int64_t first[] = {at, at, at, at};
        NAME(pack_panel)(matrices, width, depth, 1, first, hidden, depth,
                         packed + at * width * NAME(steps)(depth));
    }
}

/* The sum of the biases of each slot of a unit block; b_hh of a GRU's n goes with R_n h. */
static void NAME(pack_biases)(const Problem *p, const REAL *b_ih, const REAL *b_hh, REAL *bias)
{
    int64_t H = p->hidden, block = NAME(block)(p->cell);
    memset(bias, 0, (size_t)(NAME(blocks)(p->cell, H) * 4 * LANES) * sizeof(REAL));
    for (int64_t unit = 0; unit < H; unit++) {
        REAL *slot = bias + unit / block * 4 * LANES + unit % block;
#define INPUT_BIAS(gate) (b_ih ? b_ih[(gate) * H + unit] : 0)
#define RECURRENT_BIAS(gate) (b_hh ? b_hh[(gate) * H + unit] : 0)
#define BOTH(gate) (INPUT_BIAS(gate) + RECURRENT_BIAS(gate))
        if (p->cell == LSTM) {
            for (int g = 0; g < 4; g++) slot[g * LANES] = BOTH(g);
        } else if (p->cell == GRU || p->cell == GRU_RESET_BEFORE) {
            int together = p->cell == GRU_RESET_BEFORE;
            slot[0] = together ? BOTH(2) : INPUT_BIAS(2);
            slot[LANES] = BOTH(0);
            slot[2 * LANES] = BOTH(1);
            slot[3 * LANES] = together ? 0 : RECURRENT_BIAS(2);
        } else {
            slot[0] = BOTH(0);
        }
#undef INPUT_BIAS
#undef RECURRENT_BIAS
#undef BOTH
    }
}

/* What is packed, and where each part goes. */
typedef struct {
    const Problem *p;
    const Given *given;
    REAL *input, *recurrent, *candidate, *projection, *bias;
} NAME(Packing);

/* Weights of one pseudo-layer for the forward.
 *
 * The four slots of a unit block, in which its gates are summed:
 *     LSTM   i  f  g  o
 *     GRU    W_n x | r  z | R_n h     the input product fills slots 0-2, the recurrent one 1-3
 *     RNN    four vectors of units
 * With the reset before the product, the recurrent panels are r, z and `candidate` holds R_n.
 */
static void NAME(pack_body)(void *argument, Thread thread)
{
    const NAME(Packing) *to = argument;
    const Problem *p = to->p;
    const REAL *w_ih = to->given->w_ih, *w_hh = to->given->w_hh;
    static const int lstm[] = {0, 1, 2, 3}, gru_input[] = {2, 0, 1}, gru_recurrent[] = {0, 1, 2};
    int64_t H = p->hidden, P = p->output, I = p->input;
    if (p->cell == LSTM) {
        NAME(pack_gates)(thread, w_ih, lstm, 4, H, I, to->input);
        NAME(pack_gates)(thread, w_hh, lstm, 4, H, P, to->recurrent);
    } else if (p->cell == GRU) {
        NAME(pack_gates)(thread, w_ih, gru_input, 3, H, I, to->input);
        NAME(pack_gates)(thread, w_hh, gru_recurrent, 3, H, P, to->recurrent);
    } else if (p->cell == GRU_RESET_BEFORE) {
        NAME(pack_gates)(thread, w_ih, gru_input, 3, H, I, to->input);
        NAME(pack_gates)(thread, w_hh, gru_recurrent, 2, H, P, to->recurrent);
        NAME(pack_gates)(thread, w_hh + 2 * H * P, gru_recurrent, 1, H, P, to->candidate);
    } else {
        NAME(pack_plain)(thread, w_ih, I, 1, H, I, to->input);
        NAME(pack_plain)(thread, w_hh, P, 1, H, P, to->recurrent);
    }
    if (p->projected) NAME(pack_plain)(thread, to->given->w_hr, H, 1, P, H, to->projection);
    if (thread.index == 0) NAME(pack_biases)(p, to->given->b_ih, to->given->b_hh, to->bias);
}

/* Recurrent and projection weights for the backward: dh = dgates R, dm = dh W_hr. */
static void NAME(pack_backward_body)(void *argument, Thread thread)
{
    const NAME(Packing) *to = argument;
    const Problem *p = to->p;
    const REAL *w_hh = to->given->w_hh;
    int64_t H = p->hidden, P = p->output, gates = NAME(recurrent_gates)(p->cell);
    NAME(pack_plain)(thread, w_hh, 1, P, P, gates * H, to->recurrent);
    if (p->cell == GRU_RESET_BEFORE)
        NAME(pack_plain)(thread, w_hh + 2 * H * P, 1, P, P, H, to->candidate);
    if (p->projected) NAME(pack_plain)(thread, to->given->w_hr, 1, H, H, P, to->projection);
}

/* Deal `room` out to the parts of the packed weights, and return the elements that they take. */
static int64_t NAME(lay_out)(NAME(Packing) *to, int backward, REAL *room)
{
    const Problem *p = to->p;
    int64_t H = p->hidden, wide = 4 * LANES, taken = 0;
    int64_t columns = (p->output + wide - 1) / wide * wide, units = (H + wide - 1) / wide * wide;
    int64_t input = NAME(steps)(p->input), output = NAME(steps)(p->output);
    int64_t blocks = NAME(blocks)(p->cell, H), gates = NAME(recurrent_gates)(p->cell);
    int is_gru = p->cell == GRU || p->cell == GRU_RESET_BEFORE, resets = p->cell == GRU_RESET_BEFORE;
    int64_t width = p->cell <= RNN_RELU ? 4 : gates;
#define PART(name, elements)                                                                     \
    to->name = room + taken;                                                                     \
    taken += ((elements) + wide - 1) / wide * wide;
    if (backward) {
        PART(recurrent, columns * NAME(steps)(gates * H))
        PART(candidate, resets ? columns * NAME(steps)(H) : 0)
        PART(projection, p->projected ? units * output : 0)
    } else {
        PART(input, blocks * (is_gru ? 3 : 4) * LANES * input)
        PART(recurrent, blocks * width * LANES * output)
        PART(candidate, resets ? blocks * LANES * output : 0)
        PART(projection, p->projected ? columns * NAME(steps)(H) : 0)
        PART(bias, blocks * wide)
    }
#undef PART
    return taken;
}

int64_t NAME(rnnop_packed_size)(const Problem *p, int backward)
{
    NAME(Packing) to = {.p = p};
    return NAME(lay_out)(&to, backward, 0);
}

void NAME(rnnop_pack)(const Problem *p, const Given *given, int backward, void *room, Weights *w)
{
    NAME(Packing) to = {.p = p, .given = given};
    int64_t size = NAME(lay_out)(&to, backward, room);
    *w = (Weights){to.input, to.recurrent, to.candidate, to.projection, to.bias, given->peephole};
    rnnop_run_parts(backward ? NAME(pack_backward_body) : NAME(pack_body), &to,
                    size < MIN_THREADED_PACKING ? 1 : (int)p->threads);
}
