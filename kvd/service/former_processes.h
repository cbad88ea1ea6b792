/* SPDX-License-Identifier: Apache-2.0
 *
 * Drivers: processes that got at device memory which outlives this kvd (export = vmm), and so may still run a unit on
 * it when another kvd has taken over. They are recorded in the segment before they get anything, and taken out when
 * their exit is proven or they say goodbye.
 *
 * Those of the instance before (former drivers) are waited for: until each is proven gone, or has said on a new
 * session, by attaching or by Yield, that no unit of it runs, no page is given to anybody and none is moved (ROW-5 over
 * a restart).
 *
 * Under the core mutex unless said otherwise.
 */
#ifndef KVD_FORMER_PROCESSES_H
#define KVD_FORMER_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct service;
struct session;
struct call;

/* Field 22 of /proc/PID/stat; 0: no such process. PROCESS_HIDDEN: it lives, and /proc does not show more of it, as with
 * ProtectProc=invisible (the unit has it) where it is another user's; then its number alone names it. Any thread, no
 * lock. */
#define PROCESS_HIDDEN UINT64_MAX
uint64_t process_start_time(uint64_t pid);
/* At the start, before any request: those of the instance before that live are watched. 0, or 1 with a sentence:
 * whether one lives could not be told, and its pages must not be given away on a guess. */
int former_open(struct service *service, char *err, size_t err_bytes);
void former_close(struct service *service);
/* The session's process gets a descriptor. False: there is no room for it in the segment. */
bool process_record(struct service *service, struct session *session, uint64_t start_time);
/* The session ends. */
void process_forget(struct service *service, struct session *session);

/* A watched process has exited (tag: its epoll tag, FORMER_TAG + place). Takes the lock. */
#define FORMER_TAG 1024u
void former_exited(struct service *service, uint64_t tag);
/* The session's process says that no unit of it runs. */
void former_yield(struct service *service, const struct session *session);
uint32_t former_waited(const struct service *service); /* still waited for */
/* False and a refusal in words when some are waited for. */
bool former_clear(struct call *call);

#endif
