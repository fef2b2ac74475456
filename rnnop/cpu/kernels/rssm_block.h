/* The block GRU of an RSSM: features of belief, state and action, then layers in blocks, then
 * Dreamer's update.
 *
 * A block of such a layer reads the same block of what lies below; the first also reads all
 * features, which no blocks divide. Blocks need not be whole vectors, so their products are summed in
 * columns with a gap behind each block: `blocks` of a part, in which gate g of block b begins at
 * (gates * b + g) * wide(size). Threads that share columns own panels of these, and for norms and
 * features columns of the whole row, as everywhere; between the two they meet.
 */

typedef struct {
    int64_t size, wide, panels; /* of a block */
    int64_t begin, end;         /* panels of this thread, of all blocks */
} NAME(Blocks);

static NAME(Blocks) NAME(my_blocks)(const NAME(Part) *part)
{
    int64_t B = part->r->blocks, size = part->r->belief / B;
    int64_t i = part->thread.index, threads = part->thread.threads;
    NAME(Blocks) s = {.size = size, .wide = NAME(wide)(size), .panels = NAME(cuts)(size)};
    s.begin = part->alone ? 0 : B * s.panels * i / threads;
    s.end = part->alone ? B * s.panels : B * s.panels * (i + 1) / threads;
    return s;
}

/* The panels of block b that are this thread's; their columns. */
static inline int64_t NAME(first_panel)(const NAME(Blocks) *s, int64_t b)
{
    return s->begin > b * s->panels ? s->begin - b * s->panels : 0;
}

static inline int64_t NAME(end_panel)(const NAME(Blocks) *s, int64_t b)
{
    return s->end < (b + 1) * s->panels ? s->end - b * s->panels : s->panels;
}

#define EACH_BLOCK(b) for (int64_t b = s.begin / s.panels; b * s.panels < s.end; b++)
#define EACH_ROW_AND_VECTOR(b, j, v)                                                             \
    for (int64_t j = 0; j < part->n; j++)                                                        \
        for (int64_t v = NAME(cut)(s.size, NAME(first_panel)(&s, b)) * LANES;                    \
             v < s.size && v < NAME(cut)(s.size, NAME(end_panel)(&s, b)) * LANES; v += LANES)

/* Begin the sums of layers with `gates` gates with the packed bias; null for zeros. */
static void NAME(begin_blocks)(const NAME(Part) *part, const REAL *bias, int64_t gates)
{
    NAME(Blocks) s = NAME(my_blocks)(part);
    int64_t stride = part->r->blocks * gates * s.wide;
    EACH_BLOCK(b) EACH_ROW_AND_VECTOR(b, j, v)
        for (int64_t at = b * gates * s.wide + v; at < (b + 1) * gates * s.wide; at += s.wide)
            NAME(store)(part->blocks + j * stride + at, bias ? NAME(load)(bias + at) : NAME(splat)(0));
}

/* Add the products of every block with what it reads of the rows: `depth` columns, those of the next
 * block `step` further on. */
static void NAME(multiply_blocks)(const NAME(Part) *part, const REAL *const *rows, int64_t step,
                                  int64_t depth, const REAL *packed, int64_t gates)
{
    NAME(Blocks) s = NAME(my_blocks)(part);
    int64_t stride = part->r->blocks * gates * s.wide;
    EACH_BLOCK(b) {
        for (int64_t j = 0; j < part->n; j++) part->block_rows[j] = rows[j] + b * step;
        for (int64_t at = b * gates * s.wide; at < (b + 1) * gates * s.wide; at += s.wide)
            NAME(multiply)(part, part->block_rows, depth, packed + at * depth, s.size,
                           NAME(first_panel)(&s, b), NAME(end_panel)(&s, b), part->blocks + at,
                           stride);
    }
}

/* The sums, without gaps, into rows of `to`, or added to them. */
static void NAME(close_blocks)(const NAME(Part) *part, REAL *to, int add)
{
    NAME(Blocks) s = NAME(my_blocks)(part);
    int64_t B = part->r->blocks, stride = NAME(wide)(part->r->belief);
    EACH_BLOCK(b) EACH_ROW_AND_VECTOR(b, j, v) {
        NAME(vec) sum = NAME(load)(part->blocks + (j * B + b) * s.wide + v);
        REAL *y = to + j * stride + b * s.size + v;
        NAME(store_part)(y, add ? sum + NAME(load_part)(y, s.size - v) : sum, s.size - v);
    }
}

/* What belief, state and action of rows `at`.. say, through a layer each and into the sums. */
static void NAME(add_features)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    int64_t n = part->n, X = r->inputs->out, given = NAME(wide)(r->state + r->action);
    const REAL *y[3];
    for (int k = 0; k < 3; k++) {
        NAME(point)(part->rows, n, part->input + (k == 2 ? r->state : 0), 0, given);
        y[k] = NAME(layer)(part, r->inputs + k, k ? part->rows : part->more, at, 0);
    }
    for (int k = 0; k < 3; k++) {
        NAME(point)(part->rows, n, y[k], 0, NAME(wide)(X));
        NAME(multiply_blocks)(part, part->rows, 0, X, r->features[k], 1);
    }
}

/* y of a hidden layer in blocks, from its sums, into part->rows. */
static void NAME(finish_blocks)(NAME(Part) *part, const Layer *l, int64_t at)
{
    int64_t stride = NAME(wide)(l->out), q, q_end;
    REAL *y = NAME(place)(part, l, 0), *c = l->norm == NO_NORM ? y : y + part->n * stride;
    NAME(close_blocks)(part, c, 0);
    NAME(meet)(part);
    NAME(share)(part, l->out, &q, &q_end);
    NAME(finish)(part, l, c, y, at, NAME(cut)(l->out, q) * LANES, NAME(cut)(l->out, q_end) * LANES,
                 1);
    NAME(meet)(part);
    NAME(point)(part->rows, part->n, y, 0, stride);
}

/* The beliefs of rows `at`.. from the sums of their gates. */
static void NAME(update_blocks)(NAME(Part) *part, const Layer *gates, int64_t at)
{
    const Rssm *r = part->r;
    NAME(Blocks) s = NAME(my_blocks)(part);
    EACH_BLOCK(b) EACH_ROW_AND_VECTOR(b, j, v) {
        int64_t count = s.size - v, unit = b * s.size + v, row = at + j;
        const REAL *from = part->blocks + (j * r->blocks + b) * 3 * s.wide + v;
        NAME(vec) a[3] = {NAME(load)(from), NAME(load)(from + s.wide), NAME(load)(from + 2 * s.wide)};
        NAME(vec) h = NAME(load_part)(part->more[j] + unit, count);
        NAME(store_part)((REAL *)r->beliefs + row * r->belief + unit,
                         NAME(updated)(a[0], a[1], a[2], h), count);
        for (int64_t g = 0; gates->y && g < 3; g++)
            NAME(store_part)((REAL *)gates->y + row * gates->out + (3 * b + g) * s.size + v, a[g],
                             count);
    }
}

/* The beliefs of rows `at`.., from state and action in part->input and the beliefs before in
 * part->more. */
static void NAME(rssm_block_gru)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    const Layer *l = r->dynamics, *last = l + r->num_dynamics - 1;
    int64_t size = l->in;
    NAME(begin_blocks)(part, l->bias, 1);
    NAME(multiply_blocks)(part, part->more, size, size, l->forward, 1);
    NAME(add_features)(part, at);
    for (; l < last; l++) {
        NAME(finish_blocks)(part, l, at);
        int64_t gates = l + 1 == last ? 3 : 1;
        NAME(begin_blocks)(part, l[1].bias, gates);
        NAME(multiply_blocks)(part, part->rows, size, size, l[1].forward, gates);
    }
    NAME(update_blocks)(part, last, at);
}

/* From dbelief after rows `at`.. to dbelief before them and, in part->rows, the gradients of the
 * products of the layer that reads the state. */
static void NAME(rssm_block_gru_back)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    const Layer *l = r->dynamics + r->num_dynamics - 1;
    NAME(Blocks) s = NAME(my_blocks)(part);
    int64_t H = r->belief, X = r->inputs->out, n = part->n, to = NAME(of_stretch)(r, at), q, q_end;
    NAME(meet)(part);
    EACH_BLOCK(b) EACH_ROW_AND_VECTOR(b, j, v) {
        int64_t unit = b * s.size + v, gate = 3 * b * s.size + v;
        NAME(update_back)((const REAL *)l->y + (at + j) * 3 * H + gate, s.size,
                          NAME(belief_before)(r, at + j) + unit, s.size - v,
                          part->dbelief + j * NAME(wide)(H) + unit,
                          (REAL *)l->d + (to + j) * 3 * H + gate);
    }
    NAME(meet)(part);
    for (;; l--) {
        int64_t rows = l->out / r->blocks;
        REAL *dx = l == r->dynamics ? part->dbelief : NAME(place)(part, l - 1, 0);
        NAME(point)(part->rows, n, l->d, to, l->out);
        NAME(begin_blocks)(part, 0, 1);
        NAME(multiply_blocks)(part, part->rows, rows, rows, l->backward, 1);
        NAME(close_blocks)(part, dx, l == r->dynamics);
        if (l == r->dynamics) break;
        NAME(meet)(part);
        NAME(layer_back)(part, l - 1, at, to);
        NAME(meet)(part);
    }
    for (int k = 0; k < 3; k++) {
        const Layer *f = r->inputs + k;
        NAME(share)(part, X, &q, &q_end);
        NAME(clear)(part, X, q, q_end, NAME(place)(part, f, 0));
        NAME(pull)(part, r->features[k], X, H, q, q_end, NAME(place)(part, f, 0));
        NAME(layer_back)(part, f, at, to);
    }
    NAME(meet)(part);
    NAME(point)(part->rows, n, r->inputs->d, to, X);
    NAME(share)(part, H, &q, &q_end);
    NAME(pull)(part, r->inputs->backward, H, X, q, q_end, part->dbelief);
    NAME(point)(part->rows, n, r->inputs[1].d, to, X);
}

/* Gradients of the weights, as rnnop_rssm_sums: of the features' layers and of those in blocks. */
static int NAME(add_blocks)(const Rssm *r, int64_t row, int64_t rows)
{
    int64_t H = r->belief, S = r->state, A = r->action, X = r->inputs->out, B = r->blocks;
    int64_t size = H / B, stride = size + 3 * X;
    const Layer *f = r->inputs, *first = r->dynamics;
    const REAL *given = (const REAL *)r->given + row * (S + A), *d = first->d;
    REAL *dw = first->dw;
    int status = NAME(add_recurrent)(r, row, rows, f[0].d, X, X, 0, H, f[0].dw, H);
#define THEN(call) status = status == OK ? (call) : status
    THEN(NAME(add_outer)(r, rows, f[1].d, X, X, given, S + A, S, f[1].dw, S));
    THEN(NAME(add_outer)(r, rows, f[2].d, X, X, given + S, S + A, A, f[2].dw, A));
    for (int64_t k = 0; k < 3; k++)
        THEN(NAME(add_outer)(r, rows, d, H, H, (const REAL *)f[k].y + row * X, X, X,
                             dw + size + k * X, stride));
    for (int64_t b = 0; b < B; b++)
        THEN(NAME(add_recurrent)(r, row, rows, d + b * size, size, H, b * size, size,
                                 dw + b * size * stride, stride));
    for (const Layer *l = first + 1; l < first + r->num_dynamics; l++)
        for (int64_t b = 0, left = l->out / B; b < B; b++)
            THEN(NAME(add_outer)(r, rows, (const REAL *)l->d + b * left, left, l->out,
                                 (const REAL *)l[-1].y + row * H + b * size, H, size,
                                 (REAL *)l->dw + b * left * size, size));
#undef THEN
    for (int64_t k = 0; k < 3; k++) NAME(add_vectors)(r, rows, f + k);
    for (int64_t k = 0; k < r->num_dynamics; k++) NAME(add_vectors)(r, rows, first + k);
    return status;
}

#undef EACH_BLOCK
#undef EACH_ROW_AND_VECTOR
