/* The gradient of an RSSM, against time; then the gradients of the weights, of many steps at once.
 *
 * Rows and columns are dealt out as in the forward. What a stretch of steps leaves are the gradients
 * of all products, from which those of the weights are summed in the order of the rows.
 */

static void NAME(rssm_block_gru_back)(NAME(Part) *part, int64_t at); /* rssm_block.h */
static int NAME(add_blocks)(const Rssm *r, int64_t row, int64_t rows);
static void NAME(rssm_act_back)(NAME(Part) *part, int64_t at, int64_t begin, int64_t end);
static int NAME(add_actor)(const Rssm *r, int64_t row, int64_t rows); /* rssm_actor.h */

/* Row of a stretch, from its number among all. */
static inline int64_t NAME(of_stretch)(const Rssm *r, int64_t row)
{
    return row - r->stretch * r->batch;
}

/* dx = d W of the first columns of a layer, in panels q..q_end; added to what dx holds. */
static void NAME(pull)(NAME(Part) *part, const REAL *packed, int64_t columns, int64_t depth,
                       int64_t q, int64_t q_end, REAL *dx)
{
    NAME(multiply)(part, part->rows, depth, packed, columns, q, q_end, dx, NAME(wide)(columns));
}

/* Zeros in the columns of panels q..q_end. */
static void NAME(clear)(const NAME(Part) *part, int64_t columns, int64_t q, int64_t q_end, REAL *dx)
{
    int64_t begin = NAME(cut)(columns, q) * LANES, end = NAME(cut)(columns, q_end) * LANES;
    for (int64_t j = 0; j < part->n; j++)
        memset(dx + j * NAME(wide)(columns) + begin, 0, (size_t)(end - begin) * sizeof(REAL));
}

/* From the gradients of the products of layer `l`, in part->rows, to those of the layer below. */
static void NAME(down)(NAME(Part) *part, const Layer *l, const Layer *below, int64_t at)
{
    int64_t q, q_end;
    REAL *dx = NAME(place)(part, below, 0);
    NAME(share)(part, below->out, &q, &q_end);
    NAME(clear)(part, below->out, q, q_end, dx);
    NAME(pull)(part, l->backward, below->out, l->out, q, q_end, dx);
    int64_t to = NAME(of_stretch)(part->r, at);
    NAME(layer_back)(part, below, at, to);
    NAME(meet)(part);
    NAME(point)(part->rows, part->n, below->d, to, below->out);
}

/* A head on rows `at`..: what its gradients, and dstate if any, give for the beliefs is added to
 * columns of dbelief. */
static void NAME(rssm_head_back)(NAME(Part) *part, const Layer *layers, int64_t count, int64_t at,
                                 const Drawn *of, const REAL *dstate, REAL *dbelief)
{
    const Rssm *r = part->r;
    const Layer *last = layers + count - 1;
    int64_t stride = NAME(wide)(last->out), to = NAME(of_stretch)(r, at), q, q_end;
    REAL *dout = NAME(place)(part, last, 1); /* each thread has all of it */
    for (int64_t j = 0; j < part->n; j++) {
        NAME(draw_back)(r, of, at + j, dstate ? dstate + j * NAME(wide)(r->state) : 0,
                        dout + j * stride, part->spare);
        if (part->writes)
            memcpy((REAL *)last->d + (to + j) * last->out, dout + j * stride,
                   (size_t)last->out * sizeof(REAL));
    }
    NAME(point)(part->rows, part->n, dout, 0, stride);
    for (int64_t k = count - 1; k > 0; k--) NAME(down)(part, layers + k, layers + k - 1, at);
    NAME(share)(part, r->belief, &q, &q_end);
    NAME(pull)(part, layers->backward, r->belief, layers->out, q, q_end, dbelief);
}

/* Gradients of gates, and what of dbelief goes past them: of the columns v.. of row `row`. */
static inline void NAME(rssm_gates_back)(const Rssm *r, int64_t row, int64_t v, REAL *dbelief)
{
    int64_t H = r->belief, count = H - v;
    const REAL *gates = (const REAL *)r->gates + row * 4 * H + v;
    REAL *d = (REAL *)r->d_gates + NAME(of_stretch)(r, row) * 4 * H + v;
    NAME(vec) reset = NAME(load_part)(gates, count), z = NAME(load_part)(gates + H, count);
    NAME(vec) n = NAME(load_part)(gates + 2 * H, count), q = NAME(load_part)(gates + 3 * H, count);
    NAME(vec) h = NAME(load_part)(NAME(belief_before)(r, row) + v, count);
    NAME(vec) dh = NAME(load)(dbelief);
    NAME(vec) d_n = dh * (1 - z) * (1 - n * n);
    NAME(store_part)(d + H, dh * (h - n) * z * (1 - z), count);
    NAME(store_part)(d + 2 * H, d_n, count);
    NAME(store)(dbelief, dh * z);
    if (r->cell == RSSM_GRU_RESET_BEFORE) return; /* d_r follows, when that of r * h is known */
    NAME(store_part)(d, d_n * q * reset * (1 - reset), count);
    NAME(store_part)(d + 3 * H, d_n * reset, count);
}

static inline void NAME(rssm_reset_back)(const Rssm *r, int64_t row, int64_t v, const REAL *dreset,
                                         REAL *dbelief)
{
    int64_t H = r->belief, count = H - v;
    NAME(vec) reset = NAME(load_part)((const REAL *)r->gates + row * 4 * H + v, count);
    NAME(vec) h = NAME(load_part)(NAME(belief_before)(r, row) + v, count);
    NAME(vec) d_rh = NAME(load)(dreset);
    NAME(store_part)((REAL *)r->d_gates + NAME(of_stretch)(r, row) * 4 * H + v,
                     d_rh * h * reset * (1 - reset), count);
    NAME(store)(dbelief, NAME(load)(dbelief) + d_rh * reset);
}

/* Dreamer's update: from dbelief to the gradients of r, u and n, whose sums a are `gap` apart, and
 * to what goes past them. */
static inline void NAME(update_back)(const REAL *a, int64_t gap, const REAL *before, int64_t count,
                                     REAL *dbelief, REAL *da)
{
    NAME(vec) a_n = NAME(load_part)(a + 2 * gap, count);
    NAME(vec) reset = NAME(sigmoid)(NAME(load_part)(a, count));
    NAME(vec) u = NAME(sigmoid)(NAME(load_part)(a + gap, count) - 1), n = NAME(tanh)(reset * a_n);
    NAME(vec) h = NAME(load_part)(before, count), dh = NAME(load_part)(dbelief, count);
    NAME(vec) d = dh * u * (1 - n * n);
    NAME(store_part)(da, d * a_n * reset * (1 - reset), count);
    NAME(store_part)(da + gap, dh * (n - h) * u * (1 - u), count);
    NAME(store_part)(da + 2 * gap, d * reset, count);
    NAME(store_part)(dbelief, dh * (1 - u), count);
}

/* From dbelief after rows `at`.. to dbelief before them and, in part->rows, the gradients of the
 * products of the layer that reads the state. */
static void NAME(rssm_gru_back)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    const Layer *input = r->inputs + r->num_inputs - 1;
    int64_t H = r->belief, n = part->n, stride = NAME(wide)(H), to = NAME(of_stretch)(r, at);
    int64_t q, q_end, x, x_end, gates = 4 * H;
    const REAL *d = r->d_gates;
    REAL *dx = NAME(place)(part, input, 0), *sums = 0;
    NAME(share)(part, H, &q, &q_end);
    NAME(share)(part, input->out, &x, &x_end);
    int64_t end = NAME(cut)(H, q_end) * LANES < H ? NAME(cut)(H, q_end) * LANES : H;
#define EACH(v)                                                                                  \
    for (int64_t j = 0; j < n; j++)                                                              \
        for (int64_t v = NAME(cut)(H, q) * LANES; v < end; v += LANES)
    if (r->gru) {
        sums = NAME(place)(part, r->gru, 0);
        EACH(v) NAME(update_back)((const REAL *)r->gru->y + (at + j) * 3 * H + v, H,
                                  NAME(belief_before)(r, at + j) + v, H - v,
                                  part->dbelief + j * stride + v,
                                  sums + j * NAME(wide)(3 * H) + v);
        NAME(meet)(part);
        NAME(layer_back)(part, r->gru, at, to);
        d = r->gru->d;
        gates = 3 * H;
    } else {
        EACH(v) NAME(rssm_gates_back)(r, at + j, v, part->dbelief + j * stride + v);
    }
    NAME(meet)(part);
    if (r->cell == RSSM_GRU_RESET_BEFORE) {
        NAME(clear)(part, H, q, q_end, part->dreset);
        NAME(point)(part->rows, n, d + 2 * H, to, gates);
        NAME(pull)(part, r->gru_candidate, H, H, q, q_end, part->dreset);
        EACH(v) NAME(rssm_reset_back)(r, at + j, v, part->dreset + j * stride + v,
                                      part->dbelief + j * stride + v);
        NAME(meet)(part);
    }
#undef EACH
    if (r->cell == RSSM_GRU) {
        NAME(point)(part->rows, n, d + 3 * H, to, gates);
        NAME(pull)(part, r->gru_candidate, H, H, q, q_end, part->dbelief);
    }
    NAME(point)(part->rows, n, d, to, gates);
    NAME(pull)(part, r->gru_recurrent, H, r->gru ? 3 * H : 2 * H, q, q_end, part->dbelief);
    NAME(clear)(part, input->out, x, x_end, dx);
    NAME(pull)(part, r->gru_input, input->out, 3 * H, x, x_end, dx);
    NAME(layer_back)(part, input, at, to);
    NAME(meet)(part);
    NAME(point)(part->rows, n, input->d, to, input->out);
    for (; input > r->inputs; input--) NAME(down)(part, input, input - 1, at);
}

/* Add rows of an array, null for zeros, to the columns begin..end of what a part holds. */
static void NAME(add_rows)(const NAME(Part) *part, const void *array, int64_t row, int64_t size,
                           int64_t begin, int64_t end, REAL *to)
{
    if (!array) return;
    for (int64_t j = 0; j < part->n; j++)
        for (int64_t v = begin; v < end && v < size; v += LANES) {
            REAL *at = to + j * NAME(wide)(size) + v;
            const REAL *more = (const REAL *)array + (row + j) * size + v;
            NAME(store)(at, NAME(load)(at) + NAME(load_part)(more, size - v));
        }
}

/* Copy columns begin..end between an array (., size) and the rows of a part. */
static void NAME(move_rows)(const NAME(Part) *part, REAL *array, int64_t size, int64_t begin,
                            int64_t end, REAL *rows, int into)
{
    if (end > size) end = size;
    for (int64_t j = 0; j < part->n && end > begin; j++) {
        REAL *one = array + (part->first + j) * size + begin, *other = rows + j * NAME(wide)(size) + begin;
        memcpy(into ? other : one, into ? one : other, (size_t)(end - begin) * sizeof(REAL));
    }
}

static void NAME(backward_part)(NAME(Part) *part, NAME(RssmRun) *run)
{
    const Rssm *r = part->r;
    const Layer *input = r->inputs + (r->dynamics != 0); /* that reads the state */
    int64_t S = r->state, H = r->belief, N = r->batch, q, q_end, s = 0, s_end = NAME(cuts)(S);
    NAME(share)(part, H, &q, &q_end);
    int64_t begin = NAME(cut)(H, q) * LANES, end = NAME(cut)(H, q_end) * LANES;
    REAL *dstate = part->dstate, *dbelief = part->dbelief;
    NAME(move_rows)(part, r->dstate, S, 0, S, dstate, 1);
    NAME(move_rows)(part, r->dbelief, H, begin, end, dbelief, 1);
    for (int64_t t = run->end - 1; t >= run->begin; t--) {
        int64_t at = t * N + part->first;
        NAME(add_rows)(part, r->dstates, at, S, 0, S, dstate);
        NAME(add_rows)(part, r->dbeliefs, at, H, begin, end, dbelief);
        NAME(add_rows)(part, r->d_prior, NAME(of_stretch)(r, at), H, begin, end, dbelief);
        NAME(rssm_head_back)(part, r->head, r->num_head, at, &r->drawn, dstate, dbelief);
        if (r->dynamics) NAME(rssm_block_gru_back)(part, at);
        else NAME(rssm_gru_back)(part, at);
        if (r->actor) {
            NAME(rssm_act_back)(part, at, begin, end);
        } else {
            NAME(clear)(part, S, s, s_end, dstate);
            NAME(pull)(part, input->backward, S, input->out, s, s_end, dstate);
        }
        for (int64_t j = 0; r->first && j < part->n; j++) {
            int64_t episode = r->first[at + j];
            if (episode < 0) continue;
            REAL *ds = dstate + j * NAME(wide)(S), *dh = dbelief + j * NAME(wide)(H);
            int64_t last = end < H ? end : H;
            if (part->writes)
                memcpy((REAL *)r->first_dstate + episode * S, ds, (size_t)S * sizeof(REAL));
            for (int64_t v = begin; v < last; v++) {
                ((REAL *)r->first_dbelief)[episode * H + v] = dh[v];
                dh[v] = 0;
            }
            memset(ds, 0, (size_t)S * sizeof(REAL));
        }
    }
    NAME(meet)(part); /* all have read what follows */
    if (part->writes) NAME(move_rows)(part, r->dstate, S, 0, S, dstate, 0);
    NAME(move_rows)(part, r->dbelief, H, begin, end, dbelief, 0);
}

static void NAME(rssm_backward_body)(void *argument, Thread thread)
{
    NAME(RssmRun) *run = argument;
    NAME(rssm_parts)(run, thread, 0, run->r->batch, NAME(backward_part));
}

/* What the gradients of the prior's own parameters give for the beliefs. */
static void NAME(prior_back_part)(NAME(Part) *part, NAME(RssmRun) *run)
{
    const Rssm *r = part->r;
    int64_t H = r->belief, at = part->first, stride = NAME(wide)(H);
    (void)run;
    NAME(clear)(part, H, 0, NAME(cuts)(H), part->dbelief);
    NAME(rssm_head_back)(part, r->prior, r->num_prior, at, &r->from_prior, 0, part->dbelief);
    for (int64_t j = 0; j < part->n; j++)
        memcpy((REAL *)r->d_prior + (NAME(of_stretch)(r, at) + j) * H, part->dbelief + j * stride,
               (size_t)H * sizeof(REAL));
}

static void NAME(rssm_prior_back_body)(void *argument, Thread thread)
{
    NAME(RssmRun) *run = argument;
    int64_t N = run->r->batch;
    NAME(rssm_parts)(run, thread, run->begin * N, (run->end - run->begin) * N,
                     NAME(prior_back_part));
}

/* Gradients of what is known before the loop, through the columns of a layer that read it. */
static int NAME(known_back)(const Rssm *r, const Layer *l, int64_t begin, int64_t end,
                            int64_t columns, void *to)
{
    int64_t rows = (end - begin) * r->batch;
    Times times = {.rows = rows, .depth = l->out, .columns = columns, .threads = r->threads,
                   .d = (const REAL *)l->d + NAME(of_stretch)(r, begin * r->batch) * l->out,
                   .d_stride = l->out, .packed = l->backward_known,
                   .y = (REAL *)to + begin * r->batch * columns};
    return NAME(rnnop_times)(&times);
}

/* Steps begin..end of the stretch that r->stretch says, the later ones being done. */
int NAME(rnnop_rssm_backward)(Rssm *r, int64_t begin, int64_t end)
{
    NAME(RssmRun) run = {.r = r, .begin = begin, .end = end, .backward = 1};
    int status = OK;
    if (begin >= end || r->batch == 0) return OK;
    if (r->d_prior) status = NAME(rssm_run_rows)(run, NAME(rssm_prior_back_body));
    if (status == OK) status = NAME(rssm_run)(run, NAME(rssm_backward_body));
    if (status != OK || r->actor) return status;
    status = NAME(known_back)(r, r->inputs + (r->dynamics ? 2 : 0), begin, end, r->action,
                              r->dactions);
    for (int64_t i = begin * r->batch * r->action; i < end * r->batch * r->action; i++)
        ((REAL *)r->dactions)[i] /= NAME(over)(r, ((const REAL *)r->actions)[i]);
    if (status == OK && r->embed)
        status = NAME(known_back)(r, r->head, begin, end, r->embed, r->dembeds);
    return status;
}

/* sum (columns) += the rows of an array: threads own columns. */
typedef struct {
    int64_t rows, columns;
    const REAL *from;
    REAL *sum;
} NAME(Columns);

static void NAME(columns_body)(void *argument, Thread thread)
{
    const NAME(Columns) *c = argument;
    int64_t vectors = NAME(vectors)(c->columns), i = thread.index, n = thread.threads;
    for (int64_t block = vectors * i / n; block < vectors * (i + 1) / n; block += 8) {
        int64_t end = block + 8 < vectors * (i + 1) / n ? block + 8 : vectors * (i + 1) / n;
        for (int64_t row = 0; row < c->rows; row++)
            for (int64_t v = block; v < end; v++) {
                int64_t count = c->columns - v * LANES;
                REAL *to = c->sum + v * LANES;
                const REAL *from = c->from + row * c->columns + v * LANES;
                NAME(store_part)(to, NAME(load_part)(to, count) + NAME(load_part)(from, count), count);
            }
    }
}

static void NAME(add_columns)(const Rssm *r, int64_t rows, int64_t columns, const void *from,
                              void *sum)
{
    NAME(Columns) c = {rows, columns, from, sum};
    if (from && sum)
        rnnop_run_parts(NAME(columns_body), &c,
                        (double)rows * (double)columns < MIN_THREADED_WORK ? 1 : (int)r->threads);
}

/* sum (left, .) += D' X, over the rows of a stretch. */
static int NAME(add_outer)(const Rssm *r, int64_t rows, const void *d, int64_t left,
                           int64_t d_stride, const void *x, int64_t x_stride, int64_t right,
                           void *sum, int64_t sum_stride)
{
    Outer o = {.rows = rows, .left = left, .right = right, .threads = r->threads, .d = d,
               .d_stride = d_stride, .x = x, .x_stride = x_stride, .sum = sum,
               .sum_stride = sum_stride};
    return NAME(rnnop_outer)(&o);
}

/* sum (left, right) += D' times columns of the beliefs that the rows began with; those of the first
 * step may lie elsewhere. */
static int NAME(add_recurrent)(const Rssm *r, int64_t row, int64_t rows, const REAL *d,
                               int64_t left, int64_t d_stride, int64_t column, int64_t right,
                               REAL *sum, int64_t sum_stride)
{
    int64_t H = r->belief, first = r->before || row ? rows : r->batch;
    int status = NAME(add_outer)(r, first, d, left, d_stride, NAME(belief_before)(r, row) + column,
                                 H, right, sum, sum_stride);
    if (status != OK || first == rows) return status;
    return NAME(add_outer)(r, rows - first, d + first * d_stride, left, d_stride,
                           NAME(belief_before)(r, row + first) + column, H, right, sum, sum_stride);
}

/* The vectors of a layer. */
static void NAME(add_vectors)(const Rssm *r, int64_t rows, const Layer *l)
{
    NAME(add_columns)(r, rows, l->out, l->d, l->db);
    NAME(add_columns)(r, rows, l->out, l->d_scale, l->dscale);
    NAME(add_columns)(r, rows, l->out, l->d_shift, l->dshift);
}

/* A chain of layers, of which the first reads `x` and what was known beforehand. */
static int NAME(add_layers)(const Rssm *r, const Layer *layers, int64_t count, int64_t row,
                            int64_t rows, const void *x, const void *known)
{
    int status = OK;
    for (const Layer *l = layers; l < layers + count && status == OK; l++) {
        int64_t stride = l->in + l->known;
        status = NAME(add_outer)(r, rows, l->d, l->out, l->out, (const REAL *)x + row * l->in, l->in,
                                 l->in, l->dw, stride);
        if (l->known && status == OK)
            status = NAME(add_outer)(r, rows, l->d, l->out, l->out,
                                     (const REAL *)known + row * l->known, l->known, l->known,
                                     (REAL *)l->dw + l->in, stride);
        NAME(add_vectors)(r, rows, l);
        x = l->y;
    }
    return status;
}

/* Gradients of the weights, of steps begin..end, which are the stretch that r->stretch says. */
int NAME(rnnop_rssm_sums)(Rssm *r, int64_t begin, int64_t end)
{
    int64_t H = r->belief, row = begin * r->batch, rows = (end - begin) * r->batch;
    const Layer *input = r->inputs + r->num_inputs - 1;
    int64_t X = input->out, stride = r->gru ? 3 * H : 4 * H;
    const REAL *d = r->gru ? r->gru->d : r->d_gates, *x = (const REAL *)input->y + row * X;
    REAL *dw_hh = r->dw_hh;
    int status = NAME(add_layers)(r, r->head, r->num_head, row, rows, r->beliefs, r->embeds);
#define THEN(call) status = status == OK ? (call) : status
    if (r->actor) THEN(NAME(add_actor)(r, row, rows));
    if (r->d_prior)
        THEN(NAME(add_layers)(r, r->prior, r->num_prior, row, rows, r->beliefs, 0));
    if (r->dynamics) return status == OK ? NAME(add_blocks)(r, row, rows) : status;
    THEN(NAME(add_layers)(r, r->inputs, r->num_inputs, row, rows, r->given, 0));
    THEN(NAME(add_outer)(r, rows, d, 3 * H, stride, x, X, X, r->dw_ih, X));
    if (r->gru) {
        THEN(NAME(add_recurrent)(r, row, rows, d, 3 * H, stride, 0, H, dw_hh, H));
        NAME(add_columns)(r, rows, 3 * H, d, r->db_gates);
        NAME(add_vectors)(r, rows, r->gru);
        return status;
    }
    THEN(NAME(add_recurrent)(r, row, rows, d, 2 * H, stride, 0, H, dw_hh, H));
    if (r->cell == RSSM_GRU_RESET_BEFORE) /* r * h was kept as the last gate */
        THEN(NAME(add_outer)(r, rows, d + 2 * H, H, stride,
                             (const REAL *)r->gates + (row * 4 + 3) * H, 4 * H, H,
                             dw_hh + 2 * H * H, H));
    else
        THEN(NAME(add_recurrent)(r, row, rows, d + 3 * H, H, stride, 0, H, dw_hh + 2 * H * H, H));
#undef THEN
    NAME(add_columns)(r, rows, 4 * H, d, r->db_gates);
    return status;
}

/* All of a rollout's gradient, in stretches of `steps` steps. */
int NAME(rnnop_rssm_gradient)(Rssm *r, int64_t num_steps, int64_t steps)
{
    int status = OK;
    for (int64_t end = num_steps; end > 0 && status == OK; end = r->stretch) {
        r->stretch = end > steps ? end - steps : 0;
        status = NAME(rnnop_rssm_backward)(r, r->stretch, end);
        if (status == OK) status = NAME(rnnop_rssm_sums)(r, r->stretch, end);
    }
    return status;
}
