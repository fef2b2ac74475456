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

/* All pseudo-layers of a network, layer * directions + direction, and their weights: packed, or as the
 * caller has them. The other is null. */
typedef struct {
    int64_t layers, directions;
    const Problem *const *problems;
    const Weights *const *packed;
    const Given *const *given;
} Network;

/* C (left, right) += D' X */
typedef struct {
    int64_t rows, left, right, threads;
    const void *d; /* (rows, left), d_stride apart */
    int64_t d_stride;
    const void *x; /* rows of X, x_stride apart, in this order or at x_rows */
    int64_t x_stride;
    const int64_t *x_rows;
    void *sum; /* rows sum_stride apart */
    int64_t sum_stride;
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

/* A recurrent state-space model (rnnop/rssm). Rows are those of all steps, time-major. */
enum RssmCell { RSSM_GRU, RSSM_GRU_RESET_BEFORE, RSSM_GRU_LAYER_NORM, RSSM_BLOCK_GRU };
enum Activation { IDENTITY, ELU, RELU, SILU };
enum Norm { NO_NORM, LAYER_NORM, RMS_NORM };
enum StdRule { AT_LEAST, PLUS, SIGMOID_PLUS };

/* y = activation(norm(W x + b)); W is (out, in + known). What its last `known` columns read is known
 * before the loop over time. The gradient of x is wanted of the first `back` columns in the loop, of
 * the others after it. */
typedef struct {
    int64_t in, known, back, out, norm, activation;
    const void *w, *b, *scale, *shift;
    void *y, *pre;               /* kept: (rows, out); pre if y alone does not tell the gradient */
    void *d, *d_scale, *d_shift; /* of a stretch: (rows, out) */
    void *dw, *db, *dscale, *dshift;
    /* by rnnop_rssm_pack */
    int64_t place; /* where its working memory begins, in elements of one row */
    const void *forward, *forward_known, *bias, *backward, *backward_known;
} Layer;

/* What a state is drawn from: means and stds, or logits as `mean` */
typedef struct {
    void *mean, *std, *raw;     /* (rows, S); raw: what the std comes from, kept for the backward */
    const void *dmean, *dstd;   /* null for zeros */
} Drawn;

typedef struct {
    int64_t cell, classes, std_rule; /* classes: 0 for a Gaussian */
    double std_shift, std_offset, min_std, unimix, norm_eps;
    int64_t state, belief, action, embed;
    int64_t batch, threads;
    /* of the cell with layer norm its sums, else null; of the block GRU its layers in blocks, whose
     * `in` is a block of the belief, else null; the hidden layers before the cell, of the block GRU
     * those of belief, state and action; the head that draws the state; the prior's head where it is
     * another, else null; an actor's that reads state and belief, else null */
    Layer *gru, *dynamics, *inputs, *head, *prior, *actor;
    int64_t num_dynamics, num_inputs, num_head, num_prior, num_actor, blocks;
    int64_t squash; /* the action is tanh of what the actor's last layer gives */
    const void *w_ih, *w_hh, *b_ih, *b_hh;
    const void *initial_state, *initial_belief; /* where an episode begins */
    const int64_t *first;                       /* (rows,): number of the episode or -1; or null */
    const void *state0, *belief0, *noise, *actions, *embeds;
    Drawn drawn, from_prior;
    void *states, *beliefs; /* (rows, S), (rows, H) */
    /* kept for the backward */
    void *given;  /* (rows, S + A): state and action that each step began with */
    void *before; /* (rows, H): belief that it began with; null without episodes that begin */
    void *gates;  /* (rows, 4, H): r z n q, with q = R_n h + b_hn, or r * h */
    /* the backward: of a stretch that begins with step `stretch` (rows, 4, H): r z n q */
    int64_t stretch;
    void *d_gates, *d_prior; /* d_prior (rows, H): what the prior's head gives for the beliefs */
    const void *dstates, *dbeliefs;    /* (rows, S), (rows, H); null for zeros */
    const void *dactor;                /* (rows, A): of an actor's actions; null for zeros */
    void *dstate, *dbelief;            /* (N, S), (N, H): of what the steps done begin with */
    void *first_dstate, *first_dbelief; /* of the initial state and belief of each episode */
    void *dactions, *dembeds;
    void *dw_ih, *dw_hh, *db_gates; /* db_gates (4, H) */
    /* by rnnop_rssm_pack; `features` is what reads those of belief, state and action */
    const void *gru_input, *gru_recurrent, *gru_candidate, *gru_bias, *features[3];
    /* multiply-adds of a row in a step; working memory of a row in all layers; whether the weights
     * lie far away */
    int64_t parameters, width, far;
} Rssm;

#endif
