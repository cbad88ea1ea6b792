/* SPDX-License-Identifier: Apache-2.0 */
#include "kvt.h"

#include <CUnit/Basic.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t the_seed;
static bool seed_set;

uint64_t kvt_seed(void) {
    if (!seed_set) {
        const char *given = getenv("KVT_SEED");
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        the_seed = given ? (uint64_t)strtoull(given, NULL, 0)
                         : (uint64_t)now.tv_nsec * 2654435761u ^ (uint64_t)now.tv_sec ^ (uint64_t)getpid();
        seed_set = true;
        printf("seed %" PRIu64 " (give it back with -s or KVT_SEED)\n", the_seed);
    }
    return the_seed;
}

uint64_t kvt_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

bool kvt_check(bool ok, const char *file, int line, const char *text) {
    CU_assertImplementation(ok ? CU_TRUE : CU_FALSE, (unsigned int)line, text, file, "", CU_FALSE);
    if (!ok) printf("\n    %s:%d: %s", file, line, text);
    if (!ok && getenv("KVT_STOP")) {
        fflush(stdout);
        _exit(1);
    }
    return ok;
}

bool kvt_check_u64(uint64_t a, uint64_t b, const char *file, int line, const char *text) {
    bool ok = kvt_check(a == b, file, line, text);
    if (!ok) printf("  [%" PRIu64 " (0x%" PRIx64 ") against %" PRIu64 " (0x%" PRIx64 ")]\n", a, a, b, b);
    return ok;
}

bool kvt_check_i64(int64_t a, int64_t b, const char *file, int line, const char *text) {
    bool ok = kvt_check(a == b, file, line, text);
    if (!ok) printf("  [%" PRId64 " against %" PRId64 "]\n", a, b);
    return ok;
}

bool kvt_check_str(const char *a, const char *b, const char *file, int line, const char *text) {
    bool ok = kvt_check(a && b && strcmp(a, b) == 0, file, line, text);
    if (!ok) printf("  [\"%s\" against \"%s\"]\n", a ? a : "(null)", b ? b : "(null)");
    return ok;
}

bool kvt_check_has(const char *text, const char *part, const char *file, int line) {
    bool ok = kvt_check(text && strstr(text, part), file, line, "text has the part");
    if (!ok) printf("  [\"%s\" has no \"%s\"]\n", text ? text : "(null)", part);
    return ok;
}

bool kvt_check_mem(const void *a, const void *b, size_t n, const char *file, int line, const char *text) {
    const unsigned char *x = a, *y = b;
    size_t i = 0;
    while (i < n && x[i] == y[i]) i++;
    bool ok = kvt_check(i == n, file, line, text);
    if (!ok) printf("  [byte %zu of %zu: %02x against %02x]\n", i, n, x[i], y[i]);
    return ok;
}

bool kvt_check_near(double a, double b, double limit, const char *file, int line, const char *text) {
    double d = a > b ? a - b : b - a;
    bool ok = kvt_check(d <= limit, file, line, text);
    if (!ok) printf("  [%.9g against %.9g, limit %.3g]\n", a, b, limit);
    return ok;
}

#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define PATIENCE_MS 600000
#else
#define PATIENCE_MS 60000
#endif

int kvt_wait(pid_t pid) {
    int status = -1, fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    struct pollfd end = { .fd = fd, .events = POLLIN };
    if (fd < 0) return -1;
    if (!kvt_check(poll(&end, 1, PATIENCE_MS) == 1, __FILE__, __LINE__, "a process ends in time")) kill(pid, SIGKILL);
    close(fd);
    if (waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool wanted(const char *name, int n, char **names) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return true;
    return n == 0;
}

int kvt_main(const char *suite, const struct kvt_case *cases, int argc, char **argv) {
    int opt;
    bool list = false;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((opt = getopt(argc, argv, "ls:")) != -1) {
        if (opt == 'l') list = true;
        else if (opt == 's') {
            the_seed = strtoull(optarg, NULL, 0);
            seed_set = true;
            printf("seed %" PRIu64 "\n", the_seed);
        } else return 2;
    }
    if (list) {
        for (; cases->name; cases++) puts(cases->name);
        return 0;
    }
    if (CU_initialize_registry() != CUE_SUCCESS) return 2;
    CU_pSuite s = CU_add_suite(suite, NULL, NULL);
    unsigned int added = 0;
    for (; s && cases->name; cases++)
        if (wanted(cases->name, argc - optind, argv + optind)) added += CU_add_test(s, cases->name, cases->run) != NULL;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    if (!added || CU_basic_run_tests() != CUE_SUCCESS) return 2;
    unsigned int failed = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
    CU_cleanup_registry();
    return failed ? 1 : 0;
}
