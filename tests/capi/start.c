/* From nothing to the first result: start MODEL.onnx prints the milliseconds from the load of the model to the
 * end of its first run. Its first input is of floats; open extents are taken for 64. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tilewright.h"

int main(int argc, char **argv) {
    struct timespec begin, end;
    tw_model *model = NULL;
    tw_session *session = NULL;
    tw_options options;
    tw_tensor_info info;
    int64_t dims[TW_MAX_RANK];
    size_t bytes = sizeof(float);
    void *input = NULL;
    int i;
    if (argc != 2) return 2;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.threads = 1;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (tw_model_load(argv[1], &options, &model) || tw_model_input(model, 0, &info)) goto fail;
    for (i = 0; i < info.rank; i++) {
        dims[i] = info.dims[i] > 0 ? info.dims[i] : i == 0 ? 1 : 64;
        bytes *= (size_t)dims[i];
    }
    input = calloc(1, bytes);
    if (input == NULL || tw_session_new(model, &session) ||
        tw_session_bind_input(session, 0, TW_F32, (size_t)info.rank, dims, input, bytes) ||
        tw_session_run(session)) {
        goto fail;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.3f\n", (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6);
    tw_session_free(session);
    tw_model_free(model);
    free(input);
    return 0;
fail:
    fprintf(stderr, "%s\n", tw_last_error());
    return 1;
}
