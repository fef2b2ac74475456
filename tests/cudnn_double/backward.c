/* cudnnRNNBackwardData_v8 and cudnnRNNBackwardWeights_v8.
 *
 * States of inner layers come from the reserve space; x, y, hx and cx are read again from the
 * caller, so that a wrong one shows. */
#include "double.h"

#include <string.h>

typedef struct {
    Pass pass;
    const void *y, *dy, *dhy, *dcy;
    void *dx, *dhx, *dcx;
} Backward;

/* h_t of a pseudo layer: of the last layer it is what the caller holds in y. */
static void load_out(const Backward *run, int pseudo, int t, int n, double *to) {
    const Rnn *rnn = run->pass.rnn;
    const int D = directions(rnn), P = rnn->P;
    if (pseudo / D < rnn->L - 1) {
        memcpy(to, step_of(&run->pass.trace, pseudo, t, n).out, (size_t)P * sizeof *to);
        return;
    }
    const size_t first = row_of(run->pass.y_data, t, n) * (size_t)(D * P);
    load_many(run->y, first + (size_t)(pseudo % D * P), rnn->type, to, (size_t)P);
}

/* The i-th step that a direction takes in a sequence. */
static int time_of(const Pass *pass, int pseudo, int n, int i) {
    return pseudo % directions(pass->rnn) == 1 ? pass->x_data->length[n] - 1 - i : i;
}

/* h and c before the i-th step. */
static void load_before(const Backward *run, int pseudo, int n, int i, double *h, double *c) {
    const Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    if (i == 0) {
        load_state(pass, pass->hx, pseudo, n, rnn->P, h);
        if (rnn->mode == LSTM) load_state(pass, pass->cx, pseudo, n, rnn->H, c);
        return;
    }
    const int t = time_of(pass, pseudo, n, i - 1);
    load_out(run, pseudo, t, n, h);
    if (rnn->mode == LSTM)
        memcpy(c, step_of(&pass->trace, pseudo, t, n).cell, (size_t)rnn->H * sizeof *c);
}

/* ---- data ---- */

static double *row(const Pass *pass, double *rows, int t, int n) {
    return rows + ((size_t)t * (size_t)pass->x_data->N + (size_t)n) * (size_t)widest(pass->rnn);
}

/* The gradient of the last layer's output is dy; padding stays unread. */
static void load_dy(const Backward *run) {
    const Pass *pass = &run->pass;
    const size_t V = (size_t)pass->y_data->V;
    for (int n = 0; n < pass->x_data->N; n++)
        for (int t = 0; t < pass->x_data->length[n]; t++)
            load_many(run->dy, row_of(pass->y_data, t, n) * V, pass->rnn->type,
                      row(pass, pass->work.above, t, n), V);
}

/* Padding of dx holds garbage. */
static void store_dx(const Backward *run) {
    const Pass *pass = &run->pass;
    const Data *data = pass->x_data;
    const size_t I = (size_t)pass->rnn->I;
    spoil(pass, data, run->dx, NULL, NULL);
    for (int n = 0; n < data->N; n++)
        for (int t = 0; t < data->length[n] - fault("dx_missing"); t++)
            store_many(run->dx, row_of(data, t, n) * I, pass->rnn->type,
                       row(pass, pass->work.above, t, n), I);
}

/* Back through one sequence of one pseudo layer; adds to the rows below. */
static void run_sequence(Backward *run, int pseudo, const Cell *cell, int n) {
    const Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    const int D = directions(rnn), P = rnn->P, H = rnn->H, wide = widest(rnn);
    double *h = pass->work.vectors, *dh = h + wide, *out = dh + wide, *dinput = out + wide;
    double *c = dinput + wide, *dc = c + H, *scratch = dc + H;
    load_state(pass, run->dhy, pseudo, n, P, dh);
    load_state(pass, fault("dcy_ignored") ? NULL : run->dcy, pseudo, n, H, dc);
    for (int i = pass->x_data->length[n] - 1; i >= 0; i--) {
        const int t = time_of(pass, pseudo, n, i);
        const Step step = step_of(&pass->trace, pseudo, t, n);
        const double *above = row(pass, pass->work.above, t, n) + pseudo % D * P;
        for (int p = 0; p < P; p++) dh[p] += above[p];
        load_before(run, pseudo, n, i, h, c);
        load_out(run, pseudo, t, n, out);
        memset(dinput, 0, (size_t)cell->K * sizeof *dinput);
        cell_backward(rnn, cell, h, c, step, out, dinput, dh, dc, scratch);
        double *below = row(pass, pass->work.below, t, n);
        for (int k = 0; k < cell->K; k++)
            below[k] += pseudo >= D && pass->masked ? step.mask[k] * dinput[k] : dinput[k];
    }
    store_state(pass, run->dhx, pseudo, n, P, dh);
    if (rnn->mode == LSTM) store_state(pass, run->dcx, pseudo, n, H, dc);
}

static void run_layers(Backward *run) {
    Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    Work *work = &pass->work;
    const size_t rows = (size_t)pass->x_data->T * (size_t)pass->x_data->N;
    load_many(pass->spaces.weights, 0, rnn->type, work->weights, (size_t)weight_count(rnn));
    load_dy(run);
    for (int layer = rnn->L - 1; layer >= 0; layer--) {
        memset(work->below, 0, rows * (size_t)widest(rnn) * sizeof *work->below);
        for (int d = 0; d < directions(rnn); d++) {
            const int pseudo = layer * directions(rnn) + d;
            const Cell cell = cell_of(rnn, pseudo, work->weights);
            for (int n = 0; n < pass->x_data->N; n++) run_sequence(run, pseudo, &cell, n);
        }
        double *done = work->above;
        work->above = work->below;
        work->below = done;
    }
    store_dx(run);
}

EXPORT Status cudnnRNNBackwardData_v8(Ref handle, Ref rnnDesc, const int32_t devSeqLengths[],
                                      Ref yDesc, const void *y, const void *dy, Ref xDesc, void *dx,
                                      Ref hDesc, const void *hx, const void *dhy, void *dhx,
                                      Ref cDesc, const void *cx, const void *dcy, void *dcx,
                                      size_t weightSpaceSize, const void *weightSpace,
                                      size_t workSpaceSize, void *workSpace,
                                      size_t reserveSpaceSize, void *reserveSpace) {
    BEGIN();
    (void)devSeqLengths;
    Backward run = {{.function = __func__, .hx = hx, .cx = cx}, y, dy, dhy, dcy, dx, dhx, dcx};
    Pass *pass = &run.pass;
    TRY(pass_describe(pass, handle, rnnDesc, xDesc, yDesc));
    const Rnn *rnn = pass->rnn;
    if (dhx != NULL || dhy != NULL) TRY(pass_check_state(pass, hDesc, rnn->P));
    if (dcx != NULL || dcy != NULL) TRY(pass_check_state(pass, cDesc, rnn->H));
    DIE_IF(y == NULL); /* cuDNN looks at none of these */
    DIE_IF(dy == NULL);
    DIE_IF(dx == NULL);
    DIE_IF(rnn->input == SKIP_INPUT && rnn->I != rnn->H);
    TRY(pass_start(pass, TRAINING,
                   (Spaces){weightSpaceSize, weightSpace, workSpaceSize, workSpace,
                            reserveSpaceSize, reserveSpace}));
    const Status status = pass_fails(pass);
    if (status == SUCCESS && !runs_wild(pass) &&
        reserve_is(rnn, pass->x_data, reserveSpace, AFTER_FORWARD)) {
        run_layers(&run);
        reserve_mark(rnn, pass->x_data, reserveSpace, AFTER_BACKWARD_DATA);
    } else {
        spoil(pass, pass->x_data, dx, dhx, dcx);
        memset(reserveSpace, 0xff, reserveSpaceSize);
    }
    pass_finish(pass);
    return status;
}

/* ---- weights ---- */

static void add_weight_gradients(Backward *run, void *dweights) {
    const Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    const size_t count = (size_t)weight_count(rnn);
    double *sums = pass->work.weights, *x = pass->work.vectors, *h = x + widest(rnn);
    double *c = h + widest(rnn);
    memset(sums, 0, count * sizeof *sums);
    for (int pseudo = 0; pseudo < rnn->L * directions(rnn); pseudo++) {
        Cell cell = cell_of(rnn, pseudo, sums);
        for (int n = 0; n < pass->x_data->N; n++)
            for (int i = 0; i < pass->x_data->length[n]; i++) {
                const int t = time_of(pass, pseudo, n, i);
                load_input(pass, pseudo, t, n, x);
                if (fault("dw_wrong_step")) load_out(run, pseudo, t, n, h);
                else load_before(run, pseudo, n, i, h, c);
                cell_weights(rnn, &cell, x, h, step_of(&pass->trace, pseudo, t, n));
            }
    }
    for (size_t i = 0; i < count; i++)
        store(dweights, i, rnn->type, load(dweights, i, rnn->type) + sums[i]);
}

EXPORT Status cudnnRNNBackwardWeights_v8(Ref handle, Ref rnnDesc, int addGrad,
                                         const int32_t devSeqLengths[], Ref xDesc, const void *x,
                                         Ref hDesc, const void *hx, Ref yDesc, const void *y,
                                         size_t weightSpaceSize, void *dweightSpace,
                                         size_t workSpaceSize, void *workSpace,
                                         size_t reserveSpaceSize, void *reserveSpace) {
    BEGIN();
    (void)devSeqLengths;
    Backward run = {{.function = __func__, .x = x, .hx = hx}, .y = y};
    Pass *pass = &run.pass;
    TRY(pass_describe(pass, handle, rnnDesc, xDesc, yDesc));
    const Rnn *rnn = pass->rnn;
    BAD_IF(addGrad != WGRAD_ADD && addGrad != WGRAD_SET);
    UNSUPPORTED_IF(addGrad == WGRAD_SET);
    if (hx != NULL) TRY(pass_check_state(pass, hDesc, rnn->P));
    DIE_IF(x == NULL); /* cuDNN looks at neither */
    DIE_IF(y == NULL);
    DIE_IF(rnn->input == SKIP_INPUT && rnn->I != rnn->H);
    TRY(pass_start(pass, TRAINING,
                   (Spaces){weightSpaceSize, dweightSpace, workSpaceSize, workSpace,
                            reserveSpaceSize, reserveSpace}));
    const Status status = pass_fails(pass);
    if (status == SUCCESS && !runs_wild(pass) &&
        reserve_is(rnn, pass->x_data, reserveSpace, AFTER_BACKWARD_DATA))
        add_weight_gradients(&run, dweightSpace);
    else garbage(dweightSpace, 0, rnn->type, (size_t)weight_count(rnn));
    pass_finish(pass);
    return status;
}
