/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon. Signals are blocked before the first thread exists; the instance's lock is taken before anything of
 * another instance could be touched; readiness is told when the socket answers.
 *
 * The main thread sleeps in epoll over signals, exits of peers and devices (service_fd), connections to free
 * (listener_fd) and a timer. Requests are served in nng's threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "arena_import.h"
#include "build.h"
#include "clock.h"
#include "crash.h"
#include "device.h"
#include "fdpass.h"
#include "from_hf.h"
#include "http.h"
#include "listener.h"
#include "log.h"
#include "options.h"
#include "plan.h"
#include "reload.h"
#include "systemd.h"
#include "unit_limit.h"

struct daemon {
    const char *config_path;
    struct config config;
    struct service *service;
    struct listener *listener;
    struct http *http;
    struct reload *reload;
    struct fdpass *fdpass; /* NULL: no region is a descriptor */
    int lock_fd, signal_fd, timer_fd, epoll_fd;
    struct watchdog watchdog;
    struct fdstore_set handed; /* by the instance before */
    bool stopping;
};

static int refuse_start(const char *why) {
    LOG(LOG_ERROR, "kvd cannot start: %s", why);
    return EXIT_START;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* What the parent left: a file that kvd opens must not become its standard error, files have the modes that they are
 * given, and signals that the parent ignores are heard. */
static int begin_afresh(void) {
    static const int heard[] = { SIGTERM, SIGINT, SIGHUP };
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
    umask(077);
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        if (signal(heard[i], SIG_DFL) == SIG_ERR) return 1;
    return fd < 0;
}

/* Signals of the daemon are read from a file: no thread of nng or CUDA may take them. */
static int block_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) || signal(SIGPIPE, SIG_IGN) == SIG_ERR ||
        signal(SIGXFSZ, SIG_IGN) == SIG_ERR) /* a file that may not grow is an error of its call */
        return -1;
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* It holds a pid at most. */
static bool is_lock_file(int fd) {
    struct stat st;
    return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size < 24;
}

static int take_lock(struct daemon *d, char *err, size_t err_bytes) {
    char path[sizeof d->config.socket + 8], pid[24] = "";
    snprintf(path, sizeof path, "%s.lock", d->config.socket);
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (d->lock_fd >= 0 && !is_lock_file(d->lock_fd)) {
        snprintf(err, err_bytes,
                 "%s: there is something that kvd has not made; remove it, or change socket = in "
                 "section [kvd]",
                 path);
        return 1;
    }
    if (d->lock_fd < 0) {
        snprintf(err, err_bytes,
                 "%s: %s; create its directory for the daemon's user, or change socket = in section [kvd]", path,
                 strerror(errno));
        return 1;
    }
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB)) {
        ssize_t n = pread(d->lock_fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = 0;
        snprintf(err, err_bytes,
                 "another kvd (process %s) serves %s and goes on; stop it first, or give this one another socket",
                 *pid ? pid : "unknown", d->config.socket);
        return 1;
    }
    int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(d->lock_fd, 0) || pwrite(d->lock_fd, pid, (size_t)n, 0) != n) LOG(LOG_WARNING, "%s: %m", path);
    return 0;
}

/* The arena is named after the socket: one instance, one prefix. */
static void make_prefix(const char *socket, char *prefix, size_t bytes) {
    snprintf(prefix, bytes, "/kvd-%016" PRIx64 "-", (uint64_t)XXH3_64bits(socket, strlen(socket)));
}

static void raise_file_limit(const struct config *c) {
    struct rlimit limit;
    rlim_t need = listener_files(c->connections, c->ring ? c->connections : 0);
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max < need)
        LOG(LOG_WARNING, "%u connections may need %" PRIu64 " files, %" PRIu64 " are allowed; raise LimitNOFILE",
            c->connections, (uint64_t)need, (uint64_t)limit.rlim_max);
}

static int start_serving(struct daemon *d, char *err, size_t err_bytes) {
    char prefix[48];
    if (take_lock(d, err, err_bytes)) return 1;
    make_prefix(d->config.socket, prefix, sizeof prefix);
    raise_file_limit(&d->config);
    if (http_open(&d->config, &d->http, err, err_bytes)) /* engines need the cache, nobody needs the figures to go on */
        LOG(LOG_ERROR, "there is no monitoring: %s", err);
    if (service_new(&d->config, prefix, &d->handed, &d->service, err, err_bytes)) return 1;
    service_note_build(d->service, build_labels());
    if (service_has_descriptors(d->service) && fdpass_open(d->service, &d->config, &d->fdpass, err, err_bytes))
        return 1;
    return listener_open(d->service, &d->config, &d->listener, err, err_bytes);
}

/* ---- loop -------------------------------------------------------------------------------------- */

static void set_timer(const struct daemon *d) {
    uint64_t period = 1000000000u;
    if (d->config.handshake_timeout / 4 < period) period = d->config.handshake_timeout / 4;
    if (d->config.stall_timeout / 4 < period) period = d->config.stall_timeout / 4;
    if (d->watchdog.period_ns && d->watchdog.period_ns < period) period = d->watchdog.period_ns;
    struct timespec t = { .tv_sec = (time_t)(period / 1000000000u), .tv_nsec = (long)(period % 1000000000u) };
    timerfd_settime(d->timer_fd, 0, &(struct itimerspec){ .it_interval = t, .it_value = t }, NULL);
}

static int watch_file(const struct daemon *d, int fd) {
    struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };
    return fd < 0 || epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

static int make_loop(struct daemon *d) {
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (d->epoll_fd < 0 || d->timer_fd < 0) return 1;
    set_timer(d);
    return watch_file(d, d->signal_fd) || watch_file(d, d->timer_fd) || watch_file(d, service_fd(d->service)) ||
           watch_file(d, listener_fd(d->listener)) || watch_file(d, reload_fd(d->reload)) ||
           (d->fdpass && watch_file(d, fdpass_fd(d->fdpass)));
}

static void tell_ready(struct daemon *d, const char *note) {
    char text[512];
    snprintf(text, sizeof text, "READY=1\nSTATUS=serving %" PRIu64 " tokens on %u devices%s",
             service_info(d->service)->capacity_tokens, d->config.n_devices, note);
    notify_send(text);
}

#define NOT_RELOADED "; the configuration was not reloaded, the log says why"

static void begin_reload(struct daemon *d) {
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_ns() / 1000);
    notify_send(text);
    reload_begin(d->reload, clock_ns());
}

/* Its end is READY=1. */
static void end_reload(struct daemon *d) {
    struct config config, in_effect;
    const char *why;
    char rest[256], note[sizeof rest + 32] = "";
    enum reload_result result = reload_take(d->reload, &config, &why);
    if (result == RELOAD_NONE || d->stopping) return;
    if (result == RELOAD_BAD) {
        LOG(LOG_ERROR, "the configuration was not reloaded:");
        log_text(LOG_ERROR, why);
        service_note_reload_failed(d->service);
    }
    if (result == RELOAD_GOOD) {
        service_reload(d->service, &config);
        d->config = service_config(d->service);
        listener_configure(d->listener, &d->config);
        set_timer(d);
        in_effect = d->config;
        config_reload(&in_effect, &config, rest, sizeof rest);
        if (*rest) snprintf(note, sizeof note, "; these wait for a restart: %s", rest);
    }
    tell_ready(d, result == RELOAD_BAD ? NOT_RELOADED : note);
}

static void look_after_reload(struct daemon *d) {
    if (!reload_late(d->reload, clock_ns()) || d->stopping) return;
    LOG(LOG_ERROR, "%s: its file system, or who knows users and groups, does not answer; kvd goes on with what it has",
        d->config_path);
    tell_ready(d, NOT_RELOADED);
}

/* True: stop, or stop at once. */
static bool take_signals(struct daemon *d) {
    struct signalfd_siginfo info;
    while (read(d->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            if (!d->stopping) begin_reload(d);
            continue;
        }
        LOG(LOG_NOTICE, "%s: stopping", strsignal((int)info.ssi_signo));
        return true;
    }
    return false;
}

static int check_devices(struct daemon *d) {
    char why[512];
    if (!service_lost(d->service, why, sizeof why)) return EXIT_FINE;
    LOG(LOG_ERROR, "%s: kvd stops, since what its clients map can no longer be kept right", why);
    return EXIT_DEVICE;
}

static int run_tick(struct daemon *d) {
    uint64_t count;
    if (read(d->timer_fd, &count, sizeof count) != sizeof count) return EXIT_FINE;
    listener_tick(d->listener, clock_ns());
    http_tick(d->http, clock_ns());
    look_after_reload(d);
    fdpass_tick(d->fdpass, clock_ns());
    service_note_connections(d->service, listener_connections(d->listener)); /* takes the core mutex */
    service_run(d->service); /* what it had no memory for when it was woken */
    if (watchdog_tick(&d->watchdog, clock_ns(), listener_accepted(d->listener))) notify_send("WATCHDOG=1");
    return check_devices(d);
}

#define GO_ON (-1)

/* Waits for what comes, at most timeout_ms (-1: for ever), and serves it. Returns the exit status: EXIT_FINE after a
 * signal, EXIT_DEVICE when a device is lost; else GO_ON. */
static int serve_ready(struct daemon *d, int timeout_ms) {
    struct epoll_event events[8];
    int n = epoll_wait(d->epoll_fd, events, 8, timeout_ms), status;
    for (int i = 0; i < n; i++) {
        int fd = events[i].data.fd;
        if (fd == d->signal_fd && take_signals(d)) return EXIT_FINE;
        if (fd == d->timer_fd && (status = run_tick(d)) != EXIT_FINE) return status;
        if (fd == service_fd(d->service)) service_run(d->service);
        if (fd == listener_fd(d->listener)) listener_run(d->listener);
        if (fd == reload_fd(d->reload)) end_reload(d);
        if (d->fdpass && fd == fdpass_fd(d->fdpass)) fdpass_run(d->fdpass);
    }
    return GO_ON;
}

static int run_loop(struct daemon *d) {
    int status;
    while ((status = serve_ready(d, -1)) == GO_ON) continue;
    return status;
}

static void tell_stop(const struct service_stop *stop) {
    char text[256];
    snprintf(text, sizeof text,
             "EXTEND_TIMEOUT_USEC=10000000\nSTATUS=stopping: %u sequences to end, %u continuations demoted, %u left, "
             "%u do not fit into the arena; %u pages under way",
             stop->sequences, stop->demoted, stop->left, stop->not_fitting, stop->pages_left);
    notify_send(text);
}

/* What the stop saved, and what goes with the process. */
static void say_stopped(const struct config *config, const struct service_stop *stop) {
    bool handed_on = config->export == EXPORT_VMM;
    uint32_t exposed = stop->left + stop->not_fitting + stop->sequences;
    if (config->arena_bytes && (stop->demoted || exposed))
        LOG((exposed && !handed_on) || stop->released ? LOG_WARNING : LOG_NOTICE,
            "stop: %u continuations demoted, %u left for want of time, %u do not fit into the arena, %u in it were "
            "released for others of more value, %u sequences did not end",
            stop->demoted, stop->left, stop->not_fitting, stop->released, stop->sequences);
    if (!config->arena_bytes && exposed && handed_on)
        LOG(LOG_NOTICE,
            "stop: %u continuations and %u sequences stay in device memory: a restart of the unit hands them on, its "
            "stop loses them",
            stop->left, stop->sequences);
    else if (!config->arena_bytes && exposed)
        LOG(LOG_WARNING,
            "stop: %u continuations and %u sequences are lost, as there is no arena to demote them to (arena = in "
            "section [host])",
            stop->left, stop->sequences);
}

static void say_cut_short(const struct config *config, const struct service_stop *stop) {
    LOG(LOG_WARNING,
        "stop: a second signal ends it at once: %u continuations are demoted, %u sequences did not end; what only the "
        "devices hold is %s",
        stop->demoted, stop->sequences, config->export == EXPORT_VMM ? "left to the next kvd" : "lost");
}

/* Serves on while sequences end and continuations are demoted. A second signal ends it at once. Returns the exit
 * status. */
static int stop_daemon(struct daemon *d) {
    struct service_stop stop;
    uint64_t told = 0;
    int status;
    d->stopping = true;
    notify_send("STOPPING=1");
    service_stop_begin(d->service);
    for (service_stop_step(d->service, &stop); !stop.over; service_stop_step(d->service, &stop)) {
        if (clock_ns() - told > 500000000u) {
            tell_stop(&stop);
            told = clock_ns();
        }
        if ((status = serve_ready(d, 100)) == GO_ON) continue;
        if (status == EXIT_FINE) say_cut_short(&d->config, &stop);
        return status;
    }
    tell_stop(&stop);
    say_stopped(&d->config, &stop);
    return check_devices(d);
}

/* ---- actions -------------------------------------------------------------------------------------- */

/* All that a reader of the log wants to know of this start, in a line. */
static void say_serving(const struct daemon *d) {
    const struct kvd_store_info *info = service_info(d->service);
    const struct config *c = &d->config;
    char prefix[48], arena[160] = "none", name[96];
    make_prefix(c->socket, prefix, sizeof prefix);
    plan_arena_name(prefix, name, sizeof name);
    if (c->arena_bytes) snprintf(arena, sizeof arena, "%" PRIu64 " MiB in /dev/shm%s", c->arena_bytes >> 20, name);
    LOG(LOG_NOTICE,
        "kvd %s serves store %s of %s: %" PRIu64 " tokens in %u pages on %u device%s, %u sequences of %u tokens; "
        "arena %s; socket %s",
        build_text(), info->name, d->config_path, info->capacity_tokens, info->pool[0].pages, c->n_devices,
        c->n_devices == 1 ? "" : "s", info->max_concurrency, info->max_context, arena, c->socket);
}

static int run_daemon(struct daemon *d) {
    char err[1024];
    int status = EXIT_START;
    if (d->signal_fd < 0) return refuse_start("signals cannot be read from a file");
    d->reload = reload_new(d->config_path);
    if (!d->reload) return refuse_start("no file is free to be told of a reload by; raise the limit of open files");
    watchdog_init(&d->watchdog, d->config.socket);
    if (start_serving(d, err, sizeof err)) {
        refuse_start(err);
    } else if (make_loop(d)) {
        refuse_start(strerror(errno));
    } else {
        say_serving(d);
        http_serve(d->http, d->service);
        tell_ready(d, "");
        status = run_loop(d);
        if (status == EXIT_FINE) status = stop_daemon(d);
        else notify_send("STOPPING=1");
        watchdog_close(&d->watchdog);
    }
    d->listener = listener_close(d->listener);
    d->http = http_close(d->http);
    d->fdpass = fdpass_close(d->fdpass);
    d->service = service_free(d->service);
#ifdef KVD_CRASH_POINTS
    LOG(LOG_NOTICE, "crash points passed: %" PRIu64, crash_reached());
#endif
    return status;
}

static void print_plan_and_cost(const struct config *config, const struct plan *plan, const char *arena, bool json) {
    struct arena_cost cost;
    char err[512];
    bool known = !arena_cost_of(config, plan, arena, &cost, err, sizeof err);
    if (!known) fprintf(stderr, "kvd: what a start would keep of the arena is not known: %s\n", err);
    plan_print(stdout, config, plan, known ? &cost : NULL, json);
}

static int print_plan(const struct config *config, bool json) {
    struct device *devices[KVD_MAX_RANKS];
    struct plan plan;
    char err[1024], prefix[48], arena[96];
    make_prefix(config->socket, prefix, sizeof prefix);
    plan_arena_name(prefix, arena, sizeof arena);
    if (plan_open_devices(config, devices, err, sizeof err)) {
        fprintf(stderr, "kvd: %s\n", err);
        return EXIT_START;
    }
    int r = plan_make(config, devices, NULL, arena, &plan, err, sizeof err);
    if (r) fprintf(stderr, "kvd: %s\n", err);
    else print_plan_and_cost(config, &plan, arena, json);
    for (uint32_t i = 0; i < config->n_devices; i++) device_close(devices[i]);
    return r ? EXIT_START : EXIT_FINE;
}

static int check_config(const struct options *options, struct config *ret_config) {
    struct geom_store_spec spec;
    char err[8192];
    if (config_load(options->config, ret_config, err, sizeof err)) {
        log_text(LOG_ERROR, err);
        return EXIT_USAGE;
    }
    if (!plan_spec(ret_config, &spec, err, sizeof err)) return EXIT_FINE;
    LOG(LOG_ERROR, "%s: %s", options->config, err);
    return EXIT_USAGE;
}

/* What the change would cost, as far as it can be known without a look at the devices. */
static void say_cost(const char *path, const struct config *config) {
    struct plan plan;
    struct arena_cost cost;
    char err[512], text[160], prefix[48], arena[96];
    make_prefix(config->socket, prefix, sizeof prefix);
    plan_arena_name(prefix, arena, sizeof arena);
    if (!plan_sizes(config, &plan) || arena_cost_of(config, &plan, arena, &cost, err, sizeof err)) return;
    if (plan_cost_text(&cost, false, text, sizeof text)) LOG(LOG_WARNING, "%s: %s", path, text);
}

static int print_model(const struct options *options) {
    struct from_hf ask = { .path = options->model, .ranks = options->devices, .profile = options->profile };
    char err[1024];
    if (!from_hf_print(stdout, &ask, err, sizeof err)) return EXIT_FINE;
    fprintf(stderr, "kvd: %s\n", err);
    return EXIT_USAGE;
}

/* A stop lasts beyond the unit's limit as long as kvd asks for more time (tell_stop): a hang is ended earlier. */
static void say_stop_limit(const char *path, const struct config *config) {
    struct unit_limit limit;
    uint64_t stop_s = (config->stop_time + 999999999u) / 1000000000u;
    if (!config->arena_bytes || !unit_limit_of(path, &limit) || config->stop_time < limit.limit_ns) return;
    LOG(LOG_WARNING,
        "%s: stop_time = %" PRIu64 "s is not below TimeoutStopSec= of %s (%s): systemd grants the rest only as long as "
        "kvd asks for it; to grant it beforehand, run systemctl edit %s and write [Service] and "
        "TimeoutStopSec=%" PRIu64,
        path, stop_s, limit.unit, limit.text, limit.unit, stop_s + 60);
}

int main(int argc, char **argv) {
    struct options options;
    struct daemon d = { .lock_fd = -1, .timer_fd = -1, .epoll_fd = -1 };
    log_init(LOG_INFO);
    if (begin_afresh()) return refuse_start("/dev/null cannot be opened");
    if (options_parse(argc, argv, &options)) return EXIT_USAGE;
    if (options.action == OPTIONS_HELP) options_print_help();
    if (options.action == OPTIONS_VERSION) printf("kvd %s\n", build_text());
    if (options.action == OPTIONS_HELP_CONFIG) config_print_help(stdout);
    if (options.action == OPTIONS_FROM_HF) return print_model(&options);
    if (options.action != OPTIONS_RUN && options.action != OPTIONS_CHECK && options.action != OPTIONS_PLAN)
        return EXIT_FINE;
    int status = check_config(&options, &d.config);
    if (status == EXIT_FINE && options.action == OPTIONS_CHECK) {
        say_cost(options.config, &d.config);
        say_stop_limit(options.config, &d.config);
    }
    if (status != EXIT_FINE || options.action == OPTIONS_CHECK) return status;
    if (options.action == OPTIONS_PLAN) return print_plan(&d.config, options.json);
    fdstore_take(&d.handed);
    /* nng has many threads that allocate little; a connection's buffer goes back to the system when it closes. */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 32768);
    mallopt(M_TRIM_THRESHOLD, 131072);
    if (getrandom(&d.config.first_generation, sizeof d.config.first_generation, 0) != sizeof d.config.first_generation)
        return refuse_start("getrandom gives no first generation");
    d.config.first_generation >>= 2; /* far from its end, where slots retire */
    d.config_path = options.config;
    d.signal_fd = block_signals();
    log_set_level((enum log_level)d.config.log_level);
    return run_daemon(&d);
}
