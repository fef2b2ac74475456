/* CUDA's words for a C++ compiler: a kernel runs on the host, block after block, the threads of a
 * block as threads of the host or, where a block has but one, as a call. */

#include <math.h>
#include <pthread.h>

#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline

struct Dim {
    unsigned x;
};

static thread_local Dim threadIdx, blockIdx;
static Dim blockDim, gridDim;
static pthread_barrier_t *meeting;

static inline void __syncthreads()
{
    if (meeting) pthread_barrier_wait(meeting); /* it sleeps: cores may be few */
}

/* Every argument of a kernel has eight bytes. */
template <class... A, size_t... I>
static void unpacked(void (*kernel)(A...), void **values, std::index_sequence<I...>)
{
    kernel(*(A *)values[I]...);
}

template <class... A>
static void on_the_host(void (*kernel)(A...), void **values, unsigned blocks, unsigned threads)
{
    blockDim.x = threads;
    gridDim.x = blocks;
    auto run = [=](unsigned block, unsigned thread) {
        blockIdx.x = block;
        threadIdx.x = thread;
        unpacked(kernel, values, std::index_sequence_for<A...>());
    };
    for (unsigned block = 0; block < blocks; block++) {
        if (threads == 1) {
            run(block, 0);
            continue;
        }
        pthread_barrier_t together;
        pthread_barrier_init(&together, nullptr, threads);
        meeting = &together;
        std::vector<std::thread> all;
        for (unsigned thread = 0; thread < threads; thread++) all.emplace_back(run, block, thread);
        for (auto &each : all) each.join();
        meeting = nullptr;
        pthread_barrier_destroy(&together);
    }
}

template <class... A> static constexpr int arity_of(void (*)(A...)) { return sizeof...(A); }

#define FOR_THE_HOST(kernel)                                                 \
    extern "C" {                                                             \
    int arity_##kernel = arity_of(kernel);                                   \
    void host_##kernel(void **values, unsigned blocks, unsigned threads)     \
    {                                                                        \
        on_the_host(kernel, values, blocks, threads);                        \
    }                                                                        \
    }
