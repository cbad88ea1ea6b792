/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration: every kind of mistake is named with its line and what to change; and the numbers of --plan.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "kvt.h"
#include "plan.h"

static struct config parsed;
static char complaints[8192];

static bool bad(const char *text) {
    return KVT_EQ_I(config_parse("k.conf", text, &parsed, complaints, sizeof complaints), 1);
}

static bool good(const char *text) {
    bool ok = KVT_EQ_I(config_parse("k.conf", text, &parsed, complaints, sizeof complaints), 0);
    if (!ok) printf("    %s\n", complaints);
    return ok;
}

static void defaults_are_the_table(void) {
    KVT_NEED(good(""));
    KVT_EQ_STR(parsed.socket, "/run/kvd/kvd.sock");
    KVT_EQ(parsed.n_devices, 1);
    KVT_EQ(parsed.device[0].kind, DEVICE_HOST);
    KVT_EQ(parsed.memory, 1u << 30);
    KVT_EQ(parsed.profile, KVD_STORAGE_BF16);
    KVT_EQ(parsed.capacity_tokens, CONFIG_AUTO64);
    KVT_EQ(parsed.handshake_timeout, UINT64_C(5000000000));
    KVT_EQ(parsed.socket_mode, 0660);
    KVT_EQ(parsed.access[0].n, 1);
    KVT_EQ(parsed.access[1].n, 0);
}

/* The unit's folder has the socket, unless the file names another. */
static void the_socket_is_in_the_runtime_folder(void) {
    setenv("RUNTIME_DIRECTORY", "/run/kvd/some", 1);
    KVT_NEED(good(""));
    KVT_EQ_STR(parsed.socket, "/run/kvd/some/kvd.sock");
    KVT_NEED(good("[kvd]\nsocket = /tmp/s\n"));
    KVT_EQ_STR(parsed.socket, "/tmp/s");
    static const char *const useless[] = { "/run/a:/run/b", "run/kvd", "",
                                           ("/0123456789012345678901234567890123456789012345678901234567890123456789"
                                            "0123456789012345678901234567") };
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        setenv("RUNTIME_DIRECTORY", useless[i], 1);
        KVT_NEED(good(""));
        KVT_EQ_STR(parsed.socket, "/run/kvd/kvd.sock");
    }
    unsetenv("RUNTIME_DIRECTORY");
}

static void values_of_every_kind(void) {
    KVT_NEED(good("[kvd]\nsocket = /tmp/a ; comment\nsocket_mode = 0600\n# comment\nlog_level = debug\n"
                  "[devices]\ndevice.0 = cuda:3\ndevice.1 = host:1\nmemory = 3GiB\n"
                  "[model]\nprofile = k8v4\n[backend]\nkind = mtp\ndraft_window = 15\nlayers = auto\n"
                  "[capacity]\ntokens = 65536\nheadroom = 12MiB\nstate_bytes = 7KiB\n"
                  "[lease]\ngrowth = yes\n[limits]\nhandshake_timeout = 250ms\nstall_timeout = 2min\n"
                  "[access]\nworker = uid:7 gid:root, *\n"));
    KVT_EQ_STR(parsed.socket, "/tmp/a");
    KVT_EQ(parsed.socket_mode, 0600);
    KVT_EQ(parsed.n_devices, 2);
    KVT_EQ(parsed.device[0].kind, DEVICE_CUDA);
    KVT_EQ(parsed.device[0].index, 3);
    KVT_EQ(parsed.memory, UINT64_C(3) << 30);
    KVT_EQ(parsed.profile, KVD_STORAGE_K8V4);
    KVT_EQ(parsed.draft_layers, CONFIG_AUTO32);
    KVT_EQ(parsed.capacity_tokens, 65536);
    KVT_EQ(parsed.state_bytes, 7168);
    KVT_EQ(parsed.lease_growth, 1);
    KVT_EQ(parsed.handshake_timeout, 250000000);
    KVT_EQ(parsed.stall_timeout, UINT64_C(120000000000));
    KVT_EQ(parsed.access[1].n, 3);
    KVT_EQ(parsed.access[1].entry[0].id, 7);
    KVT_EQ(parsed.access[1].entry[1].kind, ACCESS_GID);
    KVT_EQ(parsed.access[1].entry[2].kind, ACCESS_ALL);
}

/* Text, and what the complaint must say. */
static const struct {
    const char *text, *says, *also;
} mistakes[] = {
    { "[kvd]\nsocket = kvd.sock\n", "k.conf:2: socket: \"kvd.sock\" is not an absolute path", "begin it with /" },
    { "[kvd]\nstore = a b\n", "k.conf:2: store:", "letters, digits" },
    { "[kvd]\nsocket = /01234567890123456789012345678901234567890123456789"
      "01234567890123456789012345678901234567890123456789\n",
      "k.conf:2: socket:", "at most 95 fit" },
    { "[kvd]\nsocket_mode = 0999\n", "k.conf:2: socket_mode: \"0999\" is not an octal mode", "0660" },
    { "[kvd]\nsocket_mode = 01777\n", "k.conf:2: socket_mode: \"01777\" is outside 0000 to 0777", "" },
    { "[kvd]\nlog_level = loud\n", "k.conf:2: log_level: \"loud\" is none of error warning notice info debug", "" },
    { "\n\n[kvd]\ncolour = red\n", "k.conf:4: section [kvd] has no key \"colour\"", "--help-config" },
    { "[modell]\nlayers = 2\n", "k.conf:1: there is no section [modell]", "did you mean [model]?" },
    { "layers = 2\n", "k.conf:1: \"layers\" stands before any section", "[kvd]" },
    { "[model]\nlayers = 2\n[kvd]\n[model]\nlayers = 3\n", "k.conf:5: layers is given twice, first in line 2",
      "keep one" },
    { "[model]\nlayers 2\n", "k.conf:2: is neither a [section], a name = value, nor a comment", "" },
    { "[model]\nlayers = two\n", "k.conf:2: layers: \"two\" is not a number; write a whole number", "" },
    { "[model]\nlayers = -1\n", "k.conf:2: layers: \"-1\" is negative; write a whole number", "" },
    { "[model]\nlayers = \n", "k.conf:2: layers: \"\" is empty; write a whole number", "" },
    { "[model]\nlayers = 0\n", "k.conf:2: layers: \"0\" is outside 1 to 4096", "" },
    { "[model]\nlayers = 99999999999999999999\n", "k.conf:2: layers:", "is too large" },
    { "[model]\nlayers = 128k\n", "k.conf:2: layers: \"128k\" has \"k\" behind its number", "write a whole number" },
    { "[model]\nlayers = 1.5\n", "k.conf:2: layers: \"1.5\" is not a whole number", "" },
    { "[capacity]\ntokens = -4\n", "k.conf:2: tokens: \"-4\" is negative", "or auto" },
    { "[devices]\nmemory = -4\n", "k.conf:2: memory: \"-4\" is negative", "20GiB" },
    { "[devices]\nmemory = 128k\n", "k.conf:2: memory: \"128k\" has the unit \"k\"", "none of KiB, MiB, GiB, TiB" },
    { "[devices]\nmemory = 99999999999999999999\n", "k.conf:2: memory:", "is too large" },
    { "[model]\nlayer = 2\n", "k.conf:2: section [model] has no key \"layer\"; did you mean layers in section [model]?",
      "" },
    { "[model]\ntokens = 2\n", "has no key \"tokens\"; did you mean tokens in section [capacity]?", "" },
    { "[model]\nlaeyrs = 2\n", "did you mean layers in section [model]?", "" },
    { "[devices]\ndevice.0 = host:1\ndevice.1 = host:0\ndevice.2 = host:1\n[model]\nkv_heads = 3\n",
      "k.conf:4: device.2 is the same as device.0", "name another" },
    { "[kvd]\ngroup = nobody-has-this-name\n", "k.conf:2: group: there is no group \"nobody-has-this-name\"",
      "create it" },
    { "[kvd]\nsocket_mode = 0666\n[access]\nadmin = *\n",
      "k.conf:2: socket_mode: 0666 lets every user of this machine in", "name the admins" },
    { "[kvd]\nsocket_mode = 0440\n", "k.conf:2: socket_mode: 0440 lets nobody connect", "0660" },
    { "[model\n", "k.conf:1: is neither", "" },
    { "[model]\nhead_dim = 80\nprofile = int8\n",
      "k.conf:2: head_dim: storage int8 is defined at head_dim 64, 96, 128,", "use bf16" },
    { "[model]\nkv_heads = 3\n[devices]\ndevice.0 = host:0\ndevice.1 = host:1\n",
      "k.conf:2: kv_heads: 3 heads cannot be divided over 2 devices", "divisor" },
    { "[model]\nmax_concurrency = 65536\n", "k.conf:2: max_concurrency:", "65535" }, /* as the store has it */
    { "[none-of-ours]\nlayers = 2\n", "k.conf:1: there is no section [none-of-ours]", "--help-config" },
    { "[devices]\nmemory = 5 GB\n", "k.conf:2: memory: \"5 GB\" has the unit \"GB\"", "20GiB" },
    { "[devices]\nmemory = 99999999TiB\n", "k.conf:2: memory:", "is too large" },
    { "[devices]\ndevice.0 = gpu:0\n", "k.conf:2: device.0: \"gpu:0\" is not a device", "host:0 or cuda:0" },
    { "[devices]\ndevice.0 = host:0\ndevice.2 = host:1\n", "k.conf:3: device.2 is given, but device.1 is not",
      "without holes" },
    { "[devices]\ndevice.0 = host:0\ndevice.0 = host:1\n", "k.conf:3: device.0 is given twice, first in line 2", "" },
    { "[devices]\ndevice.8 = host:0\n", "k.conf:2: device.8: there are at most 8 devices", "" },
    { "[devices]\ndevice.x = host:0\n", "k.conf:2: device.x: there are at most 8 devices", "" },
    { "[backend]\nkind = mtp\ndraft_window = 16\n", "k.conf:3: draft_window: mtp allows 1 to 15, not 16", "" },
    { "[backend]\nkind = mtp\nlayers = 0\n", "k.conf:3: layers: an mtp pool has at least one layer", "kind = off" },
    { "[capacity]\ntokens = 4096\n[model]\nmax_context = 8192\n",
      "k.conf:2: tokens: 4096 are fewer than max_context = 8192", "raise it" },
    { "[capacity]\ntokens = some\n", "k.conf:2: tokens: \"some\" is not a number; write a whole number, or auto", "" },
    { "[capacity]\nstate_slots = 2\n", "k.conf:2: state_slots: 2 are fewer than max_concurrency = 8", "" },
    { "[limits]\nhandshake_timeout = 5\n", "k.conf:2: handshake_timeout: \"5\" has no unit", "250ms" },
    { "[limits]\nhandshake_timeout = 5h\n", "k.conf:2: handshake_timeout:", "2min" },
    { "[limits]\nlow_water = 20\n", "k.conf:2: low_water: 20 percent is above high_water = 10", "lower it" },
    { "[access]\nworker = bob\n", "k.conf:2: worker: \"bob\" has \"bob\", which is neither * nor uid:USER", "" },
    { "[access]\nworker = uid:nobody-has-this-name\n", "k.conf:2: worker:", "of this machine" },
    { "[grup.a]\nlayers = 2\n", "k.conf:1: there is no section [grup.a]; did you mean [group.a]?", "" },
    { "[pool.side]\ngroups = a\n[group.a]\nlayers = 1\n",
      "k.conf:1: pool side has no window; write window =", "or put its groups into [pool.main]" },
    { "[pool.side]\nwindow = 128\n", "k.conf:1: pool side has no groups; write groups =", "" },
    { "[pool.main]\nwindow = 128\n", "k.conf:2: window: the pages of main carry the names, so it has none",
      "such as [pool.window]" },
    { "[pool.main]\naligned = yes\n", "k.conf:2: pool main has no window, of which this line speaks", "remove it" },
    { "[pool.main]\nshare = 500\n", "k.conf:2: pool main has no window", "" },
    { "[pool.a]\nwindow = 128\nlead = 129\ngroups = g\n[group.g]\nlayers = 1\n",
      "k.conf:3: lead: 129 tokens are more than window = 128; lower it", "" },
    { "[pool.a]\nshare = 1001\n", "k.conf:2: share: \"1001\" is outside 1 to 1000", "" },
    { "[pool.a b]\nwindow = 128\n", "k.conf:1: \"a b\" is no name of a pool", "1 to 31 letters" },
    { "[pool.arena]\nwindow = 128\n", "k.conf:1: [pool.arena]: lists of pools have the arena beside them",
      "write another name" },
    { "[pool.a]\n[pool.b]\n[pool.c]\n[pool.a]\n[pool.d]\n", "k.conf:5: [pool.d] is one pool more than 4",
      "join pools" },
    { "[backend]\nkind = mtp\n[pool.a]\nwindow = 1\ngroups = g\n[pool.b]\nwindow = 2\ngroups = h\n"
      "[pool.c]\nwindow = 3\ngroups = i\n[group.g]\nlayers = 1\n[group.h]\nlayers = 1\n[group.i]\nlayers = 1\n",
      "k.conf:9: pool c is one more than 4 with that of the backend; join pools whose windows are alike", "" },
    { "[pool.draft]\nwindow = 128\n", "k.conf:2: window: there is no draft pool without a backend", "kind =" },
    { "[group.a b]\nlayers = 1\n", "k.conf:1: \"a b\" is no name of a group", "1 to 31 letters" },
    { "[group.a]\nlayer = 1\n",
      "k.conf:2: section [group.a] has no key \"layer\"; did you mean layers in section [group.a]?", "" },
    { "[group.a]\nlayers = 1\n[kvd]\n[group.a]\nlayers = 2\n", "k.conf:5: layers is given twice, first in line 2", "" },
    { "[group.a]\nlayers = 1\n", "k.conf:1: group a is in no pool; write groups = a in section [pool.main]", "" },
    { "[pool.main]\ngroups = full\n[group.ful]\nlayers = 1\n",
      "k.conf:2: groups: there is no section [group.full]; did you mean ful?", "" },
    { "[pool.main]\ngroups = full\n", "k.conf:2: groups: there is no section [group.full]; write it", "" },
    { "[pool.main]\ngroups = a a\n[group.a]\nlayers = 1\n", "k.conf:2: groups: a is named twice", "once" },
    { "[pool.main]\ngroups = a\n[group.a]\nkv_heads = 2\n", "k.conf:3: group a has no layers; write layers =", "" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nformat = latent\n",
      "k.conf:3: group a is latent, and its rows have no bytes; write bytes =", "" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nformat = latent\nbytes = 64\nkv_heads = 2\n",
      "k.conf:7: group a: a latent of 2 heads", "write 1" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nformat = packed\nbytes = 64\nhead_dim = 64\n",
      "k.conf:7: head_dim: group a is packed, of which kvd knows bytes only; remove this line", "" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nbytes = 64\n",
      "k.conf:5: bytes: group a is kv, of which head_dim and profile say it; remove this line", "" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nhead_dim = 80\nprofile = fp8\n",
      "k.conf:5: group a: storage fp8", "80" },
    { "[pool.main]\ngroups = a\n[group.a]\nlayers = 1\nkv_heads = 3\n[devices]\ndevice.0 = host:0\ndevice.1 = host:1\n",
      "k.conf:5: group a: 3 kv heads do not divide over 2 ranks", "choose a rank count" },
    { "[model]\nlayers = 4\n[pool.main]\ngroups = a\n[group.a]\nlayers = 1\n",
      "k.conf:2: layers: the groups of [pool.main] say it; remove this line", "" },
    { "[pool.draft]\ngroups = a\n[group.a]\nlayers = 1\n", "k.conf:2: groups: there is no draft pool without a backend",
      "kind =" },
    { "[lease]\ngrowth = maybe\n", "k.conf:2: growth: \"maybe\" is none of no yes", "" },
};

static void every_mistake_has_its_line_and_a_way_out(void) {
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        if (!bad(mistakes[i].text)) printf("    text: %s\n", mistakes[i].text);
        KVT_HAS(complaints, mistakes[i].says);
        KVT_HAS(complaints, mistakes[i].also);
    }
}

static void nine_groups_are_one_too_many(void) {
    char text[512] = "";
    for (int i = 0; i < 9; i++) sprintf(text + strlen(text), "[group.g%d]\nlayers = 1\n", i);
    KVT_NEED(bad(text));
    KVT_HAS(complaints, "k.conf:17: [group.g8] is one group more than 8");
}

/* In the order of their lines, and what is no line of the format among them. */
static void all_mistakes_at_once(void) {
    KVT_NEED(bad("[kvd]\nx = 1\n[model]\nlayers = 0\nnonsense\nhead_dim = a\nagain\n"));
    const char *at = complaints;
    static const char *const lines[] = { "k.conf:2: ", "\nk.conf:4: ", "\nk.conf:5: ", "\nk.conf:6: ", "\nk.conf:7: " };
    for (size_t i = 0; at && i < sizeof lines / sizeof *lines; i++) KVT_TRUE((at = strstr(at, lines[i])) != NULL);
    KVT_NEED(bad("[limits]\nlow_water = 20\n[model]\nkv_heads = 3\n[devices]\ndevice.0 = host:0\ndevice.1 = host:1\n"));
    KVT_TRUE(strstr(complaints, "k.conf:2: ") < strstr(complaints, "k.conf:4: ")); /* also of values together */
    char many[2048] = "[kvd]\n";
    for (int i = 0; i < 100; i++) strcat(many, "a line\n");
    KVT_NEED(bad(many));
    KVT_HAS(complaints, "k.conf: 36 more");
}

static void a_refused_file_changes_nothing(void) {
    memset(&parsed, 0x5a, sizeof parsed);
    struct config before = parsed;
    KVT_NEED(bad("[model]\nlayers = 0\n"));
    KVT_EQ_MEM(&parsed, &before, sizeof before);
}

static void lines_may_be_long(void) {
    char text[8192] = "[kvd]\nstore = a ; ", *end = text + strlen(text);
    memset(end, 'x', 3000);
    strcpy(end + 3000, "\n# ");
    end += 3003;
    memset(end, '=', 3000);
    strcpy(end + 3000, "\n[access]\nworker =");
    for (int i = 0; i < 15; i++) strcat(text, "               uid:4000");
    KVT_NEED(good(text));
    KVT_EQ(parsed.access[1].n, 15);
    KVT_EQ_STR(parsed.store, "a");
    strcat(text, "\n[model]\nlayers = 0\n");
    KVT_NEED(bad(text));
    KVT_HAS(complaints, "k.conf:7: layers");
}

/* Random text never does worse than a complaint. */
static void junk(void) {
    static const char alphabet[] = "[]=;# \n\tkvdsockethmdl.0123456789:-*abc";
    uint64_t seed = kvt_seed();
    for (int i = 0; i < 3000; i++) {
        char text[400];
        size_t n = kvt_below(&seed, sizeof text - 1);
        for (size_t c = 0; c < n; c++) text[c] = alphabet[kvt_below(&seed, sizeof alphabet - 1)];
        text[n] = 0;
        int r = config_parse("k.conf", text, &parsed, complaints, sizeof complaints);
        KVT_TRUE(r == 0 || (r == 1 && strstr(complaints, "k.conf")));
    }
}

static void the_documented_file_is_the_table(void) {
    char *help = NULL, *file = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&help, &n), *in = fopen(KVD_CONF, "r");
    KVT_NEED(out && in);
    config_print_help(out);
    fclose(out);
    file = calloc(1, n + 4096);
    size_t got = fread(file, 1, n + 4095, in);
    fclose(in);
    KVT_EQ(got, n);
    KVT_EQ_STR(file, help); /* deploy/kvd.conf is `kvd --help-config` */
    KVT_EQ_I(config_load(KVD_CONF, &parsed, complaints, sizeof complaints), 0);
    /* With every default written out it means the same. */
    char *plain = calloc(1, n + 1), *to = plain;
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n")) {
        bool key = line[0] == '#' && line[1] >= 'a' && line[1] <= 'z';
        if (line[0] == '[' || key) to += sprintf(to, "%s\n", line + key);
    }
    struct config defaults;
    config_defaults(&defaults);
    KVT_TRUE(good(plain));
    KVT_EQ_MEM(&parsed, &defaults, offsetof(struct config, origin));
    free(plain);
    free(file);
    free(help);
}

static struct kvd_setting setting_of(const struct config *config, const struct config *file, const char *name) {
    struct kvd_setting s;
    for (uint32_t i = 0; config_setting(config, file, i, &s); i++)
        if (strcmp(s.name, name) == 0) return s;
    return (struct kvd_setting){ .value = "there is no such key" };
}

/* Every key, as the configuration would have it: what is parsed of it is the same again. */
static void settings_are_what_is_in_effect(void) {
    static const char *const file =
        "[kvd]\nsocket = /tmp/a\nsocket_mode = 0600\n[devices]\ndevice.0 = cuda:3\ndevice.1 = host:1\nmemory = "
        "1536MiB\n"
        "[model]\nprofile = k8v4\n[limits]\nhandshake_timeout = 1500ms\nstall_timeout = 2min\n"
        "[access]\nworker = uid:7 gid:0 *\n[http]\nlisten = 127.0.0.1:9464\n"
        "[pool.main]\ngroups = b a\n[group.a]\nlayers = 2\nformat = latent\nbytes = 656\n[group.b]\nlayers = 1\n"
        "v_head_dim = 256\nprofile = int8\norder = head-major\n"
        "[pool.near]\ngroups = c\nwindow = 100\naligned = yes\n[pool.far]\ngroups = d\nwindow = 900\nlead = 0\nshare = "
        "7\n"
        "[group.c]\nlayers = 1\n[group.d]\nlayers = 1\n";
    char text[8192] = "", section[sizeof(((struct kvd_setting *)0)->section)] = "";
    struct kvd_setting s;
    KVT_NEED(good(file));
    struct config config = parsed, other;
    for (uint32_t i = 0; config_setting(&config, &config, i, &s); i++) {
        size_t n = strlen(text);
        if (strcmp(s.section, section) != 0) n += (size_t)sprintf(text + n, "[%s]\n", s.section);
        memcpy(section, s.section, sizeof section);
        if (strcmp(s.section, "model") == 0 && strcmp(s.name, "layers") == 0) continue; /* the groups say it */
        sprintf(text + n, "%s = %s\n", s.name, s.value);
        KVT_FALSE(s.restart);
    }
    KVT_NEED(good(text));
    KVT_EQ_MEM(&parsed, &config, offsetof(struct config, origin));
    KVT_EQ_STR(setting_of(&config, &config, "memory").value, "1536MiB");
    s = setting_of(&config, &config, "bytes"); /* the first of them */
    KVT_EQ_STR(s.section, "group.a");
    KVT_EQ_STR(s.value, "656");
    KVT_EQ_STR(s.source, "k.conf:22");
    KVT_EQ_STR(setting_of(&config, &config, "device.1").source, "k.conf:6");
    KVT_EQ_STR(setting_of(&config, &config, "stop_time").value, "30s");
    KVT_EQ_STR(setting_of(&config, &config, "stop_time").source, "default");
    KVT_EQ_STR(setting_of(&config, &config, "worker").value, "uid:7 gid:0 *");

    KVT_NEED(good("[model]\nprofile = k8v4\n[access]\nworker = *\n[devices]\ndevice.0 = cuda:3\n"));
    other = parsed;
    char rest[512];
    config_reload(&config, &other, rest, sizeof rest);
    KVT_EQ_STR(setting_of(&config, &other, "worker").source, "k.conf:4"); /* a reload takes it over */
    KVT_EQ_STR(setting_of(&config, &other, "profile").source, "k.conf:2");
    s = setting_of(&config, &other, "device.1");
    KVT_TRUE(s.restart);
    KVT_EQ_STR(s.value, "host:1");
    KVT_EQ_STR(s.pending, "");
    s = setting_of(&config, &other, "memory");
    KVT_TRUE(s.restart);
    KVT_EQ_STR(s.value, "1536MiB");
    KVT_EQ_STR(s.source, "k.conf:7");
    KVT_EQ_STR(s.pending, "1GiB");
}

/* What a reload takes over, and what it names: see also test_service_socket. */
static void a_reload_names_what_it_leaves(void) {
    struct config before;
    char rest[512];
    KVT_NEED(good("[kvd]\nlog_level = info\n"));
    before = parsed;
    config_reload(&before, &parsed, rest, sizeof rest);
    KVT_EQ_STR(rest, "");
    KVT_NEED(good("[kvd]\nlog_level = debug\n[access]\nworker = *\n"));
    config_reload(&before, &parsed, rest, sizeof rest);
    KVT_EQ_STR(rest, "");
    KVT_EQ_MEM(&before, &parsed, sizeof parsed);
    KVT_NEED(good("[kvd]\nlog_level = error\n[devices]\ndevice.0 = host:0\ndevice.1 = host:1\n[model]\nlayers = 9\n"));
    config_reload(&before, &parsed, rest, sizeof rest);
    KVT_EQ_STR(rest, "[devices] device.N, [model] layers");
    KVT_EQ(before.log_level, 3);
    KVT_EQ(before.layers, 4);
    KVT_EQ(before.n_devices, 1);
    KVT_NEED(good("[pool.main]\ngroups = a\n[group.a]\nlayers = 4\n"));
    config_reload(&before, &parsed, rest, sizeof rest);
    KVT_HAS(rest, "[pool.NAME] groups, [group.NAME] layers");
    KVT_EQ(before.n_layer_groups, 0);
}

static void no_such_file(void) {
    KVT_EQ_I(config_load("/nonexistent/kvd.conf", &parsed, complaints, sizeof complaints), 1);
    KVT_HAS(complaints, "/nonexistent/kvd.conf: No such file");
    KVT_HAS(complaints, "cp /usr/share/doc/kvd/examples/example.conf there");
    KVT_HAS(complaints, "--config FILE");
}

static void not_read(const char *path, const char *why) {
    KVT_EQ_I(config_load(path, &parsed, complaints, sizeof complaints), 1);
    KVT_HAS(complaints, path);
    KVT_HAS(complaints, why);
}

static void put_bytes(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    KVT_TRUE(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* SRV-2: whatever stands at the path, the answer comes at once and nothing waits for anybody. */
static void what_is_no_configuration_file(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/kvd-config-%d", (int)getpid());
    unlink(path);
    not_read("/dev/zero", "this is no file, but a device");
    not_read("/tmp", "this is no file, but a directory");
    KVT_OK(mkfifo(path, 0600));
    not_read(path, "this is no file, but a FIFO");
    unlink(path);
    KVT_OK(symlink(path, path));
    not_read(path, "Too many levels");
    unlink(path);
    put_bytes(path, "[kvd]\nsto\0re = x\n", 17);
    not_read(path, "a zero byte");
    char *large = malloc((1 << 20) + 1);
    memset(large, '\n', (1 << 20) + 1);
    put_bytes(path, large, 1 << 20);
    KVT_EQ_I(config_load(path, &parsed, complaints, sizeof complaints), 0);
    put_bytes(path, large, (1 << 20) + 1);
    not_read(path, "larger than a MiB");
    free(large);
    KVT_OK(truncate(path, (off_t)1 << 40)); /* holes */
    not_read(path, "larger than a MiB");
    put_bytes(path, "", 0);
    int fd = open(path, O_RDWR | O_CLOEXEC); /* its owner may make whoever opens it wait */
    KVT_OK(fcntl(fd, F_SETSIG, SIGURG));
    if (!fcntl(fd, F_SETLEASE, F_WRLCK)) not_read(path, "Resource temporarily unavailable");
    close(fd);
    unlink(path);
}

/* SRV-2: the socket of monitoring takes none of the names that kvd makes beside its own, however they are written. */
static void names_beside_the_socket(void) {
    static const char *const names[] = { "sock",        "sock.new",   "sock.lock", "sock.fd",
                                         "sock.fd.new", "./sock.new", "/sock.fd",  "../tmp/sock.lock" };
    char text[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(text, sizeof text, "[kvd]\nsocket = /tmp/sock\n[http]\nlisten = unix:/tmp/%s\n", names[i]);
        KVT_TRUE(bad(text));
        KVT_HAS(complaints, "k.conf:4: listen: ");
        KVT_HAS(complaints,
                i ? "a name that kvd uses beside its socket; choose another path" : "the socket of the clients");
    }
    KVT_TRUE(bad("[kvd]\nsocket = /tmp/sock.new\n[http]\nlisten = unix:/tmp/sock\n"));
    KVT_HAS(complaints, "/tmp/sock.new is the socket of the clients");
    KVT_TRUE(good("[kvd]\nsocket = /tmp/sock\n[http]\nlisten = unix:/tmp/sock.http\n"));
    KVT_TRUE(good("[kvd]\nsocket = /tmp/sock\n[http]\nlisten = unix:/run/sock.new\n"));
}

/* ---- [cold] ---------------------------------------------------------------------------------------- */

static void addresses_of_the_cold_tier(void) {
    static const char *const arena = "[host]\narena = 1MiB\n[cold]\naddress = ";
    static const char *const right[] = { "10.0.0.5:6379", "[fd00::5]:6379", "unix:/run/redis/redis.sock", "none" };
    static const char *const wrong[] = { "10.0.0.5",     "10.0.0.5:0", "10.0.0.5:65536", "redis.example:6379",
                                         "fd00::5:6379", "[fd00::5]",  "[10.0.0.5]:1",   "[]:1",
                                         ":6379",        "unix:redis", "10.0.0.5:x",     "" };
    char text[256];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        snprintf(text, sizeof text, "%s%s\n", arena, right[i]);
        KVT_NEED(good(text));
        KVT_EQ_STR(setting_of(&parsed, &parsed, "address").value, right[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "%s%s\n", arena, wrong[i]);
        KVT_TRUE(bad(text));
        KVT_HAS(complaints, "k.conf:4: address: ");
    }
    KVT_TRUE(bad("[cold]\naddress = 10.0.0.5:6379\n"));
    KVT_HAS(complaints, "k.conf:2: address: the cold tier is written from the arena");
    KVT_TRUE(bad("[cold]\npassword_file = password\n"));
    KVT_HAS(complaints, "is not an absolute path");
    KVT_TRUE(bad("[cold]\nwrite = all\n"));
    KVT_HAS(complaints, "is none of off demoted retained");
}

/* ---- plan: CAP-1 to CAP-5 on numbers that can be done by hand -------------------------------------- */

static const char *const small =
    "[devices]\nmemory = 64MiB\n[model]\nlayers = 2\nkv_heads = 2\nhead_dim = 64\nmax_context = 4096\n"
    "max_concurrency = 4\n[capacity]\nheadroom = 1MiB\n";

static bool make_plan(const char *more, struct plan *ret_plan) {
    char text[1024], err[1024] = "";
    struct device *devices[KVD_MAX_RANKS];
    snprintf(text, sizeof text, "%s%s", small, more);
    if (!good(text) || !KVT_OK(plan_open_devices(&parsed, devices, err, sizeof err))) return false;
    int r = plan_make(&parsed, devices, NULL, NULL, ret_plan, complaints, sizeof complaints);
    for (uint32_t i = 0; i < parsed.n_devices; i++) device_close(devices[i]);
    return r == 0;
}

static void plan_auto_on_a_host_device(void) {
    struct plan plan;
    KVT_NEED(make_plan("", &plan));
    KVT_EQ(plan.capacity.curve.m_min, 64);                       /* CAP-1: max(L, C) */
    KVT_EQ(plan.capacity.curve.m_max, INT32_MAX);                /* FIT-3 */
    KVT_EQ(plan.capacity.curve.b_step, 2 * 2 * 2 * 64 * 64 * 2); /* layers, K and V, heads, D, tokens, BF16 */
    KVT_EQ(plan.free_bytes[0], 64u << 20);
    uint64_t more = (63u << 20) - plan.capacity.curve.b_min;             /* beside 1 MiB of headroom */
    KVT_EQ(plan.capacity.pages, 64 + more / plan.capacity.curve.b_step); /* FIT-3: all that there is */
    KVT_TRUE(plan.capacity.pages > 256);                                 /* C * L */
    KVT_EQ(plan.capacity.bytes,
           plan.capacity.curve.b_min + (plan.capacity.pages - 64) * plan.capacity.curve.b_step); /* CAP-4 */
    KVT_EQ(plan.capacity.bytes, plan.capacity.layout.total_bytes);
    KVT_EQ(plan.capacity.tokens, plan.capacity.pages * 64ull); /* CAP-6 */
}

static void plan_is_limited_by_memory(void) {
    struct plan plan;
    KVT_NEED(good(small));
    KVT_NEED(make_plan("", &plan));
    char more[64];
    uint64_t bytes = plan.capacity.curve.b_min + 10 * plan.capacity.curve.b_step + plan.capacity.curve.b_step / 2;
    snprintf(more, sizeof more, "[devices]\nmemory = %llu\n", (unsigned long long)(bytes + (1u << 20)));
    char text[1024];
    snprintf(text, sizeof text, "%s%s", strstr(small, "[model]"), more);
    struct device *devices[KVD_MAX_RANKS];
    KVT_NEED(good(text));
    KVT_NEED(!plan_open_devices(&parsed, devices, complaints, sizeof complaints));
    KVT_OK(
        plan_make(&parsed, devices, NULL, NULL, &plan, complaints, sizeof complaints)); /* CAP-3, headroom 1 MiB off */
    KVT_EQ(plan.capacity.pages, 74);
    KVT_EQ(plan.capacity.slack, (1u << 20) + plan.capacity.curve.b_step / 2);
    device_close(devices[0]);
}

static void plan_refusals_name_the_numbers(void) {
    struct plan plan;
    KVT_TRUE(make_plan("tokens = 20000\n", &plan)); /* FIT-3: more than 4 sequences of 4096 tokens */
    KVT_EQ(plan.capacity.pages, 313);
    KVT_FALSE(make_plan("tokens = 1000000\n", &plan)); /* CAP-2: more than there is memory for */
    KVT_HAS(complaints, "bytes");
    KVT_FALSE(make_plan("tokens = 200000000000\n", &plan)); /* CAP-2: above Mmax */
    KVT_HAS(complaints, "64..2147483647 pages");
    KVT_FALSE(make_plan("workspace_bytes = 1GiB\n", &plan)); /* CAP-3: not even Mmin */
    KVT_HAS(complaints, "device.0");
}

static void plan_backends(void) {
    struct plan plan;
    KVT_NEED(make_plan("[backend]\nkind = mtp\ndraft_window = 15\n", &plan));
    KVT_EQ(plan.capacity.layout.n_pools, 2);
    KVT_EQ(plan.spec.draft.n_layers, 1);
    KVT_EQ(plan.spec.draft.n_kv_heads, 2);
    KVT_EQ(plan.capacity.layout.pages[1], plan.capacity.pages + 4); /* CAP-5: C * ceil(14/64) */
    KVT_NEED(make_plan("[backend]\nkind = dflash\n", &plan));
    KVT_EQ(plan.spec.draft.order, GEOM_HEAD_MAJOR);
    KVT_EQ(plan.spec.draft.head_dim, 128);
    KVT_EQ(plan.spec.draft.n_kv_heads, 8);
    KVT_EQ(plan.capacity.layout.pages[1], plan.capacity.pages);
    KVT_NEED(make_plan("[backend]\nkind = dflash\nlayers = 0\n", &plan)); /* POOL-3: no full-attention layer */
    KVT_EQ(plan.capacity.layout.n_pools, 1);
}

/* GRP-1, GRP-7: groups take from the model what they do not say, stand in the pool's order, and are counted together.
 */
static void grp_1_groups_of_the_file(void) {
    struct plan plan;
    static const char *const text =
        "[model]\nkv_heads = 2\nhead_dim = 64\nmax_context = 4096\n[pool.main]\ngroups = wide latent\tpacked\n"
        "[group.latent]\nlayers = 3\nformat = latent\nbytes = 132\n[group.wide]\nlayers = 2\nkv_heads = 4\nv_head_dim "
        "= 32\n"
        "[group.packed]\nlayers = 1\nformat = packed\nbytes = 256\n[capacity]\ntokens = 8192\n";
    KVT_NEED(good(text));
    KVT_NEED(plan_sizes(&parsed, &plan));
    const struct geom_pool_spec *main = &plan.spec.main;
    KVT_EQ(main->n_groups, 3);
    KVT_EQ(main->n_layers, 6);
    KVT_EQ(main->group[0].n_kv_heads, 4);
    KVT_EQ(main->group[0].head_dim, 64);
    KVT_EQ(main->group[0].v_head_dim, 32);
    KVT_EQ(main->group[1].row_bytes, 132);
    KVT_EQ(main->group[2].n_kv_heads, 2);
    KVT_EQ(plan.capacity.curve.b_step, 64 * (2 * 4 * 96 * 2 + 3 * 132 + 2 * 256));
    KVT_EQ(plan.host_stride[0], 64 * (2 * 4 * 96 * 2 + 3 * 132 + 2 * 256)); /* HOST-2: no plane needs padding here */
}

/* KEEP-1: the same model in a group of its own is the same store. */
static void keep_1_one_plain_group_is_one_shape(void) {
    struct plan plan[2];
    uint8_t digest[2][32];
    static const char *const text[2] = {
        "[model]\nlayers = 3\nkv_heads = 2\nhead_dim = 64\n[capacity]\ntokens = 8192\n",
        "[pool.main]\ngroups = a\n[group.a]\nlayers = 3\nhead_dim = 64\n[capacity]\ntokens = 8192\n"
    };
    for (int i = 0; i < 2; i++) {
        KVT_NEED(good(text[i]));
        KVT_NEED(plan_sizes(&parsed, &plan[i]));
        geom_packed_digest(&plan[i].spec, 1, digest[i]);
    }
    KVT_EQ_MEM(digest[0], digest[1], 32);
    KVT_EQ(plan[1].spec.main.n_groups, 0);
}

/* The pool of the backend has groups of its own: MTP layers of a model with latent rows. */
static void grp_1_groups_of_the_draft(void) {
    struct plan plan;
    KVT_NEED(good("[pool.main]\ngroups = a\n[group.a]\nlayers = 3\nformat = latent\nbytes = 64\n"
                  "[pool.draft]\ngroups = b\n[group.b]\nlayers = 1\nformat = latent\nbytes = 32\n"
                  "[backend]\nkind = mtp\n[capacity]\ntokens = 8192\n"));
    KVT_NEED(plan_sizes(&parsed, &plan));
    KVT_EQ(plan.capacity.layout.n_pools, 2);
    KVT_EQ(plan.host_stride[0], 3 * 64 * 64);
    KVT_EQ(plan.host_stride[1], 32 * 64);
    KVT_NEED(good("[pool.main]\ngroups = a\n[group.a]\nlayers = 3\nformat = latent\nbytes = 64\n"
                  "[backend]\nkind = mtp\n[capacity]\ntokens = 8192\n"));
    KVT_NEED(plan_sizes(&parsed, &plan)); /* a plain draft beside it, as [model] says */
    KVT_EQ(plan.spec.draft.n_kv_heads, 2);
    KVT_EQ(plan.spec.draft.n_groups, 0);
}

/* CAP-8: a store that has one pool without a window, one of a window, and one of aligned chunks behind the backend's.
 */
static void cap_8_window_pools(void) {
    struct plan plan;
    struct store_config store;
    KVT_NEED(good("[model]\nhead_dim = 64\nmax_context = 65536\nmax_concurrency = 3\n[lease]\nprefill_chunk = 128\n"
                  "[backend]\nkind = mtp\n[pool.near]\ngroups = a\nwindow = 128\nshare = 250\n"
                  "[pool.far]\ngroups = b\nwindow = 8192\naligned = yes\nlead = 0\n"
                  "[group.a]\nlayers = 3\n[group.b]\nlayers = 1\n[capacity]\ntokens = 131072\n"));
    KVT_NEED(plan_sizes(&parsed, &plan));
    plan_store_config(&parsed, &plan, &store);
    const struct geom_layout *layout = &plan.capacity.layout;
    KVT_EQ(layout->n_pools, 4);
    KVT_EQ(store.more_pools, 2);
    KVT_OK(store_check_config(&store, complaints, sizeof complaints));
    KVT_EQ(store.window[2].tokens, 128);
    KVT_EQ(store.window[2].lead, 16); /* widest_verify: there is a backend */
    KVT_EQ(store.window[3].lead, 0);
    KVT_TRUE(store.window[3].aligned);
    KVT_EQ(layout->pages[0], 2048);
    KVT_EQ(store_window_pages(&store, 2), 6); /* 128 + 16 + 128 tokens, and a page for an end */
    KVT_EQ(layout->pages[2], 6 + 256);        /* 250 of 1000 that Main has beyond its 1024 */
    KVT_EQ(store_window_pages(&store, 3), 131);
    KVT_EQ(plan.spec.more[1].window.share, 1000); /* an eighth of a context is 128 pages */
    KVT_EQ(layout->pages[3], 131 + 1024);
    KVT_EQ(plan.host_stride[2], 3 * 2 * 2 * 64 * 64 * 2);
    KVT_EQ(plan.capacity.bytes, layout->total_bytes);
    KVT_EQ_STR(plan_pool(&parsed, &plan.spec, 3)->name, "far");
    KVT_NEED(good("[model]\nmax_context = 64\nmax_concurrency = 5\n[pool.a]\ngroups = a\nwindow = 8\n"
                  "[group.a]\nlayers = 1\n[capacity]\ntokens = 640\n")); /* contexts of a page */
    KVT_NEED(plan_sizes(&parsed, &plan));
    KVT_EQ(plan.capacity.layout.pages[1], 10);
    KVT_EQ(plan.spec.more[0].window.lead, 0);
}

/* CAP-4, CAP-8: automatic capacity takes windows into account, and the report shows every pool. */
static void cap_8_automatic_and_reported(void) {
    struct plan plan;
    char *text = NULL;
    size_t n = 0;
    KVT_NEED(make_plan("[pool.local]\ngroups = a\nwindow = 128\n[group.a]\nlayers = 5\n[host]\narena = 1MiB\n"
                       "[capacity]\nstate_bytes = 4096\nstate_slots = 40\n",
                       &plan));
    KVT_EQ(plan.capacity.bytes, plan.capacity.layout.total_bytes);
    KVT_TRUE(plan.capacity.slack < plan.capacity.curve.b_step + (1u << 20));
    KVT_TRUE(plan.capacity.layout.pages[1] > 64 && plan.capacity.layout.pages[1] <= plan.capacity.pages);
    FILE *out = open_memstream(&text, &n);
    plan_print(out, &parsed, &plan, NULL, false);
    plan_print(out, &parsed, &plan, NULL, true);
    fclose(out);
    KVT_HAS(text, "  local pool: a window of 128 tokens; ");
    KVT_HAS(text, "  local pool, group a: 5 layers, bf16, 2 KV heads, head_dim 64");
    KVT_HAS(text, "  local block table ");
    KVT_HAS(text, "A state image takes 4.0 KiB on each device; 40 slots\n");
    KVT_HAS(text, "  \"state_image_bytes\": 4096,\n  \"state_slots\": 40,\n");
    KVT_HAS(text, "  local pool: a page takes ");
    KVT_HAS(text, "\"local_pool_bytes\": ");
    KVT_HAS(text, "\"window\": 128, \"lead\": 0, \"aligned\": false, \"share\": 1000}]");
    free(text);
}

/* GRP-7: 2 heads on 4 devices. */
static void grp_7_more_devices_than_heads(void) {
    struct plan plan;
    KVT_NEED(
        make_plan("[devices]\ndevice.0 = host:0\ndevice.1 = host:1\ndevice.2 = host:2\ndevice.3 = host:3\n", &plan));
    KVT_EQ(plan.capacity.curve.b_step, 2 * 2 * 64 * 64 * 2); /* layers, K and V, D, tokens, BF16: one head */
    KVT_EQ(geom_page_bytes(&plan.spec.main), 4 * plan.capacity.curve.b_step);
    KVT_EQ(plan.host_stride[0], 4 * plan.capacity.curve.b_step);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(defaults_are_the_table),
                                             KVT_CASE(the_socket_is_in_the_runtime_folder),
                                             KVT_CASE(values_of_every_kind),
                                             KVT_CASE(every_mistake_has_its_line_and_a_way_out),
                                             KVT_CASE(all_mistakes_at_once),
                                             KVT_CASE(a_refused_file_changes_nothing),
                                             KVT_CASE(lines_may_be_long),
                                             KVT_CASE(junk),
                                             KVT_CASE(the_documented_file_is_the_table),
                                             KVT_CASE(settings_are_what_is_in_effect),
                                             KVT_CASE(a_reload_names_what_it_leaves),
                                             KVT_CASE(no_such_file),
                                             KVT_CASE(what_is_no_configuration_file),
                                             KVT_CASE(names_beside_the_socket),
                                             KVT_CASE(addresses_of_the_cold_tier),
                                             KVT_CASE(plan_auto_on_a_host_device),
                                             KVT_CASE(plan_is_limited_by_memory),
                                             KVT_CASE(plan_refusals_name_the_numbers),
                                             KVT_CASE(plan_backends),
                                             KVT_CASE(nine_groups_are_one_too_many),
                                             KVT_CASE(grp_1_groups_of_the_file),
                                             KVT_CASE(keep_1_one_plain_group_is_one_shape),
                                             KVT_CASE(grp_1_groups_of_the_draft),
                                             KVT_CASE(cap_8_window_pools),
                                             KVT_CASE(cap_8_automatic_and_reported),
                                             KVT_CASE(grp_7_more_devices_than_heads),
                                             { 0 } };
    return kvt_main("service_config", cases, argc, argv);
}
