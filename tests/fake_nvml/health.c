/* Signs of damage: memory errors, the PCIe link, and the events a driver sends by itself. */
#include "fake_nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- memory errors --------------------------------------------------------------------------- */

NUMBER_GETTER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "retired_pending")

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                         nvmlEnableState_t *pending) {
    ENTER_GPU(device);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "ecc", &number);
    if (result == NVML_SUCCESS)
        *current = *pending = (nvmlEnableState_t)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                                nvmlEccCounterType_t counter,
                                                unsigned long long *out) {
    ENTER_GPU(device);
    char key[32];
    snprintf(key, sizeof key, "ecc.%d.%d", (int)error, (int)counter);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, key, &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned long long)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                              unsigned int *uncorrected, unsigned int *pending,
                                              unsigned int *failed) {
    ENTER_GPU(device);
    char text[64];
    nvmlReturn_t result = gpu_text(gpu, "remapped", text, sizeof text);
    if (result)
        return result;
    int read = sscanf(text, "%u,%u,%u,%u", corrected, uncorrected, pending, failed);
    return read == 4 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* --- PCIe and partitions --------------------------------------------------------------------- */

NUMBER_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, "pcie_replay")
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie_gen")
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie_width")
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie_gen_max")
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie_width_max")

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                                unsigned int *out) {
    ENTER_GPU(device);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, counter ? "pcie_rx_kb" : "pcie_tx_kb", &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                         unsigned int *pending) {
    ENTER_GPU(device);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "mig", &number);
    if (result == NVML_SUCCESS)
        *current = *pending = (unsigned int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out) {
    ENTER_GPU(device);
    *out = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *out) {
    ENTER_GPU(device);
    *out = 0;
    return NVML_SUCCESS;
}

/* Windows only, so a Linux driver refuses. */
EXPORT nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, nvmlDriverModel_t *current,
                                                nvmlDriverModel_t *pending) {
    ENTER_GPU(device);
    (void)current;
    (void)pending;
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, nvmlDriverModel_t *current,
                                             nvmlDriverModel_t *pending) {
    return nvmlDeviceGetDriverModel_v2(device, current, pending);
}

/* --- events ----------------------------------------------------------------------------------
 * The event file only grows. A set remembers how long it was when the first GPU registered:
 * as with NVML, what happened before that is never delivered.
 */

struct event_set {
    unsigned long long masks[MAX_GPUS];
    off_t offset; /* -1 until something is registered */
};

static off_t events_size(void) {
    const char *path = getenv("FAKE_NVML_EVENTS");
    struct stat status;
    return path && stat(path, &status) == 0 ? status.st_size : 0;
}

/* Takes the next whole line of the event file; 0 when there is none yet. */
static int next_line(struct event_set *set, char *line, size_t size) {
    const char *path = getenv("FAKE_NVML_EVENTS");
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return 0;
    ssize_t count = pread(descriptor, line, size - 1, set->offset);
    close(descriptor);
    if (count <= 0)
        return 0;
    line[count] = '\0';
    char *end = strchr(line, '\n');
    if (!end)
        return 0;
    *end = '\0';
    set->offset += end - line + 1;
    return 1;
}

static int parse_event(const struct event_set *set, const char *line, nvmlEventData_t *out) {
    unsigned int gpu;
    unsigned long long type, data;
    if (sscanf(line, "%u %llu %llu", &gpu, &type, &data) != 3)
        return 0;
    if (gpu >= MAX_GPUS || !(set->masks[gpu] & type))
        return 0;
    memset(out, 0, sizeof *out);
    out->device = handle_of(gpu);
    out->eventType = type;
    out->eventData = data;
    out->gpuInstanceId = out->computeInstanceId = NO_INSTANCE;
    return 1;
}

NUMBER_GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, "events_supported")

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    nvmlReturn_t result = enter(__func__);
    if (result)
        return result;
    struct event_set *set = calloc(1, sizeof *set);
    set->offset = -1;
    *out = (nvmlEventSet_t)set;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                             nvmlEventSet_t opaque) {
    ENTER_GPU(device);
    long long supported;
    nvmlReturn_t result = gpu_number(gpu, "events_supported", &supported);
    if (result)
        return result;
    if (types & ~(unsigned long long)supported)
        return NVML_ERROR_NOT_SUPPORTED;
    struct event_set *set = (struct event_set *)opaque;
    set->masks[gpu] |= types;
    if (set->offset < 0)
        set->offset = events_size();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t opaque, nvmlEventData_t *out,
                                        unsigned int timeout_ms) {
    nvmlReturn_t result = enter(__func__);
    if (result)
        return result;
    struct event_set *set = (struct event_set *)opaque;
    if (set->offset < 0)
        set->offset = events_size();
    char line[160];
    for (long left_ms = timeout_ms;;) {
        while (next_line(set, line, sizeof line)) {
            if (parse_event(set, line, out))
                return NVML_SUCCESS;
        }
        if (left_ms <= 0)
            return NVML_ERROR_TIMEOUT;
        long nap_ms = left_ms < 5 ? left_ms : 5;
        sleep_ms(nap_ms);
        left_ms -= nap_ms;
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out,
                                     unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
