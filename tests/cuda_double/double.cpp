/* As much of the driver, NVRTC and cuBLAS as rnnop calls, with host memory as device memory.
 *
 * NVRTC's machine code is the path of a library that the host's compiler has made. Work is done when
 * it is begun. A stream that is captured does none: a graph keeps all values that the work was given,
 * and does it when it is launched. What CUDA forbids while a stream is captured fails here too.
 */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#define CALL extern "C" __attribute__((visibility("default"))) int
#define HOOK extern "C" __attribute__((visibility("default")))

enum {
    OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    BLAS_INVALID = 7, BLAS_EXECUTION_FAILED = 13, COMPILATION_FAILED = 6
};

typedef std::function<void()> Work;
typedef std::vector<Work> Graph;

struct Blas {
    void *stream, *workspace;
};

static std::map<std::string, long> calls;
static std::map<void *, Graph *> captured; /* by stream */
static std::set<void *> streams, live;
static thread_local std::vector<void *> contexts;
static void *last_stream;
static int initialized, math_mode;

/* Count a call; return the status that a test wants of it: CUDA_DOUBLE_FAIL=function:status. */
static int seen(const char *name)
{
    calls[name]++;
    const char *wanted = getenv("CUDA_DOUBLE_FAIL");
    if (!wanted) return OK;
    std::string text(wanted);
    size_t colon = text.find(':');
    return text.substr(0, colon) == name ? atoi(text.c_str() + colon + 1) : OK;
}

#define SEEN                                            \
    do {                                                \
        int status = seen(__func__);                    \
        if (status) return status;                      \
    } while (0)
#define IN_CONTEXT                                      \
    do {                                                \
        SEEN;                                           \
        if (contexts.empty()) return INVALID_CONTEXT;   \
    } while (0)

static Graph *graph_of(void *stream)
{
    auto found = captured.find(stream);
    return found == captured.end() ? nullptr : found->second;
}

static void begin(void *stream, Work work)
{
    last_stream = stream;
    if (Graph *graph = graph_of(stream)) graph->push_back(work);
    else work();
}

static void *make()
{
    void *made = malloc(16);
    live.insert(made);
    return made;
}

static int destroy(void *made)
{
    if (!live.erase(made)) return INVALID_VALUE;
    free(made);
    return OK;
}

/* For tests */

HOOK long cuda_double_calls(const char *name) { return calls[name]; }
HOOK long cuda_double_capturing() { return (long)captured.size(); }
HOOK long cuda_double_live() { return (long)live.size(); }
HOOK long cuda_double_last_stream() { return (long)(intptr_t)last_stream; }
HOOK long cuda_double_math_mode() { return math_mode; }
HOOK void cuda_double_reset() { calls.clear(); }

/* The driver */

CALL cuInit(unsigned) { SEEN; initialized = 1; return getenv("CUDA_DOUBLE_NO_DEVICE") ? NO_DEVICE : OK; }
CALL cuDriverGetVersion(int *version)
{
    SEEN;
    const char *wanted = getenv("CUDA_DOUBLE_VERSION");
    *version = wanted ? atoi(wanted) : 12080;
    return OK;
}
CALL cuDeviceGetCount(int *count) { SEEN; *count = 1; return initialized ? OK : NOT_INITIALIZED; }
CALL cuDeviceGet(int *device, int ordinal) { SEEN; *device = ordinal; return ordinal ? 101 : OK; }
CALL cuDevicePrimaryCtxRetain(void **context, int) { SEEN; *context = (void *)64; return OK; }
CALL cuCtxPushCurrent_v2(void *context) { SEEN; contexts.push_back(context); return OK; }
CALL cuCtxPopCurrent_v2(void **context)
{
    IN_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return OK;
}
CALL cuGetErrorName(int status, const char **text)
{
    static const std::map<int, const char *> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    };
    auto found = names.find(status);
    *text = found == names.end() ? nullptr : found->second;
    return *text ? OK : INVALID_VALUE;
}

CALL cuModuleLoadData(void **module, const char *image)
{
    IN_CONTEXT;
    *module = dlopen(image, RTLD_NOW | RTLD_LOCAL);
    return *module ? OK : INVALID_IMAGE;
}

struct Function {
    void (*call)(void **, unsigned, unsigned);
    int arity;
};

CALL cuModuleGetFunction(Function **function, void *module, const char *name)
{
    IN_CONTEXT;
    std::string host = std::string("host_") + name, arity = std::string("arity_") + name;
    void *call = dlsym(module, host.c_str()), *count = dlsym(module, arity.c_str());
    if (!call || !count) return NOT_FOUND;
    *function = new Function{(void (*)(void **, unsigned, unsigned))call, *(int *)count};
    return OK;
}

CALL cuLaunchKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned threads,
                    unsigned, unsigned, unsigned, void *stream, void **values, void **)
{
    IN_CONTEXT;
    if (!x || y != 1 || z != 1 || !threads || threads > 1024) return INVALID_VALUE;
    std::vector<uint64_t> kept(function->arity);
    for (int k = 0; k < function->arity; k++) memcpy(&kept[k], values[k], 8);
    const char *wanted = getenv("CUDA_DOUBLE_THREADS");
    unsigned blocks = x > 3 ? 3 : x, each = wanted ? (unsigned)atoi(wanted) : 1;
    begin(stream, [=]() mutable {
        std::vector<void *> pointers(kept.size());
        for (size_t k = 0; k < kept.size(); k++) pointers[k] = &kept[k];
        function->call(pointers.data(), blocks, each);
    });
    return OK;
}

CALL cuStreamCreate(void **stream, unsigned flags)
{
    IN_CONTEXT;
    if (flags != 1) return INVALID_VALUE; /* the legacy stream would wait for it */
    streams.insert(*stream = make());
    return OK;
}
CALL cuStreamDestroy_v2(void *stream) { SEEN; streams.erase(stream); return destroy(stream); }
CALL cuStreamBeginCapture_v2(void *stream, int mode)
{
    IN_CONTEXT;
    if (!streams.count(stream) || mode != 1) return CAPTURE_UNSUPPORTED;
    if (graph_of(stream)) return INVALID_VALUE;
    captured[stream] = new Graph;
    return OK;
}
CALL cuStreamEndCapture(void *stream, Graph **graph)
{
    IN_CONTEXT;
    *graph = graph_of(stream);
    if (!*graph) return CAPTURE_INVALIDATED;
    captured.erase(stream);
    live.insert(*graph);
    return OK;
}
CALL cuStreamIsCapturing(void *stream, int *status)
{
    IN_CONTEXT;
    const char *wanted = getenv("CUDA_DOUBLE_CALLER_CAPTURES");
    *status = graph_of(stream) || (wanted && !streams.count(stream)) ? 1 : 0;
    return OK;
}
CALL cuGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long)
{
    IN_CONTEXT;
    if (!live.count(graph)) return INVALID_VALUE;
    *made = new Graph(*graph);
    live.insert(*made);
    return OK;
}
CALL cuGraphLaunch(Graph *graph, void *stream)
{
    IN_CONTEXT;
    if (!live.count(graph) || graph_of(stream)) return INVALID_VALUE;
    last_stream = stream;
    for (auto &work : *graph) work();
    return OK;
}
static int drop(Graph *graph)
{
    if (!live.erase(graph)) return INVALID_VALUE;
    delete graph;
    return OK;
}
CALL cuGraphDestroy(Graph *graph) { SEEN; return drop(graph); }
CALL cuGraphExecDestroy(Graph *graph) { SEEN; return drop(graph); }

CALL cuEventCreate(void **event, unsigned) { IN_CONTEXT; *event = make(); return OK; }
CALL cuEventDestroy_v2(void *event) { SEEN; return destroy(event); }
CALL cuEventRecord(void *event, void *) { IN_CONTEXT; return live.count(event) ? OK : INVALID_VALUE; }
CALL cuEventSynchronize(void *event)
{
    IN_CONTEXT;
    return !captured.empty() ? CAPTURE_UNSUPPORTED : live.count(event) ? OK : INVALID_VALUE;
}
CALL cuStreamWaitEvent(void *, void *event, unsigned)
{
    IN_CONTEXT;
    return live.count(event) ? OK : INVALID_VALUE;
}

/* NVRTC */

struct Program {
    std::string source, log, code;
};

CALL nvrtcGetNumSupportedArchs(int *count) { SEEN; *count = 3; return OK; }
CALL nvrtcGetSupportedArchs(int *found)
{
    SEEN;
    const int known[] = {75, 80, 90};
    memcpy(found, known, sizeof known);
    return OK;
}
CALL nvrtcCreateProgram(Program **program, const char *source, const char *, int, const char **,
                        const char **)
{
    SEEN;
    *program = new Program{source, "", ""};
    return OK;
}

/* The source, and after it what lets the host call each KERNEL of it. */
static std::string for_the_host(const std::string &source)
{
    std::string more, word = "\nKERNEL ";
    for (size_t at = 0; (at = source.find(word, at)) != std::string::npos;) {
        at += word.size();
        more += "FOR_THE_HOST(" + source.substr(at, source.find('(', at) - at) + ")\n";
    }
    return source + more;
}

static std::map<std::string, std::string> compiled; /* code by source and definitions */

CALL nvrtcCompileProgram(Program *program, int count, const char **options)
{
    SEEN;
    std::string defined;
    for (int k = 0; k < count; k++) {
        std::string option(options[k]);
        if (option.rfind("-D", 0) == 0) defined += " " + option;
        else if (option != "--gpu-architecture=sm_90" && option != "--gpu-architecture=compute_90")
            program->log = "unknown option " + option;
    }
    if (!program->log.empty()) return COMPILATION_FAILED;
    std::string &known = compiled[program->source + defined];
    if (!known.empty()) {
        program->code = known;
        return OK;
    }
    char name[] = FOLDER "/XXXXXX";
    if (!mkdtemp(name)) return COMPILATION_FAILED;
    std::string folder(name);
    std::ofstream(folder + "/kernels.cpp") << for_the_host(program->source);
    program->code = folder + "/kernels.so";
    std::string command = std::string(CXX " -std=c++20 -O1 -fPIC -shared -pthread -Wall -Werror ")
        + "-Wno-unused-function -include " SHIM + defined + " " + folder + "/kernels.cpp -o "
        + program->code + " 2> " + folder + "/log";
    if (!system(command.c_str())) {
        known = program->code;
        return OK;
    }
    std::stringstream text;
    text << std::ifstream(folder + "/log").rdbuf();
    program->log += text.str();
    return COMPILATION_FAILED;
}
static int give(const std::string &text, char *to)
{
    memcpy(to, text.c_str(), text.size() + 1);
    return OK;
}
CALL nvrtcGetProgramLogSize(Program *program, size_t *size) { SEEN; *size = program->log.size() + 1; return OK; }
CALL nvrtcGetProgramLog(Program *program, char *to) { SEEN; return give(program->log, to); }
CALL nvrtcGetCUBINSize(Program *program, size_t *size) { SEEN; *size = program->code.size() + 1; return OK; }
CALL nvrtcGetCUBIN(Program *program, char *to) { SEEN; return give(program->code, to); }
CALL nvrtcGetPTXSize(Program *program, size_t *size) { SEEN; *size = program->code.size() + 1; return OK; }
CALL nvrtcGetPTX(Program *program, char *to) { SEEN; return give(program->code, to); }
CALL nvrtcDestroyProgram(Program **program) { SEEN; delete *program; *program = nullptr; return OK; }

/* cuBLAS */

CALL cublasCreate_v2(Blas **handle) { IN_CONTEXT; *handle = new Blas{nullptr, nullptr}; live.insert(*handle); return OK; }
CALL cublasDestroy_v2(Blas *handle) { SEEN; live.erase(handle); delete handle; return OK; }
CALL cublasSetStream_v2(Blas *handle, void *stream)
{
    SEEN;
    *handle = {stream, nullptr}; /* a new stream takes the workspace away */
    return OK;
}
CALL cublasSetWorkspace_v2(Blas *handle, void *workspace, size_t size)
{
    SEEN;
    if (size < 1 << 20) return BLAS_INVALID;
    handle->workspace = workspace;
    return OK;
}
CALL cublasSetMathMode(Blas *, int mode) { SEEN; math_mode = mode; return OK; }

template <class Real> struct Side {
    const Real *from;
    int turned, stride;
    long long gap;
    Real at(long long block, int i, int j) const
    {
        return from[block * gap + (turned ? (size_t)i * stride + j : (size_t)j * stride + i)];
    }
};

/* C = alpha op(A) op(B) + beta C by columns. With beta = 0, C is not read: it may hold NaN. */
template <class Real>
static int product(Blas *handle, int m, int n, int k, Real alpha, Side<Real> a, Side<Real> b,
                   Real beta, Real *c, int ldc, long long gap, int blocks)
{
    if (contexts.empty() || !handle->workspace) return BLAS_EXECUTION_FAILED;
    int a_rows = a.turned ? k : m, b_rows = b.turned ? n : k;
    if (m < 0 || n < 0 || k < 0 || ldc < m || a.stride < a_rows || b.stride < b_rows)
        return BLAS_INVALID;
    begin(handle->stream, [=]() {
        for (long long block = 0; block < blocks; block++)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < m; i++) {
                    double sum = 0;
                    for (int l = 0; l < k; l++)
                        sum += (double)a.at(block, i, l) * (double)b.at(block, l, j);
                    Real *to = c + block * gap + (size_t)j * ldc + i;
                    *to = (Real)(alpha * sum + (beta == 0 ? 0 : (double)beta * *to));
                }
    });
    return OK;
}

#define PRODUCT(letter, Real)                                                                      \
    CALL cublas##letter##gemm_v2(Blas *handle, int op_a, int op_b, int m, int n, int k,            \
                                 const Real *alpha, const Real *a, int lda, const Real *b,         \
                                 int ldb, const Real *beta, Real *c, int ldc)                      \
    {                                                                                              \
        SEEN;                                                                                      \
        return product<Real>(handle, m, n, k, *alpha, {a, op_a, lda, 0}, {b, op_b, ldb, 0}, *beta, \
                             c, ldc, 0, 1);                                                        \
    }                                                                                              \
    CALL cublas##letter##gemmStridedBatched(                                                       \
        Blas *handle, int op_a, int op_b, int m, int n, int k, const Real *alpha, const Real *a,   \
        int lda, long long gap_a, const Real *b, int ldb, long long gap_b, const Real *beta,       \
        Real *c, int ldc, long long gap_c, int blocks)                                             \
    {                                                                                              \
        SEEN;                                                                                      \
        return product<Real>(handle, m, n, k, *alpha, {a, op_a, lda, gap_a},                       \
                             {b, op_b, ldb, gap_b}, *beta, c, ldc, gap_c, blocks);                 \
    }
PRODUCT(S, float)
PRODUCT(D, double)
