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

/* One vector of columns: packed[k * stride + lane] = row first + lane of the matrix, at column k. */
static void NAME(pack_vector)(const REAL *matrix, int64_t row_stride, int64_t column_stride,
                              int64_t first, int64_t limit, int64_t depth, REAL *packed,
                              int64_t stride)
{
    const REAL *corner = matrix + first * row_stride;
    int64_t real = limit - first < 0 ? 0 : limit - first < LANES ? limit - first : LANES;
    for (int64_t k = 0; k < depth; k++) {
        REAL *to = packed + k * stride;
        if (real == LANES)
            for (int64_t lane = 0; lane < LANES; lane++)
                to[lane] = corner[lane * row_stride + k * column_stride];
        else
            for (int64_t lane = 0; lane < LANES; lane++)
                to[lane] = lane < real ? corner[lane * row_stride + k * column_stride] : 0;
    }
}

/* Panels of (columns, depth) with no gates: column j of the product is row j of the matrix. */
static void NAME(pack_plain)(const REAL *matrix, int64_t row_stride, int64_t column_stride,
                             int64_t columns, int64_t depth, REAL *packed)
{
    for (int64_t first = 0; first < columns; first += 4 * LANES, packed += 4 * LANES * depth)
        for (int v = 0; v < 4; v++)
            NAME(pack_vector)(matrix, row_stride, column_stride, first + v * LANES, columns, depth,
                              packed + v * LANES, 4 * LANES);
}

/* Panels of gates: vector v of a unit block is gate order[v] of its units. */
static void NAME(pack_gates)(const REAL *matrix, const int *order, int width, int64_t hidden,
                             int64_t depth, REAL *packed)
{
    for (int64_t first = 0; first < hidden; first += LANES, packed += width * LANES * depth)
        for (int v = 0; v < width; v++)
            NAME(pack_vector)(matrix + order[v] * hidden * depth, depth, 1, first, hidden, depth,
                              packed + v * LANES, width * LANES);
}

/* Input and recurrent weights and biases of one pseudo-layer for the forward.
 *
 * The four slots of a unit block, in which its gates are summed:
 *     LSTM   i  f  g  o
 *     GRU    W_n x | r  z | R_n h     the input product fills slots 0-2, the recurrent one 1-3
 *     RNN    four vectors of units
 * With the reset before the product, the recurrent panels are r, z and `candidate` holds R_n.
 */
void NAME(rnnop_pack)(const Problem *p, const void *w_ih_, const void *w_hh_, const void *w_hr_,
                      const void *b_ih_, const void *b_hh_, void *input_, void *recurrent_,
                      void *candidate_, void *projection_, void *bias_)
{
    const REAL *w_ih = w_ih_, *w_hh = w_hh_, *w_hr = w_hr_, *b_ih = b_ih_, *b_hh = b_hh_;
    REAL *input = input_, *recurrent = recurrent_, *candidate = candidate_, *bias = bias_;
    static const int lstm[] = {0, 1, 2, 3}, gru_input[] = {2, 0, 1}, gru_recurrent[] = {0, 1, 2};
    int64_t H = p->hidden, P = p->output, I = p->input;
    if (p->cell == LSTM) {
        NAME(pack_gates)(w_ih, lstm, 4, H, I, input);
        NAME(pack_gates)(w_hh, lstm, 4, H, P, recurrent);
    } else if (p->cell == GRU) {
        NAME(pack_gates)(w_ih, gru_input, 3, H, I, input);
        NAME(pack_gates)(w_hh, gru_recurrent, 3, H, P, recurrent);
    } else if (p->cell == GRU_RESET_BEFORE) {
        NAME(pack_gates)(w_ih, gru_input, 3, H, I, input);
        NAME(pack_gates)(w_hh, gru_recurrent, 2, H, P, recurrent);
        NAME(pack_gates)(w_hh + 2 * H * P, gru_recurrent, 1, H, P, candidate);
    } else {
        NAME(pack_plain)(w_ih, I, 1, H, I, input);
        NAME(pack_plain)(w_hh, P, 1, H, P, recurrent);
    }
    if (p->projected) NAME(pack_plain)(w_hr, H, 1, P, H, projection_);

    int64_t block = NAME(block)(p->cell), blocks = NAME(blocks)(p->cell, H);
    memset(bias, 0, (size_t)(blocks * 4 * LANES) * sizeof(REAL));
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

/* Recurrent and projection weights for the backward: dh = dgates R, dm = dh W_hr. */
void NAME(rnnop_pack_backward)(const Problem *p, const void *w_hh_, const void *w_hr_,
                               void *recurrent_, void *candidate_, void *projection_)
{
    const REAL *w_hh = w_hh_;
    int64_t H = p->hidden, P = p->output;
    int64_t gates = p->cell == LSTM ? 4 : p->cell == GRU ? 3 : p->cell == GRU_RESET_BEFORE ? 2 : 1;
    NAME(pack_plain)(w_hh, 1, P, P, gates * H, recurrent_);
    if (p->cell == GRU_RESET_BEFORE) NAME(pack_plain)(w_hh + 2 * H * P, 1, P, P, H, candidate_);
    if (p->projected) NAME(pack_plain)(w_hr_, 1, H, H, P, projection_);
}

/* Elements of each packed array, in the order of Weights without the peephole. */
void NAME(rnnop_packed_sizes)(const Problem *p, int64_t *sizes)
{
    int64_t H = p->hidden, P = p->output, blocks = NAME(blocks)(p->cell, H);
    int64_t wide = 4 * LANES;
    int64_t input_width = p->cell == GRU || p->cell == GRU_RESET_BEFORE ? 3 : 4;
    int64_t width = p->cell == GRU ? 3 : p->cell == GRU_RESET_BEFORE ? 2 : 4;
    int64_t gates = p->cell == LSTM ? 4 : p->cell == GRU ? 3 : p->cell == GRU_RESET_BEFORE ? 2 : 1;
    sizes[0] = blocks * input_width * LANES * p->input;
    sizes[1] = blocks * width * LANES * P;
    sizes[2] = p->cell == GRU_RESET_BEFORE ? blocks * LANES * P : 0;
    sizes[3] = p->projected ? (P + wide - 1) / wide * wide * H : 0;
    sizes[4] = blocks * wide;
    sizes[5] = (P + wide - 1) / wide * wide * gates * H;
    sizes[6] = p->cell == GRU_RESET_BEFORE ? (P + wide - 1) / wide * wide * H : 0;
    sizes[7] = p->projected ? (H + wide - 1) / wide * wide * P : 0;
}
