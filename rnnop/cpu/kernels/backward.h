/* The gradient of one pseudo-layer's recurrence, against time.
 *
 * Left to the caller are the large products over all real steps: what comes out here is the
 * gradient of every pre-activation (dgates), and of the initial states. Threads are dealt rows or
 * unit blocks as in the forward; a thread that owns units also owns those columns of dh.
 */

typedef struct {
    const Problem *p;
    const Weights *w; /* packed for the backward */
    const Backward *f;
    int by_rows;
    int64_t padded, padded_output;
    REAL *dh, *dc, *dm; /* (S, padded): dm also holds the gradient of r * h */
    atomic_int *status;
} NAME(BackwardRun);

/* The columns unit.. of the state before step t of segment s: of y or c, or the initial state. */
static inline const REAL *NAME(before)(const Problem *p, const void *every, int64_t stride,
                                       const void *initial, int64_t size, int64_t t, int64_t s)
{
    if (t == 0) return (const REAL *)initial + s * size;
    return (const REAL *)every + NAME(position)(p, t - 1, s) * stride;
}

/* The row of step t of segment s in what is made of steps begin..end. */
static inline int64_t NAME(row)(const NAME(BackwardRun) *run, int64_t t, int64_t s)
{
    return run->p->offsets[t] - run->p->offsets[run->f->begin] + s;
}

/* The gradient of a pre-activation that was clipped. */
static inline NAME(vec) NAME(gate_clip_backward)(const Problem *p, const void *pre, int64_t at,
                                                 int64_t count, NAME(vec) d)
{
    if (!pre) return d;
    NAME(vec) x = NAME(load_part)((const REAL *)pre + at, count);
    return NAME(clip_backward)(x, d, (REAL)p->gate_low, (REAL)p->gate_high);
}

/* dh of `unit`.. at step t: what came from later steps, and the cotangent of y. */
static inline NAME(vec) NAME(get_dh)(const NAME(BackwardRun) *run, int64_t s, int64_t pos,
                                     int64_t unit)
{
    NAME(vec) dh = NAME(load)(run->dh + s * run->padded_output + unit);
    const REAL *dy = (const REAL *)run->f->dy + pos * run->f->dy_stride + unit;
    int64_t count = run->p->output - unit;
    return count > 0 ? dh + NAME(load_part)(dy, count) : dh;
}

static inline void NAME(lstm_back)(const NAME(BackwardRun) *run, int64_t t, int64_t s, int64_t pos,
                                   int64_t unit)
{
    const Problem *p = run->p;
    const Backward *b = run->f;
    const REAL *peephole = run->w->peephole;
    int64_t H = p->hidden, count = H - unit, at = pos * 4 * H + unit;
    const REAL *gates = (const REAL *)b->gates + at;
    NAME(vec) i = NAME(load_part)(gates, count), f = NAME(load_part)(gates + H, count);
    NAME(vec) g = NAME(load_part)(gates + 2 * H, count), o = NAME(load_part)(gates + 3 * H, count);
    NAME(vec) c = NAME(load_part)((const REAL *)b->c + pos * b->c_stride + unit, count);
    NAME(vec) c_before = NAME(load_part)(
        NAME(before)(p, b->c, b->c_stride, b->c0, H, t, s) + unit, count);
    REAL *dc_at = run->dc + s * run->padded + unit;
    REAL *dh_at = run->dh + s * run->padded_output + unit;
    NAME(vec) dm;
    if (p->projected) {
        dm = NAME(load)(run->dm + s * run->padded + unit);
    } else {
        dm = NAME(get_dh)(run, s, pos, unit);
        NAME(store)(dh_at, NAME(splat)(0));
    }
    NAME(vec) m = NAME(tanh)(NAME(gate_clip)(p, c));
    NAME(vec) d_o = NAME(gate_clip_backward)(p, b->pre, at + 3 * H, count, dm * m * o * (1 - o));
    NAME(vec) through = dm * o * (1 - m * m);
    if (p->has_gate_clip)
        through = NAME(clip_backward)(c, through, (REAL)p->gate_low, (REAL)p->gate_high);
    NAME(vec) dc = NAME(load)(dc_at) + through;
    if (b->dc) dc += NAME(load_part)((const REAL *)b->dc + pos * b->dc_stride + unit, count);
    if (peephole) dc += NAME(load_part)(peephole + 2 * H + unit, count) * d_o;
    if (p->has_cell_clip)
        dc = NAME(clip_backward)(f * c_before + i * g, dc, (REAL)p->cell_low, (REAL)p->cell_high);
    NAME(vec) d_g = NAME(gate_clip_backward)(p, b->pre, at + 2 * H, count, dc * i * (1 - g * g));
    NAME(vec) d_i = dc * (p->coupled ? g - c_before : g) * i * (1 - i);
    d_i = NAME(gate_clip_backward)(p, b->pre, at, count, d_i);
    NAME(vec) d_f = NAME(splat)(0);
    if (!p->coupled)
        d_f = NAME(gate_clip_backward)(p, b->pre, at + H, count, dc * c_before * f * (1 - f));
    dc = dc * f;
    if (peephole)
        dc += NAME(load_part)(peephole + unit, count) * d_i +
              NAME(load_part)(peephole + H + unit, count) * d_f;
    NAME(store)(dc_at, dc);
    NAME(keep)(p, b->dgates, NAME(row)(run, t, s), unit, d_i, d_f, d_g, d_o);
}

/* d_n, d_z and, but for the reset-before form, d_r and the recurrent part of n. */
static inline void NAME(gru_back)(const NAME(BackwardRun) *run, int64_t t, int64_t s, int64_t pos,
                                  int64_t unit)
{
    const Problem *p = run->p;
    const Backward *b = run->f;
    int64_t H = p->hidden, count = H - unit, at = pos * 4 * H + unit;
    const REAL *gates = (const REAL *)b->gates + at;
    NAME(vec) r = NAME(load_part)(gates, count), z = NAME(load_part)(gates + H, count);
    NAME(vec) n = NAME(load_part)(gates + 2 * H, count), q = NAME(load_part)(gates + 3 * H, count);
    NAME(vec) h = NAME(load_part)(NAME(before)(p, b->y, b->y_stride, b->h0, H, t, s) + unit, count);
    NAME(vec) dh = NAME(get_dh)(run, s, pos, unit);
    NAME(vec) d_n = NAME(gate_clip_backward)(p, b->pre, at + 2 * H, count,
                                             dh * (1 - z) * (1 - n * n));
    NAME(vec) d_z = NAME(gate_clip_backward)(p, b->pre, at + H, count,
                                             dh * (h - n) * z * (1 - z));
    NAME(store)(run->dh + s * run->padded_output + unit, dh * z);
    if (p->cell == GRU_RESET_BEFORE) { /* q is r * h; d_r follows, when the gradient of it is known */
        NAME(keep)(p, b->dgates, NAME(row)(run, t, s), unit, d_n, d_n, d_z, q);
        return;
    }
    NAME(vec) d_r = NAME(gate_clip_backward)(p, b->pre, at, count, d_n * q * r * (1 - r));
    NAME(keep)(p, b->dgates, NAME(row)(run, t, s), unit, d_n, d_r, d_z, d_n * r);
}

/* d_r of the reset-before form, from the gradient of r * h. */
static inline void NAME(gru_reset_back)(const NAME(BackwardRun) *run, int64_t t, int64_t s,
                                        int64_t pos, int64_t unit)
{
    const Problem *p = run->p;
    const Backward *b = run->f;
    int64_t H = p->hidden, count = H - unit, at = pos * 4 * H + unit;
    if (count <= 0) return;
    NAME(vec) r = NAME(load_part)((const REAL *)b->gates + at, count);
    NAME(vec) h = NAME(load_part)(NAME(before)(p, b->y, b->y_stride, b->h0, H, t, s) + unit, count);
    NAME(vec) d_rh = NAME(load)(run->dm + s * run->padded + unit);
    NAME(vec) d_r = NAME(gate_clip_backward)(p, b->pre, at, count, d_rh * h * r * (1 - r));
    NAME(store_part)((REAL *)b->dgates + (NAME(row)(run, t, s) * 4 + 1) * H + unit, d_r, count);
    REAL *dh = run->dh + s * run->padded_output + unit;
    NAME(store)(dh, NAME(load)(dh) + d_rh * r);
}

static inline void NAME(rnn_back)(const NAME(BackwardRun) *run, int64_t t, int64_t s, int64_t pos,
                                  int64_t unit)
{
    const Problem *p = run->p;
    const Backward *b = run->f;
    int64_t H = p->hidden, count = H - unit;
    NAME(vec) h = NAME(load_part)((const REAL *)b->y + pos * b->y_stride + unit, count);
    NAME(vec) dh = NAME(get_dh)(run, s, pos, unit);
    NAME(vec) d = p->cell == RNN_RELU ? (NAME(vec))(~(h <= 0) & (NAME(ivec))dh) : dh * (1 - h * h);
    d = NAME(gate_clip_backward)(p, b->pre, pos * H + unit, count, d);
    NAME(store_part)((REAL *)b->dgates + NAME(row)(run, t, s) * H + unit, d, count);
    NAME(store)(run->dh + s * run->padded_output + unit, NAME(splat)(0));
}

/* Rows of this thread: C (S, padded) += A B over its panels of B, with A given row by row. */
static void NAME(rows_times)(const REAL **rows, int64_t n, int64_t numbers, REAL *operands,
                             const REAL *packed, int64_t column, int64_t column_end, REAL *c,
                             int64_t stride)
{
    int64_t depth = NAME(steps)(numbers);
    NAME(make_operands)(rows, n, numbers, operands);
    NAME(panels)(column_end - column, n, 4, rows, depth, packed + column * 4 * LANES * depth,
                 c + column * 4 * LANES, stride, 4 * LANES,
                 NAME(far)((column_end - column) * 4 * LANES, depth));
}

static void NAME(backward_body)(void *argument, Thread thread)
{
    const NAME(BackwardRun) *run = argument;
    const Problem *p = run->p;
    const Backward *f = run->f;
    const Weights *w = run->w;
    int64_t H = p->hidden, P = p->output, wide = 4 * LANES;
    int64_t slots = p->cell <= RNN_RELU ? 1 : 4;
    int64_t i = thread.index, threads = thread.threads;
    int64_t first = run->by_rows ? i : 0, stride = run->by_rows ? threads : 1;
    int64_t units = run->padded / wide, columns = run->padded_output / wide;
    int64_t unit = 0, unit_end = units, column = 0, column_end = columns;
    if (!run->by_rows) {
        unit = units * i / threads, unit_end = units * (i + 1) / threads;
        column = columns * i / threads, column_end = columns * (i + 1) / threads;
    }
    int64_t room = NAME(alive)(p, f->begin, first, stride);
    int64_t most = room * NAME(operand_room)(4 * H);
    REAL *operands = rnnop_aligned((size_t)most * sizeof(REAL) + (size_t)room * sizeof(REAL *));
    const REAL **rows = (const REAL **)(operands + most);
    if (!operands) atomic_store(run->status, NO_MEMORY);
    if (!run->by_rows) rnnop_barrier(thread);
    int64_t t = atomic_load(run->status) == OK ? f->end - 1 : -1;
#define MEET() do { if (!run->by_rows) rnnop_barrier(thread); } while (0)
#define EACH_ROW(s) for (int64_t j = 0, s = first; j < n; j++, s += stride)
    for (; t >= f->begin; t--) {
        int64_t n = NAME(alive)(p, t, first, stride);
        if (n == 0) continue; /* never when units are shared */
        if (p->projected) {
            EACH_ROW(s) {
                int64_t pos = NAME(position)(p, t, s);
                REAL *dh_raw = (REAL *)f->dh_raw + NAME(row)(run, t, s) * P;
                for (int64_t v = column * wide; v < column_end * wide && v < P; v += LANES) {
                    NAME(vec) d = NAME(get_dh)(run, s, pos, v);
                    if (p->has_proj_clip)
                        d = NAME(clip_backward)(
                            NAME(load_part)((const REAL *)f->h_raw + pos * P + v, P - v), d,
                            (REAL)p->proj_low, (REAL)p->proj_high);
                    NAME(store_part)(dh_raw + v, d, P - v);
                }
                memset(run->dh + s * run->padded_output + column * wide, 0,
                       (size_t)((column_end - column) * wide) * sizeof(REAL));
                memset(run->dm + s * run->padded + unit * wide, 0,
                       (size_t)((unit_end - unit) * wide) * sizeof(REAL));
                rows[j] = dh_raw;
            }
            MEET();
            NAME(rows_times)(rows, n, P, operands, w->projection, unit, unit_end,
                             run->dm + first * run->padded, stride * run->padded);
        }
        EACH_ROW(s) {
            int64_t pos = NAME(position)(p, t, s);
            for (int64_t v = unit * wide; v < unit_end * wide && v < H; v += LANES) {
                if (p->cell == LSTM) NAME(lstm_back)(run, t, s, pos, v);
                else if (p->cell <= RNN_RELU) NAME(rnn_back)(run, t, s, pos, v);
                else NAME(gru_back)(run, t, s, pos, v);
            }
        }
        MEET();
        if (p->cell == GRU_RESET_BEFORE) {
            EACH_ROW(s) {
                memset(run->dm + s * run->padded + unit * wide, 0,
                       (size_t)((unit_end - unit) * wide) * sizeof(REAL));
                rows[j] = (const REAL *)f->dgates + NAME(row)(run, t, s) * 4 * H;
            }
            NAME(rows_times)(rows, n, H, operands, w->candidate, unit, unit_end,
                             run->dm + first * run->padded, stride * run->padded);
            EACH_ROW(s)
                for (int64_t v = unit * wide; v < unit_end * wide; v += LANES)
                    NAME(gru_reset_back)(run, t, s, NAME(position)(p, t, s), v);
            MEET();
        }
        int64_t skip = p->cell == GRU || p->cell == GRU_RESET_BEFORE ? H : 0;
        int64_t depth = p->cell == LSTM ? 4 * H : p->cell == GRU ? 3 * H
                      : p->cell == GRU_RESET_BEFORE ? 2 * H : H;
        EACH_ROW(s)
            rows[j] = (const REAL *)f->dgates + NAME(row)(run, t, s) * slots * H + skip;
        NAME(rows_times)(rows, n, depth, operands, w->recurrent, column, column_end,
                         run->dh + first * run->padded_output, stride * run->padded_output);
        /* With a projection, or where units and columns are cut differently, others read it. */
    }
#undef EACH_ROW
#undef MEET
    free(operands);
}

int NAME(rnnop_backward)(const Problem *p, const Weights *w, const Backward *f)
{
    int64_t S = p->num_segments, H = p->hidden, P = p->output, wide = 4 * LANES;
    int lstm = p->cell == LSTM;
    atomic_int status = OK;
    if (p->num_steps == 0) return OK; /* no segment, no gradient */
    NAME(BackwardRun) run = {.p = p, .w = w, .f = f, .status = &status};
    run.padded = (H + wide - 1) / wide * wide;
    run.padded_output = (P + wide - 1) / wide * wide;
    int needs_dm = p->projected || p->cell == GRU_RESET_BEFORE;
    size_t h_size = (size_t)(S * run.padded_output), c_size = (size_t)(S * run.padded);
    size_t size = (h_size + (lstm ? c_size : 0) + (needs_dm ? c_size : 0)) * sizeof(REAL);
    run.dh = rnnop_aligned(size);
    if (!run.dh) return NO_MEMORY;
    memset(run.dh, 0, size);
    run.dc = run.dh + h_size;
    run.dm = run.dc + (lstm ? c_size : 0);
    for (int64_t s = 0; s < S; s++) {
        memcpy(run.dh + s * run.padded_output, (const REAL *)f->dh_n + s * P,
               (size_t)P * sizeof(REAL));
        if (lstm)
            memcpy(run.dc + s * run.padded, (const REAL *)f->dc_n + s * H,
                   (size_t)H * sizeof(REAL));
    }
    double work = 2.0 * (double)S * (double)H * (double)P;
    run.by_rows = S >= 2 * p->threads || work < MIN_SHARED_WORK;
    int64_t threads = p->threads;
    if (run.by_rows && threads > S) threads = S;
    if (work * (double)(f->end - f->begin) < MIN_THREADED_WORK) threads = 1;
    (run.by_rows ? rnnop_run_parts : rnnop_run_together)(NAME(backward_body), &run, (int)threads);
    for (int64_t s = 0; s < S; s++) {
        memcpy((REAL *)f->dh0 + s * P, run.dh + s * run.padded_output, (size_t)P * sizeof(REAL));
        if (lstm)
            memcpy((REAL *)f->dc0 + s * H, run.dc + s * run.padded, (size_t)H * sizeof(REAL));
    }
    free(run.dh);
    return atomic_load(&status);
}
