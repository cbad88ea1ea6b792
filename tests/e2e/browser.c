/* SPDX-License-Identifier: Apache-2.0 */
#include "browser.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e.h"

#define PATIENCE_S 30.0

/* ---- messages: JSON, each with a 0 behind it --------------------------------------------------------- */

static bool write_all(int fd, const char *text, size_t n) {
    while (n) {
        ssize_t some = write(fd, text, n);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) return false;
        text += some;
        n -= (size_t)some;
    }
    return true;
}

/* The next message, until `end`; to be deleted. */
static cJSON *next_message(struct browser *b, double end) {
    for (;;) {
        char *stop = b->n ? memchr(b->text, 0, b->n) : NULL;
        if (stop) {
            cJSON *message = cJSON_Parse(b->text);
            b->n -= (size_t)(stop + 1 - b->text);
            memmove(b->text, stop + 1, b->n);
            return message;
        }
        if (b->n == b->room) {
            char *more = realloc(b->text, b->room * 2 + 65536);
            if (!more) return NULL;
            b->text = more;
            b->room = b->room * 2 + 65536;
        }
        struct pollfd p = { .fd = b->from, .events = POLLIN };
        double left = end - e2e_now();
        if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) != 1) return NULL;
        ssize_t some = read(b->from, b->text + b->n, b->room - b->n);
        if (some <= 0) return NULL;
        b->n += (size_t)some;
    }
}

static const char *text_at(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));
    return text ? text : "";
}

static void note_event(struct browser *b, const cJSON *message) {
    const cJSON *params = cJSON_GetObjectItem(message, "params"), *entry = cJSON_GetObjectItem(params, "entry");
    bool thrown = strcmp(text_at(message, "method"), "Runtime.exceptionThrown") == 0;
    bool error = strcmp(text_at(message, "method"), "Log.entryAdded") == 0 &&
                 strcmp(text_at(entry, "level"), "error") == 0 && strcmp(text_at(entry, "source"), "network") != 0;
    if (!thrown && !error) return;
    char *words = cJSON_PrintUnformatted(thrown ? params : entry);
    printf("    the browser complains: %.600s\n", words);
    free(words);
    b->complaints++;
}

/* Takes params over. The result, to be deleted; NULL: an error, or none in time. */
static cJSON *call(struct browser *b, const char *method, cJSON *params) {
    cJSON *message = cJSON_CreateObject(), *answer, *result = NULL;
    double end = e2e_now() + PATIENCE_S;
    cJSON_AddNumberToObject(message, "id", ++b->last);
    cJSON_AddStringToObject(message, "method", method);
    cJSON_AddItemToObject(message, "params", params ? params : cJSON_CreateObject());
    if (b->session[0]) cJSON_AddStringToObject(message, "sessionId", b->session);
    char *text = cJSON_PrintUnformatted(message);
    bool sent = write_all(b->to, text, strlen(text) + 1);
    free(text);
    cJSON_Delete(message);
    while (sent && !result && (answer = next_message(b, end))) {
        const cJSON *id = cJSON_GetObjectItem(answer, "id");
        bool ours = cJSON_IsNumber(id) && (uint32_t)id->valuedouble == b->last;
        if (!id) note_event(b, answer);
        if (ours) result = cJSON_DetachItemFromObject(answer, "result");
        if (ours && !result) {
            printf("    %s: %s\n", method, text_at(cJSON_GetObjectItem(answer, "error"), "message"));
            sent = false;
        }
        cJSON_Delete(answer);
    }
    return result;
}

static bool done(cJSON *result) {
    cJSON_Delete(result);
    return result != NULL;
}

/* ---- life ---------------------------------------------------------------------------------------- */

static void run_program(const char *program, const char *profile, int from, int to) {
    int null = open("/dev/null", O_RDWR);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Its pipes are files 3 and 4; neither may be overwritten before it has been copied. */
    from = fcntl(from, F_DUPFD, 10);
    to = fcntl(to, F_DUPFD, 10);
    for (int i = 0; i < 3; i++) dup2(null, i);
    dup2(from, 3);
    dup2(to, 4);
    execl(program, program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
          "--remote-debugging-pipe", profile, "about:blank", (char *)NULL);
    _exit(127);
}

static bool open_page(struct browser *b) {
    cJSON *params = cJSON_CreateObject();
    cJSON_AddStringToObject(params, "url", "about:blank");
    cJSON *target = call(b, "Target.createTarget", params);
    if (!target) return false;
    params = cJSON_CreateObject();
    cJSON_AddStringToObject(params, "targetId", text_at(target, "targetId"));
    cJSON_AddBoolToObject(params, "flatten", true);
    cJSON_Delete(target);
    cJSON *session = call(b, "Target.attachToTarget", params);
    snprintf(b->session, sizeof b->session, "%s", text_at(session, "sessionId"));
    cJSON_Delete(session);
    return b->session[0] && done(call(b, "Runtime.enable", NULL)) && done(call(b, "Log.enable", NULL)) &&
           done(call(b, "Page.enable", NULL));
}

bool browser_start(struct browser *b, const char *program, const char *folder) {
    int in[2], out[2];
    char profile[192];
    *b = (struct browser){ .pid = -1 };
    snprintf(profile, sizeof profile, "--user-data-dir=%s/browser", folder);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) return false;
    fflush(NULL);
    b->pid = fork();
    if (b->pid == 0) run_program(program, profile, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    b->to = in[1];
    b->from = out[0];
    if (b->pid > 0 && open_page(b)) return true;
    browser_stop(b);
    return false;
}

void browser_stop(struct browser *b) {
    if (b->pid <= 0) return;
    close(b->to);
    close(b->from);
    kill(-b->pid, SIGKILL); /* its helpers, too */
    waitpid(b->pid, NULL, 0);
    free(b->text);
    *b = (struct browser){ .pid = -1 };
}

/* ---- the page ------------------------------------------------------------------------------------ */

bool browser_size(struct browser *b, uint32_t width, uint32_t height, bool dark) {
    cJSON *size = cJSON_CreateObject(), *media = cJSON_CreateObject(), *feature = cJSON_CreateObject();
    cJSON_AddNumberToObject(size, "width", width);
    cJSON_AddNumberToObject(size, "height", height);
    cJSON_AddNumberToObject(size, "deviceScaleFactor", 1);
    cJSON_AddBoolToObject(size, "mobile", false);
    cJSON_AddStringToObject(feature, "name", "prefers-color-scheme");
    cJSON_AddStringToObject(feature, "value", dark ? "dark" : "light");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(media, "features"), feature);
    return done(call(b, "Emulation.setDeviceMetricsOverride", size)) &&
           done(call(b, "Emulation.setEmulatedMedia", media));
}

bool browser_open(struct browser *b, const char *url) {
    cJSON *params = cJSON_CreateObject();
    cJSON_AddStringToObject(params, "url", url);
    return done(call(b, "Page.navigate", params)) && browser_until(b, "document.readyState === 'complete'", PATIENCE_S);
}

cJSON *browser_value(struct browser *b, const char *expression) {
    cJSON *params = cJSON_CreateObject();
    cJSON_AddStringToObject(params, "expression", expression);
    cJSON_AddBoolToObject(params, "returnByValue", true);
    cJSON_AddBoolToObject(params, "awaitPromise", true);
    cJSON *answer = call(b, "Runtime.evaluate", params);
    cJSON *value = cJSON_DetachItemFromObject(cJSON_GetObjectItem(answer, "result"), "value");
    const cJSON *thrown = cJSON_GetObjectItem(answer, "exceptionDetails");
    if (thrown) {
        printf("    %s: %s\n", expression, text_at(cJSON_GetObjectItem(thrown, "exception"), "description"));
        cJSON_Delete(value);
        value = NULL;
    }
    cJSON_Delete(answer);
    return value;
}

bool browser_is(struct browser *b, const char *expression) {
    cJSON *value = browser_value(b, expression);
    bool is = cJSON_IsTrue(value);
    cJSON_Delete(value);
    return is;
}

struct wish {
    struct browser *browser;
    const char *expression;
};
static bool is_granted(void *argument) {
    const struct wish *w = argument;
    return browser_is(w->browser, w->expression);
}

bool browser_until(struct browser *b, const char *expression, double seconds) {
    return e2e_until(is_granted, &(struct wish){ b, expression }, seconds, NULL);
}

/* ---- pictures ------------------------------------------------------------------------------------ */

static bool write_base64(FILE *out, const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0, n = 0;
    for (; *text && *text != '='; text++) {
        const char *at = strchr(digits, *text);
        if (!at) return false;
        bits = bits << 6 | (uint32_t)(at - digits);
        n += 6;
        if (n < 8) continue;
        n -= 8;
        fputc((int)(bits >> n & 255), out);
    }
    return true;
}

bool browser_picture(struct browser *b, const char *path) {
    cJSON *params = cJSON_CreateObject();
    cJSON_AddBoolToObject(params, "captureBeyondViewport", true);
    cJSON *answer = call(b, "Page.captureScreenshot", params);
    FILE *out = answer ? fopen(path, "wbe") : NULL;
    bool ok = out && write_base64(out, text_at(answer, "data"));
    if (out) ok &= fclose(out) == 0;
    cJSON_Delete(answer);
    return ok;
}
