/* The forward of a whole network in one call, with nothing kept for a backward. */

/* How many rows of data a pseudo-layer has. */
static inline int64_t NAME(total)(const Problem *p)
{
    int64_t last = p->num_steps - 1;
    return last < 0 ? 0 : p->offsets[last] + p->batch_sizes[last];
}

/* Weights for pseudo-layer k, packed into `room` if need be. */
static inline Weights NAME(weights_of)(const Network *n, int64_t k, void *room)
{
    if (n->packed) return *n->packed[k];
    Weights w;
    NAME(rnnop_pack)(n->problems[k], n->given[k], 0, room, &w);
    return w;
}

/* x, h0, c0, y, h_n and c_n of the network, C-contiguous; c0 and c_n are null without cell states. */
int NAME(rnnop_network)(const Network *n, const REAL *x, const REAL *h0, const REAL *c0, REAL *y,
                        REAL *h_n, REAL *c_n)
{
    int64_t D = n->directions, count = n->layers * D, most = 0, status = OK;
    const Problem *first = n->problems[0];
    int64_t width = D * first->output, rows = NAME(total)(first);
    for (int64_t k = 0; k < count && n->given; k++) {
        int64_t size = NAME(rnnop_packed_size)(n->problems[k], 0);
        if (size > most) most = size;
    }
    /* Between layers, outputs go to and fro between two places. */
    int64_t between = n->layers > 1 ? rows * width : 0, places = n->layers > 2 ? 2 : 1;
    REAL *room = rnnop_aligned((size_t)most * sizeof(REAL));
    REAL *outputs = rnnop_aligned((size_t)(places * between) * sizeof(REAL));
    if (!room || !outputs) status = NO_MEMORY;
    for (int64_t k = 0; k < count && status == OK; k++) {
        const Problem *p = n->problems[k];
        int64_t layer = k / D, states = k * p->num_segments;
        REAL *to = layer == n->layers - 1 ? y : outputs + layer % places * between;
        Forward f = {.x = layer ? outputs + (layer - 1) % places * between : x,
                     .x_stride = p->input,
                     .h0 = h0 + states * p->output,
                     .y = to + k % D * p->output,
                     .y_stride = width,
                     .h_n = h_n + states * p->output};
        if (c0) {
            f.c0 = c0 + states * p->hidden;
            f.c_n = c_n + states * p->hidden;
        }
        Weights w = NAME(weights_of)(n, k, room);
        status = NAME(rnnop_forward)(p, &w, &f);
    }
    free(room);
    free(outputs);
    return (int)status;
}
