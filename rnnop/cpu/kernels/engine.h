/* What Python hands over. The ctypes twin of these structures is rnnop/cpu/engine.py.
 *
 * Data is packed (rnnop/ragged.py): step t is rows offsets[t] .. offsets[t] + batch_sizes[t] and
 * belongs to segments 0 .. batch_sizes[t] - 1; lengths[s] is how many steps segment s has. Sizes
 * are in elements. A pointer that is not needed is null.
 */
#ifndef RNNOP_ENGINE_H
#define RNNOP_ENGINE_H

#include <stdint.h>

enum Cell { RNN_TANH, RNN_RELU, GRU, GRU_RESET_BEFORE, LSTM };
enum Status { OK = 0, NO_MEMORY = 1 };

typedef struct {
    /* the network of one pseudo-layer */
    int64_t cell, input, hidden, output; /* output is P, hidden without a projection */
    int64_t projected, peephole, coupled, backward;
    int64_t has_cell_clip, cell_clip_nan, has_gate_clip, has_proj_clip;
    double cell_low, cell_high, gate_low, gate_high, proj_low, proj_high;
    /* the steps */
    int64_t num_segments, num_steps;
    const int64_t *batch_sizes, *offsets, *lengths;
    int64_t threads;
} Problem;

typedef struct {
    /* as the caller has them; null where there is none */
    const void *w_ih, *w_hh, *w_hr, *b_ih, *b_hh, *peephole;
} Given;

typedef struct {
    /* packed by rnnop_pack, see there */
    const void *input, *recurrent, *candidate, *projection, *bias, *peephole;
} Weights;

typedef struct {
    const void *x; /* (total, input), rows x_stride apart */
    int64_t x_stride;
    const void *h0, *c0; /* (S, output), (S, hidden) */
    void *y;             /* (total, output), rows y_stride apart */
    int64_t y_stride;
    void *h_n, *c_n; /* (S, output), (S, hidden) */
    void *c;         /* (total, hidden), rows c_stride apart: cell state of every step */
    int64_t c_stride;
    /* kept for the backward */
    void *gates;   /* (total, 4, hidden): LSTM i f g o; GRU r z n q, with q = R_n h + b_hn, or r * h */
    void *pre;     /* (total, 4, hidden): pre-activations, with a gate clip only */
    void *h_raw;   /* (total, output): h before its clip, with a projection clip only */
} Forward;

typedef struct {
    /* Steps begin..end, later ones being done: dgates and dh_raw have their rows only, in the order
     * in which the direction runs, row offsets[t] - offsets[begin] + s. */
    int64_t begin, end;
    const void *y; /* as the forward wrote it */
    int64_t y_stride;
    const void *h0, *c0;
    const void *c; /* (total, hidden), c_stride apart */
    int64_t c_stride;
    const void *gates, *pre, *h_raw;
    const void *dy; /* (total, output), dy_stride apart */
    int64_t dy_stride;
    const void *dc; /* (total, hidden) or null, dc_stride apart */
    int64_t dc_stride;
    /* (S, output), (S, hidden): of the states after step end - 1, or of the final states of segments
     * that end before; and what they become before step begin. They may be the same arrays. */
    const void *dh_n, *dc_n;
    void *dh0, *dc0;
    void *dgates; /* (rows, 4, hidden): LSTM i f g o; GRU n r z and the recurrent part of n */
    void *dh_raw; /* (rows, output): gradient before the projection clip, with a projection only */
} Backward;

/* C (left, right) += D' X */
typedef struct {
    int64_t rows, left, right, threads;
    const void *d; /* (rows, left), d_stride apart */
    int64_t d_stride;
    const void *x; /* rows of X, x_stride apart, in this order or at x_rows */
    int64_t x_stride;
    const int64_t *x_rows;
    void *sum;
} Outer;

/* Y (rows, columns) = D B, or += with `add` */
typedef struct {
    int64_t rows, depth, columns, threads, add;
    const void *d; /* (rows, depth), d_stride apart */
    int64_t d_stride;
    const void *packed; /* by rnnop_pack_times */
    void *y;            /* rows of `columns` elements, in this order or at y_rows */
    const int64_t *y_rows;
} Times;

#endif
