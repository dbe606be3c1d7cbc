/* What a card reports while it works: heat, power, clocks, load, memory, processes. */
#include "fake_nvml.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Numbers whose key carries an index, such as "threshold.5" or "fan1.pct". */
#define INDEXED_NUMBER(out, type, format, index)                                                   \
    char key[32];                                                                                  \
    snprintf(key, sizeof key, format, index);                                                      \
    long long number;                                                                              \
    nvmlReturn_t result = gpu_number(gpu, key, &number);                                           \
    if (result == NVML_SUCCESS)                                                                    \
        out = (type)number;                                                                        \
    return result

/* --- temperature ----------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                             unsigned int *out) {
    ENTER_GPU(device);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "temp", &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                                      nvmlTemperatureThresholds_t kind,
                                                      unsigned int *out) {
    ENTER_GPU(device);
    INDEXED_NUMBER(*out, unsigned int, "threshold.%d", (int)kind);
}

#ifndef OLD_DRIVER /* symbols that drivers of 2024 lack: clients get "function not found" */

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out) {
    ENTER_GPU(device);
    if (out->version != STRUCT_VERSION(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->sensorType != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "temp", &number);
    if (result == NVML_SUCCESS)
        out->temperature = (int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device,
                                                   nvmlMarginTemperature_t *out) {
    ENTER_GPU(device);
    if (out->version != STRUCT_VERSION(nvmlMarginTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "margin", &number);
    if (result == NVML_SUCCESS)
        out->marginTemperature = (int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *out) {
    ENTER_GPU(device);
    if (out->version != STRUCT_VERSION(nvmlFanSpeedInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    INDEXED_NUMBER(out->speed, unsigned int, "fan%u.rpm", out->fan);
}

NUMBER_GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clock_reasons")
NUMBER_GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long,
              "clock_reasons_supported")

#endif

/* --- fans ------------------------------------------------------------------------------------ */

NUMBER_GETTER(nvmlDeviceGetFanSpeed, unsigned int, "fan0.pct")
NUMBER_GETTER(nvmlDeviceGetNumFans, unsigned int, "fans")

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan,
                                             unsigned int *out) {
    ENTER_GPU(device);
    INDEXED_NUMBER(*out, unsigned int, "fan%u.pct", fan);
}

EXPORT nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan,
                                                unsigned int *out) {
    ENTER_GPU(device);
    INDEXED_NUMBER(*out, unsigned int, "fan%u.target", fan);
}

/* --- power ----------------------------------------------------------------------------------- */

NUMBER_GETTER(nvmlDeviceGetPowerUsage, unsigned int, "power_mw")
NUMBER_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_mw")
NUMBER_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, "power_limit_mw")
NUMBER_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_mw")
NUMBER_GETTER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, "power_mode")
NUMBER_GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_mj")
NUMBER_GETTER(nvmlDeviceGetPowerState, nvmlPstates_t, "pstate")
NUMBER_GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, "pstate")

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                                 unsigned int *least,
                                                                 unsigned int *most) {
    ENTER_GPU(device);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "power_min_mw", &number);
    if (result)
        return result;
    *least = (unsigned int)number;
    result = gpu_number(gpu, "power_max_mw", &number);
    if (result == NVML_SUCCESS)
        *most = (unsigned int)number;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit_mw) {
    ENTER_GPU(device);
    if (geteuid())
        return NVML_ERROR_NO_PERMISSION;
    long long least;
    long long most;
    int known = !gpu_number(gpu, "power_min_mw", &least) && !gpu_number(gpu, "power_max_mw", &most);
    if (known && (limit_mw < least || limit_mw > most))
        return NVML_ERROR_INVALID_ARGUMENT;
    log_action("set_power_limit gpu=%d mw=%u", gpu, limit_mw);
    return NVML_SUCCESS;
}

/* --- clocks ---------------------------------------------------------------------------------- */

NUMBER_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clock_reasons")
NUMBER_GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long,
              "clock_reasons_supported")

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t kind,
                                           unsigned int *out) {
    ENTER_GPU(device);
    INDEXED_NUMBER(*out, unsigned int, "clock.%d", (int)kind);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t kind,
                                              unsigned int *out) {
    ENTER_GPU(device);
    INDEXED_NUMBER(*out, unsigned int, "clock_max.%d", (int)kind);
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int least_mhz,
                                                 unsigned int most_mhz) {
    ENTER_GPU(device);
    if (geteuid())
        return NVML_ERROR_NO_PERMISSION;
    log_action("lock_gpu_clocks gpu=%d min=%u max=%u", gpu, least_mhz, most_mhz);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    ENTER_GPU(device);
    log_action("reset_gpu_clocks gpu=%d", gpu);
    return NVML_SUCCESS;
}

/* --- load ------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    ENTER_GPU(device);
    long long number;
    nvmlReturn_t result = gpu_number(gpu, "util", &number);
    if (result)
        return result;
    out->gpu = (unsigned int)number;
    out->memory = gpu_number(gpu, "util_mem", &number) ? 0 : (unsigned int)number;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *out,
                                                    unsigned int *period_us) {
    ENTER_GPU(device);
    *out = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *out,
                                                    unsigned int *period_us) {
    ENTER_GPU(device);
    *out = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

/* --- memory ---------------------------------------------------------------------------------- */

static nvmlReturn_t memory_bytes(int gpu, long long *total, long long *used, long long *reserved) {
    nvmlReturn_t result = gpu_number(gpu, "mem_total", total);
    if (result == NVML_SUCCESS)
        result = gpu_number(gpu, "mem_used", used);
    if (gpu_number(gpu, "mem_reserved", reserved))
        *reserved = 0;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    ENTER_GPU(device);
    long long total, used, reserved;
    nvmlReturn_t result = memory_bytes(gpu, &total, &used, &reserved);
    if (result)
        return result;
    out->total = (unsigned long long)total;
    out->used = (unsigned long long)(used + reserved); /* version 1 counts the driver's part in */
    out->free = (unsigned long long)(total - used - reserved);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    ENTER_GPU(device);
    if (out->version != STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    long long total, used, reserved;
    nvmlReturn_t result = memory_bytes(gpu, &total, &used, &reserved);
    if (result)
        return result;
    out->total = (unsigned long long)total;
    out->used = (unsigned long long)used;
    out->reserved = (unsigned long long)reserved;
    out->free = (unsigned long long)(total - used - reserved);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
    ENTER_GPU(device);
    out->bar1Total = 256u << 20;
    out->bar1Used = 18u << 20;
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* --- field values ---------------------------------------------------------------------------- */

static void read_field(int gpu, nvmlFieldValue_t *field) {
    char key[32];
    char text[64];
    snprintf(key, sizeof key, "field.%u", field->fieldId);
    field->nvmlReturn = gpu_text(gpu, key, text, sizeof text);
    if (field->nvmlReturn)
        return;
    const char *colon = strchr(text, ':');
    int type = colon ? atoi(colon + 1) : 1;
    field->valueType = (nvmlValueType_t)type;
    memset(&field->value, 0, sizeof field->value);
    switch (type) {
    case 0: field->value.dVal = atof(text); break;
    case 4: field->value.sllVal = atoll(text); break;
    case 5: field->value.siVal = atoi(text); break;
    default: field->value.ullVal = strtoull(text, NULL, 0);
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                             nvmlFieldValue_t *fields) {
    ENTER_GPU(device);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        fields[i].latencyUsec = 1;
        read_field(gpu, &fields[i]);
    }
    return NVML_SUCCESS;
}
