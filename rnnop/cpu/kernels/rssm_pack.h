/* Weights of an RSSM into panels: one walk over all of them says how much room they take and where
 * each begins, the same walk packs them. */

typedef struct {
    Rssm *r;
    REAL *room;
    int64_t taken;
    int backward;
    const Thread *thread; /* null while room is dealt out */
} NAME(Walk);

/* The next `elements` of the room, which *place points to. */
static REAL *NAME(next)(NAME(Walk) *walk, const void **place, int64_t elements)
{
    int64_t wide = 4 * LANES;
    REAL *here = walk->room + walk->taken;
    walk->taken += (elements + wide - 1) / wide * wide;
    if (!walk->thread && walk->room) *place = here;
    return here;
}

/* Columns of a product with a matrix (out, stride), or with its transpose. */
static void NAME(next_cut)(NAME(Walk) *walk, const void **place, const REAL *matrix,
                           int64_t row_stride, int64_t column_stride, int64_t columns,
                           int64_t depth)
{
    REAL *to = NAME(next)(walk, place, NAME(wide)(columns) * depth);
    if (walk->thread)
        NAME(pack_cut)(*walk->thread, matrix, row_stride, column_stride, columns, depth, to);
}

/* Likewise in the panels that rnnop_times reads. */
static void NAME(next_times)(NAME(Walk) *walk, const void **place, const REAL *matrix,
                             int64_t stride, int64_t columns, int64_t depth)
{
    int64_t wide = 4 * LANES;
    REAL *to = NAME(next)(walk, place, (columns + wide - 1) / wide * wide * depth);
    if (walk->thread) NAME(pack_plain)(*walk->thread, matrix, 1, stride, columns, depth, to);
}

/* The sum of two vectors, either of which may be null, with zeros behind. */
static void NAME(next_bias)(NAME(Walk) *walk, const void **place, const REAL *one,
                            const REAL *other, int64_t count)
{
    int64_t wide = NAME(wide)(count);
    REAL *to = NAME(next)(walk, place, wide);
    if (!walk->thread || walk->thread->index) return;
    for (int64_t i = 0; i < wide; i++)
        to[i] = i < count ? (one ? one[i] : 0) + (other ? other[i] : 0) : 0;
}

static void NAME(next_layers)(NAME(Walk) *walk, Layer *layers, int64_t count)
{
    for (Layer *l = layers; l < layers + count; l++) {
        const REAL *w = l->w;
        int64_t stride = l->in + l->known;
        if (walk->backward) {
            NAME(next_cut)(walk, &l->backward, w, 1, stride, l->back, l->out);
            int64_t rest = stride - l->back;
            if (rest) NAME(next_times)(walk, &l->backward_known, w + l->back, stride, rest, l->out);
            continue;
        }
        NAME(next_cut)(walk, &l->forward, w, stride, 1, l->out, l->in);
        if (l->known)
            NAME(next_cut)(walk, &l->forward_known, w + l->in, stride, 1, l->out, l->known);
        NAME(next_bias)(walk, &l->bias, l->b, 0, l->out);
    }
}

/* The same columns of `count` matrices, `step` apart. */
static void NAME(next_blocks)(NAME(Walk) *walk, const void **place, int64_t count, int64_t step,
                              const REAL *matrix, int64_t row_stride, int64_t column_stride,
                              int64_t columns, int64_t depth)
{
    int64_t size = NAME(wide)(columns) * depth;
    REAL *to = NAME(next)(walk, place, count * size);
    if (!walk->thread) return;
    for (int64_t b = 0; b < count; b++) {
        Thread thread = *walk->thread; /* a block may be no more than one panel */
        thread.index = (int)((thread.index + b) % thread.threads);
        NAME(pack_cut)(thread, matrix + b * step, row_stride, column_stride, columns, depth,
                       to + b * size);
    }
}

/* A vector in parts of `size`, each with zeros behind; null for zeros. */
static void NAME(next_block_biases)(NAME(Walk) *walk, const void **place, const REAL *b,
                                    int64_t count, int64_t size)
{
    int64_t wide = NAME(wide)(size);
    REAL *to = NAME(next)(walk, place, count * wide);
    if (!walk->thread || walk->thread->index) return;
    for (int64_t i = 0; i < count * wide; i++)
        to[i] = b && i % wide < size ? b[i / wide * size + i % wide] : 0;
}

/* Layers in blocks. Of the first, the columns that read the features are no block. */
static void NAME(next_dynamics)(NAME(Walk) *walk)
{
    Rssm *r = walk->r;
    int64_t B = r->blocks, size = r->belief / B, X = r->inputs->out;
    for (Layer *l = r->dynamics; l < r->dynamics + r->num_dynamics; l++) {
        int64_t features = l == r->dynamics ? 3 * X : 0, stride = size + features, rows = l->out / B;
        const REAL *w = l->w;
        if (walk->backward) {
            NAME(next_blocks)(walk, &l->backward, B, rows * stride, w, 1, stride, size, rows);
            for (int k = 0; features && k < 3; k++)
                NAME(next_cut)(walk, &r->features[k], w + size + k * X, 1, stride, X, l->out);
            continue;
        }
        NAME(next_blocks)(walk, &l->forward, l->out / size, size * stride, w, stride, 1, size, size);
        NAME(next_block_biases)(walk, &l->bias, l->b, l->out / size, size);
        for (int k = 0; features && k < 3; k++)
            NAME(next_blocks)(walk, &r->features[k], B, size * stride, w + size + k * X, stride, 1,
                              size, X);
    }
}

/* A GRU's gates as the unit blocks of pack.h; that with layer norm has them as plain columns. */
static void NAME(next_gru)(NAME(Walk) *walk)
{
    Rssm *r = walk->r;
    const REAL *w_ih = r->w_ih, *w_hh = r->w_hh;
    int64_t H = r->belief, X = r->inputs[r->num_inputs - 1].out, blocks = NAME(vectors)(H);
    static const int input[] = {2, 0, 1}, recurrent[] = {0, 1, 2};
    if (r->cell == RSSM_GRU_LAYER_NORM) {
        if (walk->backward) {
            NAME(next_cut)(walk, &r->gru_input, w_ih, 1, X, X, 3 * H);
            NAME(next_cut)(walk, &r->gru_recurrent, w_hh, 1, H, H, 3 * H);
        } else {
            NAME(next_cut)(walk, &r->gru->forward, w_ih, X, 1, 3 * H, X);
            NAME(next_cut)(walk, &r->gru_recurrent, w_hh, H, 1, 3 * H, H);
            NAME(next_bias)(walk, &r->gru->bias, r->b_ih, r->b_hh, 3 * H);
        }
        return;
    }
    int before = r->cell == RSSM_GRU_RESET_BEFORE, gates = before ? 2 : 3;
    if (walk->backward) {
        NAME(next_cut)(walk, &r->gru_input, w_ih, 1, X, X, 3 * H);
        NAME(next_cut)(walk, &r->gru_recurrent, w_hh, 1, H, H, 2 * H);
        NAME(next_cut)(walk, &r->gru_candidate, w_hh + 2 * H * H, 1, H, H, H);
        return;
    }
    REAL *to = NAME(next)(walk, &r->gru_input, blocks * 3 * LANES * X);
    if (walk->thread) NAME(pack_gates)(*walk->thread, w_ih, input, 3, H, X, to);
    to = NAME(next)(walk, &r->gru_recurrent, blocks * gates * LANES * H);
    if (walk->thread) NAME(pack_gates)(*walk->thread, w_hh, recurrent, gates, H, H, to);
    if (before)
        NAME(next_cut)(walk, &r->gru_candidate, w_hh + 2 * H * H, H, 1, H, H);
    to = NAME(next)(walk, &r->gru_bias, blocks * 4 * LANES);
    Problem cell = {.cell = before ? GRU_RESET_BEFORE : GRU, .hidden = H};
    if (walk->thread && walk->thread->index == 0)
        NAME(pack_biases)(&cell, r->b_ih, r->b_hh, to);
}

static void NAME(walk)(NAME(Walk) *walk)
{
    Rssm *r = walk->r;
    NAME(next_layers)(walk, r->inputs, r->num_inputs);
    if (r->dynamics) NAME(next_dynamics)(walk);
    else NAME(next_gru)(walk);
    NAME(next_layers)(walk, r->head, r->num_head);
    NAME(next_layers)(walk, r->prior, r->num_prior);
    NAME(next_layers)(walk, r->actor, r->num_actor);
}

static void NAME(walk_body)(void *argument, Thread thread)
{
    NAME(Walk) walk = *(NAME(Walk) *)argument;
    walk.thread = &thread;
    walk.taken = 0;
    NAME(walk)(&walk);
}

/* How much working memory and work a row takes in all layers together, and where each begins. */
static void NAME(place_layers)(Rssm *r, Layer *layers, int64_t count)
{
    for (Layer *l = layers; l < layers + count; l++) {
        l->place = r->width;
        r->parameters += l->in * l->out;
        r->width += NAME(wide)(l->out) * (l->norm == NO_NORM ? 1 : 2);
    }
}

int64_t NAME(rnnop_rssm_packed_size)(Rssm *r, int backward)
{
    NAME(Walk) walk = {.r = r, .backward = backward};
    NAME(walk)(&walk);
    return walk.taken;
}

void NAME(rnnop_rssm_pack)(Rssm *r, int backward, void *room)
{
    NAME(Walk) walk = {.r = r, .backward = backward, .room = room};
    NAME(walk)(&walk);
    int64_t H = r->belief;
    r->width = 0;
    int64_t X = r->inputs[r->num_inputs - 1].out;
    r->parameters = r->dynamics ? 3 * H * (X + r->dynamics->in) : 3 * H * (X + H);
    NAME(place_layers)(r, r->inputs, r->num_inputs);
    NAME(place_layers)(r, r->gru, r->gru != 0);
    if (r->dynamics) NAME(place_layers)(r, r->dynamics, r->num_dynamics - 1);
    NAME(place_layers)(r, r->head, r->num_head);
    NAME(place_layers)(r, r->prior, r->num_prior);
    NAME(place_layers)(r, r->actor, r->num_actor);
    r->far = walk.taken * (int64_t)sizeof(REAL) > FAR_BYTES;
    rnnop_run_parts(NAME(walk_body), &walk,
                    walk.taken < MIN_THREADED_PACKING ? 1 : (int)r->threads);
}
