/* Threads: threads NETWORK.onnx LANGUAGE.gguf. Two threads with sessions of one model, which have threads of
 * their own, give the bits of one after the other; models are loaded, errors kept and logs heard meanwhile; a
 * text is cancelled and looked at from another thread. For ThreadSanitizer too, so it takes few rounds. */

#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { ROUNDS = 3, TOKENS = 6, MOST = 1 << 16 };

static tw_model *network, *language;
static const char *path;
static uint32_t prompt[64];
static size_t prompt_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int lines;

static void heard(void *user, int32_t level, const char *line) {
    (void)user;
    (void)level;
    pthread_mutex_lock(&lock);
    lines += line[0] != 0;
    pthread_mutex_unlock(&lock);
}

/* What a thread has made. */
typedef struct made {
    int seed;
    size_t bytes;
    unsigned char out[MOST];
    uint32_t tokens[TOKENS];
} made;

static void run_network(made *to) {
    tw_session *session = NULL;
    tw_tensor_info info;
    tw_tensor result;
    int64_t dims[TW_MAX_RANK];
    size_t n = 1, i;
    float *input;
    int round;
    DONE(tw_model_input(network, 0, &info));
    for (i = 0; i < (size_t)info.rank; i++) {
        dims[i] = info.dims[i] > 0 ? info.dims[i] : i == 0 ? 1 : 64;
        n *= (size_t)dims[i];
    }
    input = (float *)malloc(n * sizeof *input);
    CHECK(input != NULL);
    DONE(tw_session_new(network, &session));
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < n; i++) input[i] = (float)((i * 7 + (size_t)(to->seed + round)) % 31) / 31.0f;
        DONE(tw_session_set_input(session, 0, TW_F32, (size_t)info.rank, dims, input, n * sizeof *input));
        DONE(tw_session_run(session));
    }
    DONE(tw_session_output(session, 0, &result));
    CHECK(result.bytes <= sizeof to->out);
    to->bytes = result.bytes;
    memcpy(to->out, result.data, result.bytes);
    tw_session_free(session);
    free(input);
}

static void run_language(made *to) {
    tw_llm *llm = NULL;
    int i;
    DONE(tw_llm_new(language, &llm));
    /* Each seed has a prompt of its own. */
    DONE(tw_llm_prompt(llm, prompt, prompt_count - (size_t)to->seed));
    for (i = 0; i < TOKENS; i++) {
        DONE(tw_llm_sample(llm, &to->tokens[i]));
        DONE(tw_llm_eval(llm, &to->tokens[i], 1));
    }
    tw_llm_free(llm);
}

static void *run(void *arg) {
    made *to = (made *)arg;
    tw_model *own = NULL;
    tw_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    run_network(to);
    GIVES(tw_model_load("/nowhere", &options, &own), TW_IO, "/nowhere");
    DONE(tw_model_load(path, &options, &own));
    run_language(to);
    CHECK(strstr(tw_last_error(), "/nowhere") != NULL);
    tw_model_free(own);
    return NULL;
}

static int32_t go_on(void *user, int32_t token, const char *text, size_t length) {
    (void)token;
    (void)text;
    (void)length;
    pthread_mutex_lock(&lock);
    ++*(size_t *)user;
    pthread_mutex_unlock(&lock);
    return 0;
}

static size_t told;

/* Writes until somebody cancels it. */
static void *write_on(void *arg) {
    tw_generation forever;
    tw_status status;
    memset(&forever, 0, sizeof forever);
    forever.size = sizeof forever;
    forever.ignore_end = 1;
    forever.context_shift = 1;
    do
        status = tw_llm_generate((tw_llm *)arg, prompt, prompt_count, &forever, go_on, &told, NULL);
    while (status == TW_BUSY);
    CHECK(status == TW_CANCELLED);
    return NULL;
}

static void cancel(void) {
    pthread_t thread;
    tw_llm *llm = NULL;
    size_t used = 0, seen = 0;
    DONE(tw_llm_new(language, &llm));
    CHECK(pthread_create(&thread, NULL, write_on, llm) == 0);
    while (seen < 2) {
        tw_status status = tw_llm_context(llm, NULL, &used);
        CHECK(status == TW_OK || status == TW_BUSY);
        pthread_mutex_lock(&lock);
        seen = told;
        pthread_mutex_unlock(&lock);
    }
    tw_llm_cancel(llm);
    CHECK(pthread_join(thread, NULL) == 0);
    DONE(tw_llm_prompt(llm, prompt, prompt_count));
    tw_llm_free(llm);
}

int main(int argc, char **argv) {
    static const char TEXT[] = "The file system";
    static made alone[2], both[2];
    pthread_t threads[2];
    tw_options options;
    int i, turn;
    CHECK(argc == 3);
    path = argv[1];
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 2;
    options.context = 64;
    tw_set_log(heard, NULL);
    for (turn = 0; turn < 3; turn++) {
        /* Weights are packed by the first run of a model, which in a new one both threads want at once. */
        tw_model_free(network);
        tw_model_free(language);
        network = language = NULL;
        DONE(tw_model_load(argv[1], &options, &network));
        DONE(tw_model_load(argv[2], &options, &language));
        if (turn == 0) {
            DONE(tw_tokenize(language, TEXT, strlen(TEXT), TW_WHOLE, prompt, 64, &prompt_count));
            CHECK(prompt_count > 2);
            for (i = 0; i < 2; i++) {
                alone[i].seed = i;
                run(&alone[i]);
            }
            CHECK(alone[0].bytes > 0 && memcmp(alone[0].out, alone[1].out, alone[0].bytes) != 0);
        }
        memset(both, 0, sizeof both);
        for (i = 0; i < 2; i++) {
            both[i].seed = i;
            CHECK(pthread_create(&threads[i], NULL, run, &both[i]) == 0);
        }
        for (i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        for (i = 0; i < 2; i++) CHECK(memcmp(&both[i], &alone[i], sizeof both[i]) == 0);
    }
    cancel();
    tw_set_log(NULL, NULL);
    CHECK(lines > 0);
    tw_model_free(network);
    tw_model_free(language);
    puts("threads: ok");
    return 0;
}
