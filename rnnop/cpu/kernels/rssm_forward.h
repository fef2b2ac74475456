/* The forward of an RSSM: step by step the layers before the GRU, the GRU, a head, and the draw.
 *
 * Threads own rows, a few dozen of which go through all steps before the next ones do; or, when
 * there are few rows, they share the columns of each product. The prior's head, where it does not
 * draw the state, follows after all steps.
 */

enum { NAME(BLOCK_ROWS) = 48 };

static void NAME(rssm_block_gru)(NAME(Part) *part, int64_t at); /* rssm_block.h */
static void NAME(rssm_act)(NAME(Part) *part, int64_t at);       /* rssm_actor.h */

typedef struct {
    Rssm *r;
    int64_t begin, end; /* steps */
    int by_rows, backward, threads;
    REAL *memory;     /* (threads, size) */
    int64_t most, size; /* rows of a part, and what it takes */
    atomic_int *status;
} NAME(RssmRun);

/* How many steps' embeddings go through their product together. */
static inline int64_t NAME(together)(int64_t n) { return n < NAME(BLOCK_ROWS) ? NAME(BLOCK_ROWS) / n : 1; }

/* Deal working memory out to a part: its own from `own`, what may be shared from `shared`. */
static int64_t NAME(settle)(NAME(Part) *part, REAL *own, REAL *shared, int backward)
{
    const Rssm *r = part->r;
    int64_t n = part->n, taken = 0, H = NAME(wide)(r->belief), wide = 4 * LANES;
    int before = r->cell == RSSM_GRU_RESET_BEFORE, known = r->embed && !backward;
#define AREA(name, base, elements)                                                               \
    part->name = (base) + taken;                                                                 \
    taken += ((elements) + wide - 1) / wide * wide;
    AREA(own, own, n * r->width)
    part->shared = shared;
    AREA(input, own, n * NAME(wide)(r->state + r->action))
    AREA(slots, own, 2 * n * wide)
    AREA(spare, own, r->classes)
    AREA(candidate, shared, before ? n * H : 0)
    AREA(update, shared, before ? n * H : 0)
    AREA(reset, shared, before ? n * H : 0)
    AREA(blocks, shared, r->dynamics ? 3 * n * r->blocks * NAME(wide)(r->belief / r->blocks) : 0)
    AREA(sums, shared, known ? n * NAME(together)(n) * NAME(wide)(r->head->out) : 0)
    AREA(seen, own, r->actor && !backward ? n * NAME(wide)(r->state + r->belief) : 0)
    AREA(dinput, own, r->actor && backward ? n * NAME(wide)(r->state + r->action) : 0)
    AREA(dseen, shared, r->actor && backward ? n * NAME(wide)(r->state + r->belief) : 0)
    AREA(dstate, own, backward ? n * NAME(wide)(r->state) : 0)
    AREA(dbelief, shared, backward ? n * H : 0)
    AREA(dreset, shared, backward && before ? n * H : 0)
#undef AREA
    return taken;
}

/* The two passes over unit blocks of the GRU, after their products have been summed into a slot. */
static inline void NAME(rssm_gru_cell)(const NAME(Part) *part, const REAL *slot, int64_t row,
                                       const REAL *before, int64_t unit)
{
    const Rssm *r = part->r;
    int64_t H = r->belief, count = H - unit;
    NAME(vec) reset = NAME(sigmoid)(NAME(load)(slot + LANES));
    NAME(vec) z = NAME(sigmoid)(NAME(load)(slot + 2 * LANES));
    NAME(vec) q = NAME(load)(slot + 3 * LANES), n = NAME(tanh)(NAME(load)(slot) + reset * q);
    NAME(vec) h = NAME(load_part)(before + unit, count);
    NAME(store_part)((REAL *)r->beliefs + row * H + unit, (1 - z) * n + z * h, count);
    if (!r->gates) return;
    REAL *gates = (REAL *)r->gates + row * 4 * H + unit;
    NAME(store_part)(gates, reset, count);
    NAME(store_part)(gates + H, z, count);
    NAME(store_part)(gates + 2 * H, n, count);
    NAME(store_part)(gates + 3 * H, q, count);
}

/* Of the reset-before form r, z, r * h and what the candidate's product is added to. */
static inline void NAME(rssm_gru_reset)(const NAME(Part) *part, const REAL *slot, int64_t j,
                                        int64_t row, const REAL *before, int64_t unit)
{
    const Rssm *r = part->r;
    int64_t H = r->belief, count = H - unit, at = j * NAME(wide)(H) + unit;
    NAME(vec) reset = NAME(sigmoid)(NAME(load)(slot + LANES));
    NAME(vec) z = NAME(sigmoid)(NAME(load)(slot + 2 * LANES));
    NAME(vec) q = reset * NAME(load_part)(before + unit, count);
    NAME(store)(part->candidate + at, NAME(load)(slot));
    NAME(store)(part->update + at, z);
    NAME(store)(part->reset + at, q);
    if (!r->gates) return;
    REAL *gates = (REAL *)r->gates + row * 4 * H + unit;
    NAME(store_part)(gates, reset, count);
    NAME(store_part)(gates + H, z, count);
    NAME(store_part)(gates + 3 * H, q, count);
}

static void NAME(rssm_candidate)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    int64_t H = r->belief, stride = NAME(wide)(H), q, q_end;
    NAME(meet)(part);
    NAME(share)(part, H, &q, &q_end);
    NAME(point)(part->rows, part->n, part->reset, 0, stride);
    NAME(multiply)(part, part->rows, H, r->gru_candidate, H, q, q_end, part->candidate, stride);
    for (int64_t j = 0; j < part->n; j++)
        for (int64_t v = NAME(cut)(H, q) * LANES; v < H && v < NAME(cut)(H, q_end) * LANES; v += LANES) {
            int64_t count = H - v, row = at + j;
            NAME(vec) n = NAME(tanh)(NAME(load)(part->candidate + j * stride + v));
            NAME(vec) z = NAME(load)(part->update + j * stride + v);
            NAME(vec) h = NAME(load_part)(part->more[j] + v, count);
            NAME(store_part)((REAL *)r->beliefs + row * H + v, (1 - z) * n + z * h, count);
            if (r->gates) NAME(store_part)((REAL *)r->gates + (row * 4 + 2) * H + v, n, count);
        }
}

/* Dreamer's update: the belief after h. */
static inline NAME(vec) NAME(updated)(NAME(vec) a_r, NAME(vec) a_u, NAME(vec) a_n, NAME(vec) h)
{
    NAME(vec) u = NAME(sigmoid)(a_u - 1), n = NAME(tanh)(NAME(sigmoid)(a_r) * a_n);
    return u * n + (1 - u) * h;
}

/* It, from r, u and n in the sums that have been normed. */
static void NAME(rssm_update)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    int64_t H = r->belief, stride = NAME(wide)(3 * H), q, q_end;
    NAME(Besides) besides = {part->more, H, r->gru_recurrent, 0, 0};
    const REAL *sums = NAME(layer)(part, r->gru, part->rows, at, &besides);
    NAME(share)(part, H, &q, &q_end);
    for (int64_t j = 0; j < part->n; j++)
        for (int64_t v = NAME(cut)(H, q) * LANES; v < H && v < NAME(cut)(H, q_end) * LANES; v += LANES) {
            int64_t count = H - v;
            const REAL *a = sums + j * stride + v;
            NAME(vec) next = NAME(updated)(NAME(load_part)(a, count), NAME(load_part)(a + H, count),
                                           NAME(load_part)(a + 2 * H, count),
                                           NAME(load_part)(part->more[j] + v, count));
            NAME(store_part)((REAL *)r->beliefs + (at + j) * H + v, next, count);
        }
}

/* The beliefs of rows `at`.., from state and action in part->rows and the beliefs before in
 * part->more. */
static void NAME(rssm_gru)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    for (int64_t k = 0; k < r->num_inputs; k++) {
        REAL *y = NAME(layer)(part, r->inputs + k, part->rows, at, 0);
        NAME(point)(part->rows, part->n, y, 0, NAME(wide)(r->inputs[k].out));
    }
    int64_t H = r->belief, X = r->inputs[r->num_inputs - 1].out, n = part->n, wide = 4 * LANES;
    int64_t blocks = NAME(vectors)(H), i = part->thread.index, threads = part->thread.threads;
    int64_t block = part->alone ? 0 : blocks * i / threads;
    int64_t end = part->alone ? blocks : blocks * (i + 1) / threads;
    int before = r->cell == RSSM_GRU_RESET_BEFORE, gates = before ? 2 : 3, far = r->far && n > 1;
    const REAL *input = r->gru_input, *recurrent = r->gru_recurrent, *bias = r->gru_bias;
    if (r->cell == RSSM_GRU_LAYER_NORM) {
        NAME(rssm_update)(part, at);
        return;
    }
    for (int64_t b = block, count; b < end; b += count) {
        count = n == 1 && b + 1 < end ? 2 : 1; /* a single row: see `pair` in product.h */
        for (int64_t c = 0; c < count; c++)
            for (int64_t j = 0; j < n; j++)
                memcpy(part->slots + (c * n + j) * wide, bias + (b + c) * wide,
                       (size_t)wide * sizeof(REAL));
        NAME(panels)(count, n, 3, part->rows, X, input + b * 3 * LANES * X, part->slots, wide,
                     n * wide, far);
        NAME(panels)(count, n, gates, part->more, H, recurrent + b * gates * LANES * H,
                     part->slots + LANES, wide, n * wide, far);
        for (int64_t c = 0; c < count; c++)
            for (int64_t j = 0; j < n; j++) {
                const REAL *slot = part->slots + (c * n + j) * wide;
                int64_t unit = (b + c) * LANES;
                if (before) NAME(rssm_gru_reset)(part, slot, j, at + j, part->more[j], unit);
                else NAME(rssm_gru_cell)(part, slot, at + j, part->more[j], unit);
            }
    }
    if (before) NAME(rssm_candidate)(part, at);
}

/* A head on rows `at`.. of the beliefs, and what it says of the state, which is drawn if wanted. */
static void NAME(rssm_head)(NAME(Part) *part, Layer *layers, int64_t count, int64_t at,
                            const NAME(Besides) *besides, const Drawn *to, int draws)
{
    const Rssm *r = part->r;
    REAL *y = 0;
    NAME(point)(part->rows, part->n, r->beliefs, at, r->belief);
    for (int64_t k = 0; k < count; k++) {
        y = NAME(layer)(part, layers + k, part->rows, at, k ? 0 : besides);
        NAME(point)(part->rows, part->n, y, 0, NAME(wide)(layers[k].out));
    }
    int64_t stride = NAME(wide)(r->state + r->action), S = r->state;
    for (int64_t j = 0; j < part->n; j++) {
        REAL *state = draws ? part->input + j * stride : 0;
        NAME(draw)(r, to, part->rows[j], at + j, part->writes, state, part->spare);
        if (draws && part->writes)
            memcpy((REAL *)r->states + (at + j) * S, state, (size_t)S * sizeof(REAL));
    }
}

/* What an action is divided by: of the block GRU its size, where that is above 1. */
static inline REAL NAME(over)(const Rssm *r, REAL action)
{
    REAL size = action < 0 ? -action : action;
    return r->cell == RSSM_BLOCK_GRU && size > 1 ? size : 1;
}

/* State and action of step t into the input rows, where the state is already; the beliefs before. */
static void NAME(rssm_begin)(NAME(Part) *part, int64_t t)
{
    const Rssm *r = part->r;
    int64_t N = r->batch, S = r->state, A = r->action, H = r->belief;
    int64_t stride = NAME(wide)(S + A);
    for (int64_t j = 0; j < part->n; j++) {
        int64_t n = part->first + j, row = t * N + n;
        REAL *input = part->input + j * stride;
        const REAL *belief = t ? (const REAL *)r->beliefs + (row - N) * H
                               : (const REAL *)r->belief0 + n * H;
        const REAL *action = (const REAL *)r->actions + row * A;
        for (int64_t i = 0; i < A && !r->actor; i++)
            input[S + i] = action[i] / NAME(over)(r, action[i]);
        if (r->first && r->first[row] >= 0) {
            belief = r->initial_belief;
            memcpy(input, r->initial_state, (size_t)S * sizeof(REAL));
            memset(input + S, 0, (size_t)A * sizeof(REAL));
        }
        part->more[j] = belief;
        if (r->before && part->writes)
            memcpy((REAL *)r->before + row * H, belief, (size_t)H * sizeof(REAL));
    }
    if (r->actor) NAME(rssm_act)(part, t * N + part->first);
    NAME(point)(part->rows, part->n, part->input, 0, stride);
    for (int64_t j = 0; r->given && part->writes && j < part->n; j++)
        memcpy((REAL *)r->given + (t * N + part->first + j) * (S + A), part->rows[j],
               (size_t)(S + A) * sizeof(REAL));
}

/* What the embeddings of steps t.. add to the head's first layer; the steps that went together. */
static int64_t NAME(rssm_embed)(NAME(Part) *part, int64_t t, int64_t end)
{
    const Rssm *r = part->r;
    const Layer *l = r->head;
    int64_t stride = NAME(wide)(l->out), n = part->n, q, q_end, count = 0;
    int64_t steps = end - t < NAME(together)(n) ? end - t : NAME(together)(n);
    NAME(share)(part, l->out, &q, &q_end);
    int64_t first = NAME(cut)(l->out, q) * LANES, columns = NAME(cut)(l->out, q_end) * LANES - first;
    NAME(meet)(part);
    for (int64_t s = t; s < t + steps; s++)
        for (int64_t j = 0; j < n; j++, count++) {
            part->rows[count] = (const REAL *)r->embeds + (s * r->batch + part->first + j) * r->embed;
            memcpy(part->sums + count * stride + first, (const REAL *)l->bias + first,
                   (size_t)columns * sizeof(REAL));
        }
    NAME(Part) all = *part;
    all.n = count;
    NAME(multiply)(&all, part->rows, r->embed, l->forward_known, l->out, q, q_end, part->sums,
                   stride);
    NAME(meet)(part);
    return steps;
}

static void NAME(rssm_steps)(NAME(Part) *part, int64_t begin, int64_t end)
{
    const Rssm *r = part->r;
    int64_t S = r->state, stride = NAME(wide)(S + r->action), N = r->batch;
    for (int64_t j = 0; j < part->n; j++) {
        int64_t n = part->first + j;
        const REAL *state = begin ? (const REAL *)r->states + ((begin - 1) * N + n) * S
                                  : (const REAL *)r->state0 + n * S;
        memcpy(part->input + j * stride, state, (size_t)S * sizeof(REAL));
    }
    for (int64_t t = begin, known = begin, known_end = begin; t < end; t++) {
        int64_t at = t * N + part->first;
        NAME(Besides) besides = {0, 0, 0, 0, 0};
        if (r->embed && t == known_end) {
            known = t;
            known_end = t + NAME(rssm_embed)(part, t, end);
        }
        if (r->embed) {
            besides.stride = NAME(wide)(r->head->out);
            besides.sums = part->sums + (t - known) * part->n * besides.stride;
        }
        NAME(rssm_begin)(part, t);
        if (r->dynamics) NAME(rssm_block_gru)(part, at);
        else NAME(rssm_gru)(part, at);
        NAME(meet)(part);
        NAME(rssm_head)(part, r->head, r->num_head, at, &besides, &r->drawn, 1);
    }
}

/* Rows first.. of the beliefs through the prior's head. */
static void NAME(rssm_prior)(NAME(Part) *part)
{
    const Rssm *r = part->r;
    NAME(rssm_head)(part, r->prior, r->num_prior, part->first, 0, &r->from_prior, 0);
}

/* Give `work` the rows of this thread, a block at a time, or all of them where columns are shared. */
static void NAME(rssm_parts)(NAME(RssmRun) *run, Thread thread, int64_t first, int64_t rows,
                             void (*work)(NAME(Part) *, NAME(RssmRun) *))
{
    int alone = run->by_rows;
    REAL *shared = run->memory, *own = shared + thread.index * run->size;
    NAME(Part) part = {.r = run->r, .thread = thread, .alone = alone,
                       .writes = alone || thread.index == 0};
    int64_t begin = alone ? rows * thread.index / thread.threads : 0;
    int64_t end = alone ? rows * (thread.index + 1) / thread.threads : rows;
    int64_t blocks = alone ? (end - begin + run->most - 1) / run->most : 1;
    int64_t pointers = run->most < NAME(BLOCK_ROWS) ? NAME(BLOCK_ROWS) : run->most;
    part.rows = malloc((size_t)pointers * sizeof(REAL *));
    part.more = malloc((size_t)run->most * sizeof(REAL *));
    part.block_rows = malloc((size_t)run->most * sizeof(REAL *));
    if (!part.rows || !part.more || !part.block_rows) atomic_store(run->status, NO_MEMORY);
    if (!alone) rnnop_barrier(thread);
    for (int64_t k = 0; k < blocks && atomic_load(run->status) == OK; k++) {
        int64_t from = begin + (end - begin) * k / blocks;
        part.first = first + from;
        part.n = begin + (end - begin) * (k + 1) / blocks - from;
        NAME(settle)(&part, own, alone ? own : shared, run->backward);
        work(&part, run);
    }
    free(part.rows);
    free(part.more);
    free(part.block_rows);
}

static void NAME(forward_part)(NAME(Part) *part, NAME(RssmRun) *run)
{
    NAME(rssm_steps)(part, run->begin, run->end);
}

static void NAME(prior_part)(NAME(Part) *part, NAME(RssmRun) *run)
{
    (void)run;
    NAME(rssm_prior)(part);
}

static void NAME(rssm_forward_body)(void *argument, Thread thread)
{
    NAME(RssmRun) *run = argument;
    NAME(rssm_parts)(run, thread, 0, run->r->batch, NAME(forward_part));
}

static void NAME(rssm_prior_body)(void *argument, Thread thread)
{
    NAME(RssmRun) *run = argument;
    int64_t N = run->r->batch;
    NAME(rssm_parts)(run, thread, run->begin * N, (run->end - run->begin) * N, NAME(prior_part));
}

/* How `rows` rows, or all of the batch, are dealt out to how many threads, and the memory for it. */
static int NAME(rssm_prepare)(NAME(RssmRun) *run, int64_t rows, int by_rows)
{
    const Rssm *r = run->r;
    double work = (double)r->parameters * (double)r->batch * (double)(run->end - run->begin);
    run->by_rows = by_rows;
    run->threads = work < MIN_THREADED_WORK ? 1 : (int)r->threads;
    run->most = by_rows ? (rows + run->threads - 1) / run->threads : rows;
    if (by_rows && run->most > NAME(BLOCK_ROWS)) run->most = NAME(BLOCK_ROWS);
    NAME(Part) part = {.r = r};
    for (part.n = 1; part.n <= run->most; part.n++) { /* it does not always grow with n */
        int64_t size = NAME(settle)(&part, run->memory, run->memory, run->backward);
        if (size > run->size) run->size = size;
    }
    run->memory = rnnop_aligned((size_t)(run->size * run->threads) * sizeof(REAL));
    return run->memory ? OK : NO_MEMORY;
}

/* Let the threads go through the steps of all rows. */
static int NAME(rssm_run)(NAME(RssmRun) run, Body body)
{
    const Rssm *r = run.r;
    atomic_int status = OK;
    double step = 2.0 * (double)r->batch * (double)r->parameters;
    run.status = &status;
    if (NAME(rssm_prepare)(&run, r->batch, r->batch >= 2 * r->threads || step < MIN_SHARED_WORK))
        return NO_MEMORY;
    (run.by_rows ? rnnop_run_parts : rnnop_run_together)(body, &run, run.threads);
    free(run.memory);
    return atomic_load(&status);
}

/* Let them take rows of all steps, which do not depend on each other. */
static int NAME(rssm_run_rows)(NAME(RssmRun) run, Body body)
{
    atomic_int status = OK;
    run.status = &status;
    if (NAME(rssm_prepare)(&run, (run.end - run.begin) * run.r->batch, 1)) return NO_MEMORY;
    (run.by_rows ? rnnop_run_parts : rnnop_run_together)(body, &run, run.threads);
    free(run.memory);
    return atomic_load(&status);
}

int NAME(rnnop_rssm_forward)(Rssm *r, int64_t begin, int64_t end)
{
    NAME(RssmRun) run = {.r = r, .begin = begin, .end = end};
    if (begin >= end || r->batch == 0) return OK;
    int status = NAME(rssm_run)(run, NAME(rssm_forward_body));
    if (r->prior && status == OK) status = NAME(rssm_run_rows)(run, NAME(rssm_prior_body));
    return status;
}
