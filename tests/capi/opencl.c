/* A device by its name: opencl NETWORK.onnx LANGUAGE.gguf. Both models by the backend "opencl" and by the CPU,
 * which must agree. Without a device it says so and passes, unless TILEWRIGHT_EXPECT_OPENCL is set. */

#include <math.h>
#include <stdint.h>

#include "check.h"

enum { MOST = 1 << 16, STEPS = 6 };

static const char *const BACKENDS[2] = {"cpu", "opencl"};
static int warnings;

static void heard(void *user, int32_t level, const char *line) {
    (void)user;
    if (level == TW_LOG_WARNING) warnings++;
    if (level != TW_LOG_INFO) printf("opencl: the library says: %s\n", line);
}

static void set(tw_options *options, int backend) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->threads = 2;
    options->context = 64;
    options->profile = 1;
    options->backend = BACKENDS[backend];
}

/* Two results differ by at most so much of the larger of 1 and the second. */
static void compare(const float *a, const float *b, size_t count, float bound, const char *what) {
    size_t i;
    for (i = 0; i < count; i++) {
        float size = fabsf(b[i]) > 1.0f ? fabsf(b[i]) : 1.0f;
        if (!(fabsf(a[i] - b[i]) <= bound * size)) {
            fprintf(stderr, "%s: element %lu: %g, by the CPU %g\n", what, (unsigned long)i, (double)a[i],
                    (double)b[i]);
            exit(1);
        }
    }
}

static float results[2][MOST];

static size_t run_network(const char *path, int backend) {
    tw_options options;
    tw_model *model = NULL;
    tw_session *session = NULL;
    tw_tensor_info info;
    tw_tensor result;
    tw_profile_row *rows;
    int64_t dims[TW_MAX_RANK];
    size_t n = 1, count = 0, on_device = 0, i;
    float *input;
    set(&options, backend);
    DONE(tw_model_load(path, &options, &model));
    DONE(tw_model_input(model, 0, &info));
    for (i = 0; i < (size_t)info.rank; i++) {
        dims[i] = info.dims[i] > 0 ? info.dims[i] : i == 0 ? 1 : 64;
        n *= (size_t)dims[i];
    }
    input = (float *)malloc(n * sizeof *input);
    CHECK(input != NULL);
    for (i = 0; i < n; i++) input[i] = (float)(i % 17) / 17.0f;
    DONE(tw_session_new(model, &session));
    DONE(tw_session_set_input(session, 0, TW_F32, (size_t)info.rank, dims, input, n * sizeof *input));
    DONE(tw_session_run(session));
    DONE(tw_session_run(session));
    DONE(tw_session_output(session, 0, &result));
    CHECK(result.dtype == TW_F32 && result.bytes <= sizeof results[0]);
    memcpy(results[backend], result.data, result.bytes);
    DONE(tw_session_profile(session, NULL, 0, &count));
    rows = (tw_profile_row *)calloc(count, sizeof *rows);
    CHECK(rows != NULL);
    DONE(tw_session_profile(session, rows, count, &count));
    for (i = 0; i < count; i++) on_device += strncmp(rows[i].kernel, "opencl", 6) == 0;
    printf("opencl: %s: %lu of %lu operations by the device\n", BACKENDS[backend],
           (unsigned long)on_device, (unsigned long)count);
    CHECK((on_device > 0) == (backend == 1));
    free(rows);
    free(input);
    tw_session_free(session);
    tw_model_free(model);
    return result.bytes / sizeof(float);
}

/* The logits after each step of one text: the tokens are those that the CPU has chosen. */
static uint32_t chosen[STEPS];

static size_t run_language(const char *path, int backend) {
    static const char TEXT[] = "The file system";
    tw_options options;
    tw_model *model = NULL;
    tw_llm *llm = NULL;
    uint32_t prompt[64];
    const float *logits = NULL;
    size_t count = 0, length = 0, kept;
    int i;
    set(&options, backend);
    DONE(tw_model_load(path, &options, &model));
    DONE(tw_tokenize(model, TEXT, strlen(TEXT), TW_WHOLE, prompt, 64, &count));
    DONE(tw_llm_new(model, &llm));
    DONE(tw_llm_prompt(llm, prompt, count));
    for (i = 0; i < STEPS; i++) {
        DONE(tw_llm_logits(llm, &logits, &length));
        kept = length < MOST / STEPS ? length : MOST / STEPS;
        memcpy(results[backend] + (size_t)i * kept, logits, kept * sizeof *logits);
        if (backend == 0) DONE(tw_llm_sample(llm, &chosen[i]));
        DONE(tw_llm_eval(llm, &chosen[i], 1));
    }
    tw_llm_free(llm);
    tw_model_free(model);
    return kept * STEPS;
}

int main(int argc, char **argv) {
    tw_options options;
    tw_model *model = NULL;
    tw_status status;
    size_t count;
    CHECK(argc == 3);
    tw_set_log(heard, NULL);
    set(&options, 1);
    status = tw_model_load(argv[1], &options, &model);
    if (status == TW_UNSUPPORTED && getenv("TILEWRIGHT_EXPECT_OPENCL") == NULL) {
        printf("!!! opencl: SKIPPED: %s\n", tw_last_error());
        return 0;
    }
    CHECK(status == TW_OK);
    tw_model_free(model);
    count = run_network(argv[1], 0);
    CHECK(run_network(argv[1], 1) == count);
    compare(results[1], results[0], count, 1e-3f, "the network");
    count = run_language(argv[2], 0);
    CHECK(run_language(argv[2], 1) == count);
    compare(results[1], results[0], count, 2e-2f, "the language model");
    CHECK(warnings == 0);
    puts("opencl: ok");
    return 0;
}
