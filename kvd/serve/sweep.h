/* SPDX-License-Identifier: Apache-2.0
 *
 * What workers ask for on their boards: the next window of each sequence that has come to the last page of the one
 * before, mapped and published as by a Round, without a message and without an answer.
 */
#ifndef KVD_SWEEP_H
#define KVD_SWEEP_H

struct service;

/* Looks at the boards whose bells rang. Takes the lock, some sequences at a time; one thread. */
void sweep_boards(struct service *s);

#endif
