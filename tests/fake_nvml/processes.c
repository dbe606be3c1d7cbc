/* Which processes a card runs, in the layout of each generation of clients. */
#include "fake_nvml.h"

#include <stdio.h>

#define MAX_PROCESSES 64

/* As NVML: the true number goes to `count`, "insufficient size" when it did not fit. */
static nvmlReturn_t list_processes(const char *function, nvmlDevice_t device, const char *key,
                                   unsigned int *count, nvmlProcessInfo_t *out) {
    int gpu;
    nvmlReturn_t result = enter_gpu(function, device, &gpu);
    if (result)
        return result;
    char text[512];
    result = gpu_text(gpu, key, text, sizeof text);
    if (result && result != NVML_ERROR_NOT_SUPPORTED)
        return result;
    if (result)
        text[0] = '\0'; /* no key: nothing runs */

    unsigned int room = out ? *count : 0;
    unsigned int found = 0;
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        unsigned int pid;
        unsigned long long bytes = ~0ULL; /* NVML's "not available" */
        if (sscanf(item, "%u:%llu", &pid, &bytes) < 1)
            continue;
        if (found < room) {
            out[found].pid = pid;
            out[found].usedGpuMemory = bytes;
            out[found].gpuInstanceId = NO_INSTANCE;
            out[found].computeInstanceId = NO_INSTANCE;
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_GETTER(name, key)                                                                  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {   \
        return list_processes(__func__, device, key, count, out);                                  \
    }

PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v3, "procs")
PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v2, "procs")
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v3, "gprocs")
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v2, "gprocs")
PROCESS_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mprocs")

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    nvmlProcessUtilizationSample_t *out,
                                                    unsigned int *count, unsigned long long since) {
    ENTER_GPU(device);
    (void)out;
    (void)since;
    *count = 0;
    return NVML_ERROR_NOT_FOUND;
}

#ifndef WITH_NVML_H /* NVIDIA's header has dropped the first layout; old C clients still use it */

struct process_info_v1 {
    unsigned int pid;
    unsigned long long usedGpuMemory;
};

static nvmlReturn_t list_processes_v1(const char *function, nvmlDevice_t device, const char *key,
                                      unsigned int *count, struct process_info_v1 *out) {
    nvmlProcessInfo_t listed[MAX_PROCESSES];
    unsigned int found = MAX_PROCESSES;
    nvmlReturn_t result = list_processes(function, device, key, &found, listed);
    if (result)
        return result;
    unsigned int room = out ? *count : 0;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++) {
        out[i].pid = listed[i].pid;
        out[i].usedGpuMemory = listed[i].usedGpuMemory;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         struct process_info_v1 *out) {
    return list_processes_v1(__func__, device, "procs", count, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          struct process_info_v1 *out) {
    return list_processes_v1(__func__, device, "gprocs", count, out);
}

#endif
