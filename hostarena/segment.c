/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the segment of an earlier kvd or makes one. An object that cannot be used is unlinked and a new one made under
 * the name (SRV-8): whoever still maps the old one keeps its memory. A new object is signed last, so that one whose
 * maker was killed is known and made anew.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment_internal.h"

/* ---- an object that is there ------------------------------------------------------------------------------------- */

struct object {
    int fd;                /* -1: none */
    uint64_t bytes, there; /* size, and how much of it has memory */
    mode_t mode;
    nlink_t links; /* 0: its name is gone */
};

static int check_name(const char *name, char *err, size_t err_bytes) {
    if (name && name[0] == '/' && name[1] && !strchr(name + 1, '/') && strlen(name) <= NAME_MAX && strcmp(name, "/.") &&
        strcmp(name, "/.."))
        return 0;
    return segment_refuse(-EINVAL, err, err_bytes,
                          "\"%s\" is no name of shared memory: it has one slash, in front, and at most %d characters",
                          name ? name : "", NAME_MAX);
}

/* Someone else's object is neither used nor removed: what is in it would be theirs to change at any time. */
static int check_owner(const char *name, const struct stat *st, char *err, size_t err_bytes) {
    if (!S_ISREG(st->st_mode))
        return segment_refuse(-EINVAL, err, err_bytes, "/dev/shm%s is there and is no shared memory: remove it", name);
    if (st->st_uid == geteuid()) return 0;
    return segment_refuse(-EPERM, err, err_bytes,
                          "/dev/shm%s belongs to user %u, kvd runs as %u: remove it, or run kvd as that user", name,
                          (unsigned)st->st_uid, (unsigned)geteuid());
}

/* Locked as long as this process has it open: the name of the instance's lock file may be another file elsewhere (a
 * second mount namespace), the object is one. Its holder has left its pid there. */
static int lock_object(const char *name, int fd, char *err, size_t err_bytes) {
    uint64_t owner = 0;
    if (!flock(fd, LOCK_EX | LOCK_NB)) return 0;
    int e = errno;
    if (e != EWOULDBLOCK)
        return segment_refuse(-e, err, err_bytes, "/dev/shm%s cannot be locked: %s", name, strerror(e));
    char who[32] = "unknown";
    if (pread(fd, &owner, sizeof owner, SEGMENT_OWNER) == (ssize_t)sizeof owner && owner)
        snprintf(who, sizeof who, "%" PRIu64, owner);
    return segment_refuse(-EBUSY, err, err_bytes,
                          "another kvd (process %s, as its own container counts) uses /dev/shm%s and goes on: stop it, "
                          "or give this one another socket = in section [kvd], after which the arena is named",
                          who, name);
}

static void note_owner(int fd) {
    uint64_t me = (uint64_t)getpid();
    ssize_t n = pwrite(fd, &me, sizeof me, SEGMENT_OWNER);
    (void)n; /* it is for the sentence alone */
}

static int open_object(const char *name, struct object *ret_object, char *err, size_t err_bytes) {
    struct stat st;
    *ret_object = (struct object){ .fd = shm_open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK, 0) };
    if (ret_object->fd < 0) {
        int e = errno;
        if (e == ENOENT) return 0;
        return segment_refuse(-e, err, err_bytes,
                              "/dev/shm%s cannot be opened: %s: remove what is there, or run kvd as its owner", name,
                              e == ELOOP ? "it is a symbolic link" : strerror(e));
    }
    int r = fstat(ret_object->fd, &st) ? -errno : 0;
    if (r) segment_refuse(r, err, err_bytes, "/dev/shm%s: %s", name, strerror(-r));
    if (!r) r = check_owner(name, &st, err, err_bytes);
    if (!r) r = lock_object(name, ret_object->fd, err, err_bytes);
    if (!r && fstat(ret_object->fd, &st)) r = -errno;
    if (r) {
        close(ret_object->fd);
        ret_object->fd = -1;
        return r;
    }
    if (st.st_size >= (off_t)SEGMENT_PAGE) note_owner(ret_object->fd);
    ret_object->links = st.st_nlink;
    ret_object->bytes = (uint64_t)st.st_size;
    ret_object->there = (uint64_t)st.st_blocks * 512;
    ret_object->mode = st.st_mode & 07777;
    return 0;
}

/* Who replaces an object removes its name before the lock goes: what has no name by the time that it is locked is not
 * the one. */
static int look_for(const char *name, struct object *ret_object, char *err, size_t err_bytes) {
    for (int tries = 0; tries < 16; tries++) {
        int r = open_object(name, ret_object, err, err_bytes);
        if (r || ret_object->fd < 0 || ret_object->links) return r;
        close(ret_object->fd);
    }
    ret_object->fd = -1;
    return segment_refuse(-EBUSY, err, err_bytes, "/dev/shm%s is replaced again and again: another kvd starts", name);
}

/* The first page is read, not mapped: an object that is shorter than it says must not fault. */
static enum segment_found judge_object(const struct object *object, const struct segment_identity *want,
                                       struct segment_identity *ret_identity) {
    uint8_t page[SEGMENT_PAGE];
    ssize_t n = pread(object->fd, page, sizeof page, 0);
    return segment_judge(want, object->bytes, page, n < 0 ? 0 : (size_t)n, ret_identity);
}

/* ---- mapping ----------------------------------------------------------------------------------------------------- */

struct opening {
    const struct segment_config *config;
    struct segment *segment;
    const char *name; /* that a new object gets */
    struct object object;
    bool made;                      /* by us: a failure removes it */
    struct segment_identity former; /* of the object, where it is resized */
    char *err;
    size_t err_bytes;
};

static int check_need_of(const struct opening *o, uint64_t there, uint64_t credit) {
    uint64_t total = o->segment->identity.total_bytes;
    struct segment_need need = { .root = "",
                                 .what = "the arena with its directory needs",
                                 .lower = "[host] arena",
                                 .shm_bytes = total > there ? total - there : 0,
                                 .bytes = total > there ? total - there : 0,
                                 .credit = credit,
                                 .file_bytes = there ? 0 : total,
                                 .lock_bytes = o->config->lock ? total : 0 };
    return segment_check_need(&need, o->err, o->err_bytes);
}

/* Empty and locked. From here on a failure removes it: nobody else can have it. */
static int make_object(struct opening *o) {
    const char *name = o->name;
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        int e = errno;
        return segment_refuse(-e, o->err, o->err_bytes, "shared memory %s cannot be made: %s", name, strerror(e));
    }
    CRASH_POINT("segment.made");
    int r = lock_object(name, fd, o->err, o->err_bytes);
    if (r) {
        close(fd);
        return r;
    }
    o->object = (struct object){ .fd = fd, .mode = 0600 };
    o->made = true;
    return 0;
}

static int size_object(struct opening *o) {
    uint64_t total = o->segment->identity.total_bytes;
    if (!ftruncate(o->object.fd, (off_t)total)) {
        note_owner(o->object.fd);
        return 0;
    }
    int e = errno;
    return segment_refuse(-e, o->err, o->err_bytes,
                          "shared memory %s cannot have %" PRIu64 " bytes: %s: lower [host] arena", o->config->name,
                          total, strerror(e));
}

static int set_mode(struct opening *o) {
    mode_t mode = o->config->mode ? o->config->mode & 0777 : 0600;
    if (mode == o->object.mode || !fchmod(o->object.fd, mode)) return 0;
    int e = errno;
    return segment_refuse(-e, o->err, o->err_bytes, "shared memory %s cannot have mode %03o: %s", o->config->name,
                          (unsigned)mode, strerror(e));
}

/* Mapped, every page there, locked where that is wanted. */
static int map_object(struct opening *o) {
    struct segment *s = o->segment;
    uint64_t total = s->identity.total_bytes;
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, o->object.fd, 0);
    if (base == MAP_FAILED) {
        int e = errno;
        return segment_refuse(
            -e, o->err, o->err_bytes,
            "the segment's %" PRIu64
            " bytes cannot be mapped: %s: RLIMIT_AS or vm.overcommit_memory may be too small, or lower [host] arena",
            total, strerror(e));
    }
    s->header = base;
    struct segment_touch touch = {
        .fd = o->object.fd, .address = base, .bytes = total, .node = o->config->numa_node, .threads = o->config->threads
    };
    int r = segment_touch_all(&touch, o->err, o->err_bytes);
    CRASH_POINT("segment.touched");
    if (r || !o->config->lock || !mlock(base, total)) return r;
    int e = errno;
    return segment_refuse(-e, o->err, o->err_bytes,
                          "the segment's %" PRIu64 " bytes cannot be locked: %s: set LimitMEMLOCK=infinity in the unit "
                          "(ulimit -l unlimited), or turn [host] lock off",
                          total, strerror(e));
}

static int pin_arena(struct opening *o) {
    struct segment *s = o->segment;
    if (!o->config->pin || !segment_arena(s)) return 0;
    int r = o->config->pin(o->config->context, segment_arena(s), segment_arena_bytes(s), o->err, o->err_bytes);
    CRASH_POINT("segment.pinned");
    s->pinned = r == 0;
    return r;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static int adopt_object(struct opening *o) {
    int r = check_need_of(o, o->object.there, 0);
    if (!r) r = set_mode(o);
    if (!r) r = map_object(o);
    if (!r) r = pin_arena(o);
    if (r) return r;
    segment_resume(o->segment);
    return 0;
}

static int unlink_object(const struct opening *o) {
    if (!shm_unlink(o->config->name) || errno == ENOENT) return 0;
    int e = errno;
    return segment_refuse(-e, o->err, o->err_bytes,
                          "/dev/shm%s is no segment of this configuration and cannot be removed: %s: remove it",
                          o->config->name, strerror(e));
}

/* What is there goes only when the new one would fit in its place; whether its memory came back is asked again, for
 * somebody may still map it. The old one stays locked until the new one is. */
static int make_segment(struct opening *o) {
    int old = o->object.fd;
    int r = check_need_of(o, 0, old >= 0 ? o->object.there : 0);
    if (!r && old >= 0) r = unlink_object(o);
    if (r) return r;
    if (old >= 0) CRASH_POINT("segment.unlinked");
    o->segment->identity.segment_id = segment_random();
    r = make_object(o);
    if (r) return r;
    if (old >= 0) {
        close(old);
        r = check_need_of(o, 0, 0);
    }
    if (r || (r = size_object(o)) || (r = map_object(o)) || (r = pin_arena(o)) || (r = set_mode(o))) return r;
    segment_empty(o->segment);
    segment_sign(o->segment);
    return 0;
}

/* ---- another size (KEEP-1) --------------------------------------------------------------------------------------- */

/* The object that is there, for reading. */
static struct segment *open_former(struct opening *o) {
    struct segment *former = calloc(1, sizeof *former);
    void *handle = malloc(directory_handle_bytes());
    void *base = mmap(NULL, o->former.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, o->object.fd, 0);
    if (!former || !handle || base == MAP_FAILED) {
        if (base != MAP_FAILED) munmap(base, o->former.total_bytes);
        free(former), free(handle);
        return NULL;
    }
    *former = (struct segment){ .header = base, .fd = o->object.fd, .identity = o->former, .handle = handle };
    segment_resume(former);
    return former;
}

static int make_next(struct opening *o) {
    struct segment_driver drivers[SEGMENT_DRIVERS];
    uint32_t n = segment_drivers(o->segment->former, drivers, SEGMENT_DRIVERS);
    shm_unlink(o->name); /* of one that was killed */
    o->segment->identity.segment_id = segment_random();
    int r = make_object(o);
    if (!r) r = size_object(o);
    if (!r) r = map_object(o);
    if (!r) r = pin_arena(o);
    if (!r) r = set_mode(o);
    if (r) return r;
    segment_empty(o->segment);
    for (uint32_t i = 0; i < n; i++) segment_driver_add(o->segment, &drivers[i]);
    return 0;
}

static void count_lost(struct segment *segment) {
    const struct segment_identity *id = &segment->former->identity;
    const struct directory *directory = segment->former->directory;
    for (uint32_t i = 0; i < id->continuations; i++)
        segment->lost += directory_bundle_is_there(directory, DIRECTORY_CONTINUATION, i);
    for (uint32_t i = 0; i < id->sequences; i++)
        segment->lost += directory_bundle_is_there(directory, DIRECTORY_SEQUENCE, i);
}

/* Its descriptor is the object's, and stays. */
static void forget_former(struct segment *segment) {
    if (!segment->former) return;
    segment->former->fd = -1;
    segment_close(segment->former);
    segment->former = NULL;
}

uint32_t segment_lost(const struct segment *segment) { return segment->lost; }

/* The new one is made beside the old one. Where there is no memory for both, the old one goes first. */
static int make_beside(struct opening *o, enum segment_found *found) {
    char ignored[8];
    struct opening try = *o;
    try.err = ignored;
    try.err_bytes = sizeof ignored;
    bool fits = check_need_of(&try, 0, 0) == 0;
    o->segment->former = open_former(o);
    if (o->segment->former && !fits) count_lost(o->segment);
    if (!fits || !o->segment->former || asprintf(&o->segment->next, "%s.next", o->config->name) < 0) {
        *found = SEGMENT_FOREIGN;
        forget_former(o->segment);
        return make_segment(o);
    }
    o->name = o->segment->next;
    o->object.fd = -1;
    return make_next(o);
}

struct segment *segment_former(struct segment *segment) {
    return segment->former;
}

int segment_replace(struct segment *segment, char *err, size_t err_bytes) {
    char from[NAME_MAX + 16], to[NAME_MAX + 16];
    if (!segment->former) return 0;
    segment_sign(segment);
    snprintf(from, sizeof from, "/dev/shm%s", segment->next);
    snprintf(to, sizeof to, "%.*s", (int)strlen(from) - 5, from);
    if (rename(from, to)) {
        int e = errno;
        return segment_refuse(-e, err, err_bytes, "%s cannot become %s: %s", from, to, strerror(e));
    }
    CRASH_POINT("segment.replaced");
    segment_close(segment->former);
    segment->former = NULL;
    return 0;
}

static int find_object(struct opening *o, enum segment_found *ret_found) {
    const struct segment_config *config = o->config;
    struct segment_identity identity;
    int r = check_name(config->name, o->err, o->err_bytes);
    if (!r) r = segment_describe(config, &o->segment->identity, o->err, o->err_bytes);
    if (!r) r = look_for(config->name, &o->object, o->err, o->err_bytes);
    if (r) return r;
    *ret_found = o->object.fd < 0 ? SEGMENT_NEW : judge_object(&o->object, &o->segment->identity, &identity);
    if (*ret_found == SEGMENT_ADOPTED) o->segment->identity = identity;
    if (*ret_found == SEGMENT_RESIZED) o->former = identity;
    return 0;
}

int segment_open(const struct segment_config *config, struct segment **ret_segment, enum segment_found *ret_found,
                 char *err, size_t err_bytes) {
    struct opening o = {
        .config = config, .name = config->name, .object = { .fd = -1 }, .err = err, .err_bytes = err_bytes
    };
    enum segment_found found;
    struct segment *s = calloc(1, sizeof *s);
    void *handle = malloc(directory_handle_bytes());
    if (!s || !handle) {
        free(s), free(handle);
        return segment_refuse(-ENOMEM, err, err_bytes, "no memory to describe the arena's segment");
    }
    s->handle = handle, s->slot = 2, s->unpin = config->unpin, s->context = config->context;
    o.segment = s;
    int r = find_object(&o, &found);
    if (!r && found == SEGMENT_RESIZED) r = make_beside(&o, &found);
    else if (!r) r = found == SEGMENT_ADOPTED ? adopt_object(&o) : make_segment(&o);
    s->fd = o.object.fd;
    if (r) {
        if (o.made) shm_unlink(o.name); /* before its lock goes */
        segment_close(s);
        return r;
    }
    *ret_segment = s;
    *ret_found = found;
    return 0;
}

/* A private mapping: what segment_resume mends is seen here alone. */
int segment_peek(const struct segment_config *config, struct segment **ret_segment, enum segment_found *ret_found,
                 char *err, size_t err_bytes) {
    struct segment_identity want, there = { 0 };
    struct stat st = { 0 };
    *ret_segment = NULL;
    *ret_found = SEGMENT_NEW;
    int r = check_name(config->name, err, err_bytes);
    if (!r) r = segment_describe(config, &want, err, err_bytes);
    if (r) return r;
    struct object object = { .fd = shm_open(config->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0) };
    if (object.fd < 0 && errno == ENOENT) return 0;
    if (object.fd < 0 || fstat(object.fd, &st) || !S_ISREG(st.st_mode)) {
        r = segment_refuse(-errno, err, err_bytes, "/dev/shm%s cannot be read: %s", config->name, strerror(errno));
        if (object.fd >= 0) close(object.fd);
        return r;
    }
    object.bytes = (uint64_t)st.st_size;
    *ret_found = judge_object(&object, &want, &there);
    struct segment *s = calloc(1, sizeof *s);
    void *handle = malloc(directory_handle_bytes()), *base = MAP_FAILED;
    bool readable = *ret_found == SEGMENT_ADOPTED || *ret_found == SEGMENT_RESIZED;
    if (readable && s && handle)
        base = mmap(NULL, there.total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, object.fd, 0);
    if (base == MAP_FAILED) {
        free(s), free(handle), close(object.fd);
        return readable ? segment_refuse(-ENOMEM, err, err_bytes, "no memory to look at the arena") : 0;
    }
    *s = (struct segment){ .header = base, .fd = object.fd, .identity = there, .slot = 2, .handle = handle };
    segment_resume(s);
    *ret_segment = s;
    return 0;
}

void segment_close(struct segment *segment) {
    if (!segment) return;
    if (segment->pinned && segment->unpin)
        segment->unpin(segment->context, segment_arena(segment), segment_arena_bytes(segment));
    if (segment->former) {
        if (segment->next) shm_unlink(segment->next);
        segment_close(segment->former);
    }
    free(segment->next);
    if (segment->header) munmap(segment->header, segment->identity.total_bytes);
    if (segment->fd >= 0) close(segment->fd); /* the lock goes last */
    free(segment->handle);
    free(segment);
}

void segment_destroy(const char *name) { shm_unlink(name); }

struct directory *segment_directory(struct segment *segment) {
    return segment->directory;
}

uint8_t *segment_arena(struct segment *segment) {
    return segment->identity.arena_bytes ? (uint8_t *)segment->header + segment->identity.arena_offset : NULL;
}

uint64_t segment_arena_bytes(const struct segment *segment) { return segment->identity.arena_bytes; }
