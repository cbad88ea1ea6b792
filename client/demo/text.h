/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of the demo: documents of the machine as byte tokens, and a small table of what follows what in one of them.
 *
 * A model with random weights speaks noise. The table keeps its noise in the shape of a language: for a history it
 * names the bytes that followed the same last bytes in the document; which of them comes is the model's choice, and so
 * attention's.
 */
#ifndef KVD_DEMO_TEXT_H
#define KVD_DEMO_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define TEXT_VOCABULARY 256

struct text;

/* Reads a document: printable ASCII and newlines, runs of blanks as one. *ret_bytes is malloc'd, not terminated. 0 or
 * -errno with a sentence in err. */
int text_load(const char *path, uint8_t **ret_bytes, size_t *ret_n, char *err, size_t err_bytes);

/* The table of a document. 0 or -errno (-ENODATA: the document is too short). */
int text_new(const char *path, struct text **ret_text, char *err, size_t err_bytes);
void text_free(struct text *text);

/* Log-weights of the next byte after history[0..n): -INFINITY for bytes that the document never has here; at least one
 * is finite. Depends on the last bytes only. */
void text_scores(const struct text *text, const uint8_t *history, size_t n, float ret_scores[TEXT_VOCABULARY]);

#endif
