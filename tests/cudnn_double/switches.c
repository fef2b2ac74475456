/* The environment variables of the double, read at each call. */
#include "double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each is one mistake of a kind that tests of a binding must notice. */
static const char *const FAULTS[] = {
    "gate_order",    /* the first two gates change places */
    "weight_layout", /* recurrent matrices come before input matrices */
    "recurrent_bias_ignored",
    "reset_before", /* GRU: the reset gate acts before the matrix product */
    "hx_ignored",
    "reverse_start", /* the backward direction starts at step T - 1 of every sequence */
    "padding_fill",  /* the fill value is not written */
    "cy_clipped",
    "dropout_scale", /* kept values are not scaled by 1 / (1 - p) */
    "dx_missing",    /* dx of each last step is garbage */
    "dcy_ignored",
    "dw_wrong_step", /* the recurrent matrices' gradient takes h_t for h_{t-1} */
};

bool fault(const char *name) {
    const char *wanted = getenv("CUDNN_DOUBLE_FAULT");
    if (wanted == NULL || *wanted == '\0') return false;
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        if (strcmp(wanted, FAULTS[i]) == 0) return strcmp(wanted, name) == 0;
    die("CUDNN_DOUBLE_FAULT", "no such fault");
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') return otherwise;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0') die(name, "not a number");
    return value;
}

long max_batch(void) { return number("CUDNN_DOUBLE_MAX_BATCH", INT32_MAX); }
int capability(void) { return (int)number("CUDNN_DOUBLE_SM", 90); }
bool no_device(void) { return number("CUDNN_DOUBLE_NO_DEVICE", 0) != 0; }

Status asked_failure(const char *function) {
    const char *text = getenv("CUDNN_DOUBLE_FAIL");
    if (text == NULL || *text == '\0') return SUCCESS;
    const char *colon = strchr(text, ':');
    if (colon == NULL) die("CUDNN_DOUBLE_FAIL", "not of the form function:status");
    size_t length = (size_t)(colon - text);
    if (strlen(function) != length || strncmp(function, text, length) != 0) return SUCCESS;
    return atoi(colon + 1);
}
