/* An actor of dense layers in the loop over time, so that all steps of `imagine` are one call. */

/* Actions of rows `at`.. from state and belief, into the input rows and to the results. */
static void NAME(rssm_act)(NAME(Part) *part, int64_t at)
{
    const Rssm *r = part->r;
    int64_t S = r->state, A = r->action, H = r->belief, stride = NAME(wide)(S + A);
    REAL *y = part->seen;
    for (int64_t j = 0; j < part->n; j++) {
        REAL *seen = part->seen + j * NAME(wide)(S + H);
        memcpy(seen, part->input + j * stride, (size_t)S * sizeof(REAL));
        memcpy(seen + S, part->more[j], (size_t)H * sizeof(REAL));
    }
    NAME(point)(part->rows, part->n, y, 0, NAME(wide)(S + H));
    for (const Layer *l = r->actor; l < r->actor + r->num_actor; l++) {
        y = NAME(layer)(part, l, part->rows, at, 0);
        NAME(point)(part->rows, part->n, y, 0, NAME(wide)(l->out));
    }
    for (int64_t j = 0; j < part->n; j++)
        for (int64_t v = 0; v < A; v += LANES) {
            NAME(vec) action = NAME(load)(part->rows[j] + v);
            if (r->squash) action = NAME(tanh)(action);
            NAME(store_part)(part->input + j * stride + S + v, action, A - v);
            if (part->writes)
                NAME(store_part)((REAL *)r->actions + (at + j) * A + v, action, A - v);
        }
}

/* From the gradients of the products of the layer that reads state and action, in part->rows, to
 * those of the state and, added to columns begin..end, of the belief that the actor saw. */
static void NAME(rssm_act_back)(NAME(Part) *part, int64_t at, int64_t begin, int64_t end)
{
    const Rssm *r = part->r;
    const Layer *input = r->inputs, *last = r->actor + r->num_actor - 1;
    int64_t S = r->state, A = r->action, H = r->belief, to = NAME(of_stretch)(r, at), q, q_end;
    REAL *d = NAME(place)(part, last, 1); /* each thread has all of it */
    NAME(clear)(part, S + A, 0, NAME(cuts)(S + A), part->dinput);
    NAME(pull)(part, input->backward, S + A, input->out, 0, NAME(cuts)(S + A), part->dinput);
    for (int64_t j = 0; j < part->n; j++) {
        const REAL *dinput = part->dinput + j * NAME(wide)(S + A);
        memcpy(part->dstate + j * NAME(wide)(S), dinput, (size_t)S * sizeof(REAL));
        for (int64_t v = 0; v < A; v += LANES) {
            int64_t count = A - v, row = (at + j) * A + v;
            NAME(vec) action = NAME(load_part)((const REAL *)r->actions + row, count);
            NAME(vec) daction = NAME(load_part)(dinput + S + v, count);
            if (r->dactor) daction += NAME(load_part)((const REAL *)r->dactor + row, count);
            if (r->squash) daction *= 1 - action * action;
            NAME(store)(d + j * NAME(wide)(A) + v, daction);
            if (part->writes)
                NAME(store_part)((REAL *)last->d + (to + j) * A + v, daction, count);
        }
    }
    NAME(point)(part->rows, part->n, d, 0, NAME(wide)(A));
    for (const Layer *l = last; l > r->actor; l--) NAME(down)(part, l, l - 1, at);
    NAME(share)(part, S + H, &q, &q_end);
    NAME(clear)(part, S + H, q, q_end, part->dseen);
    NAME(pull)(part, r->actor->backward, S + H, r->actor->out, q, q_end, part->dseen);
    NAME(meet)(part);
    for (int64_t j = 0; j < part->n; j++) {
        const REAL *dseen = part->dseen + j * NAME(wide)(S + H);
        REAL *dstate = part->dstate + j * NAME(wide)(S), *dbelief = part->dbelief + j * NAME(wide)(H);
        for (int64_t i = 0; i < S; i++) dstate[i] += dseen[i];
        for (int64_t i = begin; i < end && i < H; i++) dbelief[i] += dseen[S + i];
    }
}

/* Gradients of the actor's weights, of some rows. */
static int NAME(add_actor)(const Rssm *r, int64_t row, int64_t rows)
{
    const Layer *l = r->actor;
    int64_t S = r->state, given = S + r->action, seen = S + r->belief;
    int status = NAME(add_outer)(r, rows, l->d, l->out, l->out, (const REAL *)r->given + row * given,
                                 given, S, l->dw, seen);
    if (status == OK)
        status = NAME(add_recurrent)(r, row, rows, l->d, l->out, l->out, 0, r->belief,
                                     (REAL *)l->dw + S, seen);
    NAME(add_vectors)(r, rows, l);
    if (status != OK) return status;
    return NAME(add_layers)(r, l + 1, r->num_actor - 1, row, rows, l->y, 0);
}
