/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

struct screen {
    bool keys;
    struct termios before;
};

static void put_text(const char *text) {
    fputs(text, stdout);
    fflush(stdout);
}

struct screen *screen_open(void) {
    struct termios raw;
    if (!isatty(STDOUT_FILENO)) return NULL;
    struct screen *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    signal(SIGTSTP, SIG_IGN); /* the shell would get the terminal as it is now */
    if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &s->before) == 0) {
        raw = s->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        s->keys = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    put_text("\033[?1049h\033[?25l\033[?7l"); /* other screen, no cursor, no wrapping */
    return s;
}

void screen_close(struct screen *s) {
    if (!s) return;
    put_text("\033[?7h\033[?25h\033[?1049l");
    if (s->keys) tcsetattr(STDIN_FILENO, TCSANOW, &s->before);
    free(s);
}

bool screen_has_keys(const struct screen *s) { return s && s->keys; }

unsigned screen_lines(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row ? size.ws_row : 24;
}

unsigned screen_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void screen_draw(const struct screen *s, const char *text) {
    unsigned left = screen_lines();
    (void)s;
    fputs("\033[H", stdout);
    while (*text && left--) {
        size_t n = strcspn(text, "\n");
        fwrite(text, 1, n, stdout);
        fputs("\033[K", stdout); /* the rest of the line is of an older picture */
        text += n + (text[n] == '\n');
        if (*text && left) putchar('\n');
    }
    put_text("\033[J");
}

int screen_key(const struct screen *s) {
    unsigned char key;
    return s->keys && read(STDIN_FILENO, &key, 1) == 1 ? key : 0;
}
