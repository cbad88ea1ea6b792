/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A secret that others may read is none. */
int cold_read_private(const char *path, const char *what, char *ret_line, size_t bytes, char *why, size_t why_bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    ssize_t n = -1;
    if (fd < 0 || fstat(fd, &st)) snprintf(why, why_bytes, "%s: %s", what, strerror(errno));
    else if (!S_ISREG(st.st_mode) || (st.st_mode & 077))
        snprintf(why, why_bytes, "%s has mode %04o; make it a file of mode 0600", what, (unsigned)st.st_mode & 07777);
    else if ((n = read(fd, ret_line, bytes)) < 0) snprintf(why, why_bytes, "%s: %s", what, strerror(errno));
    else if ((size_t)n == bytes) n = -1, snprintf(why, why_bytes, "%s has more than %zu bytes", what, bytes - 1);
    if (fd >= 0) close(fd);
    if (n < 0) return 1;
    ret_line[n] = '\0';
    ret_line[strcspn(ret_line, "\r\n")] = '\0';
    return 0;
}

int cold_read_secret(const char *path, uint8_t ret_secret[COLD_SECRET_BYTES], char *why, size_t why_bytes) {
    char line[128];
    size_t n = 0;
    int r = cold_read_private(path, "the file with the secret", line, sizeof line, why, why_bytes);
    if (!r) {
        r = sodium_hex2bin(ret_secret, COLD_SECRET_BYTES, line, strlen(line), NULL, &n, NULL) || n != COLD_SECRET_BYTES;
        if (r)
            snprintf(why, why_bytes,
                     "the file with the secret has no line of %u hexadecimal digits; openssl rand "
                     "-hex %u makes one",
                     2 * COLD_SECRET_BYTES, COLD_SECRET_BYTES);
    }
    sodium_memzero(line, sizeof line);
    return r;
}
