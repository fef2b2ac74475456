/* All of the engine for one REAL. engine.c defines the macros and includes this once for each. */
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))

#include "vector.h"
#include "product.h"
#include "pack.h"
#include "forward.h"
#include "backward.h"
#include "gradient.h"

#undef LANES
