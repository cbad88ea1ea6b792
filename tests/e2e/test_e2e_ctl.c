/* SPDX-License-Identifier: Apache-2.0
 *
 * kvdctl at a real daemon: what it follows when workers and the daemon die, and what it advises where state slots are
 * short.
 */
#include <cjson/cJSON.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "program.h"
#include "scene.h"

#ifndef KVDCTL
#error "KVDCTL is the path of the program"
#endif

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;
static struct run run;

#define CTL(...) program_run(&run, KVDCTL, 0, "-s", daemon_.socket, __VA_ARGS__, (const char *)NULL)
#define LIVE(live, ...) program_start(live, false, KVDCTL, "-s", daemon_.socket, __VA_ARGS__, (const char *)NULL)

static bool hire(void) {
    if (!KVT_TRUE(puppet_start(&worker))) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return KVT_TRUE(puppet_attach(&worker, 0));
}

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    return KVT_TRUE(scheduler != NULL) && hire();
}

static void close_stage(void) {
    if (worker.pid) puppet_kill(&worker);
    kvd_disconnect(scheduler);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

static cJSON *json(const char *text) {
    cJSON *root = cJSON_Parse(text);
    if (!KVT_TRUE(root != NULL)) printf("%s\n", text);
    return root;
}
static const cJSON *at(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }
static const char *text(const cJSON *object, const char *key) {
    const char *t = cJSON_GetStringValue(at(object, key));
    return t ? t : "nothing";
}

/* SRV-2: what could not be written is an error with a sentence, whatever the command. */
static void output_that_cannot_be_written(void) {
    static const char *const commands[] = {
        "status", "--json status", "events -S 1", "--json events -S 1", "--json top -c 1 -i 1", "top -c 1 -i 1",
        "--help", "--version",     "config",      "instances",          "status --help"
    };
    static const char *const outputs[] = { ">/dev/full", ">&-" };
    char line[512];
    if (!open_stage(NULL)) return;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (size_t k = 0; k < sizeof outputs / sizeof *outputs; k++) {
            snprintf(line, sizeof line, "exec %s -s %s %s %s", KVDCTL, daemon_.socket, commands[i], outputs[k]);
            program_run(&run, "/bin/sh", 0, "-c", line, (const char *)NULL);
            if (!KVT_EQ_I(run.status, 2) || !KVT_HAS(run.err, "kvdctl: standard output cannot be written"))
                printf("    %s\n", line);
        }
    close_stage();
}

/* SRV-5, SRV-8: a worker is killed, the daemon drains, is killed, and comes again: each shows, in this order. */
static void srv_8_events_of_a_hard_day(void) {
    struct live *live = malloc(sizeof *live);
    char word[96];
    uint64_t seed = e2e_stream(1, 5000, 0);
    KVT_NEED(live && open_stage(NULL));
    LIVE(live, "events", "--follow", "--json");
    KVT_TRUE(program_says(live, "\"event\":\"connected\",\"store\":\"e2e\""));
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, seed, 130, 50);
    puppet_kill(&worker);
    worker.pid = 0;
    snprintf(word, sizeof word, "\"event\":\"sequence_ended\",\"sequence\":\"0x%" PRIx64 "\",\"continuation\":\"0x",
             a.sequence.bits);
    KVT_TRUE(program_says(live, word)); /* kept: it was complete */
    KVT_EQ(CTL("drain")->status, 0);
    KVT_TRUE(program_says(live, "\"event\":\"draining\""));
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_TRUE(program_says(live, "\"event\":\"lost\""));
    KVT_EQ(CTL("status")->status, 3);
    KVT_NEED(e2e_daemon_restart(&daemon_));
    KVT_TRUE(program_says(live, "\"event\":\"restarted\",\"store\":\"e2e\""));
    KVT_EQ(CTL("drain")->status, 0); /* the subscription stands again */
    KVT_TRUE(program_says(live, "\"event\":\"draining\""));
    KVT_OK(kill(live->pid, SIGINT));
    KVT_EQ_I(program_end(live), 0);
    free(live);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    close_stage();
}

/* The largest sequence first, with the tokens that it committed between two looks. */
static void top_of_real_sequences(void) {
    struct live *live = malloc(sizeof *live);
    KVT_NEED(live && open_stage(NULL));
    scene_run(scheduler, &worker, worker_session, e2e_stream(1, 5000, 0), 70, 50);
    struct kvd_activated b = scene_run(scheduler, &worker, worker_session, e2e_stream(2, 5000, 0), 400, 600);
    double begin = e2e_now();
    LIVE(live, "top", "--json", "--count", "3");
    KVT_TRUE(program_says(live, "\n"));
    KVT_EQ(scene_round(&worker, b.sequence, KVD_UNCHANGED, 600).status, KVD_OK);
    for (uint32_t n = 410; n <= 600; n += 10) KVT_EQ(scene_round(&worker, b.sequence, n, KVD_UNCHANGED).status, KVD_OK);
    KVT_TRUE(program_says(live, "\n"));
    KVT_TRUE(program_says(live, "\n"));
    KVT_EQ_I(program_end(live), 0);
    cJSON *second = json(strchr(live->text, '\n') + 1), *third = json(strchr(strchr(live->text, '\n') + 1, '\n') + 1);
    const cJSON *first = cJSON_GetArrayItem(at(second, "sequences"), 0);
    char handle[32];
    snprintf(handle, sizeof handle, "0x%" PRIx64, b.sequence.bits);
    KVT_EQ_STR(text(first, "sequence"), handle);
    double tokens = cJSON_GetNumberValue(at(first, "tokens_per_second"));
    double rest = cJSON_GetNumberValue(at(cJSON_GetArrayItem(at(third, "sequences"), 0), "tokens_per_second"));
    double most = e2e_now() - begin;                             /* of a look's time; the least is a second */
    KVT_TRUE(tokens + rest > 199 / most && tokens + rest < 250); /* 200 in one or two of them */
    KVT_EQ_I(cJSON_GetArraySize(at(second, "sequences")), 2);
    cJSON_Delete(second);
    cJSON_Delete(third);
    free(live);
    close_stage();
}

static const cJSON *setting(const cJSON *root, const char *section, const char *name) {
    const cJSON *row;
    cJSON_ArrayForEach(row, at(root, "settings")) if (strcmp(text(row, "section"), section) == 0 &&
                                                      strcmp(text(row, "name"), name) == 0) return row;
    return NULL;
}

static bool has_reloaded(void *argument) {
    cJSON *root = json(CTL("config", "--json")->out);
    bool has = strcmp(text(setting(root, "limits", "low_water"), "value"), argument) == 0;
    cJSON_Delete(root);
    return has;
}

/* Every value in effect and where it is from; a reload takes over what it may and names the rest. */
static void config_shows_what_is_in_effect(void) {
    struct e2e_setup setup = { .more = "[limits]\nlow_water = 7" },
                     later = { .more = "[limits]\nlow_water = 8\nsessions = 17" };
    char line[256];
    KVT_NEED(open_stage(&setup));
    cJSON *root = json(CTL("config", "--json")->out);
    const cJSON *low = setting(root, "limits", "low_water"), *continuations = setting(root, "limits", "continuations");
    KVT_EQ_STR(text(low, "value"), "7");
    KVT_TRUE(strstr(text(low, "source"), ".conf:") != NULL);
    KVT_EQ_STR(text(setting(root, "host", "stop_time"), "source"), "default");
    KVT_EQ_STR(text(continuations, "source"), "auto, default");
    struct kvd_stats stats;
    KVT_EQ(kvd_stats(scheduler, &stats, NULL), KVD_OK);
    KVT_EQ((uint32_t)strtoul(text(continuations, "value"), NULL, 10), stats.continuation_limit);
    cJSON_Delete(root);
    CTL("config");
    KVT_HAS(run.out, "[kvd] socket");
    KVT_NEED(e2e_daemon_configure(&daemon_, &later));
    KVT_OK(kill(daemon_.pid, SIGHUP));
    KVT_TRUE(e2e_until(has_reloaded, (char[]){ "8" }, 60, NULL));
    KVT_HAS(CTL("config")->out, "[limits] sessions: the file says \"17\" since the last reload; that needs a restart");
    snprintf(line, sizeof line, "grep -q 'needs a restart: .limits. sessions' %s", daemon_.log);
    KVT_EQ_I(system(line), 0);
    close_stage();
}

/* CAP-4 for programs: the plan is JSON, and its parts add up; and a build says what it is. */
static void plan_as_json_and_version(void) {
    struct e2e_setup setup = { .backend = "mtp", .draft_window = 4, .more = "[host]\narena = 1MiB" };
    const cJSON *part;
    double sum = 0;
    KVT_NEED(e2e_daemon_prepare(&daemon_, &setup));
    program_run(&run, KVD_BINARY, 0, "--plan", "--json", "--config", daemon_.config, (const char *)NULL);
    KVT_EQ_I(run.status, 0);
    cJSON *root = json(run.out);
    KVT_EQ_STR(text(root, "store"), "e2e");
    cJSON_ArrayForEach(part, at(root, "each_device")) if (strcmp(part->string, "total_bytes") != 0) sum +=
        cJSON_GetNumberValue(part);
    KVT_NEAR(cJSON_GetNumberValue(at(at(root, "each_device"), "total_bytes")), sum, 0);
    KVT_NEAR(cJSON_GetNumberValue(at(root, "tokens")), 64 * cJSON_GetNumberValue(at(root, "pages")), 0);
    KVT_EQ_I(cJSON_GetArraySize(at(root, "arena_page_bytes")), 2);
    cJSON_Delete(root);
    program_run(&run, KVD_BINARY, 0, "--plan", "--config", daemon_.config, (const char *)NULL);
    KVT_HAS(run.out, "Host arena: 1.0 MiB for ");
    program_run(&run, KVD_BINARY, 0, "--version", (const char *)NULL);
    KVT_HAS(run.out, " CUDA (");
    KVT_HAS(run.out, "commit ");
    e2e_daemon_free(&daemon_);
}

/* The arena's file in /dev/shm is named after the socket: the list says which is whose. */
static void instances_and_their_arenas(void) {
    struct e2e_setup setup = { .more = "[host]\narena = 1MiB" };
    char folder[128], arena[128];
    const cJSON *item;
    unsigned found = 0;
    KVT_NEED(open_stage(&setup));
    snprintf(folder, sizeof folder, "%s", daemon_.socket);
    *strrchr(folder, '/') = 0; /* its socket is kvd.sock there */
    KVT_OK(setenv("KVD_RUNTIME_DIR", folder, 1));
    program_run(&run, KVDCTL, 0, "instances", "--json", (const char *)NULL);
    e2e_arena_path(&daemon_, arena, sizeof arena);
    cJSON *root = json(run.out);
    cJSON_ArrayForEach(item, at(root, "instances")) {
        if (strcmp(text(item, "arena"), arena) != 0) continue;
        KVT_EQ_STR(text(item, "socket"), daemon_.socket);
        KVT_EQ_STR(text(item, "state"), "serves");
        found++;
    }
    KVT_EQ(found, 1);
    cJSON_Delete(root);
    program_run(&run, KVDCTL, 0, "status", (const char *)NULL);
    KVT_EQ_I(run.status, 0);
    unsetenv("KVD_RUNTIME_DIR");
    close_stage();
}

static kvd_continuation keep(uint64_t seed, uint32_t n) {
    struct kvd_activation want = scene_want(worker_session, n, 10);
    struct kvd_activated a = scene_activate(scheduler, &want);
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(a.sequence);
    call.items[0].pool[0].commit = call.items[0].state_frontier = n;
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    KVT_EQ(answer.results[0].status, KVD_OK);
    scene_name(scheduler, a.sequence, seed, n);
    return scene_retain(scheduler, a.sequence, seed, n);
}

/* ACT-8: pages enough, but no state slot: why says which is short and what to release, release does it, and then it
 * fits. Each list names the slots. */
static void act_8_why_state_slots(void) {
    struct e2e_setup setup = { .max_concurrency = 2,
                               .capacity_tokens = 8192,
                               .more = "[capacity]\nstate_bytes = 1000\nstate_slots = 3" };
    kvd_continuation kept[3];
    KVT_NEED(open_stage(&setup));
    for (uint32_t i = 0; i < 3; i++) kept[i] = keep(e2e_stream(20 + i, 5000, 0), i == 1 ? 100 : 300);
    CTL("why", "-p", "200", "-o", "50");
    KVT_EQ(run.status, 2);
    KVT_HAS(run.out, "state slots");
    KVT_HAS(run.out, "each of these sets, released, makes it fit");
    CTL("why", "-p", "200", "-o", "50", "--json");
    cJSON *root = json(run.out);
    const cJSON *sets = at(root, "sets"), *best = cJSON_GetArrayItem(sets, 0), *need;
    char handle[32];
    snprintf(handle, sizeof handle, "0x%" PRIx64, kept[1].bits);
    KVT_EQ_I(cJSON_GetArraySize(sets), 3);
    KVT_EQ_STR(text(best, "release_text"), handle); /* the one that holds least */
    cJSON_ArrayForEach(need, at(root, "needs")) {
        bool slots = strcmp(text(need, "what"), "state slots") == 0;
        KVT_NEAR(cJSON_GetNumberValue(at(need, "short_by")), slots, 0);
    }
    cJSON_Delete(root);
    root = json(CTL("continuations", "--json")->out);
    const cJSON *item;
    unsigned used = 0;
    cJSON_ArrayForEach(item, at(root, "continuations")) used |=
        1u << (unsigned)cJSON_GetNumberValue(at(item, "state_slot"));
    KVT_EQ(used, 7);
    cJSON_Delete(root);
    CTL("release", "0x99", handle); /* the one that is refused keeps nothing */
    KVT_EQ(run.status, 2);
    KVT_HAS(run.err, "0x99 was not released: NOT_FOUND: ");
    KVT_HAS(run.out, "released 1 of 2");
    KVT_EQ(CTL("why", "-p", "200", "-o", "50")->status, 0);
    KVT_EQ(CTL("plan", "-p", "200", "-o", "50")->status, 0);
    struct kvd_activation want = scene_want(worker_session, 200, 50);
    scene_activate(scheduler, &want);
    root = json(CTL("sequences", "--json")->out);
    double slot = cJSON_GetNumberValue(at(cJSON_GetArrayItem(at(root, "sequences"), 0), "state_slot"));
    KVT_TRUE(slot >= 0 && slot < 3);
    cJSON_Delete(root);
    KVT_EQ(CTL("audit")->status, 0);
    close_stage();
}

/* ---- domains ---- */

static kvd_chain *chain_of(const char *adapter, const uint32_t *tokens, uint32_t n) {
    kvd_chain *chain = NULL;
    const struct kvd_domain domain = { .model = "e2e", .adapter = adapter, .label = adapter };
    KVT_EQ(kvd_chain_new(&domain, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, n), KVD_OK);
    return chain;
}

static void keep_of(const char *adapter, const uint32_t *tokens, uint32_t n) {
    kvd_chain *chain = chain_of(adapter, tokens, n);
    struct kvd_activation want = scene_want(worker_session, n, 1);
    struct kvd_finished finished;
    want.root = *kvd_chain_root(chain);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(scene_round(&worker, a.sequence, n, KVD_NONE).status, KVD_OK);
    if (n >= 64)
        KVT_EQ(kvd_name_pages(scheduler, a.sequence, chain, 0, (uint32_t)kvd_chain_pages(chain), NULL), KVD_OK);
    struct kvd_finish how = { .sequence = a.sequence, .retain = true };
    kvd_chain_tail(chain, &how.tail);
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
    kvd_chain_free(chain);
}

static uint32_t usable_of(const char *adapter, const uint32_t *tokens, uint32_t n) {
    kvd_chain *chain = chain_of(adapter, tokens, n);
    struct kvd_hit hits[4] = { 0 };
    uint32_t found = 0;
    KVT_EQ(kvd_find(scheduler, chain, tokens, n, hits, 4, &found, NULL), KVD_OK);
    kvd_chain_free(chain);
    return found ? hits[0].usable : 0;
}

static bool next_kvd(void) {
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    if (!KVT_TRUE(e2e_daemon_restart(&daemon_))) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    return KVT_TRUE(scheduler != NULL) && hire();
}

static void lists_of(const char *adapter, int n) {
    cJSON *root = json(CTL("continuations", "--json", "--domain", adapter)->out);
    const cJSON *list = at(root, "continuations"), *one;
    KVT_EQ_I(cJSON_GetArraySize(list), n);
    cJSON_ArrayForEach(one, list) KVT_EQ_STR(text(one, "domain_text"), adapter);
    cJSON_Delete(root);
}

/* NAME-1: equal tokens of two adapters, of less than a page and of more, stay apart over a restart; one adapter is
 * forgotten by its label, and stays so. */
static void name_1_domains_over_restarts(void) {
    uint32_t tokens[150];
    for (uint32_t i = 0; i < 150; i++) tokens[i] = 7 * i;
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 8MiB" })) return;
    for (int i = 0; i < 2; i++) {
        keep_of(i ? "lora-2" : "lora-1", tokens, 20);
        keep_of(i ? "lora-2" : "lora-1", tokens + 1, 149);
    }
    for (int life = 0; life < 2; life++) {
        lists_of("lora-1", 2);
        lists_of("lora-2", 2);
        lists_of("lora-3", 0);
        KVT_EQ(usable_of("lora-1", tokens, 20), 19);
        KVT_EQ(usable_of("lora-2", tokens + 1, 149), 148);
        KVT_EQ(usable_of("lora-3", tokens, 20), 0);
        KVT_EQ(usable_of("lora-3", tokens + 1, 149), 0);
        KVT_NEED(next_kvd());
    }
    KVT_EQ_I(CTL("release", "--domain", "lora-1")->status, 0);
    KVT_HAS(run.out, "released 2 continuations");
    for (int life = 0; life < 2; life++) {
        lists_of("lora-1", 0);
        lists_of("lora-2", 2);
        KVT_EQ(usable_of("lora-1", tokens, 20), 0);
        KVT_EQ(usable_of("lora-1", tokens + 1, 149), 0);
        KVT_EQ(usable_of("lora-2", tokens, 20), 19);
        if (!life) KVT_NEED(next_kvd());
    }
    KVT_EQ(CTL("audit")->status, 0);
    close_stage();
}

/* KEEP-1: what --plan says of the arena that is there is what the start then does; asking changes nothing. */
static void keep_1_plan_says_what_a_change_costs(void) {
    static const struct {
        struct e2e_setup setup;
        bool foreign;
        double kept, lost;
    } changes[] = { { { .more = "[host]\narena = 8MiB" }, false, 3, 0 },
                    { { .more = "[host]\narena = 4MiB", .max_concurrency = 6, .capacity_tokens = 8192 }, false, 3, 0 },
                    { { .more = "[host]\narena = 8MiB\n[limits]\ncontinuations = 9" }, false, 3, 0 },
                    { { .more = "[host]\narena = 384KiB" }, false, 2, 1 },
                    { { .more = "[host]\narena = 8MiB", .layers = 3 }, true, 0, 0 } };
    uint32_t tokens[192];
    for (uint32_t i = 0; i < 192; i++) tokens[i] = 7 * i;
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 8MiB" })) return;
    for (int i = 0; i < 3; i++) keep_of(i == 0 ? "a" : i == 1 ? "b" : "c", tokens, 192);
    puppet_kill(&worker);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        kvd_disconnect(scheduler);
        scheduler = NULL;
        KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
        KVT_NEED(e2e_daemon_configure(&daemon_, &changes[i].setup));
        for (int twice = 0; twice < 2; twice++) {
            program_run(&run, KVD_BINARY, 0, "--plan", "--json", "--config", daemon_.config, (const char *)NULL);
            cJSON *root = json(run.out);
            const cJSON *now = at(root, "arena_now");
            KVT_EQ_I(cJSON_IsTrue(at(now, "foreign")), changes[i].foreign);
            KVT_NEAR(cJSON_GetNumberValue(at(now, "kept")), changes[i].kept, 0);
            KVT_NEAR(cJSON_GetNumberValue(at(now, "lost")), changes[i].lost, 0);
            cJSON_Delete(root);
        }
        program_run(&run, KVD_BINARY, 0, "--plan", "--config", daemon_.config, (const char *)NULL);
        const char *loss = changes[i].foreign ? "a start empties it" : "1 are lost";
        static struct run check;
        program_run(&check, KVD_BINARY, 0, "--check-config", "--config", daemon_.config, (const char *)NULL);
        KVT_EQ_I(check.status, 0);
        KVT_EQ_I(strstr(check.err, loss) != NULL, changes[i].foreign || changes[i].lost > 0);
        KVT_HAS(run.out, changes[i].foreign ? "a start empties it" : changes[i].lost > 0 ? "1 are lost" : "all stay");
        KVT_NEED(e2e_daemon_restart(&daemon_));
        scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
        KVT_NEED(scheduler);
        struct kvd_stats stats = scene_stats(scheduler);
        KVT_NEAR(stats.recovered_continuations, changes[i].kept, 0);
        KVT_NEAR(stats.recovered_dropped, changes[i].lost, 0);
    }
    worker.pid = 0;
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(output_that_cannot_be_written),
                                             KVT_CASE(srv_8_events_of_a_hard_day),
                                             KVT_CASE(top_of_real_sequences),
                                             KVT_CASE(config_shows_what_is_in_effect),
                                             KVT_CASE(instances_and_their_arenas),
                                             KVT_CASE(plan_as_json_and_version),
                                             KVT_CASE(act_8_why_state_slots),
                                             KVT_CASE(name_1_domains_over_restarts),
                                             KVT_CASE(keep_1_plan_says_what_a_change_costs),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e_ctl", cases, argc, argv);
}
