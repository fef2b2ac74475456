/* The forward of one pseudo-layer.
 *
 * For a few steps at a time the input product of all their rows is summed into slots (pack.h); then,
 * step by step and unit block by unit block, the recurrent product is added and the cell is applied
 * while the sums are in the first cache. Nothing of size T * N * G * H is ever stored.
 *
 * Threads either own rows (segments dealt out in turn, so that all shrink alike; they never wait)
 * or, when there are few rows, own unit blocks and meet once a step.
 */

typedef struct {
    const Problem *p;
    const Weights *w;
    const Forward *f;
    int by_rows;
    int64_t padded, padded_output; /* H and P rounded up to whole panels */
    REAL *h[2], *c, *m;            /* (S, padded): h before and after a step; m, or r * h */
    atomic_int *status;
} NAME(ForwardRun);

/* What one thread does. */
typedef struct {
    const NAME(ForwardRun) *run;
    Thread thread;
    int64_t first, stride;      /* its rows: first, first + stride, ... */
    int64_t block, block_end;   /* its unit blocks */
    int64_t column, column_end; /* its panels of the projection */
    int64_t room;               /* rows of a chunk */
    const REAL **rows;          /* (room,) */
    REAL *slots;                /* (unit blocks, room, 4 * LANES) */
    REAL *operands;             /* of `rows` */
} NAME(ForwardPart);

/* The packed row of step t of segment s, in the order in which the direction runs. */
static inline int64_t NAME(position)(const Problem *p, int64_t t, int64_t s)
{
    return p->offsets[p->backward ? p->lengths[s] - 1 - t : t] + s;
}

/* How many of the rows first, first + stride, ... are alive at step t. */
static inline int64_t NAME(alive)(const Problem *p, int64_t t, int64_t first, int64_t stride)
{
    int64_t count = p->batch_sizes[t];
    return count <= first ? 0 : (count - first + stride - 1) / stride;
}

/* h of `unit`.. after step t of segment s, to where it is read again and to the outputs. */
static inline void NAME(put_h)(const NAME(ForwardRun) *run, int64_t t, int64_t s, int64_t pos,
                               int64_t unit, NAME(vec) h)
{
    const Problem *p = run->p;
    const Forward *f = run->f;
    int64_t count = p->output - unit;
    NAME(store)(run->h[(t + 1) & 1] + s * run->padded_output + unit, h);
    if (count <= 0) return;
    NAME(store_part)((REAL *)f->y + pos * f->y_stride + unit, h, count);
    if (t == p->lengths[s] - 1) NAME(store_part)((REAL *)f->h_n + s * p->output + unit, h, count);
}

/* Store four vectors at (pos, 0..3, unit) of a (total, 4, hidden) array. */
static inline void NAME(keep)(const Problem *p, void *array, int64_t pos, int64_t unit, NAME(vec) a,
                              NAME(vec) b, NAME(vec) c, NAME(vec) d)
{
    if (!array) return;
    REAL *row = (REAL *)array + pos * 4 * p->hidden + unit;
    int64_t count = p->hidden - unit;
    NAME(store_part)(row, a, count);
    NAME(store_part)(row + p->hidden, b, count);
    NAME(store_part)(row + 2 * p->hidden, c, count);
    NAME(store_part)(row + 3 * p->hidden, d, count);
}

static inline NAME(vec) NAME(gate_clip)(const Problem *p, NAME(vec) x)
{
    return p->has_gate_clip ? NAME(clip)(x, (REAL)p->gate_low, (REAL)p->gate_high, 0) : x;
}

/* The gates that do not need the new cell state, left in their slots. A pass of its own over the
 * rows: their long chains of arithmetic then overlap. */
static inline void NAME(lstm_gates)(const NAME(ForwardRun) *run, REAL *slot, int64_t s,
                                    int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    const REAL *peephole = run->w->peephole;
    NAME(vec) i = NAME(load)(slot), f = NAME(load)(slot + LANES);
    NAME(vec) g = NAME(load)(slot + 2 * LANES);
    if (peephole) {
        int64_t H = p->hidden, count = H - unit;
        NAME(vec) c = NAME(load)(run->c + s * run->padded + unit);
        i += NAME(load_part)(peephole + unit, count) * c;
        f += NAME(load_part)(peephole + H + unit, count) * c;
    }
    NAME(keep)(p, run->f->pre, pos, unit, i, f, g, g); /* o's follows */
    i = NAME(sigmoid)(NAME(gate_clip)(p, i));
    NAME(store)(slot, i);
    NAME(store)(slot + LANES, p->coupled ? 1 - i : NAME(sigmoid)(NAME(gate_clip)(p, f)));
    NAME(store)(slot + 2 * LANES, NAME(tanh)(NAME(gate_clip)(p, g)));
}

static inline void NAME(lstm_cell)(const NAME(ForwardRun) *run, const REAL *slot, int64_t t,
                                   int64_t s, int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    const Forward *out = run->f;
    const REAL *peephole = run->w->peephole;
    int64_t H = p->hidden, count = H - unit;
    REAL *c_at = run->c + s * run->padded + unit;
    NAME(vec) i = NAME(load)(slot), f = NAME(load)(slot + LANES);
    NAME(vec) g = NAME(load)(slot + 2 * LANES), o = NAME(load)(slot + 3 * LANES);
    NAME(vec) c = f * NAME(load)(c_at) + i * g;
    if (p->has_cell_clip)
        c = NAME(clip)(c, (REAL)p->cell_low, (REAL)p->cell_high, (int)p->cell_clip_nan);
    if (peephole) o += NAME(load_part)(peephole + 2 * H + unit, count) * c;
    if (out->pre) NAME(store_part)((REAL *)out->pre + (pos * 4 + 3) * H + unit, o, count);
    o = NAME(sigmoid)(NAME(gate_clip)(p, o));
    NAME(keep)(p, out->gates, pos, unit, i, f, g, o);
    NAME(store)(c_at, c);
    if (out->c) NAME(store_part)((REAL *)out->c + pos * out->c_stride + unit, c, count);
    if (t == p->lengths[s] - 1) NAME(store_part)((REAL *)out->c_n + s * H + unit, c, count);
    NAME(vec) m = o * NAME(tanh)(NAME(gate_clip)(p, c));
    if (p->projected) NAME(store)(run->m + s * run->padded + unit, m);
    else NAME(put_h)(run, t, s, pos, unit, m);
}

static inline void NAME(gru_cell)(const NAME(ForwardRun) *run, const REAL *slot, int64_t t,
                                  int64_t s, int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    NAME(vec) pre_r = NAME(load)(slot + LANES), pre_z = NAME(load)(slot + 2 * LANES);
    NAME(vec) r = NAME(sigmoid)(NAME(gate_clip)(p, pre_r));
    NAME(vec) z = NAME(sigmoid)(NAME(gate_clip)(p, pre_z));
    NAME(vec) q = NAME(load)(slot + 3 * LANES);
    NAME(vec) pre_n = NAME(load)(slot) + r * q;
    NAME(vec) n = NAME(tanh)(NAME(gate_clip)(p, pre_n));
    NAME(keep)(p, run->f->pre, pos, unit, pre_r, pre_z, pre_n, q);
    NAME(keep)(p, run->f->gates, pos, unit, r, z, n, q);
    NAME(vec) h = NAME(load)(run->h[t & 1] + s * run->padded_output + unit);
    NAME(put_h)(run, t, s, pos, unit, (1 - z) * n + z * h);
}

/* The reset-before GRU up to r * h; r and z stay in their slots. */
static inline void NAME(gru_reset)(const NAME(ForwardRun) *run, REAL *slot, int64_t t, int64_t s,
                                   int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    NAME(vec) pre_r = NAME(load)(slot + LANES), pre_z = NAME(load)(slot + 2 * LANES);
    NAME(vec) r = NAME(sigmoid)(NAME(gate_clip)(p, pre_r));
    NAME(vec) z = NAME(sigmoid)(NAME(gate_clip)(p, pre_z));
    NAME(vec) h = NAME(load)(run->h[t & 1] + s * run->padded_output + unit);
    NAME(keep)(p, run->f->pre, pos, unit, pre_r, pre_z, pre_r, pre_z); /* n's follows */
    NAME(store)(slot + LANES, r);
    NAME(store)(slot + 2 * LANES, z);
    NAME(store)(run->m + s * run->padded + unit, r * h);
}

static inline void NAME(gru_candidate)(const NAME(ForwardRun) *run, const REAL *slot, int64_t t,
                                       int64_t s, int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    NAME(vec) r = NAME(load)(slot + LANES), z = NAME(load)(slot + 2 * LANES);
    NAME(vec) pre_n = NAME(load)(slot);
    NAME(vec) n = NAME(tanh)(NAME(gate_clip)(p, pre_n));
    NAME(vec) rh = NAME(load)(run->m + s * run->padded + unit);
    NAME(vec) h = NAME(load)(run->h[t & 1] + s * run->padded_output + unit);
    if (run->f->pre)
        NAME(store_part)((REAL *)run->f->pre + (pos * 4 + 2) * p->hidden + unit, pre_n,
                         p->hidden - unit);
    NAME(keep)(p, run->f->gates, pos, unit, r, z, n, rh);
    NAME(put_h)(run, t, s, pos, unit, (1 - z) * n + z * h);
}

static inline void NAME(rnn_cell)(const NAME(ForwardRun) *run, const REAL *slot, int64_t t,
                                  int64_t s, int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    for (int v = 0; v < 4; v++, unit += LANES) {
        NAME(vec) pre = NAME(load)(slot + v * LANES), x = NAME(gate_clip)(p, pre);
        if (run->f->pre && unit < p->hidden)
            NAME(store_part)((REAL *)run->f->pre + pos * p->hidden + unit, pre, p->hidden - unit);
        NAME(put_h)(run, t, s, pos, unit, p->cell == RNN_RELU ? NAME(relu)(x) : NAME(tanh)(x));
    }
}

/* A step of the rows of this thread, from sums of the input product to the new state. */
static void NAME(forward_step)(NAME(ForwardPart) *part, int64_t t, int64_t row_of_chunk)
{
    const NAME(ForwardRun) *run = part->run;
    const Problem *p = run->p;
    int64_t n = NAME(alive)(p, t, part->first, part->stride);
    int64_t block = NAME(block)(p->cell);
    int width = p->cell == GRU ? 3 : p->cell == GRU_RESET_BEFORE ? 2 : 4;
    int slot = p->cell == GRU || p->cell == GRU_RESET_BEFORE ? 1 : 0;
    const REAL *recurrent = run->w->recurrent, *candidate = run->w->candidate;
    const REAL *projection = run->w->projection;

    for (int64_t j = 0; j < n; j++)
        part->rows[j] = run->h[t & 1] + (part->first + j * part->stride) * run->padded_output;
    NAME(make_operands)(part->rows, n, p->output, part->operands);
    int64_t depth = NAME(steps)(p->output);
    int64_t apart = part->room * 4 * LANES; /* of the slots of two blocks */
    for (int64_t b = part->block; b < part->block_end; b++) {
        REAL *slots = part->slots + (b - part->block) * apart + row_of_chunk * 4 * LANES;
        /* A block's cells follow its product; those of a single row come two blocks at a time. */
        if (n > 1 || (b - part->block) % 2 == 0) {
            int64_t left = part->block_end - b, count = n > 1 || left < 2 ? 1 : 2;
            NAME(panels)(count, n, width, part->rows, depth, recurrent + b * width * LANES * depth,
                         slots + slot * LANES, 4 * LANES, apart,
                         NAME(far)(width * p->hidden, depth));
        }
        for (int64_t j = 0; p->cell == LSTM && j < n; j++) {
            int64_t s = part->first + j * part->stride;
            NAME(lstm_gates)(run, slots + j * 4 * LANES, s, NAME(position)(p, t, s), b * block);
        }
        for (int64_t j = 0; j < n; j++) {
            int64_t s = part->first + j * part->stride, pos = NAME(position)(p, t, s);
            REAL *mine = slots + j * 4 * LANES;
            switch (p->cell) {
            case LSTM: NAME(lstm_cell)(run, mine, t, s, pos, b * block); break;
            case GRU: NAME(gru_cell)(run, mine, t, s, pos, b * block); break;
            case GRU_RESET_BEFORE: NAME(gru_reset)(run, mine, t, s, pos, b * block); break;
            default: NAME(rnn_cell)(run, mine, t, s, pos, b * block);
            }
        }
    }
    if (p->cell != GRU_RESET_BEFORE && !p->projected) return;

    if (!run->by_rows) rnnop_barrier(part->thread);
    for (int64_t j = 0; j < n; j++)
        part->rows[j] = run->m + (part->first + j * part->stride) * run->padded;
    NAME(make_operands)(part->rows, n, p->hidden, part->operands);
    depth = NAME(steps)(p->hidden);
    if (p->projected) {
        for (int64_t q = part->column; q < part->column_end; q++) {
            memset(part->slots, 0, (size_t)(n * 4 * LANES) * sizeof(REAL));
            NAME(panel)(n, 4, part->rows, depth, projection + q * 4 * LANES * depth, part->slots,
                        4 * LANES, 0);
            for (int64_t j = 0; j < n; j++) {
                int64_t s = part->first + j * part->stride, pos = NAME(position)(p, t, s);
                for (int v = 0; v < 4; v++) {
                    int64_t unit = (q * 4 + v) * LANES;
                    NAME(vec) h = NAME(load)(part->slots + (j * 4 + v) * LANES);
                    if (run->f->h_raw && unit < p->output)
                        NAME(store_part)((REAL *)run->f->h_raw + pos * p->output + unit, h,
                                         p->output - unit);
                    if (p->has_proj_clip)
                        h = NAME(clip)(h, (REAL)p->proj_low, (REAL)p->proj_high, 0);
                    NAME(put_h)(run, t, s, pos, unit, h);
                }
            }
        }
        return;
    }
    for (int64_t b = part->block; b < part->block_end; b++) {
        REAL *slots = part->slots + (b - part->block) * apart + row_of_chunk * 4 * LANES;
        NAME(panel)(n, 1, part->rows, depth, candidate + b * LANES * depth, slots, 4 * LANES, 0);
        for (int64_t j = 0; j < n; j++) {
            int64_t s = part->first + j * part->stride;
            NAME(gru_candidate)(run, slots + j * 4 * LANES, t, s, NAME(position)(p, t, s),
                                b * block);
        }
    }
}

/* Steps begin..end: the input product of all their rows, into slots that start from the bias. */
static void NAME(input_product)(NAME(ForwardPart) *part, int64_t begin, int64_t end)
{
    const NAME(ForwardRun) *run = part->run;
    const Problem *p = run->p;
    const REAL *bias = run->w->bias, *input = run->w->input;
    int width = p->cell == GRU || p->cell == GRU_RESET_BEFORE ? 3 : 4;
    int64_t n = 0;
    for (int64_t t = begin; t < end; t++)
        for (int64_t s = part->first; s < p->batch_sizes[t]; s += part->stride)
            part->rows[n++] = (const REAL *)run->f->x + NAME(position)(p, t, s) * run->f->x_stride;
    NAME(make_operands)(part->rows, n, p->input, part->operands);
    int64_t depth = NAME(steps)(p->input);
    for (int64_t b = part->block; b < part->block_end; b++) {
        REAL *slots = part->slots + (b - part->block) * part->room * 4 * LANES;
        for (int64_t j = 0; j < n; j++)
            memcpy(slots + j * 4 * LANES, bias + b * 4 * LANES, sizeof(REAL) * 4 * LANES);
        NAME(panel)(n, width, part->rows, depth, input + b * width * LANES * depth, slots,
                    4 * LANES, NAME(far)(width * p->hidden, depth));
    }
}

static void NAME(forward_body)(void *argument, Thread thread)
{
    const NAME(ForwardRun) *run = argument;
    const Problem *p = run->p;
    int64_t blocks = NAME(blocks)(p->cell, p->hidden), columns = run->padded_output / (4 * LANES);
    int64_t i = thread.index, n = thread.threads;
    NAME(ForwardPart) part = {.run = run, .thread = thread, .first = 0, .stride = 1,
                              .block = 0, .block_end = blocks, .column = 0, .column_end = columns};
    if (run->by_rows) {
        part.first = i;
        part.stride = n;
    } else {
        part.block = blocks * i / n;
        part.block_end = blocks * (i + 1) / n;
        part.column = columns * i / n;
        part.column_end = columns * (i + 1) / n;
    }
    int64_t most = NAME(alive)(p, 0, part.first, part.stride);
    int64_t own = part.block_end - part.block < 1 ? 1 : part.block_end - part.block;
    int64_t fitting = CHUNK_BYTES / (own * 4 * LANES * (int64_t)sizeof(REAL));
    part.room = fitting < LEAST_ROWS ? LEAST_ROWS : fitting > MOST_ROWS ? MOST_ROWS : fitting;
    if (part.room < most) part.room = most;
    part.rows = malloc((size_t)part.room * sizeof(REAL *));
    int64_t slots = own * part.room * 4 * LANES;
    int64_t deepest = p->input > p->hidden ? p->input : p->hidden; /* P is at most H */
    int64_t operands = part.room * NAME(operand_room)(deepest);
    part.slots = rnnop_aligned((size_t)(slots + operands) * sizeof(REAL));
    part.operands = part.slots + slots;
    if (!part.rows || !part.slots) atomic_store(run->status, NO_MEMORY);
    if (!run->by_rows) rnnop_barrier(thread);
    if (atomic_load(run->status) == OK) {
        for (int64_t begin = 0, end; begin < p->num_steps; begin = end) {
            int64_t rows = 0;
            for (end = begin; end < p->num_steps; end++) {
                int64_t alive = NAME(alive)(p, end, part.first, part.stride);
                if (end > begin && rows + alive > part.room) break;
                rows += alive;
            }
            if (rows == 0) break; /* the rows of this thread have ended */
            NAME(input_product)(&part, begin, end);
            for (int64_t t = begin, row = 0; t < end; t++) {
                NAME(forward_step)(&part, t, row);
                row += NAME(alive)(p, t, part.first, part.stride);
                if (!run->by_rows) rnnop_barrier(thread);
            }
        }
    }
    free(part.rows);
    free(part.slots);
}

int NAME(rnnop_forward)(const Problem *p, const Weights *w, const Forward *f)
{
    int64_t S = p->num_segments, H = p->hidden, P = p->output, wide = 4 * LANES;
    atomic_int status = OK;
    if (p->num_steps == 0) return OK; /* no segment, no output */
    NAME(ForwardRun) run = {.p = p, .w = w, .f = f, .status = &status};
    run.padded = (H + wide - 1) / wide * wide;
    run.padded_output = (P + wide - 1) / wide * wide;
    int needs_m = p->projected || p->cell == GRU_RESET_BEFORE;
    size_t h_size = (size_t)(S * run.padded_output), c_size = (size_t)(S * run.padded);
    REAL *memory = rnnop_aligned((2 * h_size + (p->cell == LSTM ? c_size : 0) +
                                  (needs_m ? c_size : 0)) * sizeof(REAL));
    if (!memory) return NO_MEMORY;
    run.h[0] = memory;
    run.h[1] = memory + h_size;
    run.c = run.h[1] + h_size;
    run.m = run.c + (p->cell == LSTM ? c_size : 0);
    for (int64_t s = 0; s < S; s++) {
        REAL *h = run.h[0] + s * run.padded_output;
        memset(h + P, 0, (size_t)(run.padded_output - P) * sizeof(REAL));
        memcpy(h, (const REAL *)f->h0 + s * P, (size_t)P * sizeof(REAL));
        if (p->cell != LSTM) continue;
        REAL *c = run.c + s * run.padded;
        memset(c + H, 0, (size_t)(run.padded - H) * sizeof(REAL));
        memcpy(c, (const REAL *)f->c0 + s * H, (size_t)H * sizeof(REAL));
    }
    double work = 2.0 * (double)S * (double)H * (double)(p->input + P);
    run.by_rows = S >= 2 * p->threads || work < MIN_SHARED_WORK;
    int64_t threads = p->threads;
    if (run.by_rows && threads > S) threads = S;
    if (work * (double)p->num_steps < MIN_THREADED_WORK) threads = 1;
    (run.by_rows ? rnnop_run_parts : rnnop_run_together)(NAME(forward_body), &run, (int)threads);
    free(memory);
    return atomic_load(&status);
}
