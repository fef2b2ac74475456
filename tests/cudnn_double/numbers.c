/* Elements of each data type, read and written as double; rounding is to nearest, ties to even. */
#include "double.h"

#include <math.h>
#include <string.h>

/* A binary format of 16 bits. */
typedef struct {
    int mantissa; /* bits stored */
    int lowest;   /* exponent of the smallest normal number */
    uint16_t infinity;
} Format;

static const Format FORMAT_HALF = {10, -14, 0x7c00}, FORMAT_BFLOAT16 = {7, -126, 0x7f80};

static double decode(uint16_t bits, Format format) {
    uint16_t magnitude = bits & 0x7fff;
    int exponent = magnitude >> format.mantissa;
    int fraction = magnitude & ((1 << format.mantissa) - 1);
    double value;
    if (magnitude > format.infinity) value = NAN;
    else if (magnitude == format.infinity) value = INFINITY;
    else if (exponent == 0) value = ldexp(fraction, format.lowest - format.mantissa);
    else
        value = ldexp(fraction + (1 << format.mantissa),
                      format.lowest + exponent - 1 - format.mantissa);
    return bits & 0x8000 ? -value : value;
}

static uint16_t encode(double value, Format format) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) return sign | format.infinity | 1;
    if (isinf(value)) return sign | format.infinity;
    if (value == 0) return sign;
    int exponent = ilogb(value);
    if (exponent < format.lowest) exponent = format.lowest;
    if (exponent > -format.lowest + 1) return sign | format.infinity;
    double units = nearbyint(ldexp(fabs(value), format.mantissa - exponent));
    /* The implicit leading one of a normal number carries into the exponent field. */
    uint32_t bits = ((uint32_t)(exponent - format.lowest) << format.mantissa) + (uint32_t)units;
    return sign | (uint16_t)(bits < format.infinity ? bits : format.infinity);
}

size_t size_of(int type) {
    switch (type) {
    case FLOAT: return 4;
    case DOUBLE: return 8;
    case HALF:
    case BFLOAT16: return 2;
    default: return 0;
    }
}

/* Elements are copied as bytes: nobody promises that a buffer is aligned to its type. */
double load(const void *base, size_t index, int type) {
    const char *from = (const char *)base + index * size_of(type);
    float single;
    double value;
    uint16_t bits;
    switch (type) {
    case FLOAT: memcpy(&single, from, sizeof single); return single;
    case DOUBLE: memcpy(&value, from, sizeof value); return value;
    case HALF: memcpy(&bits, from, sizeof bits); return decode(bits, FORMAT_HALF);
    case BFLOAT16: memcpy(&bits, from, sizeof bits); return decode(bits, FORMAT_BFLOAT16);
    default: die(__func__, "a data type without numbers");
    }
}

void store(void *base, size_t index, int type, double value) {
    char *to = (char *)base + index * size_of(type);
    float single = (float)value;
    uint16_t bits;
    switch (type) {
    case FLOAT: memcpy(to, &single, sizeof single); return;
    case DOUBLE: memcpy(to, &value, sizeof value); return;
    case HALF: bits = encode(value, FORMAT_HALF); break;
    case BFLOAT16: bits = encode(value, FORMAT_BFLOAT16); break;
    default: die(__func__, "a data type without numbers");
    }
    memcpy(to, &bits, sizeof bits);
}

void load_many(const void *base, size_t index, int type, double *to, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = load(base, index + i, type);
}

void store_many(void *base, size_t index, int type, const double *from, size_t count) {
    for (size_t i = 0; i < count; i++) store(base, index + i, type, from[i]);
}

/* All bits set is a NaN in each of the formats. */
void garbage(void *base, size_t index, int type, size_t count) {
    size_t size = size_of(type);
    memset((char *)base + index * size, 0xff, count * size);
}

/* The finaliser of splitmix64. */
uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}
