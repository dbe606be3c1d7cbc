/* Opening the library, and who the cards are. */
#include "fake_nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* --- init and shutdown ----------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    char code[16];
    if (look_up("init_error", code, sizeof code) && atoi(code))
        return (nvmlReturn_t)atoi(code);
    nvmlReturn_t result = enter(__func__);
    if (result && result != NVML_ERROR_UNINITIALIZED)
        return result;
    __sync_fetch_and_add(&initialised, 1);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    __sync_fetch_and_sub(&initialised, 1);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    switch ((int)result) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires restart";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

/* --- the system ------------------------------------------------------------------------------ */

static nvmlReturn_t system_text(const char *function, const char *key, const char *otherwise,
                                char *out, unsigned int length) {
    nvmlReturn_t result = enter(function);
    if (result)
        return result;
    char text[80];
    if (!look_up(key, text, sizeof text))
        strcpy(text, otherwise);
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int length) {
    return system_text(__func__, "driver", "580.95.05", out, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int length) {
    return system_text(__func__, "nvml", "13.580.95.05", out, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    nvmlReturn_t result = enter(__func__);
    if (result)
        return result;
    char text[16];
    *out = look_up("cuda", text, sizeof text) ? atoi(text) : 13000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) {
    return nvmlSystemGetCudaDriverVersion_v2(out);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int length) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t count = read(descriptor, out, length - 1);
    close(descriptor);
    if (count < 1)
        return NVML_ERROR_NOT_FOUND;
    out[count - 1] = '\0';
    return NVML_SUCCESS;
}

/* --- handles --------------------------------------------------------------------------------- */

static int gpu_count(void) {
    char text[16];
    return look_up("count", text, sizeof text) ? atoi(text) : 0;
}

/* A lost GPU does not even give its handle. Faults are steered by the name "handle". */
static nvmlReturn_t give_handle(int gpu, nvmlDevice_t *device) {
    int same;
    *device = handle_of((unsigned int)gpu);
    return enter_gpu("handle", *device, &same);
}

static nvmlReturn_t find_handle(const char *key, const char *wanted, nvmlDevice_t *device) {
    char text[160];
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        if (gpu_text(gpu, key, text, sizeof text) == NVML_SUCCESS && !strcasecmp(text, wanted))
            return give_handle(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t result = enter(__func__);
    if (result == NVML_SUCCESS)
        *count = (unsigned int)gpu_count();
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t result = enter(__func__);
    if (result)
        return result;
    if ((int)index >= gpu_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle((int)index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = enter(__func__);
    return result ? result : find_handle("uuid", uuid, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    nvmlReturn_t result = enter(__func__);
    return result ? result : find_handle("busid", bus_id, device);
}

/* --- identity -------------------------------------------------------------------------------- */

TEXT_GETTER(nvmlDeviceGetName, "name")
TEXT_GETTER(nvmlDeviceGetUUID, "uuid")
TEXT_GETTER(nvmlDeviceGetSerial, "serial")
TEXT_GETTER(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER_GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
NUMBER_GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "arch")
NUMBER_GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence")
NUMBER_GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, "compute_mode")
NUMBER_GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display_active")
NUMBER_GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, "display_mode")

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out) {
    ENTER_GPU(device);
    *out = (unsigned int)gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *out) {
    ENTER_GPU(device);
    *out = (unsigned int)gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER_GPU(device);
    char text[16];
    nvmlReturn_t result = gpu_text(gpu, "cc", text, sizeof text);
    if (result)
        return result;
    return sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    ENTER_GPU(device);
    char text[64];
    nvmlReturn_t result = gpu_text(gpu, "busid", text, sizeof text);
    if (result)
        return result;
    memset(out, 0, sizeof *out);
    snprintf(out->busId, sizeof out->busId, "%.31s", text);
    /* the legacy form has a domain of four digits instead of eight */
    const char *legacy = strlen(text) > 12 ? text + 4 : text;
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%.15s", legacy);
    sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pciDeviceId = 0x268410DE; /* an RTX 4090, of NVIDIA (10DE) */
    return NVML_SUCCESS;
}

/* --- names without a version, which the real library still exports and C clients look up ------ */

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

#ifndef WITH_NVML_H /* NVIDIA's header has dropped these layouts */

struct pci_info_v2 {
    char busId[16];
    unsigned int domain, bus, device;
    unsigned int pciDeviceId, pciSubSystemId;
    unsigned int reserved[4];
};

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, struct pci_info_v2 *out) {
    nvmlPciInfo_t info;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &info);
    if (result)
        return result;
    memset(out, 0, sizeof *out);
    memcpy(out, &info, offsetof(struct pci_info_v2, reserved)); /* the heads are alike */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, struct pci_info_v2 *out) {
    return nvmlDeviceGetPciInfo_v2(device, out);
}

#endif
