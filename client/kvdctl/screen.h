/* SPDX-License-Identifier: Apache-2.0
 *
 * A terminal that is drawn anew again and again: the other screen, no cursor, keys without return. What it was before
 * comes back with screen_close.
 */
#ifndef KVDCTL_SCREEN_H
#define KVDCTL_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

struct screen;

/* NULL: standard output is no terminal. Where standard input is none, there are no keys. */
struct screen *screen_open(void);
void screen_close(struct screen *screen); /* NULL is fine */
bool screen_has_keys(const struct screen *screen);
/* Lines that fit now, and characters of one. */
unsigned screen_lines(void);
unsigned screen_columns(void);
/* Draws text of many lines; those that do not fit are left out, longer ones are cut by the terminal. */
void screen_draw(const struct screen *screen, const char *text);
/* The next key that was pressed, 0 without one. */
int screen_key(const struct screen *screen);

#endif
