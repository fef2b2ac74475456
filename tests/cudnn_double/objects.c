/* Live handles and descriptors. The caller holds a number made of kind, slot and generation, so
 * use after destroy, a second destroy and a descriptor of another kind are always noticed. */
#include "double.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    uint32_t generation;
    Kind kind;
    void *object; /* NULL when the slot is free */
} Slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Slot *slots;
static size_t slot_count;
static size_t alive[KINDS];

static Ref make_ref(size_t slot) {
    return (((Ref)slots[slot].generation << 24 | (slot + 1)) << 4) | slots[slot].kind;
}

static size_t free_slot(void) {
    for (size_t slot = 0; slot < slot_count; slot++)
        if (slots[slot].object == NULL) return slot;
    size_t grown = slot_count ? 2 * slot_count : 64;
    slots = realloc(slots, grown * sizeof *slots);
    if (slots == NULL) die(__func__, "out of memory");
    for (size_t slot = slot_count; slot < grown; slot++) slots[slot] = (Slot){0};
    size_t first = slot_count;
    slot_count = grown;
    return first;
}

Ref object_add(Kind kind, size_t size) {
    void *object = calloc(1, size);
    if (object == NULL) die(__func__, "out of memory");
    pthread_mutex_lock(&lock);
    size_t slot = free_slot();
    slots[slot] = (Slot){slots[slot].generation + 1, kind, object};
    alive[kind]++;
    Ref ref = make_ref(slot);
    pthread_mutex_unlock(&lock);
    return ref;
}

static Slot *find(Ref ref, Kind kind, const char *function) {
    size_t slot = (ref >> 4 & 0xffffff) - 1;
    if (slot >= slot_count || (ref & 0xf) >= KINDS) die(function, "not a descriptor of cuDNN");
    if ((ref & 0xf) != kind) die(function, "a descriptor of the wrong kind");
    if (slots[slot].object == NULL || make_ref(slot) != ref)
        die(function, "a descriptor or handle that was destroyed before");
    return &slots[slot];
}

void *object_get(Ref ref, Kind kind, const char *function) {
    pthread_mutex_lock(&lock);
    void *object = find(ref, kind, function)->object;
    pthread_mutex_unlock(&lock);
    return object;
}

void object_remove(Ref ref, Kind kind, const char *function) {
    pthread_mutex_lock(&lock);
    Slot *slot = find(ref, kind, function);
    if (kind == DATA) data_free(slot->object);
    free(slot->object);
    slot->object = NULL;
    alive[kind]--;
    pthread_mutex_unlock(&lock);
}

size_t object_count(Kind kind) {
    pthread_mutex_lock(&lock);
    size_t count = alive[kind];
    pthread_mutex_unlock(&lock);
    return count;
}
