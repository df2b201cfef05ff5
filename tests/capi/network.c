/* Networks from C: network MODEL.onnx, whose only input is float, and whose open extents may be 1, 64, 64 ... */

#include "check.h"

#include <time.h>

/* A whole file. */
static unsigned char *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes;
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    rewind(file);
    bytes = (unsigned char *)malloc(*size);
    CHECK(bytes != NULL && fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

/* Resident memory, in pages; 0 where the system does not say. */
static long resident(void) {
    long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        if (fscanf(file, "%ld %ld", &all, &resident) != 2) resident = 0;
        fclose(file);
    }
    return resident;
}

/* Threads of this process; 0 where the system does not say. */
static long threads(void) {
    char line[256];
    long count = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Threads: %ld", &count) == 1) break;
    }
    fclose(file);
    return count;
}

/* Whether this thread is the only one. Linux lets a joined thread be counted for a moment more: the one
   that waits is woken first, and on a busy machine it is faster. A thread that stays does so longer. */
static int alone(void) {
    const time_t start = time(NULL);
    while (threads() > 1) {
        if (time(NULL) > start + 5) return 0;
    }
    return 1;
}

/* Gather of the texts "no" and "yes" by the input, integers of 64 bits. */
static const unsigned char LABELS[] = {
    8, 8, 18, 0, 58, 76, 10, 17, 10, 1, 108, 10, 1, 105, 18, 1, 121, 34, 6, 71, 97, 116, 104, 101,
    114, 18, 1, 103, 42, 16, 8, 2, 16, 8, 50, 2, 110, 111, 50, 3, 121, 101, 115, 66, 1, 108, 90, 16,
    10, 1, 105, 18, 11, 10, 9, 8, 7, 18, 5, 10, 3, 18, 1, 110, 98, 16, 10, 1, 121, 18, 11, 10,
    9, 8, 8, 18, 5, 10, 3, 18, 1, 110, 66, 4, 10, 0, 16, 17,
};

/* Labels of classes, which are texts. */
static void labels(void) {
    const int64_t which[] = {1, 0, 1}, dims[] = {3};
    tw_model *model = NULL;
    tw_session *session = NULL;
    tw_tensor result;
    const char *text = NULL;
    const int64_t *numbers;
    DONE(tw_model_from_memory(LABELS, sizeof LABELS, 0, NULL, &model));
    DONE(tw_session_new(model, &session));
    DONE(tw_session_set_input(session, 0, TW_I64, 1, dims, which, sizeof which));
    DONE(tw_session_run(session));
    DONE(tw_session_output(session, 0, &result));
    CHECK(result.dtype == TW_I64 && result.rank == 1 && result.dims[0] == 3);
    numbers = (const int64_t *)result.data;
    DONE(tw_model_output_text(model, 0, numbers[0], &text));
    CHECK(strcmp(text, "yes") == 0);
    DONE(tw_model_output_text(model, 0, numbers[1], &text));
    CHECK(strcmp(text, "no") == 0 && numbers[2] == numbers[0]);
    GIVES(tw_model_output_text(model, 0, 2, &text), TW_NOT_FOUND, "there are 2");
    GIVES(tw_model_output_text(model, 0, -1, &text), TW_NOT_FOUND, "there are 2");
    GIVES(tw_model_output_text(model, 1, 0, &text), TW_NOT_FOUND, "1 outputs");
    GIVES(tw_model_output_text(model, 0, 0, NULL), TW_INVALID_ARGUMENT, "value is NULL");
    GIVES(tw_model_output_text(NULL, 0, 0, &text), TW_INVALID_ARGUMENT, "model is NULL");
    tw_session_free(session);
    tw_model_free(model);
}

int main(int argc, char **argv) {
    tw_model *model = NULL, *copy = NULL, *lent = NULL;
    tw_session *one = NULL, *two = NULL;
    tw_options options;
    tw_tensor_info info;
    tw_tensor result, again;
    tw_profile_row *rows;
    int64_t dims[TW_MAX_RANK];
    size_t i, n = 1, index = 99, size, count = 0, rank;
    unsigned char *file, *small;
    float *data;
    void *kept;
    long before, after;
    int turn;

    CHECK(argc == 2);
    memset(&options, 0, sizeof options);
    CHECK(tw_abi_version() == TW_ABI_VERSION);
    CHECK(strcmp(tw_version(), TW_VERSION) == 0 && strcmp(tw_last_error(), "") == 0);
    CHECK(strcmp(tw_status_name(TW_BUSY), "TW_BUSY") == 0);
    CHECK(strcmp(tw_status_name(12345), "TW_UNKNOWN") == 0);

    /* What cannot be loaded. */
    GIVES(tw_model_load("/nowhere/model.onnx", NULL, &model), TW_IO, "/nowhere/model.onnx");
    GIVES(tw_model_load(NULL, NULL, &model), TW_INVALID_ARGUMENT, "path is NULL");
    GIVES(tw_model_load(argv[1], NULL, NULL), TW_INVALID_ARGUMENT, "out is NULL");
    GIVES(tw_model_load("\xff\xfe", NULL, &model), TW_INVALID_ARGUMENT, "UTF-8");
    GIVES(tw_model_load(argv[1], &options, &model), TW_INVALID_ARGUMENT, "0 bytes");
    GIVES(tw_model_from_memory("no model", 8, 0, NULL, &model), TW_FORMAT, "");
    GIVES(tw_model_from_memory("", 0, 0, NULL, &model), TW_FORMAT, "");
    GIVES(tw_model_from_memory("x", 1, 64, NULL, &model), TW_INVALID_ARGUMENT, "flags");
    options.size = sizeof options;
    options.isa = "abacus";
    GIVES(tw_model_load(argv[1], &options, &model), TW_INVALID_ARGUMENT, "abacus");
    CHECK(model == NULL);

    /* Options of a later header, with nothing in what is new, and with something. */
    {
        struct { tw_options options; uint64_t later; } large;
        memset(&large, 0, sizeof large);
        large.options.size = sizeof large;
        large.options.threads = 1;
        large.options.profile = 1;
        large.later = 1;
        GIVES(tw_model_load(argv[1], &large.options, &model), TW_INVALID_ARGUMENT, "does not know");
        large.later = 0;
        DONE(tw_model_load(argv[1], &large.options, &model));
    }

    /* What it wants. */
    CHECK(tw_model_kind_of(model) == TW_MODEL_NETWORK && tw_model_kind_of(NULL) == TW_MODEL_NONE);
    CHECK(tw_model_input_count(model) == 1 && tw_model_input_count(NULL) == 0);
    CHECK(tw_model_output_count(model) >= 1);
    {
        const char *text = NULL;
        GIVES(tw_model_output_text(model, 0, 0, &text), TW_NOT_FOUND, "there are 0");
    }
    labels();
    DONE(tw_model_input(model, 0, &info));
    CHECK(info.dtype == TW_F32 && info.rank > 0);
    DONE(tw_model_find_input(model, info.name, &index));
    CHECK(index == 0);
    GIVES(tw_model_find_input(model, "nobody", &index), TW_NOT_FOUND, info.name);
    GIVES(tw_model_input(model, 1, &info), TW_NOT_FOUND, "index 1");
    GIVES(tw_model_input(NULL, 0, &info), TW_INVALID_ARGUMENT, "model is NULL");
    GIVES(tw_model_input(model, 0, NULL), TW_INVALID_ARGUMENT, "out is NULL");
    rank = (size_t)info.rank;
    for (i = 0; i < rank; i++) {
        dims[i] = info.dims[i] >= 0 ? info.dims[i] : i == 0 ? 1 : 64;
        n *= (size_t)dims[i];
    }
    data = (float *)malloc(n * sizeof *data);
    CHECK(data != NULL);
    for (i = 0; i < n; i++) data[i] = (float)(i % 17) / 17.0f;

    /* Misuse, and inputs that do not fit. */
    GIVES(tw_session_new(NULL, &one), TW_INVALID_ARGUMENT, "model is NULL");
    DONE(tw_session_new(model, &one));
    DONE(tw_session_new(model, &two));
    GIVES(tw_session_run(one), TW_STATE, "never set");
    GIVES(tw_session_run(NULL), TW_INVALID_ARGUMENT, "session is NULL");
    GIVES(tw_session_output(one, 0, &result), TW_STATE, "run");
    size = n * sizeof *data;
    GIVES(tw_session_set_input(one, 1, TW_F32, rank, dims, data, size), TW_NOT_FOUND, "index 1");
    GIVES(tw_session_set_input(one, 0, TW_I8, rank, dims, data, n), TW_TYPE, "expected f32");
    GIVES(tw_session_set_input(one, 0, 77, rank, dims, data, n), TW_INVALID_ARGUMENT, "tw_dtype");
    GIVES(tw_session_set_input(one, 0, TW_F32, rank - 1, dims, data, size), TW_SHAPE, "expected");
    GIVES(tw_session_set_input(one, 0, TW_F32, 1000, dims, data, size), TW_SHAPE, "1000 extents");
    GIVES(tw_session_set_input(one, 0, TW_F32, rank, dims, data, size - 1), TW_SHAPE, "bytes");
    GIVES(tw_session_set_input(one, 0, TW_F32, rank, dims, NULL, size), TW_INVALID_ARGUMENT, "NULL");
    dims[rank - 1] = -dims[rank - 1];
    GIVES(tw_session_set_input(one, 0, TW_F32, rank, dims, data, size), TW_SHAPE, "expected");
    dims[rank - 1] = INT64_MAX;
    GIVES(tw_session_set_input(one, 0, TW_F32, rank, dims, data, size), TW_SHAPE, "");
    dims[rank - 1] = (int64_t)(n);
    for (i = 0; i + 1 < rank; i++) dims[rank - 1] /= dims[i];

    /* Runs: a copied input, a bound one, a bound output. */
    DONE(tw_session_set_input(one, 0, TW_F32, rank, dims, data, size));
    DONE(tw_session_run(one));
    DONE(tw_session_output(one, 0, &result));
    GIVES(tw_session_output(one, 99, &again), TW_NOT_FOUND, "index 99");
    CHECK(result.bytes > 0 && result.data != NULL && result.rank >= 1);
    kept = malloc(result.bytes);
    CHECK(kept != NULL);
    memcpy(kept, result.data, result.bytes);
    DONE(tw_session_bind_input(two, 0, TW_F32, rank, dims, data, size));
    small = (unsigned char *)malloc(result.bytes);
    CHECK(small != NULL);
    memset(small, 0xa5, result.bytes);
    DONE(tw_session_bind_output(two, 0, small, result.bytes - 1));
    GIVES(tw_session_run(two), TW_BUFFER_TOO_SMALL, "bytes");
    for (i = 0; i < result.bytes; i++) CHECK(small[i] == 0xa5);
    GIVES(tw_session_output(two, 0, &again), TW_STATE, "run");
    DONE(tw_session_bind_output(two, 0, small, result.bytes));
    DONE(tw_session_run(two));
    CHECK(memcmp(small, kept, result.bytes) == 0);
    data[0] += 1.0f; /* The bound input is read anew, the copied one is not. */
    DONE(tw_session_run(two));
    DONE(tw_session_run(one));
    CHECK(memcmp(small, kept, result.bytes) != 0);
    DONE(tw_session_output(one, 0, &result));
    CHECK(memcmp(result.data, kept, result.bytes) == 0);
    data[0] -= 1.0f;
    GIVES(tw_session_bind_output(two, 99, small, 1), TW_NOT_FOUND, "index 99");

    /* Times: asked for their number first. */
    DONE(tw_session_profile(one, NULL, 0, &count));
    CHECK(count > 3);
    rows = (tw_profile_row *)calloc(count, sizeof *rows);
    CHECK(rows != NULL);
    GIVES(tw_session_profile(one, rows, 1, &count), TW_BUFFER_TOO_SMALL, "room for 1");
    DONE(tw_session_profile(one, rows, count, &count));
    CHECK(rows[0].calls == 2 && rows[0].seconds > 0 && strlen(rows[0].kernel) > 0);
    free(rows);

    /* Sessions outlive their model; NULL may be freed. */
    tw_model_free(model);
    DONE(tw_session_run(one));
    DONE(tw_session_run(two));
    CHECK(memcmp(small, kept, result.bytes) == 0);
    tw_session_free(two);
    tw_session_free(one);
    tw_session_free(NULL);
    tw_model_free(NULL);

    /* From memory: copied, then lent. */
    file = contents(argv[1], &size);
    DONE(tw_model_from_memory(file, size, TW_BORROW, NULL, &lent));
    {
        unsigned char *short_lived = (unsigned char *)malloc(size);
        CHECK(short_lived != NULL);
        memcpy(short_lived, file, size);
        DONE(tw_model_from_memory(short_lived, size, 0, NULL, &copy));
        memset(short_lived, 0, size);
        free(short_lived);
    }
    for (i = 0; i < 2; i++) {
        DONE(tw_session_new(i == 0 ? lent : copy, &one));
        DONE(tw_session_set_input(one, 0, TW_F32, rank, dims, data, n * sizeof *data));
        DONE(tw_session_run(one));
        DONE(tw_session_output(one, 0, &result));
        CHECK(memcmp(result.data, kept, result.bytes) == 0);
        tw_session_free(one);
    }
    tw_model_free(lent);
    tw_model_free(copy);

    /* A file that ends too early is refused, wherever that is. */
    for (i = 0; i < size; i += size / 40 + 1) {
        tw_model *none = NULL;
        CHECK(tw_model_from_memory(file, i, 0, NULL, &none) != TW_OK && none == NULL);
    }
    free(file);

    /* A limit that nothing fits into. */
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.memory_limit = 4096;
    options.threads = 1;
    DONE(tw_model_load(argv[1], &options, &model));
    DONE(tw_session_new(model, &one));
    DONE(tw_session_set_input(one, 0, TW_F32, rank, dims, data, n * sizeof *data));
    GIVES(tw_session_run(one), TW_OUT_OF_MEMORY, "");
    tw_session_free(one);
    tw_model_free(model);

    /* No thread stays behind, and no memory. What the system counts wavers by hundreds of pages, and
       by more with threads; a page a round would be a thousand. A step that does not come again is
       none of ours: what grows, grows three times. */
    options.memory_limit = 0;
    before = after = 0;
    for (turn = 0; turn < 3; turn++) {
        for (i = 0; i < 1050; i++) {
            long now;
            options.threads = i < 10 ? 2 : 1;
            DONE(tw_model_load(argv[1], &options, &model));
            DONE(tw_session_new(model, &one));
            DONE(tw_session_set_input(one, 0, TW_F32, rank, dims, data, n * sizeof *data));
            DONE(tw_session_run(one));
            tw_model_free(model);
            tw_session_free(one);
            CHECK(alone());
            now = resident();
            if (i == 20 || (i > 20 && i < 70 && now < before)) before = now;
            if (i == 1000 || (i > 1000 && now < after)) after = now;
        }
        if (after <= before + 700) break;
    }
    CHECK(turn < 3);
    free(kept);
    free(small);
    free(data);
    puts("network: ok");
    return 0;
}
