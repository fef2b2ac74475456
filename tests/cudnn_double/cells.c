/* The equations of one step of one sequence, and their derivatives. */
#include "double.h"

#include <math.h>

static double sigmoid(double a) { return 1 / (1 + exp(-a)); }

static double dot(const double *a, const double *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* W x + bW of one gate; W is the identity when the input is skipped. */
static double from_input(const Cell *cell, int gate, int j, const double *x) {
    const double *W = cell->W[gate];
    double bias = cell->bW[gate] ? cell->bW[gate][j] : 0;
    return bias + (W ? dot(W + (size_t)j * (size_t)cell->K, x, cell->K) : x[j]);
}

/* R h + bR of one gate. */
static double from_state(const Rnn *rnn, const Cell *cell, int gate, int j, const double *h) {
    double bias = cell->bR[gate] ? cell->bR[gate][j] : 0;
    return bias + dot(cell->R[gate] + (size_t)j * (size_t)rnn->P, h, rnn->P);
}

static double argument(const Rnn *rnn, const Cell *cell, int gate, int j, const double *x,
                       const double *h) {
    return from_input(cell, gate, j, x) + from_state(rnn, cell, gate, j, h);
}

/* ---- the clip of the LSTM's cell state, whose bounds pass through float ---- */

static bool clips(const Rnn *rnn) { return rnn->mode == LSTM && rnn->clip == CLIP_MINMAX; }

double clipped(const Rnn *rnn, double c) {
    if (!clips(rnn)) return c;
    double low = (float)rnn->clip_low, high = (float)rnn->clip_high;
    if (isnan(c)) return rnn->clip_nan == PROPAGATE_NAN ? c : low;
    return c < low ? low : c > high ? high : c;
}

static double clip_slope(const Rnn *rnn, double c) {
    if (!clips(rnn)) return 1;
    if (isnan(c)) return rnn->clip_nan == PROPAGATE_NAN ? c : 1;
    return c >= (float)rnn->clip_low && c <= (float)rnn->clip_high;
}

/* ---- forward ---- */

/* c_t stays as computed; it is clipped where it is read. */
static void lstm(const Rnn *rnn, const Cell *cell, const double *x, const double *h,
                 const double *c, Step step) {
    const int H = rnn->H;
    double *in = step.gates, *forget = in + H, *new = in + 2 * H, *output = in + 3 * H;
    double *hidden = projected(rnn) ? step.hidden : step.out;
    for (int j = 0; j < H; j++) {
        in[j] = sigmoid(argument(rnn, cell, 0, j, x, h));
        forget[j] = sigmoid(argument(rnn, cell, 1, j, x, h));
        new[j] = tanh(argument(rnn, cell, 2, j, x, h));
        output[j] = sigmoid(argument(rnn, cell, 3, j, x, h));
        step.cell[j] = forget[j] * clipped(rnn, c[j]) + in[j] * new[j];
        hidden[j] = output[j] * tanh(clipped(rnn, step.cell[j]));
    }
    if (projected(rnn))
        for (int p = 0; p < rnn->P; p++)
            step.out[p] = dot(cell->projection + (size_t)p * (size_t)H, hidden, H);
}

static void gru(const Rnn *rnn, const Cell *cell, const double *x, const double *h, Step step) {
    const int H = rnn->H;
    double *reset = step.gates, *update = reset + H, *new = reset + 2 * H, *state = reset + 3 * H;
    const bool reset_before = fault("reset_before");
    for (int j = 0; j < H; j++) {
        reset[j] = sigmoid(argument(rnn, cell, 0, j, x, h));
        update[j] = sigmoid(argument(rnn, cell, 1, j, x, h));
    }
    for (int j = 0; j < H; j++) {
        state[j] = from_state(rnn, cell, 2, j, h);
        double gated = reset[j] * state[j];
        if (reset_before) {
            gated = cell->bR[2] ? cell->bR[2][j] : 0;
            for (int i = 0; i < H; i++)
                gated += cell->R[2][(size_t)j * (size_t)H + (size_t)i] * reset[i] * h[i];
        }
        new[j] = tanh(from_input(cell, 2, j, x) + gated);
        step.out[j] = (1 - update[j]) * new[j] + update[j] * h[j];
    }
}

void cell_forward(const Rnn *rnn, const Cell *cell, const double *x, const double *h,
                  const double *c, Step step) {
    if (rnn->mode == LSTM) {
        lstm(rnn, cell, x, h, c, step);
        return;
    }
    if (rnn->mode == GRU) {
        gru(rnn, cell, x, h, step);
        return;
    }
    for (int j = 0; j < rnn->H; j++) {
        double a = argument(rnn, cell, 0, j, x, h);
        step.out[j] = step.gates[j] = rnn->mode == TANH ? tanh(a) : a < 0 ? 0 : a;
    }
}

/* ---- backward ---- */

/* Where the gradient of R h + bR of a gate lies in step.gates: GRU's new gate has two. */
static double *state_gradient(const Rnn *rnn, Step step, int gate) {
    return step.gates + (size_t)(rnn->mode == GRU && gate == 2 ? 3 : gate) * (size_t)rnn->H;
}

static double *input_gradient(const Rnn *rnn, Step step, int gate) {
    return step.gates + (size_t)gate * (size_t)rnn->H;
}

/* dc: in, from later steps or dcy, of the unclipped c_t; out, of the unclipped c_{t-1}. */
static void lstm_backward(const Rnn *rnn, const double *c, Step step, const double *dh,
                          double *dc) {
    const int H = rnn->H;
    double *gates = step.gates;
    for (int j = 0; j < H; j++) {
        double in = gates[j], forget = gates[H + j], new = gates[2 * H + j];
        double output = gates[3 * H + j];
        double squashed = tanh(clipped(rnn, step.cell[j]));
        double d = dc[j] +
                   dh[j] * output * (1 - squashed * squashed) * clip_slope(rnn, step.cell[j]);
        gates[j] = d * new * in * (1 - in);
        gates[H + j] = d * clipped(rnn, c[j]) * forget * (1 - forget);
        gates[2 * H + j] = d * in * (1 - new * new);
        gates[3 * H + j] = dh[j] * squashed * output * (1 - output);
        dc[j] = d * forget * clip_slope(rnn, c[j]);
        step.cell[j] = NAN; /* consumed */
    }
}

/* dh turns into the part of h_{t-1}'s gradient that passes beside the gates. */
static void gru_backward(const Rnn *rnn, const double *h, Step step, double *dh) {
    const int H = rnn->H;
    double *gates = step.gates;
    for (int j = 0; j < H; j++) {
        double reset = gates[j], update = gates[H + j], new = gates[2 * H + j];
        double state = gates[3 * H + j];
        double d = dh[j] * (1 - update) * (1 - new * new);
        gates[j] = d * state * reset * (1 - reset);
        gates[H + j] = dh[j] * (h[j] - new) * update * (1 - update);
        gates[2 * H + j] = d;
        gates[3 * H + j] = d * reset;
        dh[j] *= update;
    }
}

/* scratch holds H values. */
void cell_backward(const Rnn *rnn, const Cell *cell, const double *h, const double *c, Step step,
                   const double *out, double *dx, double *dh, double *dc, double *scratch) {
    const int H = rnn->H, P = rnn->P;
    if (projected(rnn)) {
        for (int j = 0; j < H; j++) scratch[j] = 0;
        for (int p = 0; p < P; p++) {
            step.dout[p] = dh[p];
            for (int j = 0; j < H; j++)
                scratch[j] += cell->projection[(size_t)p * (size_t)H + (size_t)j] * dh[p];
        }
        lstm_backward(rnn, c, step, scratch, dc);
    } else if (rnn->mode == LSTM) {
        lstm_backward(rnn, c, step, dh, dc);
    } else if (rnn->mode == GRU) {
        gru_backward(rnn, h, step, dh);
    } else {
        for (int j = 0; j < H; j++)
            step.gates[j] = dh[j] * (rnn->mode == TANH ? 1 - out[j] * out[j] : out[j] > 0);
    }
    if (rnn->mode != GRU)
        for (int p = 0; p < P; p++) dh[p] = 0;
    for (int gate = 0; gate < gate_count(rnn); gate++) {
        const double *W = cell->W[gate], *R = cell->R[gate];
        const double *of_input = input_gradient(rnn, step, gate);
        const double *of_state = state_gradient(rnn, step, gate);
        for (int j = 0; j < H; j++) {
            if (W == NULL) dx[j] += of_input[j];
            else
                for (int k = 0; k < cell->K; k++)
                    dx[k] += W[(size_t)j * (size_t)cell->K + (size_t)k] * of_input[j];
            for (int p = 0; p < P; p++)
                dh[p] += R[(size_t)j * (size_t)P + (size_t)p] * of_state[j];
        }
    }
}

static void add_outer(double *sum, const double *rows, int row_count, const double *cols,
                      int col_count) {
    for (int row = 0; row < row_count; row++)
        for (int col = 0; col < col_count; col++)
            sum[(size_t)row * (size_t)col_count + (size_t)col] += rows[row] * cols[col];
}

void cell_weights(const Rnn *rnn, Cell *sum, const double *x, const double *h, Step step) {
    const int H = rnn->H;
    for (int gate = 0; gate < gate_count(rnn); gate++) {
        const double *of_input = input_gradient(rnn, step, gate);
        const double *of_state = state_gradient(rnn, step, gate);
        if (sum->W[gate]) add_outer(sum->W[gate], of_input, H, x, sum->K);
        add_outer(sum->R[gate], of_state, H, h, rnn->P);
        for (int j = 0; j < H; j++) {
            if (sum->bW[gate]) sum->bW[gate][j] += of_input[j];
            if (sum->bR[gate]) sum->bR[gate][j] += of_state[j];
        }
    }
    if (projected(rnn)) add_outer(sum->projection, step.dout, rnn->P, step.hidden, H);
}
