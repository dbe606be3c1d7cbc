/* The part of NVIDIA's binary interface that the fake speaks.
 *
 * Written down here so that building needs nothing but gcc. `make check-abi` compiles the same
 * sources against NVIDIA's own nvml.h instead; the assertions at the end hold without it.
 */
#pragma once

#include <stddef.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

/* Enumerations in NVIDIA's header; only their size matters here. */
typedef unsigned int nvmlBrandType_t;
typedef unsigned int nvmlClockType_t;
typedef unsigned int nvmlComputeMode_t;
typedef unsigned int nvmlDeviceArchitecture_t;
typedef unsigned int nvmlDriverModel_t;
typedef unsigned int nvmlEccCounterType_t;
typedef unsigned int nvmlEnableState_t;
typedef unsigned int nvmlMemoryErrorType_t;
typedef unsigned int nvmlPcieUtilCounter_t;
typedef unsigned int nvmlPstates_t;
typedef unsigned int nvmlTemperatureSensors_t;
typedef unsigned int nvmlTemperatureThresholds_t;
typedef unsigned int nvmlValueType_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device;
    unsigned int pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int version;
    nvmlTemperatureSensors_t sensorType;
    int temperature;
} nvmlTemperature_t;

typedef struct {
    unsigned int version;
    int marginTemperature;
} nvmlMarginTemperature_t;

typedef struct {
    unsigned int version, fan, speed;
} nvmlFanSpeedInfo_t;

typedef union {
    double dVal;
    int siVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "NVML ABI");
_Static_assert(sizeof(nvmlTemperature_t) == 12, "NVML ABI");
_Static_assert(sizeof(nvmlMarginTemperature_t) == 8, "NVML ABI");
_Static_assert(sizeof(nvmlFanSpeedInfo_t) == 12, "NVML ABI");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "NVML ABI");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "NVML ABI");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "NVML ABI");
_Static_assert(sizeof(nvmlEventData_t) == 32, "NVML ABI");
