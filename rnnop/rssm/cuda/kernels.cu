/* What stands between the products of an RSSM, elementwise or over a row.
 *
 * REAL is float or double. Matrices are row-major. Any pointer that says so may be null. Every loop
 * strides over the whole grid, so a kernel is right for any number of blocks.
 *
 * Where an episode begins, `first` is not 0 for that row; what begins there is `initial`, a row, or
 * zeros. Nothing is multiplied by `first`: the row's numbers may be NaN.
 */

typedef long long Index;
typedef REAL *Out;             /* written, or added to */
typedef const REAL *In;

enum { NO_NORM, LAYER_NORM, RMS_NORM };
enum { IDENTITY, ELU, RELU, SILU };
enum { BOUNDED, SHIFTED, TWICE_SIGMOID };

#define KERNEL extern "C" __global__ void
#define HELPER static __device__ __forceinline__
#define EACH(i, count) \
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (Index)gridDim.x * blockDim.x)
#define EACH_ROW(row, count) for (Index row = blockIdx.x; row < (count); row += gridDim.x)
#define EACH_OF_ROW(i, width) for (Index i = threadIdx.x; i < (width); i += blockDim.x)

/* Scalars. A NaN stays one: it is never on the side of a comparison that forgets it. */

HELPER REAL sigmoid(REAL x)
{
    REAL e = exp(x <= 0 ? x : -x);
    return (x <= 0 ? e : (REAL)1) / (1 + e);
}

HELPER REAL softplus(REAL x)
{
    return (x <= 0 ? (REAL)0 : x) + log1p(exp(x <= 0 ? x : -x));
}

HELPER REAL activation(REAL x, Index kind)
{
    if (kind == ELU) return x <= 0 ? expm1(x) : x;
    if (kind == RELU) return x <= 0 ? (REAL)0 : x;
    return kind == SILU ? x * sigmoid(x) : x;
}

HELPER REAL slope(REAL x, Index kind)
{
    if (kind == ELU) return x <= 0 ? expm1(x) + 1 : (REAL)1;
    if (kind == RELU) return x <= 0 ? (REAL)0 : (REAL)1;
    if (kind != SILU) return 1;
    REAL s = sigmoid(x);
    return s * (1 + x * (1 - s));
}

HELPER REAL or_zero(In array, Index i) { return array ? array[i] : (REAL)0; }

/* The sum over the threads of a block, which all get it. */
HELPER REAL total(REAL mine)
{
    __shared__ REAL sums[THREADS];
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    REAL all = sums[0];
    __syncthreads(); /* before the next sum writes there */
    return all;
}

/* Hidden layers: y = activation(norm(pre + bias)), a block for a row. */

typedef struct {
    REAL mean, inverse; /* unit = (x - mean) * inverse */
} Norm;

HELPER Norm norm_of(In x, In bias, Index width, Index norm, double eps)
{
    Norm found = {0, 1};
    if (norm == NO_NORM) return found;
    if (norm == LAYER_NORM) {
        REAL sum = 0;
        EACH_OF_ROW(i, width) sum += x[i] + or_zero(bias, i);
        found.mean = total(sum) / width;
    }
    REAL squares = 0;
    EACH_OF_ROW(i, width) {
        REAL centred = x[i] + or_zero(bias, i) - found.mean;
        squares += centred * centred;
    }
    found.inverse = 1 / sqrt(total(squares) / width + (REAL)eps);
    return found;
}

KERNEL activate(In pre, In bias, In scale, In shift, Out y, Index y_stride, Index rows, Index width,
                Index norm, Index kind, double eps)
{
    EACH_ROW(row, rows) {
        In x = pre + row * width;
        Norm n = norm_of(x, bias, width, norm, eps);
        EACH_OF_ROW(i, width) {
            REAL value = (x[i] + or_zero(bias, i) - n.mean) * n.inverse;
            if (norm != NO_NORM) value = value * scale[i] + or_zero(shift, i);
            y[row * y_stride + i] = activation(value, kind);
        }
    }
}

/* d is the gradient of pre + bias. d_scale and d_shift are of each row, null without a norm. */
KERNEL activate_backward(In pre, In bias, In scale, In shift, In dy, Index dy_stride, Out d,
                         Out d_scale, Out d_shift, Index rows, Index width, Index norm, Index kind,
                         double eps)
{
    EACH_ROW(row, rows) {
        In x = pre + row * width;
        Out dx = d + row * width;
        Norm n = norm_of(x, bias, width, norm, eps);
        REAL along = 0;
        EACH_OF_ROW(i, width) {
            REAL unit = (x[i] + or_zero(bias, i) - n.mean) * n.inverse, normed = unit;
            if (norm != NO_NORM) normed = unit * scale[i] + or_zero(shift, i);
            dx[i] = dy[row * dy_stride + i] * slope(normed, kind);
            if (norm == NO_NORM) continue;
            d_scale[row * width + i] = dx[i] * unit;
            d_shift[row * width + i] = dx[i];
            dx[i] *= scale[i];
            along += dx[i] * unit;
        }
        if (norm == NO_NORM) continue;
        along = total(along) / width;
        REAL sum = 0;
        EACH_OF_ROW(i, width) {
            REAL unit = (x[i] + or_zero(bias, i) - n.mean) * n.inverse;
            dx[i] = (dx[i] - unit * along) * n.inverse;
            sum += dx[i];
        }
        if (norm != LAYER_NORM) continue;
        REAL mean = total(sum) / width;
        EACH_OF_ROW(i, width) dx[i] -= mean;
    }
}

/* Where steps meet. What a step gives goes on to the next one, as `begun`, unless an episode begins
 * there; the gradient comes back the same way. */

typedef struct {
    Out begun; /* null where no episode can begin: then what is given is what goes on */
    In first, initial;
} Next;

HELPER void give(Out to, Index i, REAL value, Next next, Index width)
{
    to[i] = value;
    if (next.begun)
        next.begun[i] = next.first[i / width] != 0 ? or_zero(next.initial, i % width) : value;
}

HELPER REAL comes_back(In d_begun, In first, Index i, Index width)
{
    return first && first[i / width] != 0 ? (REAL)0 : or_zero(d_begun, i);
}

/* The first step's state or belief. */
KERNEL begin(In given, Out begun, In first, In initial, Index rows, Index width)
{
    EACH(i, rows * width)
        begun[i] = first[i / width] != 0 ? or_zero(initial, i % width) : given[i];
}

/* What arrives at a belief: from its own cotangent, its head, its prior, and the step after. */
#define ARRIVES In d_given, In d_head, In d_prior, In d_begun, In d_first
#define ARRIVING(i) (or_zero(d_given, i) + d_head[i] + or_zero(d_prior, i) \
                     + comes_back(d_begun, d_first, i, H))

/* GRUs. `a` is of what the GRU reads, `q` of the belief h, each of three gates: (rows, 3 H). The
 * gates that are kept are r, z, n, and q_n with its bias: (rows, 4 H). */

KERNEL gru(In a, In q, In b_ih, In b_hh, In h, Out to, Out begun, In first, In initial, Out gates,
           Index rows, Index H)
{
    Next next = {begun, first, initial};
    EACH(i, rows * H) {
        Index row = i / H, j = i % H, at = 3 * H * row + j;
        REAL r = sigmoid(a[at] + or_zero(b_ih, j) + q[at] + or_zero(b_hh, j));
        REAL z = sigmoid(a[at + H] + or_zero(b_ih, j + H) + q[at + H] + or_zero(b_hh, j + H));
        REAL q_n = q[at + 2 * H] + or_zero(b_hh, j + 2 * H);
        REAL n = tanh(a[at + 2 * H] + or_zero(b_ih, j + 2 * H) + r * q_n);
        give(to, i, (1 - z) * n + z * h[i], next, H);
        if (!gates) continue;
        Out kept = gates + 4 * H * row + j;
        kept[0] = r;
        kept[H] = z;
        kept[2 * H] = n;
        kept[3 * H] = q_n;
    }
}

KERNEL gru_backward(ARRIVES, In gates, In h, Out da, Out dq, Out dh, Index rows, Index H)
{
    EACH(i, rows * H) {
        Index row = i / H, j = i % H, at = 3 * H * row + j;
        In kept = gates + 4 * H * row + j;
        REAL r = kept[0], z = kept[H], n = kept[2 * H], q_n = kept[3 * H], d = ARRIVING(i);
        REAL d_n = d * (1 - z) * (1 - n * n);
        REAL d_r = d_n * q_n * r * (1 - r), d_z = d * (h[i] - n) * z * (1 - z);
        da[at] = dq[at] = d_r;
        da[at + H] = dq[at + H] = d_z;
        da[at + 2 * H] = d_n;
        dq[at + 2 * H] = d_n * r;
        dh[i] = d * z;
    }
}

/* The reset before the product: q is of r and z alone (rows, 2 H); then q_n = R_n (r * h). */

KERNEL gru_reset(In a, In q, In b_ih, In b_hh, In h, Out gates, Out rh, Index rows, Index H)
{
    EACH(i, rows * H) {
        Index row = i / H, j = i % H, at = 3 * H * row + j, of_q = 2 * H * row + j;
        Out kept = gates + 4 * H * row + j;
        kept[0] = sigmoid(a[at] + or_zero(b_ih, j) + q[of_q] + or_zero(b_hh, j));
        kept[H] = sigmoid(a[at + H] + or_zero(b_ih, j + H) + q[of_q + H] + or_zero(b_hh, j + H));
        rh[i] = kept[0] * h[i];
    }
}

KERNEL gru_candidate(In a, In q_n, In b_ih, In b_hh, In h, Out to, Out begun, In first, In initial,
                     Out gates, Index rows, Index H)
{
    Next next = {begun, first, initial};
    EACH(i, rows * H) {
        Index row = i / H, j = i % H, gate = j + 2 * H;
        Out kept = gates + 4 * H * row + j;
        REAL n = tanh(a[3 * H * row + gate] + or_zero(b_ih, gate) + q_n[i] + or_zero(b_hh, gate));
        REAL z = kept[H];
        kept[2 * H] = n;
        give(to, i, (1 - z) * n + z * h[i], next, H);
    }
}

KERNEL gru_candidate_backward(ARRIVES, In gates, In h, Out da, Out dh, Index rows, Index H)
{
    EACH(i, rows * H) {
        Index row = i / H, j = i % H, at = 3 * H * row + j;
        In kept = gates + 4 * H * row + j;
        REAL z = kept[H], n = kept[2 * H], d = ARRIVING(i);
        da[at + H] = d * (h[i] - n) * z * (1 - z);
        da[at + 2 * H] = d * (1 - z) * (1 - n * n);
        dh[i] = d * z;
    }
}

KERNEL gru_reset_backward(In d_rh, In gates, In h, Out da, Out dh, Index rows, Index H)
{
    EACH(i, rows * H) {
        Index row = i / H, j = i % H;
        REAL r = gates[4 * H * row + j];
        da[3 * H * row + j] = d_rh[i] * h[i] * r * (1 - r);
        dh[i] += d_rh[i] * r;
    }
}

/* Dreamer's update, whose gates a come in blocks of r, u and n, `block` of each. */

#define GATE(i, k) (3 * H * ((i) / H) + (3 * ((i) % H / block) + (k)) * block + (i) % H % block)
#define BIAS(i, k) or_zero(bias, GATE((i) % H, k))

KERNEL update(In a, In bias, In h, Out to, Out begun, In first, In initial, Index rows, Index H,
              Index block)
{
    Next next = {begun, first, initial};
    EACH(i, rows * H) {
        REAL r = sigmoid(a[GATE(i, 0)] + BIAS(i, 0)), u = sigmoid(a[GATE(i, 1)] + BIAS(i, 1) - 1);
        REAL n = tanh(r * (a[GATE(i, 2)] + BIAS(i, 2)));
        give(to, i, u * n + (1 - u) * h[i], next, H);
    }
}

KERNEL update_backward(ARRIVES, In a, In bias, In h, Out da, Out dh, Index rows, Index H,
                       Index block)
{
    EACH(i, rows * H) {
        REAL r = sigmoid(a[GATE(i, 0)] + BIAS(i, 0)), u = sigmoid(a[GATE(i, 1)] + BIAS(i, 1) - 1);
        REAL a_n = a[GATE(i, 2)] + BIAS(i, 2), n = tanh(r * a_n), d = ARRIVING(i);
        REAL d_rn = d * u * (1 - n * n);
        da[GATE(i, 0)] = d_rn * a_n * r * (1 - r);
        da[GATE(i, 1)] = d * (n - h[i]) * u * (1 - u);
        da[GATE(i, 2)] = d_rn * r;
        dh[i] = d * (1 - u);
    }
}

/* Of a block GRU: actions divided by max(1, abs(.)), which counts as a constant. */

HELPER REAL over(REAL action) { return fabs(action) > 1 ? fabs(action) : (REAL)1; }

KERNEL limit(In actions, Out limited, Index rows, Index width)
{
    EACH(i, rows * width) limited[i] = actions[i] / over(actions[i]);
}

KERNEL limit_backward(In actions, Out d, Index rows, Index width)
{
    EACH(i, rows * width) d[i] /= over(actions[i]);
}

/* The latent. Without noise there is no state to draw. */

HELPER REAL free_std(REAL x, Index rule, REAL shift, REAL offset)
{
    return rule == TWICE_SIGMOID ? 2 * sigmoid(x / 2) : softplus(x + shift) + offset;
}

KERNEL gaussian(In out, In bias, In noise, Out mean, Out std, Out state, Out begun, In first,
                In initial, Index rows, Index S, Index rule, double shift, double offset,
                double least)
{
    Next next = {begun, first, initial};
    REAL low = (REAL)least;
    EACH(i, rows * S) {
        Index j = i % S, at = 2 * S * (i / S) + j;
        REAL m = out[at] + or_zero(bias, j);
        REAL d = free_std(out[at + S] + or_zero(bias, j + S), rule, (REAL)shift, (REAL)offset);
        d = rule != BOUNDED ? d + low : d < low ? low : d;
        mean[i] = m;
        std[i] = d;
        if (noise) give(state, i, m + d * noise[i], next, S);
    }
}

KERNEL gaussian_backward(In out, In bias, In noise, In d_given, In d_begun, In d_first, In d_mean,
                         In d_std, Out d_out, Index rows, Index S, Index rule, double shift,
                         double offset, double least)
{
    REAL low = (REAL)least;
    EACH(i, rows * S) {
        Index j = i % S, at = 2 * S * (i / S) + j;
        REAL x = out[at + S] + or_zero(bias, j + S), s = sigmoid(x / 2);
        REAL steep = rule == TWICE_SIGMOID ? s * (1 - s) : sigmoid(x + (REAL)shift);
        if (rule == BOUNDED && free_std(x, rule, (REAL)shift, (REAL)offset) < low) steep = 0;
        REAL to_mean = or_zero(d_mean, i), to_std = or_zero(d_std, i);
        if (noise) {
            REAL d = or_zero(d_given, i) + comes_back(d_begun, d_first, i, S);
            to_mean += d;
            to_std += d * noise[i];
        }
        d_out[at] = to_mean;
        d_out[at + S] = to_std * steep;
    }
}

/* One thread for a categorical of K classes: q = softmax(logits), p = (1 - unimix) q + unimix / K. */

HELPER void softmax_of(In out, In bias, Index K, REAL *most, REAL *sum)
{
    *most = out[0] + or_zero(bias, 0);
    for (Index k = 1; k < K; k++) {
        REAL logit = out[k] + or_zero(bias, k);
        if (logit > *most) *most = logit;
    }
    *sum = 0;
    for (Index k = 0; k < K; k++) *sum += exp(out[k] + or_zero(bias, k) - *most);
}

KERNEL categorical(In out, In bias, In noise, Out logits, Out state, Out begun, In first,
                   In initial, Index rows, Index S, Index K, double unimix)
{
    Next next = {begun, first, initial};
    REAL mix = (REAL)unimix, most, sum;
    EACH(g, rows * (S / K)) {
        Index at = g * K, j = at % S, below = 0;
        In of_bias = bias ? bias + j : bias;
        for (Index k = 0; k < K; k++) logits[at + k] = out[at + k] + or_zero(bias, j + k);
        if (!noise) continue;
        softmax_of(out + at, of_bias, K, &most, &sum);
        REAL upto = 0;
        for (Index k = 0; k < K; k++) {
            upto += (1 - mix) * (exp(logits[at + k] - most) / sum) + mix / K;
            below += noise[g] > upto;
        }
        if (below > K - 1) below = K - 1;
        for (Index k = 0; k < K; k++) {
            REAL p = (1 - mix) * (exp(logits[at + k] - most) / sum) + mix / K;
            give(state, at + k, (k == below ? (REAL)1 : (REAL)0) + (p - p), next, S);
        }
    }
}

KERNEL categorical_backward(In out, In bias, In noise, In d_given, In d_begun, In d_first,
                            In d_logits, Out d_out, Index rows, Index S, Index K, double unimix)
{
    REAL mix = (REAL)unimix, most, sum;
    EACH(g, rows * (S / K)) {
        Index at = g * K, j = at % S;
        In of_bias = bias ? bias + j : bias;
        REAL along = 0;
        softmax_of(out + at, of_bias, K, &most, &sum);
        for (Index k = 0; noise && k < K; k++) {
            REAL d = or_zero(d_given, at + k) + comes_back(d_begun, d_first, at + k, S);
            along += exp(out[at + k] + or_zero(of_bias, k) - most) / sum * (1 - mix) * d;
        }
        for (Index k = 0; k < K; k++) {
            REAL q = exp(out[at + k] + or_zero(of_bias, k) - most) / sum;
            REAL d = or_zero(d_given, at + k) + comes_back(d_begun, d_first, at + k, S);
            REAL drawn = noise ? q * ((1 - mix) * d - along) : (REAL)0;
            d_out[at + k] = or_zero(d_logits, at + k) + drawn;
        }
    }
}
