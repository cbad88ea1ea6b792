/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs files, or all files of folders, through a fuzz target once. For regressions in builds without libFuzzer, and for
 * debuggers.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fuzz.h"

#define INPUT_LIMIT (1u << 20)

static unsigned long inputs;

static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(INPUT_LIMIT);
    if (!file || !data) {
        perror(path);
        if (file) fclose(file);
        free(data);
        return 1;
    }
    size_t n = fread(data, 1, INPUT_LIMIT, file);
    fclose(file);
    uint8_t *exact = realloc(data, n ? n : 1); /* so that reading past the input is seen */
    (void)LLVMFuzzerTestOneInput(exact ? exact : data, n);
    free(exact ? exact : data);
    inputs++;
    return 0;
}

static int replay_folder(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return 1;
    }
    int bad = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[4096];
        if (entry->d_name[0] == '.') continue;
        int n = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        bad |= n < 0 || (size_t)n >= sizeof name || replay_file(name);
    }
    closedir(folder);
    return bad;
}

int main(int argc, char **argv) {
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        struct stat status;
        if (stat(argv[i], &status) != 0) {
            perror(argv[i]);
            bad = 1;
        } else {
            bad |= S_ISDIR(status.st_mode) ? replay_folder(argv[i]) : replay_file(argv[i]);
        }
    }
    printf("%lu inputs replayed\n", inputs);
    return bad || inputs == 0;
}
