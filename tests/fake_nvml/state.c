/* The state file: read again whenever it changed, so that a test steers a client that runs. */
#include "fake_nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int initialised;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *contents; /* begins with '\n', so that every key has one before it */
static struct stat seen;

static int unchanged(const struct stat *now) {
    return contents && now->st_ino == seen.st_ino && now->st_size == seen.st_size &&
           now->st_mtim.tv_sec == seen.st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
}

/* The lock is held. What cannot be read leaves the last good contents in force. */
static void reload(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now) || unchanged(&now))
        return;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    char *fresh = malloc((size_t)now.st_size + 2);
    ssize_t length = fresh ? read(descriptor, fresh + 1, (size_t)now.st_size) : -1;
    close(descriptor);
    if (length < 0) {
        free(fresh);
        return;
    }
    fresh[0] = '\n';
    fresh[length + 1] = '\0';
    free(contents);
    contents = fresh;
    seen = now;
}

/* Copies the value of `key`; 0 where the file does not have it. */
int look_up(const char *key, char *value, size_t size) {
    char pattern[160];
    snprintf(pattern, sizeof pattern, "\n%s=", key);
    pthread_mutex_lock(&lock);
    reload();
    const char *found = contents ? strstr(contents, pattern) : NULL;
    if (found) {
        found += strlen(pattern);
        size_t length = strcspn(found, "\n");
        if (length >= size)
            length = size - 1;
        memcpy(value, found, length);
        value[length] = '\0';
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

nvmlReturn_t gpu_text(int gpu, const char *key, char *value, size_t size) {
    char full_key[128];
    snprintf(full_key, sizeof full_key, "gpu%d.%s", gpu, key);
    if (!look_up(full_key, value, size))
        return NVML_ERROR_NOT_SUPPORTED;
    return value[0] == '!' ? (nvmlReturn_t)atoi(value + 1) : NVML_SUCCESS;
}

nvmlReturn_t gpu_number(int gpu, const char *key, long long *value) {
    char text[128];
    nvmlReturn_t result = gpu_text(gpu, key, text, sizeof text);
    if (result == NVML_SUCCESS)
        *value = text[0] == '-' ? strtoll(text, NULL, 0) : (long long)strtoull(text, NULL, 0);
    return result;
}

void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR)
        ; /* a driver call does not end early because of a signal */
}

/* What every function does first: hang if told to, fail if told to. */
nvmlReturn_t enter(const char *function) {
    char key[160];
    char value[64];
    snprintf(key, sizeof key, "delay_ms.%s", function);
    if (look_up(key, value, sizeof value))
        sleep_ms(atol(value));
    snprintf(key, sizeof key, "err.%s", function);
    if (look_up(key, value, sizeof value))
        return (nvmlReturn_t)atoi(value);
    return initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, int *gpu) {
    nvmlReturn_t result = enter(function);
    if (result)
        return result;
    long index = (long)(size_t)device - FIRST_HANDLE;
    if (index < 0 || index >= MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = (int)index;
    char key[64];
    char value[64];
    snprintf(key, sizeof key, "gpu%d.lost", *gpu);
    return look_up(key, value, sizeof value) ? (nvmlReturn_t)atoi(value) : NVML_SUCCESS;
}

nvmlDevice_t handle_of(unsigned int gpu) {
    return (nvmlDevice_t)(size_t)(FIRST_HANDLE + gpu);
}

void log_action(const char *format, ...) {
    const char *path = getenv("FAKE_NVML_ACTIONS");
    if (!path)
        return;
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    int descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0)
        return;
    if (write(descriptor, line, (size_t)length) < 0)
        perror(path);
    close(descriptor);
}
