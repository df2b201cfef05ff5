/* Little memory: memory MODEL. Each child of this program limits its address space to what it uses and some
 * more, loads the model and uses it. Each call must succeed or say TW_OUT_OF_MEMORY, and after the limit is
 * lifted everything must work. */

#include <errno.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Address space in use. */
static rlim_t in_use(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static int refused(int status) {
    if (status == TW_OK) return 0;
    if (status != TW_OUT_OF_MEMORY) {
        fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
        _exit(2);
    }
    return 1;
}

/* Uses a model; 1 if there was not enough memory. Frees all. */
static int use(const char *path) {
    static float zeros[64 * 4096];
    tw_options options;
    tw_model *model = NULL;
    tw_session *session = NULL;
    tw_llm *llm = NULL;
    tw_tensor_info info;
    tw_tensor result;
    uint32_t tokens[16];
    int64_t dims[TW_MAX_RANK];
    size_t count = 0, n = sizeof(float);
    int i, failed = 1;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 2;
    options.context = 64;
    if (refused(tw_model_load(path, &options, &model))) goto end;
    if (tw_model_kind_of(model) == TW_MODEL_NETWORK) {
        if (refused(tw_model_input(model, 0, &info))) goto end;
        for (i = 0; i < info.rank; i++) {
            dims[i] = info.dims[i] < 0 ? 64 : info.dims[i];
            n *= (size_t)dims[i];
        }
        if (n > sizeof zeros) _exit(3);
        if (refused(tw_session_new(model, &session))) goto end;
        if (refused(tw_session_set_input(session, 0, TW_F32, (size_t)info.rank, dims, zeros, n))) goto end;
        if (refused(tw_session_run(session)) || refused(tw_session_run(session))) goto end;
        if (refused(tw_session_output(session, 0, &result))) goto end;
    } else {
        if (refused(tw_tokenize(model, "The file", 8, TW_WHOLE, tokens, 16, &count))) goto end;
        if (refused(tw_llm_new(model, &llm))) goto end;
        if (refused(tw_llm_eval(llm, tokens, count)) || refused(tw_llm_sample(llm, tokens))) goto end;
    }
    failed = 0;
end:
    tw_session_free(session);
    tw_llm_free(llm);
    tw_model_free(model);
    return failed;
}

/* The stack's memory is the system's: what calls need of it is there before the limit is. */
static void grow_stack(void) {
    volatile char bytes[512 << 10];
    size_t i;
    for (i = 0; i < sizeof bytes; i += 1024) bytes[i] = 1;
}

int main(int argc, char **argv) {
    long more, step, refusals = 0, done = 0, most = 0;
    CHECK(argc == 2);
    /* Up to where three in a row have enough. Steps that are no multiple of pages meet other places. */
    for (more = 0, step = 4096; done < 3; more += step, step += step / 16) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct rlimit limit, before;
            int failed;
            grow_stack();
            if (getrlimit(RLIMIT_AS, &before) != 0) _exit(4);
            limit = before;
            limit.rlim_cur = in_use() + (rlim_t)more;
            if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(5);
            failed = use(argv[1]);
            if (setrlimit(RLIMIT_AS, &before) != 0) _exit(6);
            if (use(argv[1])) _exit(7);
            _exit(failed ? 10 : 0);
        }
        while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 10)) {
            fprintf(stderr, "with %ld bytes more than in use: %s %d\n", more,
                    WIFEXITED(status) ? "status" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            return 1;
        }
        refusals += WEXITSTATUS(status) == 10;
        done = WEXITSTATUS(status) == 0 ? done + 1 : 0;
        most = more;
        CHECK(more < 4L << 30);
    }
    CHECK(refusals > 3);
    printf("memory: ok, %ld limits refused, enough with %ld KiB more\n", refusals, most >> 10);
    return 0;
}
