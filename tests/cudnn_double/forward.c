/* cudnnRNNForward. */
#include "double.h"

#include <string.h>

typedef struct {
    Pass pass;
    void *y, *hy, *cy;
} Forward;

static void run_sequence(Forward *run, int pseudo, const Cell *cell, int n) {
    const Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    const Data *data = pass->x_data;
    const int length = data->length[n], D = directions(rnn), P = rnn->P;
    const bool backwards = pseudo % D == 1, last_layer = pseudo / D == rnn->L - 1;
    double *input = pass->work.vectors, *h = input + widest(rnn), *c = h + widest(rnn);
    load_state(pass, fault("hx_ignored") ? NULL : pass->hx, pseudo, n, P, h);
    if (rnn->mode == LSTM) load_state(pass, pass->cx, pseudo, n, rnn->H, c);
    const int steps = backwards && fault("reverse_start") ? data->T : length;
    for (int i = 0; i < steps; i++) {
        const int t = backwards ? steps - 1 - i : i;
        if (t >= length && data->layout == SEQ_MAJOR_PACKED) continue;
        const Step step = step_of(&pass->trace, pseudo, t, n);
        load_input(pass, pseudo, t, n, input);
        cell_forward(rnn, cell, input, h, c, step);
        memcpy(h, step.out, (size_t)P * sizeof *h);
        if (rnn->mode == LSTM) memcpy(c, step.cell, (size_t)rnn->H * sizeof *c);
        if (!last_layer || t >= length) continue;
        const size_t first = row_of(pass->y_data, t, n) * (size_t)(P * D);
        store_many(run->y, first + (size_t)(pseudo % D * P), rnn->type, h, (size_t)P);
    }
    store_state(pass, run->hy, pseudo, n, P, h);
    if (rnn->mode != LSTM) return;
    if (fault("cy_clipped"))
        for (int j = 0; j < rnn->H; j++) c[j] = clipped(rnn, c[j]);
    store_state(pass, run->cy, pseudo, n, rnn->H, c);
}

/* Padding of y: the fill value, or nothing that anybody may read. */
static void fill_padding(const Data *y_data, void *y) {
    if (y_data->layout == SEQ_MAJOR_PACKED) return;
    const size_t size = size_of(y_data->type), V = (size_t)y_data->V;
    for (int n = 0; n < y_data->N; n++)
        for (int t = y_data->length[n]; t < y_data->T; t++) {
            const size_t first = row_of(y_data, t, n) * V;
            garbage(y, first, y_data->type, V);
            if (!y_data->fill_given || fault("padding_fill")) continue;
            for (size_t v = 0; v < V; v++)
                memcpy((char *)y + (first + v) * size, y_data->fill, size);
        }
}

static void run_layers(Forward *run) {
    const Pass *pass = &run->pass;
    const Rnn *rnn = pass->rnn;
    double *weights = pass->work.weights;
    load_many(pass->spaces.weights, 0, rnn->type, weights, (size_t)weight_count(rnn));
    for (int pseudo = 0; pseudo < rnn->L * directions(rnn); pseudo++) {
        const Cell cell = cell_of(rnn, pseudo, weights);
        for (int n = 0; n < pass->x_data->N; n++) run_sequence(run, pseudo, &cell, n);
    }
    fill_padding(pass->y_data, run->y);
}

EXPORT Status cudnnRNNForward(Ref handle, Ref rnnDesc, int fwdMode, const int32_t devSeqLengths[],
                              Ref xDesc, const void *x, Ref yDesc, void *y, Ref hDesc,
                              const void *hx, void *hy, Ref cDesc, const void *cx, void *cy,
                              size_t weightSpaceSize, const void *weightSpace,
                              size_t workSpaceSize, void *workSpace, size_t reserveSpaceSize,
                              void *reserveSpace) {
    BEGIN();
    (void)devSeqLengths; /* the lengths of xDesc count */
    Forward run = {{.function = __func__, .x = x, .hx = hx, .cx = cx}, y, hy, cy};
    Pass *pass = &run.pass;
    TRY(pass_describe(pass, handle, rnnDesc, xDesc, yDesc));
    const Rnn *rnn = pass->rnn;
    BAD_IF(rnn->input == SKIP_INPUT && rnn->I != rnn->H);
    if (hx != NULL || hy != NULL) TRY(pass_check_state(pass, hDesc, rnn->P));
    if (cx != NULL || cy != NULL) TRY(pass_check_state(pass, cDesc, rnn->H));
    DIE_IF(fwdMode != INFERENCE && fwdMode != TRAINING); /* cuDNN looks at none of these */
    DIE_IF(x == NULL);
    DIE_IF(y == NULL);
    TRY(pass_start(pass, fwdMode,
                   (Spaces){weightSpaceSize, weightSpace, workSpaceSize, workSpace,
                            reserveSpaceSize, reserveSpace}));
    pass->handle->forwards++;
    Status status = pass_fails(pass);
    if (fwdMode == TRAINING) memset(reserveSpace, 0xff, reserveSpaceSize);
    if (status == SUCCESS && pass->masked)
        status = draw_masks(rnn, pass->x_data, &pass->trace, __func__);
    if (status == SUCCESS && !runs_wild(pass)) {
        run_layers(&run);
        if (fwdMode == TRAINING) reserve_mark(rnn, pass->x_data, reserveSpace, AFTER_FORWARD);
    } else {
        spoil(pass, pass->y_data, y, hy, cy);
    }
    pass_finish(pass);
    return status;
}
