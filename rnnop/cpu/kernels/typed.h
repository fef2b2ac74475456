/* All of the engine for one REAL, or with BF16_PAIRS what of it multiplies pairs of bfloat16 (operand.h).
 * engine.c defines the macros and includes this once for each. */
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))

#include "vector.h"
#include "operand.h"
#include "product.h"
#include "pack.h"
#include "forward.h"
#include "network.h"
#include "backward.h"
#ifndef BF16_PAIRS
#include "gradient.h"
#include "dense.h"
#include "latent.h"
#include "rssm_pack.h"
#include "rssm_forward.h"
#include "rssm_backward.h"
#include "rssm_block.h"
#include "rssm_actor.h"
#endif

#undef LANES
