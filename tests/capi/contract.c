/* What holds for the whole interface: contract MODEL.onnx. Logs, backends, the last error per thread, two
 * threads with two sessions of one model, a session from two threads, a child after fork, and that the process
 * is left as it was. */

#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { ROUNDS = 20, ROOM = 1 << 20 };

extern char **environ;

/* A sum over what belongs to the program: how signals are handled, the locale, the environment. */
static uint64_t surroundings(void) {
    uint64_t sum = 1469598103934665603u;
    char **each;
    const char *text = setlocale(LC_ALL, NULL);
    int i;
    for (i = 1; i < 32; i++) {
        struct sigaction now;
        memset(&now, 0, sizeof now);
        if (sigaction(i, NULL, &now) != 0) continue;
        sum = (sum ^ (uint64_t)(uintptr_t)now.sa_handler ^ (uint64_t)now.sa_flags) * 1099511628211u;
    }
    for (; *text != 0; text++) sum = (sum ^ (unsigned char)*text) * 1099511628211u;
    for (each = environ; *each != NULL; each++) {
        for (text = *each; *text != 0; text++) sum = (sum ^ (unsigned char)*text) * 1099511628211u;
    }
    return sum;
}

static tw_model *model;
static int64_t dims[TW_MAX_RANK];
static size_t rank_, bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int lines[3];
static char last_line[256];

static void heard(void *user, int32_t level, const char *line) {
    pthread_mutex_lock(&lock);
    CHECK(user == lines && level >= 0 && level < 3 && strchr(line, '\n') == NULL);
    lines[level]++;
    strncpy(last_line, line, sizeof last_line - 1);
    pthread_mutex_unlock(&lock);
}

/* Runs a session on inputs that depend on `seed`; the last output goes to `out`. */
struct work {
    int seed;
    size_t bytes;
    unsigned char *out;
};

static void *work(void *arg) {
    struct work *w = (struct work *)arg;
    tw_session *session = NULL;
    tw_tensor result;
    float *input = (float *)malloc(bytes);
    size_t i;
    int round;
    CHECK(input != NULL);
    DONE(tw_session_new(model, &session));
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < bytes / sizeof *input; i++) {
            input[i] = (float)((i * 7 + (size_t)w->seed + (size_t)round) % 31) / 31.0f;
        }
        DONE(tw_session_set_input(session, 0, TW_F32, rank_, dims, input, bytes));
        DONE(tw_session_run(session));
    }
    DONE(tw_session_output(session, 0, &result));
    w->bytes = result.bytes;
    w->out = (unsigned char *)malloc(result.bytes);
    CHECK(w->out != NULL);
    memcpy(w->out, result.data, result.bytes);
    tw_session_free(session);
    free(input);
    return NULL;
}

static tw_session *shared;
static int started, ended, busy, ran;

/* Runs the shared session again and again: another thread does the same, so some calls find it busy. */
static void *collide(void *arg) {
    int i, status, stop = 0;
    (void)arg;
    pthread_mutex_lock(&lock);
    started++;
    pthread_mutex_unlock(&lock);
    for (i = 0; i < 20000 && !stop; i++) {
        status = (int)tw_session_run(shared);
        CHECK(status == TW_OK || status == TW_BUSY);
        pthread_mutex_lock(&lock);
        if (status == TW_BUSY) busy++;
        else ran++;
        stop = busy > 0 && ran > 1;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    ended++;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The error of one thread is not that of another. */
static void *fails(void *arg) {
    (void)arg;
    CHECK(strcmp(tw_last_error(), "") == 0);
    GIVES(tw_session_run(NULL), TW_INVALID_ARGUMENT, "session is NULL");
    return NULL;
}

int main(int argc, char **argv) {
    tw_options options;
    tw_tensor_info info;
    tw_model *none = NULL;
    pthread_t threads[2];
    struct work works[4];
    tw_tensor result;
    unsigned char *kept;
    float *input;
    int i, status;
    pid_t child;
    const uint64_t before = surroundings();

    CHECK(argc == 2);
    memset(&options, 0, sizeof options);
    memset(works, 0, sizeof works);
    options.size = sizeof options;
    options.threads = 1;

    /* Backends. */
    options.backend = "cpu";
    DONE(tw_model_load(argv[1], &options, &model));
    tw_model_free(model);
    options.backend = "abacus";
    GIVES(tw_model_load(argv[1], &options, &none), TW_INVALID_ARGUMENT, "abacus");
    /* Not built in, or no such device here: in any case it is said, and nothing else is used instead. */
    options.backend = "rknn";
    GIVES(tw_model_load(argv[1], &options, &none), TW_UNSUPPORTED, "rknn");
    options.backend = NULL;
    CHECK(none == NULL);

    /* Logs: what was made, and each error. */
    tw_set_log(heard, lines);
    DONE(tw_model_load(argv[1], &options, &model));
    CHECK(lines[TW_LOG_INFO] > 0 && lines[TW_LOG_ERROR] == 0);
    GIVES(tw_model_load("/nowhere", &options, &none), TW_IO, "/nowhere");
    CHECK(lines[TW_LOG_ERROR] == 1 && strcmp(last_line, tw_last_error()) == 0);
    tw_set_log(NULL, NULL);
    GIVES(tw_model_load("/nowhere", &options, &none), TW_IO, "/nowhere");
    CHECK(lines[TW_LOG_ERROR] == 1);

    CHECK(pthread_create(&threads[0], NULL, fails, NULL) == 0 && pthread_join(threads[0], NULL) == 0);
    CHECK(strstr(tw_last_error(), "/nowhere") != NULL);

    DONE(tw_model_input(model, 0, &info));
    rank_ = (size_t)info.rank;
    for (i = 0, bytes = sizeof(float); i < info.rank; i++) {
        dims[i] = info.dims[i] < 0 ? 64 : info.dims[i];
        bytes *= (size_t)dims[i];
    }

    /* One after the other, then at the same time: the same bits. */
    for (i = 0; i < 4; i++) works[i].seed = i % 2;
    work(&works[0]);
    work(&works[1]);
    for (i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, work, &works[2 + i]) == 0);
    for (i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < 2; i++) {
        CHECK(works[i].bytes == works[2 + i].bytes);
        CHECK(memcmp(works[i].out, works[2 + i].out, works[i].bytes) == 0);
    }
    CHECK(memcmp(works[0].out, works[1].out, works[0].bytes) != 0);

    /* A session from two threads. */
    input = (float *)calloc(1, bytes);
    CHECK(input != NULL);
    DONE(tw_session_new(model, &shared));
    DONE(tw_session_set_input(shared, 0, TW_F32, rank_, dims, input, bytes));
    for (i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, collide, NULL) == 0);
    for (i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(started == 2 && ended == 2 && ran > 0 && busy > 0);
    DONE(tw_session_run(shared));
    tw_session_free(shared);

    /* A child has the model, and can run: new sessions, and those of its parent, whose other threads it
       does not have. */
    fflush(stdout);
    options.threads = 3;
    DONE(tw_model_load(argv[1], &options, &none));
    DONE(tw_session_new(none, &shared));
    tw_model_free(none);
    DONE(tw_session_set_input(shared, 0, TW_F32, rank_, dims, input, bytes));
    DONE(tw_session_run(shared));
    DONE(tw_session_output(shared, 0, &result));
    kept = (unsigned char *)malloc(result.bytes);
    CHECK(kept != NULL);
    memcpy(kept, result.data, result.bytes);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct work again;
        memset(&again, 0, sizeof again);
        alarm(60);
        work(&again);
        if (memcmp(again.out, works[0].out, again.bytes) != 0) _exit(9);
        free(again.out);
        DONE(tw_session_run(shared));
        DONE(tw_session_output(shared, 0, &result));
        if (memcmp(kept, result.data, result.bytes) != 0) _exit(10);
        tw_session_free(shared);
        tw_model_free(model);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    for (i = 0; i < 4; i++) free(works[i].out);
    free(input);
    free(kept);
    DONE(tw_session_run(shared));
    tw_session_free(shared);
    tw_model_free(model);
    CHECK(surroundings() == before);
    puts("contract: ok");
    return 0;
}
