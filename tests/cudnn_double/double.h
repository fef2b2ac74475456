/* A stand-in for NVIDIA's libcudnn, RNN functions only, that computes on the host.
 *
 * Written from the documented equations, layouts and rejections of the RNN v8 API; it shares no
 * code with what it tests. Host memory plays device memory. Whatever cuDNN leaves undefined holds
 * NaN here, and whatever crashes cuDNN aborts here, with a sentence on stderr.
 *
 * Letters: L layers, D directions, T steps, N sequences, I input, H hidden, P projected size
 * (P = H without projection). A pseudo layer is layer * D + direction. */
#ifndef CUDNN_DOUBLE_H
#define CUDNN_DOUBLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* MAJOR * 10000 + MINOR * 100 + PATCH from 9 on, MAJOR * 1000 + MINOR * 100 + PATCH before. */
#ifndef CUDNN_DOUBLE_VERSION
#define CUDNN_DOUBLE_VERSION 92800
#endif
#define IS_V9 (CUDNN_DOUBLE_VERSION >= 90000)
/* At least this version of 9, written like CUDNN_DOUBLE_VERSION. */
#define SINCE(version) (CUDNN_DOUBLE_VERSION >= (version))

#define EXPORT __attribute__((visibility("default")))

/* ---- cuDNN's numbers ------------------------------------------------------------------------ */

typedef int Status;
enum {
    SUCCESS = 0,
#if IS_V9
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    INVALID_VALUE = 2000, /* 9.x reports what was INVALID_VALUE as BAD_PARAM */
    NOT_SUPPORTED = 3000,
    INTERNAL_ERROR = 4000,
    EXECUTION_FAILED = 5000,
    EXECUTION_FAILED_CUDART = 5003,
#else
    NOT_INITIALIZED = 1,
    BAD_PARAM = 3,
    INVALID_VALUE = 5,
    NOT_SUPPORTED = 9,
    INTERNAL_ERROR = 4,
    EXECUTION_FAILED = 8,
    EXECUTION_FAILED_CUDART = 8,
#endif
};
enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
enum { ALGO_STANDARD, ALGO_PERSIST_STATIC, ALGO_PERSIST_DYNAMIC, ALGO_PERSIST_STATIC_SMALL_H };
enum { RELU, TANH, LSTM, GRU };
enum { NO_BIAS, SINGLE_INP_BIAS, DOUBLE_BIAS, SINGLE_REC_BIAS };
enum { LINEAR_INPUT, SKIP_INPUT };
enum { CLIP_NONE, CLIP_MINMAX };
enum { NOT_PROPAGATE_NAN, PROPAGATE_NAN };
enum { SEQ_MAJOR_UNPACKED, SEQ_MAJOR_PACKED, BATCH_MAJOR_UNPACKED };
enum { INFERENCE, TRAINING };
enum { WGRAD_ADD, WGRAD_SET };
enum { PADDED_IO = 1, DIM_MAX = 8, MAX_GATES = 4 };

/* ---- objects.c: handles and descriptors, found through a table of live objects -------------- */

typedef uintptr_t Ref; /* what the caller holds; never an address */
typedef enum { HANDLE, RNN, DATA, TENSOR, DROPOUT, KINDS } Kind;

Ref object_add(Kind kind, size_t size);
void *object_get(Ref ref, Kind kind, const char *function); /* aborts on a stale or wrong ref */
void object_remove(Ref ref, Kind kind, const char *function);
size_t object_count(Kind kind);

#define GET(kind, ref) object_get(ref, kind, __func__)

typedef struct {
    uintptr_t stream;
    long process;
    unsigned long thread;
    size_t forwards; /* the workspace asked for depends on it, as on a real device's state */
    atomic_flag busy;
} Handle;

typedef struct {
    bool set;
    int algo, mode, bias, bidirectional, input, type, precision, math;
    int I, H, P, L;
    Ref dropout;
    uint32_t aux;
    int clip, clip_nan;
    double clip_low, clip_high;
    int built_for; /* the batch that cudnnBuildRNNDynamic compiled for */
} Rnn;

typedef struct {
    int type, layout, T, N, V;
    bool sorted;
    int *length;   /* N */
    size_t *start; /* packed: first row of step t, T + 1 entries */
    bool fill_given;
    unsigned char fill[8];
} Data;

typedef struct {
    int type, dims, size[DIM_MAX], stride[DIM_MAX];
} Tensor;

typedef struct {
    bool set;
    float p;
    void *states;
    unsigned long long seed;
} Dropout;

void data_free(Data *data); /* what a data descriptor owns, not the descriptor itself */
static inline int directions(const Rnn *rnn) { return rnn->bidirectional ? 2 : 1; }
static inline bool projected(const Rnn *rnn) { return rnn->P < rnn->H; }

/* ---- status.c: statuses with their reasons -------------------------------------------------- */

Status begin(const char *function); /* counts the call; a status that a test asked for */
/* Without a reason the text of the last error stays as it was, as in cuDNN. */
Status failed(Status status, const char *function, const char *reason);
_Noreturn void die(const char *function, const char *reason);
const char *status_name(Status status);

#define BEGIN()                                \
    do {                                       \
        Status asked_ = begin(__func__);       \
        if (asked_ != SUCCESS) return asked_;  \
    } while (0)
#define FAIL_IF(status, condition)                                      \
    do {                                                                \
        if (condition) return failed(status, __func__, #condition);     \
    } while (0)
#define BAD_IF(condition) FAIL_IF(BAD_PARAM, condition)
#define BAD_WITHOUT_TEXT_IF(condition)                                  \
    do {                                                                \
        if (condition) return failed(BAD_PARAM, __func__, NULL);        \
    } while (0)
#define UNSUPPORTED_IF(condition) FAIL_IF(NOT_SUPPORTED, condition)
#define DIE_IF(condition)                           \
    do {                                            \
        if (condition) die(__func__, #condition);   \
    } while (0)
#define TRY(call)                                   \
    do {                                            \
        Status tried_ = (call);                     \
        if (tried_ != SUCCESS) return tried_;       \
    } while (0)

/* ---- switches.c: what the environment asks of the double ------------------------------------ */

bool fault(const char *name); /* CUDNN_DOUBLE_FAULT: one deliberate mistake */
long max_batch(void);         /* CUDNN_DOUBLE_MAX_BATCH: larger batches fail to run */
int capability(void);         /* CUDNN_DOUBLE_SM: compute capability, 90 is 9.0 */
bool no_device(void);         /* CUDNN_DOUBLE_NO_DEVICE: cudnnCreate finds no driver */
Status asked_failure(const char *function); /* CUDNN_DOUBLE_FAIL=function:status */

/* ---- hooks.c: what tests may ask ------------------------------------------------------------ */

void note_call(const char *function);
void note_pass(const Handle *handle, const Rnn *rnn, const Data *x, size_t work, size_t reserve);
void note_thread(const Handle *handle);

/* ---- numbers.c: elements of every data type, as double -------------------------------------- */

size_t size_of(int type); /* 0 for a type that recurrent networks do not take */
double load(const void *base, size_t index, int type);
void store(void *base, size_t index, int type, double value);
void load_many(const void *base, size_t index, int type, double *to, size_t count);
void store_many(void *base, size_t index, int type, const double *from, size_t count);
void garbage(void *base, size_t index, int type, size_t count); /* NaN in every type */
uint64_t mix(uint64_t value);                                   /* a hash of 64 bits */

/* ---- weights.c: the weight space ------------------------------------------------------------ */

/* One pseudo layer's matrices and biases as doubles: weights, or sums of their gradients.
 * An absent one is NULL. W is [H, K], R is [H, P], projection is [P, H]. */
typedef struct {
    int K;
    double *W[MAX_GATES], *R[MAX_GATES], *bW[MAX_GATES], *bR[MAX_GATES], *projection;
} Cell;

int gate_count(const Rnn *rnn);
int input_size(const Rnn *rnn, int pseudo); /* K: I, or what the layer below gives */
int64_t weight_count(const Rnn *rnn);       /* the true count of elements */
size_t weight_bytes(const Rnn *rnn);        /* cuDNN's count: it overflows in 32 bits */
Cell cell_of(const Rnn *rnn, int pseudo, double *weights);

/* ---- spaces.c: workspace and reserve space -------------------------------------------------- */

/* What one forward pass leaves behind, [pseudo layer, T, N, width] each. */
typedef struct {
    const Rnn *rnn;
    int T, N;
    double *gates;  /* activations; BackwardData puts the gradients of their arguments here */
    double *cell;   /* LSTM: c_t, never clipped */
    double *hidden; /* projection: h_t before it */
    double *out;    /* h_t, projected if there is a projection */
    double *dout;   /* projection: the gradient of out */
    double *mask;   /* dropout: factors of the input, layers 1 and up */
} Trace;

typedef struct {
    double *gates, *cell, *hidden, *out, *dout, *mask;
} Step;

Step step_of(const Trace *trace, int pseudo, int t, int n);

typedef struct {
    double *weights; /* decoded weights, or sums of gradients */
    double *above;   /* [T, N, widest] */
    double *below;   /* [T, N, widest] */
    double *vectors; /* room of a few vectors for one step */
    Trace trace;     /* inference only: there is no reserve space */
} Work;

int widest(const Rnn *rnn);
size_t work_bytes(const Handle *handle, const Rnn *rnn, const Data *x, int fwd_mode);
size_t reserve_bytes(const Rnn *rnn, const Data *x);
Work open_work(const Rnn *rnn, const Data *x, int fwd_mode, void *space, size_t size);
Trace open_reserve(const Rnn *rnn, const Data *x, void *space);

typedef enum { AFTER_FORWARD = 1, AFTER_BACKWARD_DATA } Stage;
void reserve_mark(const Rnn *rnn, const Data *x, void *space, Stage stage);
bool reserve_is(const Rnn *rnn, const Data *x, const void *space, Stage stage);

/* ---- passes.c: what the three passes share -------------------------------------------------- */

typedef struct {
    size_t weight_size;
    const void *weights;
    size_t work_size;
    void *work;
    size_t reserve_size;
    void *reserve;
} Spaces;

typedef struct {
    const char *function;
    Handle *handle;
    const Rnn *rnn;
    const Data *x_data, *y_data;
    const void *x, *hx, *cx;
    Spaces spaces;
    Work work;
    Trace trace;
    bool masked; /* dropout acts */
} Pass;

/* What cuDNN refuses by handle and descriptors; fills in the pass. */
Status pass_describe(Pass *pass, Ref handle, Ref rnn, Ref x, Ref y);
/* The descriptor of h (width P) or c (width H). */
Status pass_check_state(const Pass *pass, Ref desc, int width);
/* What it refuses by spaces; opens them. From here on pass_finish must follow. */
Status pass_start(Pass *pass, int fwd_mode, Spaces spaces);
Status pass_fails(const Pass *pass); /* the failures of kernels */
void pass_finish(Pass *pass);

bool runs_wild(const Pass *pass); /* zero lengths, or packed but not sorted: garbage comes out */
void spoil(const Pass *pass, const Data *data, void *rows, void *h, void *c);

/* Rows of states [L * D, N, width]; NULL is zeros when read and skipped when written. */
void load_state(const Pass *pass, const void *from, int pseudo, int n, int width, double *to);
void store_state(const Pass *pass, void *to, int pseudo, int n, int width, const double *from);
/* The input of a step: x, or what all directions of the layer below gave, times its mask. */
void load_input(const Pass *pass, int pseudo, int t, int n, double *to);

size_t row_of(const Data *data, int t, int n); /* the row of step t of sequence n */

/* ---- dropout.c ------------------------------------------------------------------------------ */

/* Whether dropout acts in a training pass of this descriptor. */
bool dropout_acts(const Rnn *rnn, const char *function);
Status draw_masks(const Rnn *rnn, const Data *x, const Trace *trace, const char *function);

/* ---- cells.c: one step of one sequence ------------------------------------------------------ */

void cell_forward(const Rnn *rnn, const Cell *cell, const double *x, const double *h,
                  const double *c, Step step);
/* Puts gradients of the gates' arguments into step.gates, adds to dx, turns dh and dc from
 * gradients of the step's outputs into those of its states. */
void cell_backward(const Rnn *rnn, const Cell *cell, const double *h, const double *c, Step step,
                   const double *out, double *dx, double *dh, double *dc, double *scratch);
void cell_weights(const Rnn *rnn, Cell *sum, const double *x, const double *h, Step step);
double clipped(const Rnn *rnn, double c);

#endif
