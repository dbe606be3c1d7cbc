/* A stand-in for libnvidia-ml.so.1 that answers from a text file which a test rewrites as it runs.
 *
 * Environment:
 *   FAKE_NVML_STATE    the state file, "key=value" lines, '#' comments; read again when it changed
 *   FAKE_NVML_EVENTS   the event file; an appended line "GPU TYPE DATA" ("0 8 79") is one event
 *   FAKE_NVML_ACTIONS  a log that gets one line for every setter a client calls
 *
 * Keys of the library:  count  driver  nvml  cuda  init_error
 * Keys of any function: err.FUNCTION=CODE        it returns this nvmlReturn_t
 *                       delay_ms.FUNCTION=MS     it hangs that long first
 * Keys of a GPU:        gpuN.KEY=VALUE           a number or a text
 *                       gpuN.KEY=!CODE           this one getter returns CODE
 *                       gpuN.lost=CODE           every call on the GPU returns CODE (15: lost)
 *                       gpuN.procs=PID:BYTES,…   compute processes (gprocs: graphics)
 *                       gpuN.field.ID=N[:TYPE]   TYPE 0 double, 1 uint, 4 long long, 5 int
 * A key that is missing makes its getter say NotSupported, as a GeForce does for many of them.
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdlib.h>
#include <string.h>

#ifdef WITH_NVML_H
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#else
#include "nvml_types.h"
#endif

#define MAX_GPUS 16
#define FIRST_HANDLE 0x1000 /* handles are opaque to clients: this plus the index */
#define NO_INSTANCE 0xFFFFFFFF

#define EXPORT __attribute__((visibility("default")))

/* What NVML expects in the `version` member of its versioned structures. */
#define STRUCT_VERSION(type, number) ((unsigned int)(sizeof(type) | ((number) << 24)))

/* state.c: the state file, injected faults, the action log */
int look_up(const char *key, char *value, size_t size);
nvmlReturn_t gpu_text(int gpu, const char *key, char *value, size_t size);
nvmlReturn_t gpu_number(int gpu, const char *key, long long *value);
nvmlReturn_t enter(const char *function);
nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, int *gpu);
nvmlDevice_t handle_of(unsigned int gpu);
void sleep_ms(long ms);
void log_action(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern int initialised; /* how many nvmlInit calls are open */

/* Opens the body of a device function: declares `gpu`, or returns the injected fault. */
#define ENTER_GPU(device)                                                                          \
    int gpu;                                                                                       \
    nvmlReturn_t refused = enter_gpu(__func__, device, &gpu);                                      \
    if (refused)                                                                                   \
        return refused

/* Whole functions that copy one key of the state file. */
#define NUMBER_GETTER(function, type, key)                                                         \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *out) {                                 \
        ENTER_GPU(device);                                                                         \
        if (!out)                                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                                    \
        long long number;                                                                          \
        nvmlReturn_t result = gpu_number(gpu, key, &number);                                       \
        if (result == NVML_SUCCESS)                                                                \
            *out = (type)number;                                                                   \
        return result;                                                                             \
    }

#define TEXT_GETTER(function, key)                                                                 \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) {            \
        ENTER_GPU(device);                                                                         \
        char text[160];                                                                            \
        nvmlReturn_t result = gpu_text(gpu, key, text, sizeof text);                               \
        if (result)                                                                                \
            return result;                                                                         \
        if (strlen(text) >= length)                                                                \
            return NVML_ERROR_INSUFFICIENT_SIZE;                                                   \
        strcpy(out, text);                                                                         \
        return NVML_SUCCESS;                                                                       \
    }
